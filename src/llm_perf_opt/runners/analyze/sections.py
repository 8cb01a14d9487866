"""What a capture says beyond ranges, kernels and findings, as sections: the same on the terminal and on the page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from msgspec import UNSET

from llm_perf_opt.analysis.capture import CaptureAnalysis
from llm_perf_opt.analysis.ranks.analysis import DeviceRow, RankRow, RanksAnalysis
from llm_perf_opt.analysis.ranks.collectives import CollectiveRow
from llm_perf_opt.analysis.ranks.identify import REPEATS
from llm_perf_opt.analysis.ranks.overlap import Split
from llm_perf_opt.analysis.timeline.critical import CriticalPath
from llm_perf_opt.analysis.timeline.frames import PythonTree
from llm_perf_opt.analysis.timeline.graphs import GraphReplays
from llm_perf_opt.analysis.timeline.memory import MemoryCurve
from llm_perf_opt.analysis.timeline.rows import CopyRow, CounterRow
from llm_perf_opt.analysis.timeline.shapes import ShapesAnalysis
from llm_perf_opt.core.sections import Cell, Section, SectionTable
from llm_perf_opt.core.units import format_bytes, format_ms, format_percent
from llm_perf_opt.profiling.idle_sections import idle_sections

# On the page; the terminal shows fewer, analysis.json all.
ROWS = 60
PYTHON_ROWS = 25
SHAPES = "Shapes"
MEMORY = "Allocated memory"
NO_BREAK = "\u00a0"


def capture_sections(analysis: CaptureAnalysis, *, source: str | None = None) -> tuple[Section, ...]:
    """The sections that have something to show. `source` is the file of a run that holds the numbers."""
    return tuple(_sections(analysis, source))


def _sections(analysis: CaptureAnalysis, source: str | None) -> Iterator[Section]:
    yield from idle_sections(analysis, source=source)
    if analysis.copies:
        yield _copies(analysis.copies, source)
    if analysis.counters is not UNSET:
        yield _counters(analysis.counters, source)
    if analysis.ranks is not UNSET:
        yield _ranks(analysis.ranks, source)
        if analysis.ranks.collectives:
            yield _communication(analysis.ranks, source)
    if analysis.shapes is not UNSET:
        yield _shapes(analysis.shapes, source)
    if analysis.graph_replays is not UNSET:
        yield _replays(analysis.graph_replays, source)
    if analysis.critical_paths is not UNSET:
        yield _critical(analysis.critical_paths, source)
    if analysis.memory is not UNSET:
        yield _memory(analysis.memory, source)
    if analysis.python is not UNSET:
        yield _python(analysis.python, source)


def _copies(copies: Sequence[CopyRow], source: str | None) -> Section:
    rates = [None if c.bytes_per_s is None else c.bytes_per_s / 1e9 for c in copies]
    table = SectionTable(
        columns=("kind", "n", "total ms", "MB", "GB/s", "longest ms"),
        rows=tuple(
            (
                c.kind,
                c.instances,
                c.total_ns / 1e6,
                None if c.size_bytes is None else c.size_bytes / 1e6,
                gb,
                c.max_ns / 1e6,
            )
            for c, gb in list(zip(copies, rates, strict=True))[:ROWS]
        ),
        source=source,
    )
    return Section(title="Copies and sets", tables=(table,))


def _counters(rows: Sequence[CounterRow], source: str | None) -> Section:
    """Counters that are zero everywhere are left out."""
    names = [
        n for n in dict.fromkeys(n for row in rows for n in row.counters) if any(row.counters.get(n) for row in rows)
    ]
    ranked = sorted(rows, key=lambda row: -(row.flop or 0.0))[:ROWS]
    table = SectionTable(
        title="Sums over the instances of each kernel",
        columns=("kernel", "class", "n", "GFLOP", *names),
        rows=tuple(
            (
                row.short_name,
                row.kernel_class,
                row.instances,
                None if row.flop is None else row.flop / 1e9,
                *(row.counters.get(name) for name in names),
            )
            for row in ranked
        ),
        source=source,
    )
    text = (
        "What CUPTI counted while these kernels ran. Each was run several times to count, so its time is not known. "
        "GFLOP: additions, multiplications and fused ones by scalar instructions; matrix instructions are not in it."
    )
    return Section(title="Hardware counters", paragraphs=(text,), tables=(table,))


def _ranks(ranks: RanksAnalysis, source: str | None) -> Section:
    several = len(ranks.rows) > 1
    texts = ["Busy: a kernel or graph ran on at least one GPU of the process, between its first GPU work and its last."]
    if ranks.straggler is not None:
        late = next(row for row in ranks.rows if row.rank == ranks.straggler)
        if late.arrivals is not None:
            texts.append(
                f"Rank {ranks.straggler} holds the others up: it comes last to {late.arrivals.came_last} of "
                f"{late.arrivals.matched} matched collectives, and they wait "
                f"{format_ms(late.arrivals.held_up_ns / 1e6)} for it in all."
            )
    elif several and any(row.arrivals is not None for row in ranks.rows):
        texts.append("No rank holds the others up for long.")
    tables = [_time_table("", [(_name(row, ranks), row.time) for row in ranks.rows], source)]
    if ranks.devices:
        named = [(f"{_who(row, ranks)}, GPU {row.device}", row.time) for row in ranks.devices]
        tables.append(_time_table("By GPU: busy is the union of what ran on that one", named, source))
    waiting = _arrivals(ranks, source)
    return Section(
        title=("Repetitions" if ranks.files_are == REPEATS else "Ranks") if several else "GPU time",
        paragraphs=tuple(texts),
        tables=(*tables, *([waiting] if waiting is not None else [])),
    )


def _name(row: RankRow, ranks: RanksAnalysis) -> str:
    gpus = ", ".join(str(device) for device in row.devices if device >= 0)
    return _who(row, ranks) + (f", GPU {gpus}" if gpus else "")


def _who(row: RankRow | DeviceRow, ranks: RanksAnalysis) -> str:
    """The rank, else the process; of repetitions the file, which alone tells them apart."""
    if ranks.files_are == REPEATS:
        return PurePath(row.source).name
    if row.rank is not None:
        return f"rank {row.rank}"
    several = len({other.source for other in ranks.rows}) > 1
    parts = [*([PurePath(row.source).name] if several or row.process is None else []), row.process]
    return ", ".join(part for part in parts if part)


def _time_table(title: str, rows: Sequence[tuple[str, Split]], source: str | None) -> SectionTable:
    return SectionTable(
        title=title,
        columns=("who", "kernels", "span ms", "busy ms", "busy %", "compute ms", "copies ms", "communication ms"),
        rows=tuple(
            (
                name,
                time.kernel_count,
                time.span_ns / 1e6,
                time.busy_ns / 1e6,
                100.0 * time.busy_ns / time.span_ns if time.span_ns else None,
                time.computation_ns / 1e6,
                time.copy_ns / 1e6,
                time.communication_ns / 1e6,
            )
            for name, time in rows[:ROWS]
        ),
        source=source,
    )


def _arrivals(ranks: RanksAnalysis, source: str | None) -> SectionTable | None:
    known = [(row, row.arrivals) for row in ranks.rows if row.arrivals is not None]
    if not known:
        return None
    return SectionTable(
        title="Who waited for whom, in collectives that ended together on all ranks given",
        columns=("who", "matched", "waited ms", "came last", "others waited for it ms"),
        rows=tuple(
            (_name(row, ranks), came.matched, came.waited_ns / 1e6, came.came_last, came.held_up_ns / 1e6)
            for row, came in known[:ROWS]
        ),
        source=source,
    )


def _communication(ranks: RanksAnalysis, source: str | None) -> Section:
    talking = [row for row in ranks.rows if row.time.communication_ns]
    exposed = max(talking, key=lambda row: row.time.exposed_pct)
    texts = [
        f"Exposed is communication beside which nothing ran: at most "
        f"{format_percent(exposed.time.exposed_pct / 100)} of a rank's time ({_name(exposed, ranks)}). "
        "HTA's overlap is the share of communication time during which a computation kernel ran."
    ]
    overlap = SectionTable(
        columns=(
            "who", "communication ms", "overlapped ms", "exposed ms", "exposed, % of span", "overlap, % (HTA)",
            "idle % (HTA)", "compute % (HTA)", "non-compute % (HTA)",
        ),
        rows=tuple(
            (
                _name(row, ranks),
                row.time.communication_ns / 1e6,
                row.time.overlapped_ns / 1e6,
                row.time.exposed_ns / 1e6,
                row.time.exposed_pct,
                row.time.hta_overlap_pct,
                row.time.hta_idle_pct,
                row.time.hta_compute_pct,
                row.time.hta_non_compute_pct,
            )
            for row in talking[:ROWS]
        ),
        source=source,
    )  # fmt: skip
    return Section(title="Communication", paragraphs=tuple(texts), tables=(overlap, _collectives(ranks, source)))


def _collectives(ranks: RanksAnalysis, source: str | None) -> SectionTable:
    rows = ranks.collectives[:ROWS]
    columns: dict[str, list[Cell]] = {
        "collective": [row.collective for row in rows],
        "n": [row.count for row in rows],
        "message": [None if row.message_bytes is None else format_bytes(row.message_bytes) for row in rows],
        "dtype": [row.dtype for row in rows],
        "group": [_group(row) for row in rows],
        "total ms": [row.total_ns / 1e6 for row in rows],
        "median ms": [row.median_ns / 1e6 for row in rows],
        "algorithm GB/s": [row.algorithm_gb_s for row in rows],
        "bus GB/s": [row.bus_gb_s for row in rows],
        "matched": [row.matched or None for row in rows],
        "skew, median ms": [None if row.skew_median_ns is None else row.skew_median_ns / 1e6 for row in rows],
        "skew, max ms": [None if row.skew_max_ns is None else row.skew_max_ns / 1e6 for row in rows],
        "kernels": [", ".join(row.kernels) for row in rows],
    }
    return _filled("Collectives", columns, source)


def _filled(title: str, columns: Mapping[str, list[Cell]], source: str | None) -> SectionTable:
    """A table without the columns that no row fills."""
    kept = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    return SectionTable(title=title, columns=tuple(kept), rows=tuple(zip(*kept.values(), strict=True)), source=source)


def _group(row: CollectiveRow) -> str | None:
    if row.group is None:
        return None if row.group_size is None else f"{row.group_size} ranks"
    return row.group if row.group_size is None else f"{row.group} ({row.group_size})"


def _shapes(shapes: ShapesAnalysis, source: str | None) -> Section:
    rows = shapes.rows[:ROWS]
    covered = format_percent(shapes.covered_ns / shapes.kernel_ns) if shapes.kernel_ns else "none"
    texts = [
        f"{len(shapes.rows):,} operator(s) and shape(s) take {covered} of the kernel time. Roof: {shapes.roof.how}. "
        "Work is what inputs and result need; of roof is the time that needs at the peaks over the time taken."
    ]
    columns: dict[str, list[Cell]] = {
        "kind": [row.kind for row in rows],
        "operator": [row.operator.removeprefix("aten::") for row in rows],
        "shape": [row.shape.replace(" ", NO_BREAK) for row in rows],
        "dtype": [row.dtype for row in rows],
        "calls": [row.calls for row in rows],
        "total ms": [row.time_ns / 1e6 for row in rows],
        "mean µs": [row.mean_ns / 1e3 for row in rows],
        "TFLOP/s": [row.tflops for row in rows],
        "GB/s": [row.gb_per_s for row in rows],
        "of roof %": [row.roof_pct for row in rows],
        "bound": [row.bound for row in rows],
        "GFLOP": [None if row.flops is None else row.flops / 1e9 for row in rows],
    }
    return Section(title=SHAPES, paragraphs=tuple(texts), tables=(_filled("", columns, source),))


def _replays(captures: Sequence[GraphReplays], source: str | None) -> Section:
    texts, rows = [], []
    for found in captures:
        texts.append(
            f"{found.replays:,} replay(s) of {found.graphs:,} graph(s): {found.matched_count:,} of "
            f"{found.kernel_count:,} kernels, {format_percent(found.matched_ns / max(found.kernel_ns, 1))} of their "
            f"time, are named by {found.reference}: {found.how}."
        )
        rows += [
            (
                row.operator.removeprefix("aten::"),
                row.module,
                row.kernel_count,
                row.time_ns / 1e6,
                100.0 * row.time_ns / found.kernel_ns if found.kernel_ns else None,
                ", ".join(row.kernels),
            )
            for row in found.rows[:ROWS]
        ]
    table = SectionTable(
        columns=("operator", "module", "kernels", "total ms", "of replays %", "kernel"), rows=tuple(rows), source=source
    )
    return Section(title="Graph replays", paragraphs=tuple(texts), tables=(table,) if rows else ())


def _critical(paths: Sequence[CriticalPath], source: str | None) -> Section:
    parts: dict[str, list[int]] = {
        "host ms": [p.host_ns for p in paths],
        "launch ms": [p.launch_ns for p in paths],
        "start delay ms": [p.start_delay_ns for p in paths],
        "wait return ms": [p.wait_return_ns for p in paths],
        "compute ms": [p.computation_ns for p in paths],
        "communication ms": [p.communication_ns for p in paths],
        "copies ms": [p.copy_ns for p in paths],
        "between ms": [p.between_ns for p in paths],
    }
    columns: dict[str, list[Cell]] = {
        "range": [p.range_name for p in paths],
        "length ms": [p.length_ns / 1e6 for p in paths],
        **{name: [ns / 1e6 if any(times) else None for ns in times] for name, times in parts.items()},
        "GPU idle ms": [p.gpu_idle_ns / 1e6 for p in paths],
        "to shrink": [p.shrink for p in paths],
    }
    text = (
        "What decides when a range's work is done, of its instance of median time: the parts add up to the length. A "
        "faster host saves at most the GPU's idle time."
    )
    return Section(title="Critical path", paragraphs=(text,), tables=(_filled("", columns, source),))


def _memory(curves: Sequence[MemoryCurve], source: str | None) -> Section:
    table = SectionTable(
        columns=("device", "events", "first", "peak", "peak at ms", "last", "largest allocation"),
        rows=tuple(
            (
                curve.device if len({c.source for c in curves}) == 1 else f"{curve.device}, {curve.source}",
                curve.events,
                format_bytes(curve.first_bytes),
                format_bytes(curve.peak_bytes),
                curve.peak_at_ns / 1e6,
                format_bytes(curve.last_bytes),
                format_bytes(curve.largest_bytes),
            )
            for curve in curves[:ROWS]
        ),
        source=source,
    )
    text = "What torch's allocator held, by its own events; times since the first of them."
    return Section(title=MEMORY, paragraphs=(text,), tables=(table,))


def _python(trees: Sequence[PythonTree], source: str | None) -> Section:
    rows = [
        (frame.name, frame.calls, frame.self_ns / 1e6, frame.total_ns / 1e6, frame.gpu_ns / 1e6)
        for tree in trees
        for frame in tree.frames[:PYTHON_ROWS]
    ]
    rows.sort(key=lambda row: -row[2])
    text = "Functions by own time, under the profiler, which makes every call of Python slower; waiting counts."
    table = SectionTable(
        columns=("function", "calls", "own ms", "total ms", "GPU ms"), rows=tuple(rows[:PYTHON_ROWS]), source=source
    )
    return Section(title="Python", paragraphs=(text,), tables=(table,))
