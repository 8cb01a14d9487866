"""The time ledger as a section: where the time of each scope goes, and what was not recorded."""

from collections.abc import Iterator

from llm_perf_opt.core.sections import Section, SectionTable
from llm_perf_opt.core.units import format_ms, format_percent
from llm_perf_opt.diagnosis.diagnose import WHOLE
from llm_perf_opt.diagnosis.diagnosis_document import Coverage, Diagnosis, ScopeRecord
from llm_perf_opt.diagnosis.ledger import Cell, cell_name, cell_names

TITLE = "Time ledger"
# The innermost owners of a cell; diagnosis.json has all.
OWNERS = 3


def scope_name(scope: ScopeRecord) -> str:
    """What a scope is called in a table: its place, and which part of the capture it is."""
    whole = WHOLE.get(scope.id)
    return scope.place if whole is None or whole == scope.place else f"{whole} ({scope.place})"


def ledger_section(diagnosis: Diagnosis | None, *, source: str | None = None) -> Section | None:
    """None where no scope has a wall time. `source` is the file that holds the numbers."""
    if diagnosis is None:
        return None
    timed = [scope for scope in diagnosis.scopes if scope.wall_ns]
    # Where clean times are known those of a profiler say less; what is judged comes before the whole capture.
    scopes = [scope for scope in timed if scope.clean] or sorted(timed, key=lambda scope: scope.id == "capture")
    tables = tuple(_ledger_table(scope, source) for scope in scopes)
    if not tables:
        return None
    return Section(title=TITLE, paragraphs=tuple(_coverage(diagnosis.coverage)), tables=tables)


def _ledger_table(scope: ScopeRecord, source: str | None) -> SectionTable:
    cells = sorted(scope.cells, key=lambda cell: (-cell.time_ns, cell.id))
    owners = [_owner(cell) for cell in cells]
    is_counted = any(cell.count for cell in cells)
    more = (*(("count",) if is_counted else ()), *(("mostly in",) if any(owners) else ()))
    columns = ("part", "ms", f"% of {scope.place}", *more)
    clean = "measured without a profiler" if scope.clean else "under the profiler"
    several = f", added up over {scope.processes} processes" if scope.processes > 1 else ""
    return SectionTable(
        title=f"{scope_name(scope)}: {format_ms(scope.wall_ns / 1e6)}, {clean}{several}",
        columns=columns,
        rows=tuple(
            (
                part_name(cell.id),
                cell.time_ns / 1e6,
                100.0 * cell.time_ns / scope.wall_ns,
                *((cell.count or None,) if is_counted else ()),
                *((owner,) if any(owners) else ()),
            )
            for cell, owner in zip(cells, owners, strict=True)
        ),
        source=source,
    )


def part_name(cell: str) -> str:
    """A cell's name with what its id says more than that: `kernels: GEMM`, `exposed copies: h2d pinned`."""
    parts = cell.split(".")
    known = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in cell_names()), len(parts))
    rest = " ".join(parts[known:]).replace("_", " ")
    return f"{cell_name(cell)}: {rest}" if rest else cell_name(cell)


def _owner(cell: Cell) -> str | None:
    """The innermost first, as `zoom_shift ← fetch ← train.py:41`."""
    return " ← ".join(cell.owner[:OWNERS]) or None


def _coverage(coverage: Coverage) -> Iterator[str]:
    if coverage.recorded or coverage.missing:
        recorded = ", ".join(coverage.recorded) or "nothing"
        missing = f" Not recorded: {', '.join(coverage.missing)}." if coverage.missing else ""
        yield f"Recorded: {recorded}.{missing}"
    if coverage.unrecorded_share >= 0.005:
        yield f"Nothing recorded says what happened in {format_percent(coverage.unrecorded_share)} of the time judged."
    if coverage.lost_launches:
        yield f"{coverage.lost_launches:,} launches have no record of the GPU work they started."
