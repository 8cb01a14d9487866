"""The cell of the time ledger each sampled stack belongs to, and the user's function and line that own it."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath

from llm_perf_opt.core.documents import HostRow
from llm_perf_opt.diagnosis.host.stacks import Frame, Stack

PYTHON, IMPORTS, INTERPRETER = "host.work.python", "host.startup.imports", "host.startup.interpreter"
# Comprehensions and lambdas have no name a reader knows: the function around them has.
_NAMELESS = re.compile(r"<(listcomp|setcomp|dictcomp|genexpr|lambda)>")
_LIBRARY = re.compile(r"(^|/)(site|dist)-packages/|(^|/)lib/python\d|^<")
_PACKAGE = re.compile(
    r"(?:site|dist)-packages/([^/]+?)(?:/|\.py$|\.)|lib/python\d[\d.]*/(?!(?:site|dist)-packages)(?:lib-dynload/)?([^/]+?)(?:/|\.py$|\.)"
)
_MACHINERY = "<frozen"

Lines = Callable[[str, int], str]


@dataclass(frozen=True, kw_only=True)
class _Rule:
    cell: str
    frames: tuple[re.Pattern[str], ...]
    lines: tuple[re.Pattern[str], ...]
    is_leaf: bool

    def fits(self, frames: Sequence[str], line: str) -> bool:
        seen = frames[-1:] if self.is_leaf else frames
        if any(pattern.search(frame) for pattern in self.frames for frame in seen):
            return True
        return bool(line) and any(pattern.search(line) for pattern in self.lines)


@cache
def _rules() -> tuple[_Rule, ...]:
    data = tomllib.loads(Path(__file__).with_name("owners.toml").read_text(encoding="utf-8"))
    return tuple(
        _Rule(
            cell=rule["cell"],
            frames=tuple(re.compile(text) for text in rule.get("frames", ())),
            lines=tuple(re.compile(text) for text in rule.get("lines", ())),
            is_leaf=rule.get("where") == "leaf",
        )
        for rule in data["rule"]
    )


@dataclass(kw_only=True)
class _Group:
    """Samples of one owner; the line and the leaf that were seen most stand for all of them."""

    samples: int = 0
    lines: Counter[int] = field(default_factory=Counter)
    leaves: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)


def host_rows(stacks: Iterable[Stack], line_of: Lines) -> tuple[HostRow, ...]:
    """One row for each cell and owner, the most samples first. `line_of` gives a line of source code, or nothing."""
    groups: dict[tuple[str, str, str], _Group] = {}
    for stack in stacks:
        cell, owner, leaf = owned(stack, line_of)
        group = groups.setdefault((cell, owner.function, owner.file), _Group())
        group.samples += stack.samples
        group.lines[owner.line] += stack.samples
        group.leaves[leaf] += stack.samples
        if owner.line:
            group.texts[line_of(owner.file, owner.line).strip()] += stack.samples
    rows = (_row(key, group) for key, group in groups.items())
    return tuple(sorted(rows, key=lambda row: (-row.samples, row.cell, row.file, row.function)))


def _row(key: tuple[str, str, str], group: _Group) -> HostRow:
    cell, function, file = key
    line = group.lines.most_common(1)[0][0]
    return HostRow(
        cell=cell,
        function=function,
        file=file,
        line=line,
        leaf=group.leaves.most_common(1)[0][0],
        text=group.texts.most_common(1)[0][0] if group.texts else "",
        samples=group.samples,
    )


def owned(stack: Stack, line_of: Lines) -> tuple[str, Frame, str]:
    """The cell, the frame that owns it, and the leaf behind it, empty where that is the owner itself."""
    if not stack.frames:
        return INTERPRETER, Frame(function="", file=""), ""
    leaf = stack.frames[-1]
    cell = cell_of(stack.frames, line_of(leaf.file, leaf.line).strip())
    if cell == IMPORTS:
        return cell, _imported(stack.frames), ""
    owner = _owner(stack.frames)
    return cell, owner, "" if owner == leaf else place_of(leaf.function, leaf.file, leaf.line)


def cell_of(frames: Sequence[Frame], line: str) -> str:
    """Of the first rule that fits; what fits none is work in Python."""
    # From Python 3.11 on a method's name begins with its class.
    names = [f"{frame.file}: {frame.function.rpartition('.')[2]}" for frame in frames]
    return next((rule.cell for rule in _rules() if rule.fits(names, line)), PYTHON)


def _owner(frames: Sequence[Frame]) -> Frame:
    """The innermost frame of the user's own code that has a name, else the innermost of all."""
    own = [frame for frame in frames if not _LIBRARY.search(frame.file) and frame.file]
    named = [frame for frame in own if not _NAMELESS.search(frame.function)]
    return next(reversed(named or own or frames))


def _imported(frames: Sequence[Frame]) -> Frame:
    """The package whose import takes the time: the outermost that is not the program's own."""
    first = next((n for n, frame in enumerate(frames) if "importlib" in frame.file), len(frames))
    for frame in frames[first:]:
        if frame.file.startswith(_MACHINERY):
            continue
        package = _PACKAGE.search(frame.file)
        if package is not None and not frame.file.endswith("importlib/__init__.py"):
            return Frame(function=package[1] or package[2], file="")
    # A module of the program itself, or one that is being found: the line that imports it.
    return _owner(frames[: max(first, 1)])


def place_of(function: str, file: str, line: int) -> str:
    """As a reader looks for it: `tidy() at slow.py:3`."""
    name = "" if not function else function if function.startswith("<") else f"{function}()"
    if function == "<module>":
        name = ""
    if not file:
        return function
    where = f"{short(file)}:{line}" if line else short(file)
    return f"{name} at {where}" if name else where


def short(file: str) -> str:
    """A file of a library from its package on, any other by its name."""
    package = _PACKAGE.search(file)
    if package is not None:
        return file[package.start(1 if package[1] else 2) :]
    return PurePath(file).name


def busiest(stacks: Iterable[Stack], line_of: Lines) -> Mapping[str, tuple[int, str]]:
    """Each thread's samples outside of waits, and what it was most in; threads that only waited are left out."""
    found: dict[str, list[Stack]] = {}
    for stack in stacks:
        if stack.frames and not owned(stack, line_of)[0].startswith(("host.wait", "host.exit")):
            found.setdefault(f"{stack.process}/{stack.thread}", []).append(stack)
    return {name: (sum(stack.samples for stack in mine), top_place(mine, line_of)) for name, mine in found.items()}


def top_place(stacks: Sequence[Stack], line_of: Lines) -> str:
    row = host_rows(stacks, line_of)[0]
    return place_of(row.function, row.file, row.line)
