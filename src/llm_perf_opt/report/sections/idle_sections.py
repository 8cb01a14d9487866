"""What a capture says of idle time, launches, waits, steps and streams, as sections of the report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from msgspec import UNSET

from llm_perf_opt.capture.streams import StreamReport
from llm_perf_opt.core.sections import Cell, Section, SectionTable, filled
from llm_perf_opt.core.units import count_of, format_ms, format_percent
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.diagnosis.gaps.gap_report import IdleReport, WaitRow
from llm_perf_opt.diagnosis.gaps.long_gaps import Gap, LongGaps
from llm_perf_opt.diagnosis.gaps.traits import Iterations, Queue
from llm_perf_opt.system.terminal import cut_text

ROWS = 60
NAME_WIDTH = 90
VERDICTS = {
    "compilation": "setting up: loading, compiling or tuning",
    "new_shapes": "building kernels for new shapes",
    "recompilation": "compiling or loading again and again",
    "stalls": "stalls that come again and again",
    "data_loading": "loading data",
    "allocation": "allocating or freeing memory",
    "rank_wait": "waiting for other ranks",
    "profiler": "the profiler itself",
    "host_wait": "blocked, reason not recorded",
    "host_work": "other work of the host",
    "single_instances": "other work, in single instances only: set-up?",
    "unknown": "nothing recorded",
}


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """The part of a capture that the sections describe: the steady state, or all of it."""

    place: str
    span_ns: int
    idle_ns: int
    idle: IdleReport | None
    streams: StreamReport | None


def idle_sections(analysis: CaptureAnalysis, *, source: str | None = None) -> Iterator[Section]:
    """Those that have something to show. `source` is the file of a run that holds the numbers."""
    judged = _judged(analysis)
    files = _files(analysis)
    if judged.idle is not None and judged.span_ns:
        if judged.idle.gaps.longest:
            yield _gaps(judged.idle.gaps, judged, files, source)
        if judged.idle.queue is not None or judged.idle.waits or judged.idle.iterations is not None:
            yield _launches(judged.idle, judged, files, source)
    if judged.streams is not None:
        yield _streams(judged.streams, analysis, source)


def _judged(analysis: CaptureAnalysis) -> _Judged:
    """What start-up does to the GPU hides what it does afterwards, so it is left out where that is known."""
    rest = analysis.after_setup
    if rest is not UNSET and rest.idle is not UNSET:
        streams = None if rest.streams is UNSET else rest.streams
        return _Judged(
            place="the steady state",
            span_ns=rest.span_ns,
            idle_ns=rest.span_ns - rest.busy_ns,
            idle=rest.idle,
            streams=streams,
        )
    return _Judged(
        place="the capture",
        span_ns=analysis.gpu.span_ns or 0,
        idle_ns=analysis.gpu.idle_ns or 0,
        idle=None if analysis.idle is UNSET else analysis.idle,
        streams=None if analysis.streams is UNSET else analysis.streams,
    )


def _gaps(gaps: LongGaps, judged: _Judged, files: Sequence[str | None], source: str | None) -> Section:
    long = f"{gaps.long_from_ns / 1e6:.2g} ms"
    rest = ", start-up left out" if judged.place == "the steady state" else ""
    text = (
        f"No kernel ran for {_ms(judged.idle_ns)}, {format_percent(judged.idle_ns / judged.span_ns)} of the time from "
        f"the first GPU work to the last ({_ms(judged.span_ns)}{rest}). {count_of(gaps.long_count, 'gap')} of at least "
        f"{long} {'holds' if gaps.long_count == 1 else 'hold'} {_ms(gaps.long_ns)} of it, "
        f"{count_of(gaps.short_count, 'shorter one')} the rest."
    )
    reasons = SectionTable(
        title=f"What the host did in gaps of at least {long} while the GPU waited for it",
        columns=("kind", "most of it in", "inside", "gaps", "ms", f"% of {judged.place}"),
        rows=tuple(
            (
                VERDICTS[reason.verdict],
                _name(reason.name),
                _name(reason.where),
                reason.gaps,
                reason.host_ns / 1e6,
                100.0 * reason.host_ns / judged.span_ns,
            )
            for reason in gaps.reasons[:ROWS]
        ),
        source=source,
    )
    longest = filled(
        "Longest gaps, ms by cause: waiting for the host, in synchronisation, copying, launched and not started",
        {
            "capture": [files[gap.source] for gap in gaps.longest],
            "at ms": [gap.start_ns / 1e6 for gap in gaps.longest],
            "ms": [gap.length_ns / 1e6 for gap in gaps.longest],
            **_causes(gaps.longest),
            "the host was in": [_name(gap.activity.name) for gap in gaps.longest],
            "after": [_name(gap.before) for gap in gaps.longest],
            "ended by": [_name(gap.after) for gap in gaps.longest],
        },
        source,
    )
    return Section(title="Gaps", paragraphs=(text,), tables=(*([reasons] if gaps.reasons else []), longest))


def _causes(gaps: Sequence[Gap]) -> dict[str, list[Cell]]:
    """Milliseconds of each gap by cause; a cause that none has is left out."""
    columns = {
        "host": [gap.host_ns for gap in gaps],
        "sync": [gap.sync_ns for gap in gaps],
        "copy": [gap.copy_ns for gap in gaps],
        "launched": [gap.between_ns for gap in gaps],
    }
    return {name: [ns / 1e6 for ns in values] for name, values in columns.items() if any(values)}


def _launches(idle: IdleReport, judged: _Judged, files: Sequence[str | None], source: str | None) -> Section:
    texts, tables = [], []
    if idle.queue is not None:
        texts.append(_queue(idle.queue, judged))
    if idle.iterations is not None:
        texts.append(_steps(idle.iterations))
        if idle.iterations.outliers:
            tables.append(_outliers(idle.iterations, files, source))
    if idle.waits:
        tables.insert(0, _waits(idle.waits, source))
    return Section(title="Launches, waits and steps", paragraphs=tuple(texts), tables=tuple(tables))


def _queue(queue: Queue, judged: _Judged) -> str:
    # Threads may launch side by side, and what was launched before the first kernel ran lies outside of the span.
    share = ""
    if queue.call_ns <= judged.span_ns:
        share = f" ({format_percent(queue.call_ns / judged.span_ns)} of {judged.place})"
    return (
        f"{count_of(queue.launches, 'call')} that launched kernels or graphs took {_ms(queue.call_ns)}{share}. "
        f"Work started {_ms(queue.delay_median_ns)} after its launch call had returned (median; 90 % within "
        f"{_ms(queue.delay_p90_ns)}). "
        f"{_depth(queue.depth_median)}; "
        f"{format_percent(queue.empty_share)} of launches hit an empty queue. "
        f"{format_percent(queue.short_share)} of the kernels take under 10 µs and make up "
        f"{format_percent(queue.short_time_share)} of the kernel time; {format_percent(queue.graph_share)} of the "
        "kernels come from graphs."
    )


def _depth(launches: float) -> str:
    return f"Median queue depth at launch: {round(launches):,}"


def _steps(steps: Iterations) -> str:
    what = count_of(steps.count, "step")
    if steps.kernels_each is not None:
        # Kernels that repeat may be those of a step or of a layer: both repeat.
        what = f"Repeating sequence (steps or layers): {count_of(steps.kernels_each, 'kernel')} × {steps.count:,}"
    outliers = count_of(len(steps.outliers), "outlier") if steps.outliers else "no outliers"
    return (
        f"{what}, {steps.how}: median {_ms(steps.median_ns)}, quartiles {_ms(steps.p25_ns)} and {_ms(steps.p75_ns)}; "
        f"{outliers}."
    )


def _waits(waits: Sequence[WaitRow], source: str | None) -> SectionTable:
    return SectionTable(
        title="Calls that wait for the GPU; where it was idle meanwhile, waiting cost time",
        columns=("call", "n", "total ms", "GPU idle ms", "mostly in"),
        rows=tuple(
            (row.call, row.count, row.total_ns / 1e6, row.gpu_idle_ns / 1e6, _name("; ".join(row.places)))
            for row in waits
        ),
        source=source,
    )


def _outliers(steps: Iterations, files: Sequence[str | None], source: str | None) -> SectionTable:
    return filled(
        "Steps far from the median, counted from 0",
        {
            "capture": [files[one.source] for one in steps.outliers],
            "step": [one.index for one in steps.outliers],
            "ms": [one.length_ns / 1e6 for one in steps.outliers],
            "times the median": [one.length_ns / max(steps.median_ns, 1) for one in steps.outliers],
        },
        source,
    )


def _streams(streams: StreamReport, analysis: CaptureAnalysis, source: str | None) -> Section:
    rows = streams.rows[:ROWS]
    files = _files(analysis)
    texts = [
        f"{count_of(streams.count, 'stream')} with work. One is busy while a kernel or graph of it runs, as a share "
        "of the time from the first work on its GPU to the last."
    ]
    texts += [
        f"On GPU {one.device}, streams {', '.join(str(s) for s in one.streams[:8])} ran one after the other: "
        f"{_ms(one.overlap_ns)} of the {_ms(one.could_hide_ns)} alongside the busiest of them overlap."
        for one in streams.serial
    ]
    table = filled(
        "",
        {
            "capture": [files[row.source] for row in rows],
            "process": [row.process if len({r.process for r in rows}) > 1 else None for row in rows],
            "GPU": [row.device for row in rows],
            "stream": [row.stream if row.stream >= 0 else "not recorded" for row in rows],
            "kernels": [row.kernel_count for row in rows],
            "busy ms": [row.busy_ns / 1e6 for row in rows],
            "busy, % of span": [100.0 * row.busy_ns / row.span_ns if row.span_ns else None for row in rows],
            "copies ms": [row.copy_ns / 1e6 for row in rows],
        },
        source,
    )
    return Section(title="Streams", paragraphs=tuple(texts), tables=(table,))


def _files(analysis: CaptureAnalysis) -> tuple[str | None, ...]:
    """What to call each capture; nothing where there is but one."""
    if len(analysis.sources) == 1:
        return (None,)
    return tuple(PurePath(source.path).name for source in analysis.sources)


def _ms(time_ns: float) -> str:
    return format_ms(time_ns / 1e6)


def _name(text: str | None) -> str | None:
    return cut_text(text, NAME_WIDTH) if text else None
