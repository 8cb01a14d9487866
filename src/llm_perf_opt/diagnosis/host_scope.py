"""The scope of a program's wall time on the host: the samples of its main thread, as cells of a ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llm_perf_opt.core.documents import HostDocument, HostGil, HostRow
from llm_perf_opt.core.names import PROGRAM
from llm_perf_opt.diagnosis.facts import HostFacts, Known
from llm_perf_opt.diagnosis.host.owners import IMPORTS, PYTHON, is_library, place_of
from llm_perf_opt.diagnosis.ledger import Cell, balanced, fitted
from llm_perf_opt.diagnosis.scope import Scope

GIL, BLOCKED, UNSAMPLED = "host.wait.gil", "host.wait.other", "host.unsampled"
GC, CPU_WAIT, ONE_THREAD, CHECKS, OPERATORS = (
    "host.work.gc",
    "host.wait.cpu",
    "host.work.one_thread",
    "host.work.checks",
    "host.work.operators",
)
# Pauses that the program did not call for.
AUTOMATIC = f"{GC}.automatic"
LOCK, PROCESS, SMALL = "host.wait.lock", "host.wait.process", "host.work.small_tensors"
WAITS_FOR_OTHERS = (LOCK, PROCESS, f"{PROCESS}.pickle", f"{PROCESS}.start")
WORK = ("host.work", "host.disk")
GPU_WORK = "host.work.gpu"
COMPILE, RECOMPILE = "host.startup.compile", "host.work.recompile"
GENERATION, NO_CACHE = "host.work.operators.generation", "host.work.no_cache"
# This many compilations of one function are not those of a few expected shapes.
RECOMPILED = 3
# Operators that use all threads they may.
THREADED = (OPERATORS, GENERATION, "host.work.float64")
# From this part of their time on, threads that wait for a processor are too many.
CROWDED = 0.25
# A thread that works for this part of the main thread's samples is busy.
BUSY = 0.2
# From these parts of the pass on, other threads keep the main thread from running.
GIL_HELD, GIL_TAKEN = 0.8, 0.3
# Work that uses less processor time than this part of it is a wait that no pattern names.
COMPUTES = 0.5
# Code of a module is not in a function; start-up and exit do not recur.
MODULE, ENDS = "<module>", ("host.startup", "host.exit")
# So few samples are an answer only where they are a good part of the program, which ended soon then.
FEW_SAMPLES, LEAST_SAMPLES, GOOD_PART = 20, 5, 0.25


def program_scope(host: HostFacts, *, place: str = "the program") -> Scope | None:
    """The clean wall time, split as the sampled pass is; the sampled pass itself where no clean time is known."""
    found = host.samples
    if not is_enough(found):
        return None
    clean = host.wall if isinstance(host.wall, Known) and host.wall.value > 0 else None
    wall_ns = round(clean.value * 1e6) if clean is not None else round(found.wall_s * 1e9)
    rows = _recompiled(found, _by_switches(found, _paused(found, _blocked(found))))
    rows = _waiting(found, rows) if _competes(found.gil) else _crowded(found, rows)
    weights = {str(index): float(row.samples) for index, row in enumerate(rows)}
    weights["unsampled"] = 0.0 if found.fell_behind else max(0.0, found.wall_s * found.rate_hz - found.samples)
    parts = fitted(weights, wall_ns)
    cells = [
        Cell(id=row.cell, time_ns=parts[str(index)], count=row.samples, owner=_owner(row))
        for index, row in enumerate(rows)
    ]
    unsampled = Cell(id=UNSAMPLED, time_ns=parts["unsampled"])
    return Scope(
        id=PROGRAM,
        kind="program",
        place=place,
        each=place,
        is_named=False,
        wall_ns=wall_ns,
        clean=clean is not None,
        ledger=balanced(wall_ns, [*cells, unsampled]),
        source=host.source,
        function_ns=_functions(rows, cells),
    )


def _functions(rows: Sequence[HostRow], cells: Sequence[Cell]) -> Mapping[tuple[str, str], int]:
    """The time of the program's functions after start-up, by the cell and owner that each has most of it in."""
    mine: dict[tuple[str, str], list[Cell]] = {}
    for row, cell in zip(rows, cells, strict=True):
        if row.file and row.function != MODULE and not row.cell.startswith(ENDS) and not is_library(row.file):
            mine.setdefault((row.function, row.file), []).append(cell)
    largest = ((max(found, key=lambda cell: cell.time_ns), found) for found in mine.values())
    return {(first.id, first.owner[0]): sum(cell.time_ns for cell in found) for first, found in largest}


def is_enough(found: HostDocument) -> bool:
    """Of a program that ended within a few samples nothing can be reported."""
    enough = min(FEW_SAMPLES, max(LEAST_SAMPLES, GOOD_PART * found.wall_s * found.rate_hz))
    return found.samples >= enough and found.wall_s > 0


def _owner(row: HostRow) -> tuple[str, ...]:
    """The user's function and line, then what was behind it: the leaf, else the line's source code."""
    if row.cell == GIL:
        return (row.function,)
    if row.cell == IMPORTS and not row.file:
        return (row.function,)
    place = place_of(row.function, row.file, row.line)
    if row.cell in WAITS_FOR_OTHERS:
        # The call that waits says less than what it waits for.
        return (place, row.detail) if row.detail else (place,)
    return tuple(text for text in (place, row.leaf or row.text, row.detail) if text)


def _blocked(found: HostDocument) -> list[HostRow]:
    """Where the processor was hardly used, work at a line that no pattern knows is a call that waits."""
    work_s = sum(row.samples for row in found.rows if row.cell == PYTHON) / found.samples * found.wall_s
    # A thread that waits for its turn on a busy machine is not blocked.
    waited_s = 0.0 if found.observed is None else found.observed.threads.waited_s
    if found.cpu_s is None or found.cpu_s + waited_s >= COMPUTES * work_s:
        return list(found.rows)
    return [replace(row, cell=BLOCKED) if row.cell == PYTHON else row for row in found.rows]


def _paused(found: HostDocument, rows: list[HostRow]) -> list[HostRow]:
    """Pauses of the garbage collector come out of the work in which they fell: no stack shows them."""
    garbage = None if found.observed is None else found.observed.garbage
    if garbage is None or not garbage.owner:
        return rows
    known = sum(row.samples for row in rows if row.cell == GC)
    work = sum(row.samples for row in rows if row.cell.startswith(WORK) and row.cell != GC)
    part = garbage.total_s / max(found.cpu_s or found.wall_s, 1e-9)
    paused = min(round(part * (work + known)) - known, work)
    if paused <= 0:
        return rows
    left = [_scaled(row, 1 - paused / work) if row.cell.startswith(WORK) and row.cell != GC else row for row in rows]
    detail_text = f"{garbage.count} automatic collections, the longest {garbage.longest_s * 1e3:.0f} ms"
    return [
        *left,
        HostRow(cell=AUTOMATIC, function=garbage.owner, file="", line=0, leaf=detail_text, text="", samples=paused),
    ]


def _by_switches(found: HostDocument, rows: list[HostRow]) -> list[HostRow]:
    """What a switch of torch says of its operators: anomaly mode, and fewer threads than processors."""
    seen = found.observed
    if seen is None:
        return rows
    if "anomaly_mode" in seen.flags:
        detail_text = "anomaly mode of torch.autograd is on"
        checked = (OPERATORS, GENERATION, SMALL)
        rows = [replace(row, cell=CHECKS, detail=detail_text) if row.cell in checked else row for row in rows]
    if "no_kv_cache" in seen.flags:
        rows = [replace(row, cell=NO_CACHE) if row.cell == GENERATION else row for row in rows]
    if "gpu" in seen.flags:
        rows = [replace(row, cell=GPU_WORK) if row.cell == GENERATION else row for row in rows]
    limit = _thread_limit(found)
    if limit is not None and limit < seen.threads.processors and found.cpu_s is not None:
        detail_text = f"{limit} of {seen.threads.processors} processors"
        rows = [replace(row, cell=ONE_THREAD, detail=detail_text) if row.cell in THREADED else row for row in rows]
    return rows


def _thread_limit(found: HostDocument) -> int | None:
    """The number of threads array libraries were configured to use by torch or the environment; None if unknown."""
    seen = found.observed
    if seen is None:
        return None
    if seen.threads.torch is not None:
        return seen.threads.torch
    detail_text = (
        seen.environment.get(name, "") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    )
    return next((int(text) for text in detail_text if text.isdigit() and int(text) > 0), None)


def _crowded(found: HostDocument, rows: list[HostRow]) -> list[HostRow]:
    """Time for which threads wanted to run and had no processor, where the program has more of them than processors."""
    seen = found.observed
    if seen is None or found.wall_s <= 0:
        return rows
    threads, limit = seen.threads, _thread_limit(found)
    work = sum(row.samples for row in rows if row.cell.startswith((*WORK, LOCK, PROCESS)))
    own = sum(row.samples for row in rows if row.cell.startswith(WORK))
    # Threads that work or want to, on average over the time in which the program works: with fewer of them than there
    # are processors, it is other programs that they wait for.
    together = (own + sum(thread.samples for thread in found.threads)) / max(work, 1)
    busy = 1 + sum(1 for thread in found.threads if thread.samples >= BUSY * max(found.samples, 1))
    wanted = max(busy if together > threads.processors else 0, limit or 0)
    waited = threads.waited_s / max(threads.ran_s + threads.waited_s, 1e-9)
    if wanted <= threads.processors or waited < CROWDED:
        return rows
    detail_text = (
        f"{wanted} threads on {threads.processors} processors, waiting {100 * waited:.0f} % of their time to run"
    )
    kept: list[HostRow] = []
    for row in rows:
        if not row.cell.startswith((*WORK, LOCK, PROCESS)):
            kept.append(row)
            continue
        taken = _scaled(row, waited)
        if row.cell in (LOCK, PROCESS) and found.threads:
            # The main thread waits for those that have no turn.
            taken = replace(taken, function=found.threads[0].owner, file="", line=0, leaf="")
        kept += [_scaled(row, 1 - waited), replace(taken, cell=CPU_WAIT, detail=detail_text)]
    return kept


def _scaled(row: HostRow, part: float) -> HostRow:
    return replace(row, samples=round(row.samples * part))


def _recompiled(found: HostDocument, rows: list[HostRow]) -> list[HostRow]:
    """Compilation is work that recurs where a function is compiled again and again; the guard that failed says why."""
    again = [one for one in found.observed.compilations if one.count >= RECOMPILED] if found.observed else []
    total = sum(one.total_s for one in found.observed.compilations) if found.observed else 0.0
    if not again or sum(one.total_s for one in again) < 0.5 * total:
        return rows
    worst = again[0]
    detail_text = f"{worst.count} compilations; {worst.failed or worst.reason}"
    return [
        replace(row, cell=RECOMPILE, function=worst.owner, file="", line=0, leaf=detail_text, detail="")
        if row.cell == COMPILE
        else row
        for row in rows
    ]


def _competes(gil: HostGil | None) -> bool:
    """Whether other threads keep the main thread from running Python."""
    return gil is not None and gil.main_share + gil.others_share >= GIL_HELD and gil.others_share >= GIL_TAKEN


def _waiting(found: HostDocument, rows: list[HostRow]) -> list[HostRow]:
    """Work of the main thread in whose time other threads held the GIL is a wait for it."""
    gil = found.gil
    busy = [thread for thread in found.threads if thread.samples >= BUSY * max(found.samples, 1)]
    locked = sum(row.samples for row in rows if row.cell == LOCK) / max(found.samples, 1)
    if gil is not None and locked and gil.others_share >= GIL_HELD * locked and len(busy) > 1:
        # Threads that run Python interleaved: who waits for all of them waits for the interpreter.
        detail_text = f"{len(busy)} threads take turns in the interpreter"
        rows = [
            replace(row, cell=GIL, function=gil.holder, file="", line=0, leaf=detail_text) if row.cell == LOCK else row
            for row in rows
        ]
    work = sum(row.samples for row in rows if row.cell.startswith(WORK))
    waits = 0.0 if gil is None else min(work - gil.main_share * found.samples, gil.others_share * found.samples)
    if gil is None or waits <= 0:
        return rows
    left = [
        replace(row, samples=round(row.samples * (1 - waits / work))) if row.cell.startswith(WORK) else row
        for row in rows
    ]
    holder = HostRow(cell=GIL, function=gil.holder, file="", line=0, leaf="", text="", samples=round(waits))
    return [*left, holder]
