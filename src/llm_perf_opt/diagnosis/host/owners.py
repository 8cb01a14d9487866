"""The cell of the time ledger each sampled stack belongs to, and the user's function and line that own it."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
MODEL, RELOAD = "host.startup.model", "host.work.reload"
_LOADS = re.compile(r"(^|\.)from_pretrained$|(^|\.)load_state_dict$|/torch/serialization\.py$|/safetensors/")
_IMPORT_LINE = re.compile(r"(?:import|from)\s+(\w+)")
_MACHINERY = "<frozen"
# Between a line of the user's and the function in C that it calls lie at most this many frames of wrappers.
NEAR = 3

Lines = Callable[[str, int], str]
# What a line of a function does, as `calls` names it: file, function, line.
Names = Callable[[str, str, int], tuple[str, ...]]
Patterns = tuple[re.Pattern[str], ...]


def no_names(file: str, function: str, line: int) -> tuple[str, ...]:
    """Stand-in where no source code can be read."""
    del file, function, line
    return ()


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A row of `owners.toml`; `of` is empty but for those that refine a cell."""

    cell: str
    frames: Patterns
    names: Patterns
    lines: Patterns
    is_leaf: bool
    under: Patterns
    of: tuple[str, ...]
    also: Patterns
    without: Patterns
    is_deep: bool

    def fits_frames(self, frames: Sequence[str]) -> bool:
        fits = _any(self.frames, frames[-1:] if self.is_leaf else frames)
        return fits and (not self.under or _any(self.under, frames))

    def fits_line(self, names: Sequence[str], line: str) -> bool:
        """The names of a line; its text where it has none."""
        if names:
            is_refused = bool(self.also) and not _any(self.also, names)
            return _any(self.names, names) and not is_refused and not _any(self.without, names)
        return bool(line) and _any(self.lines, (line,))


def _any(patterns: Patterns, texts: Sequence[str]) -> bool:
    return any(pattern.search(text) for pattern in patterns for text in texts)


@cache
def _rules() -> tuple[_Rule, ...]:
    return _read("rule")


@cache
def _refinements() -> tuple[_Rule, ...]:
    return _read("refine")


def _read(kind: str) -> tuple[_Rule, ...]:
    data = tomllib.loads(Path(__file__).with_name("owners.toml").read_text(encoding="utf-8"))

    def patterns(rule: Mapping[str, Sequence[str]], key: str) -> Patterns:
        return tuple(re.compile(text) for text in rule.get(key, ()))

    return tuple(
        _Rule(
            cell=rule["cell"],
            frames=patterns(rule, "frames"),
            names=patterns(rule, "names"),
            lines=patterns(rule, "lines"),
            is_leaf=rule.get("where") == "leaf",
            under=patterns(rule, "under"),
            of=tuple(rule.get("of", ())),
            also=patterns(rule, "also"),
            without=patterns(rule, "without"),
            is_deep=rule.get("deep", False),
        )
        for rule in data[kind]
    )


@dataclass(kw_only=True)
class _Group:
    """Samples of one owner; the line and the leaf that were seen most stand for all of them."""

    samples: int = 0
    lines: Counter[int] = field(default_factory=Counter)
    leaves: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)


def host_rows(stacks: Iterable[Stack], line_of: Lines, names_of: Names = no_names) -> tuple[HostRow, ...]:
    """One row for each cell and owner, the most samples first. `line_of` gives a line of source code, or nothing."""
    groups: dict[tuple[str, str, str], _Group] = {}
    found = [(stack, *owned(stack, line_of, names_of)) for stack in _completed(tuple(stacks))]
    # What builds a model on the way to loading it again builds it again.
    again = {key for stack, cell, *_ in found if cell == RELOAD for key in _in_loop(stack.frames, names_of)}
    for stack, cell, owner, leaf in found:
        if cell == MODEL and again and not again.isdisjoint(_in_loop(stack.frames, names_of)):
            cell = RELOAD
        group = groups.setdefault((cell, owner.function, owner.file), _Group())
        group.samples += stack.samples
        group.lines[owner.line] += stack.samples
        group.leaves[leaf] += stack.samples
        if owner.line:
            group.texts[line_of(owner.file, owner.line).strip()] += stack.samples
    rows = (_row(key, group) for key, group in groups.items())
    return tuple(sorted(rows, key=lambda row: (-row.samples, row.cell, row.file, row.function)))


def _completed(stacks: Sequence[Stack]) -> list[Stack]:
    """Stacks that a sampler cut off above a library's frame get the callers which that frame mostly has.

    A program that is read while it runs has half a stack where a generator has just been entered or left.
    """
    callers: dict[tuple[str, str], Counter[tuple[Frame, ...]]] = {}
    for stack in stacks:
        own = next((n for n, frame in enumerate(stack.frames) if not is_library(frame.file)), len(stack.frames))
        for n, frame in enumerate(stack.frames[own + 1 :], own + 1):
            if is_library(frame.file):
                callers.setdefault((frame.function, frame.file), Counter())[stack.frames[:n]] += stack.samples
    return [_completed_by(stack, callers) for stack in stacks]


def _completed_by(stack: Stack, callers: Mapping[tuple[str, str], Counter[tuple[Frame, ...]]]) -> Stack:
    if not stack.frames or any(not is_library(frame.file) for frame in stack.frames):
        return stack
    known = callers.get((stack.frames[0].function, stack.frames[0].file))
    return stack if known is None else replace(stack, frames=(*known.most_common(1)[0][0], *stack.frames))


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


def owned(stack: Stack, line_of: Lines, names_of: Names = no_names) -> tuple[str, Frame, str]:
    """The cell, the frame that owns it, and the leaf behind it, empty where that is the owner itself."""
    if not stack.frames:
        return INTERPRETER, Frame(function="", file=""), ""
    leaf = stack.frames[-1]
    owner = _owner(stack.frames)
    # A comprehension has lines of its own, which the function around it does not know.
    place = leaf if not is_library(leaf.file) else owner
    names = names_of(place.file, place.function.rpartition(".")[2], place.line)
    cell = cell_of(stack.frames, line_of(leaf.file, leaf.line).strip(), names)
    if cell == IMPORTS:
        return cell, *_imported(stack.frames, line_of)
    if cell == MODEL and _is_again(stack.frames, owner, names_of):
        cell = RELOAD
    return cell, owner, "" if owner == leaf else place_of(leaf.function, leaf.file, leaf.line)


def _is_again(frames: Sequence[Frame], owner: Frame, names_of: Names) -> bool:
    """Whether what loads weights or a tokenizer from files is called in a loop of the program's own.

    Parts that are built in a loop make one model, and a loop right around the loading may be one over its files.
    """
    if not any(_LOADS.search(frame.function) or _LOADS.search(frame.file) for frame in frames):
        return False
    return (owner.function, owner.file) in _in_loop(frames, names_of)


def _in_loop(frames: Sequence[Frame], names_of: Names) -> list[tuple[str, str]]:
    """The program's own functions that a loop of its own calls, the outermost first."""
    own = [frame for frame in frames if not is_library(frame.file)]
    for n, frame in enumerate(own[:-1]):
        if "loop" in names_of(frame.file, frame.function.rpartition(".")[2], frame.line):
            return [(inner.function, inner.file) for inner in own[n + 1 :]]
    return []


def cell_of(frames: Sequence[Frame], line: str, names: Sequence[str] = ()) -> str:
    """Of the first rule that fits; what fits none is work in Python. Then what its values say of it."""
    # From Python 3.11 on a method's name begins with its class.
    shown = [f"{frame.file}: {frame.function.rpartition('.')[2]}" for frame in frames]
    cell = _first_cell(shown, line, names, leaf_is_library=is_library(frames[-1].file))
    # The values of the user's line are mostly not those a library works on far below it.
    is_far = all(is_library(frame.file) for frame in frames[-1 - NEAR :])
    rules = (rule for rule in _refinements() if cell in rule.of and (rule.is_deep or not is_far))
    return next((rule.cell for rule in rules if names and rule.fits_line(names, "")), cell)


def _first_cell(shown: Sequence[str], line: str, names: Sequence[str], *, leaf_is_library: bool) -> str:
    if not leaf_is_library:
        fits = (rule.cell for rule in _rules() if rule.fits_frames(shown) or rule.fits_line(names, line))
        return next(fits, PYTHON)
    by_frames = next((rule.cell for rule in _rules() if rule.fits_frames(shown) or rule.fits_line((), line)), None)
    return by_frames or next((rule.cell for rule in _rules() if rule.fits_line(names, "")), PYTHON)


def is_library(file: str) -> bool:
    """Whether a file is the interpreter's or a package's, not the user's own."""
    return not file or bool(_LIBRARY.search(file))


def _owner(frames: Sequence[Frame]) -> Frame:
    """The innermost frame of the user's own code that has a name, else the innermost of all."""
    own = [frame for frame in frames if not is_library(frame.file)]
    named = [frame for frame in own if not _NAMELESS.search(frame.function)]
    return next(reversed(named or own or frames))


def _imported(frames: Sequence[Frame], line_of: Lines) -> tuple[Frame, str]:
    """The package whose import takes the time, the outermost that is not the program's own; or what a module of the
    program's own does while it is imported, and by which line that is."""
    first = next((n for n, frame in enumerate(frames) if "importlib" in frame.file), len(frames))
    last = max((n for n, frame in enumerate(frames) if "importlib" in frame.file), default=len(frames))
    own = [frame for frame in frames[last + 1 :] if not is_library(frame.file)]
    if own and frames[last + 1] is own[0] and first:
        importer = _owner(frames[:first])
        return _owner(own), place_of(importer.function, importer.file, importer.line)
    for frame in frames[first:]:
        if frame.file.startswith(_MACHINERY):
            continue
        package = _PACKAGE.search(frame.file)
        if package is not None and not frame.file.endswith("importlib/__init__.py"):
            return Frame(function=package[1] or package[2], file=""), ""
    # A module of the program itself, or one that is being found: the line that imports it.
    owner = _owner(frames[: max(first, 1)])
    # Where only the program's own lines are known, such a line says the package.
    named = _IMPORT_LINE.match(line_of(owner.file, owner.line).strip()) if first == len(frames) else None
    return owner if named is None else Frame(function=named[1], file=""), ""


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


def busiest(stacks: Iterable[Stack], line_of: Lines, names_of: Names = no_names) -> Mapping[str, tuple[int, str]]:
    """Each thread's samples outside of waits, and what it was most in; threads that only waited are left out."""
    found: dict[str, list[Stack]] = {}
    for stack in stacks:
        if stack.frames and not owned(stack, line_of, names_of)[0].startswith(("host.wait", "host.exit")):
            found.setdefault(f"{stack.process}/{stack.thread}", []).append(stack)
    return {name: (sum(stack.samples for stack in mine), top_place(mine, line_of)) for name, mine in found.items()}


def top_place(stacks: Sequence[Stack], line_of: Lines) -> str:
    row = host_rows(stacks, line_of)[0]
    return place_of(row.function, row.file, row.line)
