"""The answer against the point before it: which function, kernel, range or idle cause changed."""

import os
import pstats
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.comparison.bisect.bisect_document import LISTED, MovedPart, Neighbours
from llm_perf_opt.comparison.comparison import CompareDocument, compare_sides
from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.pipeline.bisect.line import Line, PointFails, RunPlace
from llm_perf_opt.pipeline.compare.interleave import SIDES, llm_perf
from llm_perf_opt.pipeline.compare.sides import changes_between, read_sides
from llm_perf_opt.profiling.user_program import PYTHON
from llm_perf_opt.report.compare.compare_page import render_page
from llm_perf_opt.system.files import write_page
from llm_perf_opt.system.process import run_command
from llm_perf_opt.system.redact import Redactor

PAGE_FILE = "neighbours.html"
PACKAGES = "site-packages"
# Part of the whole change from which on a function is listed.
WORTH_LISTING = 0.15
# Of cProfile: file, line, function; and calls, own calls, own seconds, seconds with callees, callers.
_Function = tuple[str, int, str]
_Times = tuple[int, int, float, float, Mapping[_Function, tuple[int, int, float, float]]]


@dataclass(frozen=True, kw_only=True)
class Function:
    """Own time of one Python function, under its name without the line, which other edits move."""

    where: str
    own_ms: float


def compare_neighbours(
    line: Line, before: int, after: int, *, overrides: Sequence[str], folder: Path, timeout_s: float
) -> Neighbours:
    """Profile both; what cannot be profiled is a note, since the answer is without it."""
    names = line.names
    moved: list[MovedPart] = []
    notes: list[str] = []
    page = None
    try:
        places = [line.place(point) for point in (before, after)]
        if places[0].command and is_script(places[0].command):
            tables = [
                _functions(place, folder / f"{side}.prof", timeout_s) for place, side in zip(places, SIDES, strict=True)
            ]
            moved += moved_functions(*tables)
        found = _captures(places, folder, overrides, timeout_s)
        moved += _moved_in_captures(found)
        page = str(folder / PAGE_FILE)
    except (PointFails, ProfilingError) as error:
        notes.append(f"the neighbours could not be profiled: {error}")
    return Neighbours(
        base=names[before].label,
        candidate=names[after].label,
        moved=tuple(moved),
        files=line.changed_files(before, after),
        comparison=page,
        notes=tuple(notes),
    )


def is_script(command: Sequence[str]) -> bool:
    """Whether the command is Python with a script or a module, which cProfile can be put in front of."""
    first = command[1] if len(command) > 1 else "-"
    return bool(PYTHON.fullmatch(Path(command[0]).name)) and (first == "-m" or not first.startswith("-"))


def _functions(place: RunPlace, stats: Path, timeout_s: float) -> dict[str, Function]:
    """Own times by Python's own profiler, which every Python has."""
    stats.parent.mkdir(parents=True, exist_ok=True)
    argv = [place.command[0], "-m", "cProfile", "-o", str(stats), *place.command[1:]]
    result = run_command(
        argv,
        env=place.env,
        timeout_s=timeout_s,
        log=stats.with_suffix(".log"),
        cwd=place.cwd,
        redactor=Redactor.of(os.environ),
    )
    if not result.ok or not stats.is_file():
        raise PointFails(f"cProfile of it failed (log: {result.log})")
    return own_times(stats, place.cwd)


def own_times(stats: Path, root: Path) -> dict[str, Function]:
    """By file and function; the line is that of this side."""
    found: dict[str, Function] = {}
    # pstats declares this attribute only at run time.
    table: Mapping[_Function, _Times] = vars(pstats.Stats(str(stats)))["stats"]
    for function, (_, _, own_s, _, callers) in table.items():
        key, where = _named(function, root)
        if not function[1] and callers:
            # A built-in has no line of its own, so that of the caller with the most of its time is named.
            key_of, where_of = _named(max(callers, key=lambda one: callers[one][2]), root)
            key, where = f"{key} in {key_of}", f"{where} in {where_of}"
        earlier = found[key].own_ms if key in found else 0.0
        found[key] = Function(where=where, own_ms=earlier + 1e3 * own_s)
    return found


def _named(function: _Function, root: Path) -> tuple[str, str]:
    """A function without its line, and with it; a path inside the checkout is relative."""
    file, number, name = function
    if not number:
        return name, name
    path = Path(file)
    installed = path.parts.index(PACKAGES) + 1 if PACKAGES in path.parts else None
    if installed is not None:
        # Two environments hold the same package in different places.
        shown = str(Path(*path.parts[installed:]))
    else:
        shown = str(path.relative_to(root)) if path.is_absolute() and path.is_relative_to(root) else path.name
    return f"{shown}: {name}", f"{name} ({shown}:{number})"


def moved_functions(base: dict[str, Function], candidate: dict[str, Function]) -> list[MovedPart]:
    """Functions whose own time changed most."""
    rows = []
    for key in {**base, **candidate}:
        before, after = base.get(key), candidate.get(key)
        difference = (after.own_ms if after else 0.0) - (before.own_ms if before else 0.0)
        where = (after or before or Function(where=key, own_ms=0.0)).where
        rows.append(
            MovedPart(
                label=where,
                kind="function",
                base_ms=before.own_ms if before else None,
                candidate_ms=after.own_ms if after else None,
                difference_ms=difference,
            )
        )
    return _worth_listing(rows)


def _captures(places: Sequence[RunPlace], folder: Path, overrides: Sequence[str], timeout_s: float) -> CompareDocument:
    """Both under the profilers of `llm-perf run`, and their comparison as a page."""
    for place, side in zip(places, SIDES, strict=True):
        words = [*overrides, *place.overrides]
        command = "run" if place.command else "profile"
        program = ["--", *place.command] if place.command else []
        llm_perf(command, [*words, *program], folder / side, env=dict(place.env), cwd=place.cwd, timeout_s=timeout_s)
    sides = read_sides(folder / "base", folder / "candidate", force=True)
    found = compare_sides(*(side.input for side in sides), settings=changes_between(*sides, meant=frozenset()))
    page = render_page(found, (sides[0].timeline, sides[1].timeline))
    write_page(folder / PAGE_FILE, page)
    return found


def _moved_in_captures(found: CompareDocument) -> list[MovedPart]:
    """The largest steps between both captures: kernels, groups of modules, overlap, idle time by cause."""
    steps = [
        MovedPart(label=s.label, kind="capture", base_ms=None, candidate_ms=None, difference_ms=s.difference_ms)
        for fall in found.waterfalls
        for s in fall.steps
        if s.kind != "rest"
    ]
    # Without GPU work the operators say where the time went, in ns.
    operators = [
        MovedPart(
            label=row.name,
            kind="capture",
            base_ms=None if row.base is None else row.base / 1e6,
            candidate_ms=None if row.candidate is None else row.candidate / 1e6,
            difference_ms=row.difference / 1e6,
        )
        for row in found.tables.get("operators", ())
    ]
    return _worth_listing(steps or operators)


def _worth_listing(parts: Sequence[MovedPart]) -> list[MovedPart]:
    """The largest changes; those that changed little alongside the largest are left out."""
    ordered = sorted(parts, key=lambda part: -abs(part.difference_ms))
    least = WORTH_LISTING * abs(ordered[0].difference_ms) if ordered else 0.0
    return [part for part in ordered[:LISTED] if part.difference_ms and abs(part.difference_ms) >= least]
