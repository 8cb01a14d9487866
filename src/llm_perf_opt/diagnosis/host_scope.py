"""The scope of a program's wall time on the host: the samples of its main thread, as cells of a ledger."""

from dataclasses import replace

from llm_perf_opt.core.documents import HostDocument, HostRow
from llm_perf_opt.core.names import PROGRAM
from llm_perf_opt.diagnosis.facts import HostFacts, Known
from llm_perf_opt.diagnosis.host.owners import IMPORTS, PYTHON, place_of
from llm_perf_opt.diagnosis.ledger import Cell, balanced, fitted
from llm_perf_opt.diagnosis.scope import Scope

GIL, BLOCKED, UNSAMPLED = "host.wait.gil", "host.wait.other", "host.unsampled"
WORK = ("host.work", "host.disk")
# From these parts of the pass on, other threads keep the main thread from running.
GIL_HELD, GIL_TAKEN = 0.8, 0.3
# Work that uses less processor time than this part of it is a wait that no pattern names.
COMPUTES = 0.5
FEW_SAMPLES = 20


def program_scope(host: HostFacts) -> Scope | None:
    """The clean wall time, split as the sampled pass is; the sampled pass itself where no clean time is known."""
    found = host.samples
    if not is_enough(found):
        return None
    clean = host.wall if isinstance(host.wall, Known) and host.wall.value > 0 else None
    wall_ns = round(clean.value * 1e6) if clean is not None else round(found.wall_s * 1e9)
    rows = _waiting(found, _blocked(found))
    weights = {str(index): float(row.samples) for index, row in enumerate(rows)}
    weights["unsampled"] = max(0.0, found.wall_s * found.rate_hz - found.samples)
    parts = fitted(weights, wall_ns)
    cells = [
        Cell(id=row.cell, time_ns=parts[str(index)], count=row.samples, owner=_owner(row))
        for index, row in enumerate(rows)
    ]
    unsampled = Cell(id=UNSAMPLED, time_ns=parts["unsampled"])
    return Scope(
        id=PROGRAM,
        kind="program",
        place="the program",
        each="the program",
        is_named=False,
        wall_ns=wall_ns,
        clean=clean is not None,
        ledger=balanced(wall_ns, [*cells, unsampled]),
        source=host.source,
    )


def is_enough(found: HostDocument) -> bool:
    """Of a program that ended within a few samples nothing can be said."""
    return found.samples >= FEW_SAMPLES and found.wall_s > 0


def _owner(row: HostRow) -> tuple[str, ...]:
    """The user's function and line, then what was behind it: the leaf, else the line's source code."""
    if row.cell == GIL:
        return (row.function,)
    if row.cell == IMPORTS and not row.file:
        return (row.function,)
    place = place_of(row.function, row.file, row.line)
    return tuple(text for text in (place, row.leaf or row.text) if text)


def _blocked(found: HostDocument) -> list[HostRow]:
    """Where the processor was hardly used, work at a line that no pattern knows is a call that waits."""
    work = sum(row.samples for row in found.rows if row.cell == PYTHON)
    cpu = None if found.cpu_s is None else found.cpu_s * found.rate_hz
    if cpu is None or cpu >= COMPUTES * work:
        return list(found.rows)
    return [replace(row, cell=BLOCKED) if row.cell == PYTHON else row for row in found.rows]


def _waiting(found: HostDocument, rows: list[HostRow]) -> list[HostRow]:
    """Work of the main thread in whose time other threads held the GIL is a wait for it."""
    gil = found.gil
    work = sum(row.samples for row in rows if row.cell.startswith(WORK))
    if gil is None or gil.main_share + gil.others_share < GIL_HELD or gil.others_share < GIL_TAKEN:
        return rows
    waits = min(work - gil.main_share * found.samples, gil.others_share * found.samples)
    if waits <= 0:
        return rows
    left = [
        replace(row, samples=round(row.samples * (1 - waits / work))) if row.cell.startswith(WORK) else row
        for row in rows
    ]
    holder = HostRow(cell=GIL, function=gil.holder, file="", line=0, leaf="", text="", samples=round(waits))
    return [*left, holder]
