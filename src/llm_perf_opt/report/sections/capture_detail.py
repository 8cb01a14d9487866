"""What a capture says beyond ranges, kernels and findings, as sections: the same on the terminal and on the page."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import UNSET

from llm_perf_opt.capture.allocator_memory import MemoryCurve
from llm_perf_opt.capture.critical import CriticalPath
from llm_perf_opt.capture.frames import PythonTree
from llm_perf_opt.capture.graphs import GraphReplays
from llm_perf_opt.capture.rows import CopyRow, CounterRow
from llm_perf_opt.capture.shapes import ShapesAnalysis
from llm_perf_opt.core.sections import Cell, Picture, Section, SectionTable, filled
from llm_perf_opt.core.units import count_of, format_bytes, format_percent
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.report.sections.idle_sections import idle_sections
from llm_perf_opt.report.sections.rank_sections import rank_sections

# On the page; the terminal shows fewer, analysis.json all.
ROWS = 60
PYTHON_ROWS = 25
# The sections that have a picture, by key.
SHAPES, MEMORY = "shapes", "memory"
NO_PICTURES: Mapping[str, Picture] = {}
NO_BREAK = "\u00a0"


def capture_sections(
    analysis: CaptureAnalysis, *, source: str | None = None, pictures: Mapping[str, Picture] = NO_PICTURES
) -> tuple[Section, ...]:
    """The sections that have something to show. `source` is the file of a run that holds the numbers."""
    return tuple(_sections(analysis, source, pictures))


def _sections(analysis: CaptureAnalysis, source: str | None, pictures: Mapping[str, Picture]) -> Iterator[Section]:
    yield from idle_sections(analysis, source=source)
    shown = analysis.shown
    if shown.copies:
        yield _copies(shown.copies, shown.of_scope, source)
    if analysis.counters is not UNSET:
        yield _counters(analysis.counters, source)
    if analysis.ranks is not UNSET:
        yield from rank_sections(analysis.ranks, source)
    if analysis.shapes is not UNSET:
        yield _shapes(analysis.shapes, source, pictures.get(SHAPES))
    if analysis.graph_replays is not UNSET:
        yield _replays(analysis.graph_replays, source)
    if analysis.critical_paths is not UNSET:
        yield _critical(analysis.critical_paths, source)
    if analysis.memory is not UNSET:
        yield _memory(analysis.memory, source, pictures.get(MEMORY))
    if shown.python:
        yield _python(shown.python, shown.of_scope, source)


def _copies(copies: Sequence[CopyRow], of_scope: str | None, source: str | None) -> Section:
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
    texts = () if of_scope is None else (f"Of {of_scope}.",)
    return Section(title="Copies and sets", paragraphs=texts, tables=(table,))


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


def _shapes(shapes: ShapesAnalysis, source: str | None, picture: Picture | None) -> Section:
    rows = shapes.rows[:ROWS]
    covered = format_percent(shapes.covered_ns / shapes.kernel_ns) if shapes.kernel_ns else "none"
    texts = [
        f"{count_of(len(shapes.rows), 'pair')} of operator and shape: {covered} of the kernel time. "
        f"Peak rates: {shapes.roof.how}. "
        "Work is what inputs and result need; 'of peak' is the time that needs at the peaks over the time taken."
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
        "of peak %": [row.roof_pct for row in rows],
        "bound": [row.bound for row in rows],
        "GFLOP": [None if row.flops is None else row.flops / 1e9 for row in rows],
    }
    return Section(title="Shapes", paragraphs=tuple(texts), tables=(filled("", columns, source),), picture=picture)


def _replays(captures: Sequence[GraphReplays], source: str | None) -> Section:
    texts, rows = [], []
    for found in captures:
        texts.append(
            f"{count_of(found.replays, 'replay')} of {count_of(found.graphs, 'graph')}: {found.matched_count:,} of "
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
    return Section(title="Critical path", paragraphs=(text,), tables=(filled("", columns, source),))


def _memory(curves: Sequence[MemoryCurve], source: str | None, picture: Picture | None) -> Section:
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
    return Section(title="Allocated memory", paragraphs=(text,), tables=(table,), picture=picture)


def _python(trees: Sequence[PythonTree], of_scope: str | None, source: str | None) -> Section:
    rows = [
        (frame.name, frame.calls, frame.self_ns / 1e6, frame.total_ns / 1e6, frame.gpu_ns / 1e6)
        for tree in trees
        for frame in tree.frames[:PYTHON_ROWS]
    ]
    rows.sort(key=lambda row: -row[2])
    of = "" if of_scope is None else f" of {of_scope}"
    text = f"Functions{of} by own time, under the profiler, which makes every call of Python slower; waiting counts."
    table = SectionTable(
        columns=("function", "calls", "own ms", "total ms", "GPU ms"), rows=tuple(rows[:PYTHON_ROWS]), source=source
    )
    return Section(title="Python", paragraphs=(text,), tables=(table,))
