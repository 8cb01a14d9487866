"""py-spy's trace of a process tree (`--format chrometrace --subprocesses --threads --idle`) as spans of stacks."""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec

_PROCESS = re.compile(r'process (\d+):"(.*)"?$', re.DOTALL)
_THREAD = re.compile(r"thread \((\d+)\)")
_PYTHON = re.compile(r"\S*python[0-9.]*")


@dataclass(frozen=True)
class SampledFrame:
    """A function and its file, outermost first in a stack."""

    name: str
    file: str

    @property
    def text(self) -> str:
        return f"{self.name}@{self.file}"


@dataclass(frozen=True, kw_only=True)
class StackSpan:
    """A stack that was seen without change from `start_s` to `end_s`, on the sampler's clock."""

    start_s: float
    end_s: float
    frames: tuple[SampledFrame, ...]


@dataclass(frozen=True, kw_only=True)
class SampledThread:
    """All stacks of one thread, in order."""

    is_main: bool
    spans: tuple[StackSpan, ...]

    @cached_property
    def _starts(self) -> list[float]:
        return [span.start_s for span in self.spans]

    def at(self, moment_s: float) -> tuple[SampledFrame, ...] | None:
        """The stack at a moment, or None before its first and after its last sample."""
        place = bisect_right(self._starts, moment_s) - 1
        if place < 0 or moment_s >= self.spans[place].end_s:
            return None
        return self.spans[place].frames


@dataclass(frozen=True, kw_only=True)
class SampledProcess:
    """One process of the tree. `ancestors` are the processes above it, the first one outermost."""

    pid: int
    title: str
    ancestors: tuple[int, ...]
    threads: tuple[SampledThread, ...]

    @cached_property
    def first_s(self) -> float:
        """The first sample; of a process that has none left, never."""
        return min((span.start_s for thread in self.threads for span in thread.spans), default=math.inf)

    @property
    def main(self) -> tuple[SampledThread, ...]:
        return tuple(thread for thread in self.threads if thread.is_main)


class _Args(msgspec.Struct):
    filename: str = ""


class _Event(msgspec.Struct):
    """One event of the trace: a frame begins or ends."""

    name: str
    ph: str
    pid: int
    tid: int
    ts: float
    args: _Args = msgspec.field(default_factory=_Args)


@dataclass
class _Track:
    """A thread while its events are replayed."""

    stack: list[_Event] = field(default_factory=list)
    since: float | None = None
    spans: list[StackSpan] = field(default_factory=list)
    head: tuple[str, ...] = ()

    def take(self, event: _Event) -> None:
        if self.since is not None and event.ts > self.since and self.stack:
            frames = [one for one in self.stack if not _is_heading(one)]
            self.head = tuple(one.name for one in self.stack if _is_heading(one))
            self.spans.append(
                StackSpan(
                    start_s=self.since / 1e6,
                    end_s=event.ts / 1e6,
                    frames=tuple(SampledFrame(one.name, one.args.filename) for one in frames),
                )
            )
        self.since = event.ts
        if event.ph == "B":
            self.stack.append(event)
        elif event.ph == "E" and self.stack:
            self.stack.pop()


def read_trace(data: bytes) -> tuple[SampledProcess, ...]:
    """Every process in the order of its first sample; raise msgspec.MsgspecError where the file is not such a trace."""
    tracks: defaultdict[tuple[int, int], _Track] = defaultdict(_Track)
    for event in msgspec.json.decode(data, type=list[_Event]):
        tracks[event.pid, event.tid].take(event)
    by_process: defaultdict[int, list[_Track]] = defaultdict(list)
    for (pid, _), track in tracks.items():
        if track.spans:
            by_process[pid].append(track)
    processes = [_process(pid, found) for pid, found in by_process.items()]
    return tuple(sorted(processes, key=lambda process: process.first_s))


def placed(
    processes: Sequence[SampledProcess], offset_s: float, ends_s: Mapping[int, float]
) -> tuple[SampledProcess, ...]:
    """On a clock that began `offset_s` before the sampler's, each process until it ended where that is known."""
    return tuple(
        replace(process, threads=tuple(_moved(thread, offset_s, ends_s.get(process.pid)) for thread in process.threads))
        for process in processes
    )


def _moved(thread: SampledThread, offset_s: float, end_s: float | None) -> SampledThread:
    moved = (
        replace(span, start_s=span.start_s + offset_s, end_s=min(span.end_s + offset_s, end_s or math.inf))
        for span in thread.spans
    )
    return replace(thread, spans=tuple(span for span in moved if span.end_s > span.start_s))


def _process(pid: int, tracks: Sequence[_Track]) -> SampledProcess:
    heads = [match for match in map(_PROCESS.match, tracks[0].head) if match is not None]
    commands = {int(match.group(1)): match.group(2) for match in heads}
    return SampledProcess(
        pid=pid,
        title=process_title(commands.get(pid, "")),
        ancestors=tuple(number for number in commands if number != pid),
        threads=tuple(SampledThread(is_main=_is_main(pid, track.head), spans=tuple(track.spans)) for track in tracks),
    )


def process_title(command: str) -> str:
    """A process as people call it, without its arguments: `vllm serve`, `child process`, `python -c`."""
    words = command.strip('"').split()
    if "multiprocessing" in command:
        return "resource tracker" if "resource_tracker" in command else "child process"
    words = [word for word in words if not _PYTHON.fullmatch(word)] or words
    if words[:1] and words[0].startswith("-"):
        return f"python {words[0]}" if words[0] in ("-c", "-m") else "python"
    subcommand = [word for word in words[1:2] if word.isidentifier()]
    return " ".join([Path(words[0]).name, *subcommand]) if words else "process"


def _is_heading(event: _Event) -> bool:
    return not event.args.filename and event.name.startswith(("process ", "thread ("))


def _is_main(pid: int, head: Sequence[str]) -> bool:
    """On Linux the first thread of a process has the number of the process."""
    threads = [match for match in map(_THREAD.match, head) if match is not None]
    return any(int(match.group(1)) == pid for match in threads)
