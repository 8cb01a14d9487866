"""py-spy's collapsed stacks (`record --format raw --threads --subprocesses`) as records."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_PROCESS = re.compile(r'process (\d{1,18}):"(.*)"', re.DOTALL)
_THREAD = re.compile(r"thread \((?:0x)?([0-9A-Fa-f]+)\)(?:: (.*))?")
# A command line may hold line breaks: a record ends where the next one begins.
_RECORDS = re.compile(r"(?<=\d)\n(?=process \d+:\"|thread \()")
_CHILD_STARTS = re.compile(r"/multiprocessing/(process|popen_fork|spawn|forkserver)\.py$")
# A damaged file may hold more digits than Python converts.
_COUNT = re.compile(r"\d{1,18}")
_FRAME = re.compile(r"(.*) \((.*):(\d{1,18})\)")


# What the code of `python -c` is called.
CODE = "-c"


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A function of Python, the file it is in, and the line that ran."""

    function: str
    file: str
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Stack:
    """`samples` looks at one thread that showed these frames, the outermost first; `processes` likewise."""

    processes: tuple[int, ...]
    thread: str
    is_main: bool
    frames: tuple[Frame, ...]
    samples: int

    @property
    def process(self) -> int:
        return self.processes[-1] if self.processes else 0


def read_stacks(text: str) -> tuple[Stack, ...]:
    """All stacks of a file; a last line that was cut off has no count and is left out."""
    found = (_read(record) for record in _RECORDS.split(text.rstrip("\n")))
    return tuple(stack for stack in found if stack is not None)


def _read(line: str) -> Stack | None:
    body, _, count = line.rpartition(" ")
    if not body or not _COUNT.fullmatch(count):
        return None
    processes: list[int] = []
    frames: list[Frame] = []
    thread, number = "", ""
    for part in _parts(body):
        if (process := _PROCESS.fullmatch(part)) is not None and not frames:
            processes.append(int(process[1]))
        elif (of_thread := _THREAD.fullmatch(part)) is not None and not frames:
            number, thread = of_thread[1], of_thread[2] or of_thread[1]
        elif (frame := _FRAME.fullmatch(part)) is not None:
            frames.append(Frame(function=frame[1], file=frame[2], line=int(frame[3])))
        else:
            frames.append(Frame(function=part, file=""))
    # On Linux the main thread has the number of its process.
    is_main = thread == "MainThread" or (bool(processes) and number == str(processes[-1]))
    return Stack(processes=tuple(processes), thread=thread, is_main=is_main, frames=tuple(frames), samples=int(count))


def with_command_code(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    """Give code after `python -c` a name: elsewhere `<string>` is code that a library made."""
    return tuple(
        replace(stack, frames=tuple(_named_code(frame) for frame in stack.frames))
        if stack.frames and (stack.frames[0].function, stack.frames[0].file) == ("<module>", "<string>")
        else stack
        for stack in stacks
    )


def _named_code(frame: Frame) -> Frame:
    # Methods that dataclasses and named tuples make are in `<string>` too.
    is_made = frame.file != "<string>" or frame.function.endswith("__")
    return frame if is_made else replace(frame, file=CODE)


def without_parent(stack: Stack) -> Stack:
    """A child's stack from its own start on: one that was forked has its parent's frames below its own."""
    start = max((n for n, frame in enumerate(stack.frames) if _CHILD_STARTS.search(frame.file)), default=None)
    return stack if start is None else replace(stack, frames=stack.frames[start + 1 :])


def _parts(body: str) -> Iterable[str]:
    """Split at semicolons, but for those inside a command line."""
    rest = body
    while rest.startswith("process "):
        end = rest.find('";')
        if end < 0:
            break
        # The command of one process may hold quotation marks; the next part begins with a word of py-spy's.
        while not re.match(r"process \d+:\"|thread \(", rest[end + 2 :]) and (after := rest.find('";', end + 2)) > 0:
            end = after
        yield rest[: end + 1]
        rest = rest[end + 2 :]
    yield from rest.split(";")


def of_program(stacks: Sequence[Stack]) -> tuple[int, tuple[Stack, ...]]:
    """The program's first process that showed Python, and the stacks of it and its children."""
    if not stacks:
        return 0, ()
    depth = min(len(stack.processes) for stack in stacks)
    at_top: dict[int, int] = {}
    for stack in stacks:
        if len(stack.processes) == depth:
            at_top[stack.process] = at_top.get(stack.process, 0) + stack.samples
    first = max(at_top, key=lambda pid: at_top[pid])
    return first, tuple(stack for stack in stacks if first in stack.processes or not stack.processes)
