"""Timelines in, everything `llm-perf analyze` says about them out: the document `analysis.json` holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from msgspec import UNSET, UnsetType

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts, ExposedCommunication, FusibleChains, runs_on
from llm_perf_opt.analysis.findings.finding import MIN_LISTED, FindingRecord, paid_once
from llm_perf_opt.analysis.findings.rules import diagnose_capture
from llm_perf_opt.analysis.gaps.edges import HostEdge, find_edges
from llm_perf_opt.analysis.gaps.host_alone import HostAlone, sum_host_alone
from llm_perf_opt.analysis.gaps.report import Engine, IdleReport, judge_by_ranges, report_idle
from llm_perf_opt.analysis.gaps.startup import find_start_up
from llm_perf_opt.analysis.gaps.verdict import is_tuning
from llm_perf_opt.analysis.gaps.waits import copy_places
from llm_perf_opt.analysis.kernels.names import is_fusible
from llm_perf_opt.analysis.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.analysis.ranks.analysis import RanksAnalysis
from llm_perf_opt.analysis.ranks.overlap import split_time
from llm_perf_opt.analysis.ranks.traffic import TrafficRow
from llm_perf_opt.analysis.timeline.critical import CriticalPath
from llm_perf_opt.analysis.timeline.frames import PythonTree
from llm_perf_opt.analysis.timeline.graphs import GraphReplays
from llm_perf_opt.analysis.timeline.idle import LONG_GAP_NS, IdleMap, map_idle
from llm_perf_opt.analysis.timeline.memory import MemoryCurve
from llm_perf_opt.analysis.timeline.operators import ModuleRow, ModuleTree, OperatorRow
from llm_perf_opt.analysis.timeline.range_names import merge_range_names
from llm_perf_opt.analysis.timeline.ranges import RangeInstances, measure_ranges
from llm_perf_opt.analysis.timeline.rows import CopyRow, CounterRow, Idle, KernelRow, RangeRow, rate
from llm_perf_opt.analysis.timeline.shapes import ShapesAnalysis
from llm_perf_opt.analysis.timeline.streams import (
    AttentionInPieces,
    StreamReport,
    attention_in_pieces,
    chains_of,
    report_streams,
)
from llm_perf_opt.analysis.timeline.tables import (
    communication_kernels,
    copy_rows,
    few_blocks,
    idle_of,
    kernel_rows,
    range_rows,
    sum_idle,
)
from llm_perf_opt.analysis.timeline.timeline import CapturedGpu, Timeline, distinct, since

# Ranges of more names than this are for no reader, and would make the answer larger than the capture.
RANGES_KEPT = 500
# From this share on that is paid once, the rest of a capture is judged by itself: if it has so many kernels, this part
# of the GPU's work, and few kernels of an autotuner.
MOSTLY_SETUP = 0.3
ENOUGH_TO_JUDGE = 50
LEAST_WORK = 0.2
MOST_TUNING = 0.05
PART_WORDS = (
    ("the capture's kernel time", "the kernel time there"),
    ("the capture's", "its"),
    ("the capture", "what follows"),
    ("The capture", "What follows"),
)


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """One capture given, and its own totals; no busy time where the file holds no times of day."""

    path: str
    kind: str
    producer: str | None
    schema: str | None
    kernel_count: int
    kernel_names: int
    kernel_ns: int
    gpu_busy_ns: int | None
    gpu_span_ns: int | None
    range_count: int
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GpuIdle:
    """Why the GPU was idle over the whole capture; the parts add up to `idle_ns`."""

    waiting_for_host_ns: int
    between_kernels_ns: int
    waiting_for_copy_or_sync_ns: int
    unattributed_ns: int


@dataclass(frozen=True, kw_only=True)
class GpuTotals:
    """The devices, and busy and idle time of each process from its first GPU work to its last, added up.

    Captures do not say which of several GPUs a kernel's device number means, so all of them are named. Times other than
    that of the kernels are None where no GPU work was recorded, or none with times of day.
    """

    name: str | None
    devices: tuple[CapturedGpu, ...]
    devices_used: tuple[int, ...]
    kernel_count: int
    kernel_ns: int
    busy_ns: int | None
    span_ns: int | None
    idle_ns: int | None
    idle: GpuIdle | None


@dataclass(frozen=True, kw_only=True)
class GraphTotals:
    """CUDA graphs whose kernels were not listed."""

    launches_traced_as_a_whole: int
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class AfterSetup:
    """What came after a capture's set-up, judged by itself. Shares and gains of its findings are of this part alone."""

    span_ns: int
    busy_ns: int
    kernel_count: int
    graph_count: int
    findings: tuple[FindingRecord, ...]


@dataclass(frozen=True, kw_only=True)
class CaptureAnalysis:
    """What `analysis.json` of nsys and of a torch trace holds, and what `llm-perf analyze --json` prints.

    Of the last parts only those are written that the kind of capture has: `operators` and `modules` of a torch trace
    given to `analyze`, `tree` of the torch profiler stage, `ncu` of ncu files given beside a capture, `counters` of a
    torch trace with hardware counters, `streams` where a GPU used several, `ranks` where several processes or GPUs
    worked or kernels communicated, `shapes` of a trace with input shapes, `critical_paths` of ranges with GPU work,
    `memory` of a trace with memory events, `python` of one with frames, `graph_replays` where another
    trace says what graphs replay, `after_setup` where most of a capture is paid once, `host_edges` where the host works
    long before the first GPU work and after the last, `host_alone` of operators without kernels.
    """

    schema_version: Literal[1] = 1
    sources: tuple[SourceRow, ...]
    gpu: GpuTotals
    kernels: tuple[KernelRow, ...]
    copies: tuple[CopyRow, ...]
    graphs: GraphTotals
    ranges: tuple[RangeRow, ...]
    findings: tuple[FindingRecord, ...]
    notes: tuple[str, ...]
    idle: IdleReport | UnsetType = UNSET
    streams: StreamReport | UnsetType = UNSET
    operators: tuple[OperatorRow, ...] | UnsetType = UNSET
    modules: tuple[ModuleRow, ...] | UnsetType = UNSET
    tree: ModuleTree | UnsetType = UNSET
    ncu: NcuAnalysis | UnsetType = UNSET
    counters: tuple[CounterRow, ...] | UnsetType = UNSET
    ranks: RanksAnalysis | UnsetType = UNSET
    traffic: tuple[TrafficRow, ...] | UnsetType = UNSET
    shapes: ShapesAnalysis | UnsetType = UNSET
    critical_paths: tuple[CriticalPath, ...] | UnsetType = UNSET
    memory: tuple[MemoryCurve, ...] | UnsetType = UNSET
    python: tuple[PythonTree, ...] | UnsetType = UNSET
    graph_replays: tuple[GraphReplays, ...] | UnsetType = UNSET
    after_setup: AfterSetup | UnsetType = UNSET
    host_edges: tuple[HostEdge, ...] | UnsetType = UNSET
    host_alone: HostAlone | UnsetType = UNSET

    @property
    def judged_ns(self) -> int:
        """What shares of the capture are of: from the first GPU work to the last, and what the host does around that.

        0 where no GPU work was recorded.
        """
        edges = () if self.host_edges is UNSET else self.host_edges
        return (self.gpu.span_ns or 0) + sum(edge.length_ns for edge in edges)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One capture with its idle time by process and its range instances, all in columns."""

    timeline: Timeline
    idle: Mapping[int, IdleMap]
    ranges: RangeInstances


def measure_timeline(timeline: Timeline) -> Measured:
    """Find out when the GPU of a capture was idle, and what lies inside its ranges; numbered ranges are one."""
    timeline = merge_range_names(timeline)
    idle = map_idle(timeline)
    return Measured(timeline=timeline, idle=idle, ranges=measure_ranges(timeline, idle))


def analyze_timelines(timelines: Sequence[Timeline]) -> CaptureAnalysis:
    """Analyse one capture, or several repetitions of one: each by itself, and in total."""
    return analyze_measured([measure_timeline(timeline) for timeline in timelines])


def analyze_measured(
    measured: Sequence[Measured], *, engine: Engine | None = None, is_rest: bool = False
) -> CaptureAnalysis:
    """As `analyze_timelines`, for those who need the instances as well, or know which server they recorded.

    What comes before the rest of a capture is known already: it has no edges.
    """
    timelines = [m.timeline for m in measured]
    ranges = range_rows([(m.timeline, m.ranges) for m in measured])
    source = ", ".join(t.source for t in timelines)
    kernels, copies = _tables(timelines)
    sources = tuple(_source(m) for m in measured)
    reasons = _idle_of(measured)
    gpu = _gpu(measured, sources, reasons)
    seen = gpu.span_ns is not None
    captures = [(m.timeline, m.idle) for m in measured]
    startups = [find_start_up(timeline, maps) for timeline, maps in captures] if seen else []
    told = report_idle(captures, engine=engine, startups=startups) if seen else None
    idle = None if told is None else judge_by_ranges(told, ranges)
    streams = report_streams(timelines)
    findings: tuple[FindingRecord, ...] = ()
    edges: tuple[HostEdge, ...] = ()
    if seen and not is_rest:
        edges = find_edges(
            captures,
            span_ns=gpu.span_ns or 0,
            long_gaps_ns=reasons.long_gaps_ns,
            run_on=frozenset(row.name for row in ranges if runs_on(row)),
            startups=startups,
        )
    has_kernels = any(len(t.kernels) or len(t.graphs) for t in timelines)
    alone = None if has_kernels else sum_host_alone(timelines)
    if idle is not None:
        facts = CaptureFacts(
            source=source,
            span_ns=(gpu.span_ns or 0) + sum(edge.length_ns for edge in edges),
            busy_ns=gpu.busy_ns or 0,
            # A graph traced as a whole is work like a kernel.
            kernel_count=gpu.kernel_count + sum(len(t.graphs) for t in timelines),
            idle=reasons,
            ranges=ranges,
            copies=copies,
            report=idle,
            serial_streams=() if streams is None else streams.serial,
            exposed=_exposed(timelines),
            fusible=_fusible(timelines),
            pieces=_pieces(timelines),
            few_blocks=few_blocks(timelines),
            kernels=kernels,
            captures=len(timelines),
            gpu_name=gpu.name,
            world_size=max((t.origin.world_size or 1 for t in timelines), default=1),
            copy_places=copy_places(timelines) if reasons.copy_ns >= MIN_LISTED * (gpu.span_ns or 0) else (),
            kept_share=min((t.kept_share for t in timelines if t.kept_share is not None), default=None),
            edges=edges,
        )
        findings = tuple(FindingRecord.of(found) for found in diagnose_capture(facts))
    return CaptureAnalysis(
        sources=sources,
        gpu=gpu,
        kernels=kernels,
        copies=copies,
        graphs=GraphTotals(
            launches_traced_as_a_whole=sum(len(t.graphs) for t in timelines),
            total_ns=sum(int((t.graphs.end_ns - t.graphs.start_ns).sum()) for t in timelines),
        ),
        ranges=ranges[:RANGES_KEPT],
        findings=findings,
        notes=(
            *(note for m in measured for note in _notes(m.timeline, m.ranges)),
            *_left_out(ranges),
            *_pauses(idle, gpu.span_ns or 0),
        ),
        idle=UNSET if idle is None else idle,
        streams=UNSET if streams is None else streams,
        host_edges=edges or UNSET,
        host_alone=UNSET if alone is None else alone,
    )


def judge_after_setup(analysis: CaptureAnalysis, measured: Sequence[Measured]) -> CaptureAnalysis:
    """The analysis of a capture that is mostly paid once with the rest of it judged by itself, where that tells enough.

    Of several captures, of a rank of a job and of a capture that was thinned out the rest is left alone: what ranks
    wait for, and what is missing, would be told as its own.
    """
    if len(measured) != 1 or analysis.idle is UNSET or paid_once(analysis.findings) < MOSTLY_SETUP:
        return analysis
    timeline, begins_ns = measured[0].timeline, analysis.idle.gaps.setup_end_ns
    if begins_ns is None or timeline.kept_share is not None or (timeline.origin.world_size or 1) > 1:
        return analysis
    rest = since(timeline, begins_ns, before_ns=LONG_GAP_NS)
    found = analyze_measured([measure_timeline(rest)], is_rest=True)
    graphs = found.graphs.launches_traced_as_a_whole
    busy_ns, span_ns = found.gpu.busy_ns or 0, found.gpu.span_ns or 0
    tuning = sum(row.instances for row in found.kernels if is_tuning(row.name))
    if (
        found.gpu.kernel_count + graphs < ENOUGH_TO_JUDGE
        or not span_ns
        or busy_ns < LEAST_WORK * (analysis.gpu.busy_ns or 0)
        or tuning > MOST_TUNING * found.gpu.kernel_count
        or paid_once(found.findings) >= MOSTLY_SETUP
    ):
        return analysis
    part = AfterSetup(
        span_ns=span_ns,
        busy_ns=busy_ns,
        kernel_count=found.gpu.kernel_count,
        graph_count=graphs,
        findings=tuple(_of_part(finding) for finding in found.findings),
    )
    return replace(analysis, after_setup=part)


def _of_part(finding: FindingRecord) -> FindingRecord:
    """A finding in the words of the part it is of."""

    def said(text: str) -> str:
        for word, instead in PART_WORDS:
            text = text.replace(word, instead)
        return text

    caveat = None if finding.caveat is None else said(finding.caveat)
    evidence = tuple(said(text) for text in finding.evidence)
    return replace(finding, title=said(finding.title), evidence=evidence, caveat=caveat)


def _exposed(timelines: Sequence[Timeline]) -> ExposedCommunication | None:
    """What communication costs each process, added up; None where no kernel communicates."""
    parts = []
    for timeline in timelines:
        talks = communication_kernels(timeline)
        if talks.any():
            owners = distinct(timeline.kernels.process[talks])
            parts += [split_time(timeline, talks, process=int(owner)) for owner in owners]
    if not parts:
        return None
    return ExposedCommunication(
        total_ns=sum(part.communication_ns for part in parts),
        exposed_ns=sum(part.exposed_ns for part in parts),
        computation_ns=sum(part.computation_ns for part in parts),
    )


def _fusible(timelines: Sequence[Timeline]) -> FusibleChains:
    parts = [chains_of(timeline, is_fusible) for timeline in timelines]
    return FusibleChains(
        chains=sum(part.count for part in parts),
        kernel_count=sum(part.kernel_count for part in parts),
        time_ns=sum(part.time_ns for part in parts),
        saved_ns=sum(part.time_ns - part.longest_ns for part in parts),
    )


def _pieces(timelines: Sequence[Timeline]) -> AttentionInPieces:
    parts = [attention_in_pieces(timeline) for timeline in timelines]
    return AttentionInPieces(
        count=sum(part.count for part in parts),
        product_ns=sum(part.product_ns for part in parts),
        softmax_ns=sum(part.softmax_ns for part in parts),
        between_ns=sum(part.between_ns for part in parts),
    )


def _pauses(idle: IdleReport | None, span_ns: int) -> list[str]:
    """What to say where the profiler itself kept the GPU idle: that is nobody's work, and no finding counts it."""
    reasons = [reason for reason in idle.gaps.reasons if reason.verdict == "profiler"] if idle is not None else []
    spent = sum(reason.host_ns for reason in reasons)
    if not spent:
        return []
    return [
        f"the profiler itself ({reasons[0].name}) keeps the GPU idle for {spent / 1e6:,.3f} ms in "
        f"{sum(reason.gaps for reason in reasons)} long gap(s), {spent / span_ns:.1%} of the capture; no finding "
        "counts that"
    ]


def _left_out(ranges: Sequence[RangeRow]) -> list[str]:
    """What to say where there are more ranges than a reader can use: an answer must not outgrow its capture."""
    more = ranges[RANGES_KEPT:]
    if not more:
        return []
    wall_ms = sum(row.wall_ns for row in more) / 1e6
    return [f"{len(more):,} ranges of other names, {wall_ms:,.3f} ms in all, are left out: the shortest of them"]


def _idle_of(measured: Sequence[Measured]) -> Idle:
    """Why no kernel ran, from each process's first GPU work to its last."""
    splits = [one.split(np.array([one.span[0]]), np.array([one.span[1]])) for m in measured for one in m.idle.values()]
    return sum_idle([idle_of(split, np.array([0])) for split in splits])


def _tables(timelines: Sequence[Timeline]) -> tuple[tuple[KernelRow, ...], tuple[CopyRow, ...]]:
    """Kernels and copies of all captures together, under shared name codes."""
    if len(timelines) == 1:
        only = timelines[0]
        time_ns = only.kernels.end_ns - only.kernels.start_ns
        return kernel_rows(only.names, only.kernels.name, time_ns), copy_rows(only.names, only.copies)
    if not timelines:
        return (), ()
    names: dict[str, int] = {}
    recode = [np.array([names.setdefault(n, len(names)) for n in t.names], np.int64) for t in timelines]
    group = np.concatenate([r[t.kernels.name] for r, t in zip(recode, timelines, strict=True)])
    time_ns = np.concatenate([t.kernels.end_ns - t.kernels.start_ns for t in timelines])
    shared = tuple(names)
    by_kind: dict[str, list[CopyRow]] = {}
    for t in timelines:
        for row in copy_rows(t.names, t.copies):
            by_kind.setdefault(row.kind, []).append(row)
    copies = tuple(sorted((_merge_copies(rows) for rows in by_kind.values()), key=lambda r: (-r.total_ns, r.kind)))
    return kernel_rows(shared, group, time_ns), copies


def _merge_copies(rows: list[CopyRow]) -> CopyRow:
    count, total = sum(r.instances for r in rows), sum(r.total_ns for r in rows)
    sizes = [r.size_bytes for r in rows if r.size_bytes is not None]
    return CopyRow(
        kind=rows[0].kind,
        instances=count,
        total_ns=total,
        size_bytes=sum(sizes) if len(sizes) == len(rows) else None,
        avg_ns=total / count,
        min_ns=min(r.min_ns for r in rows),
        max_ns=max(r.max_ns for r in rows),
        bytes_per_s=rate(sum(sizes) if len(sizes) == len(rows) else None, total),
    )


def _source(measured: Measured) -> SourceRow:
    timeline, maps = measured.timeline, measured.idle
    kernels, seen = timeline.kernels, timeline.has_gpu_work
    return SourceRow(
        path=timeline.source,
        kind=timeline.kind,
        producer=timeline.producer,
        schema=timeline.schema,
        kernel_count=len(kernels),
        kernel_names=len(distinct(kernels.name)),
        kernel_ns=int((kernels.end_ns - kernels.start_ns).sum()),
        gpu_busy_ns=sum(m.busy.total for m in maps.values()) if seen else None,
        gpu_span_ns=sum(m.span[1] - m.span[0] for m in maps.values()) if seen else None,
        range_count=len(measured.ranges),
        notes=timeline.notes,
    )


def _gpu(measured: Sequence[Measured], sources: Sequence[SourceRow], reasons: Idle) -> GpuTotals:
    timelines = [m.timeline for m in measured]
    devices = tuple(dict.fromkeys(d for t in timelines for d in t.devices))
    idle = GpuIdle(
        waiting_for_host_ns=reasons.waiting_for_host_ns,
        between_kernels_ns=reasons.between_kernels_ns,
        waiting_for_copy_or_sync_ns=reasons.waiting_for_copy_or_sync_ns,
        unattributed_ns=reasons.unattributed_ns,
    )
    span_ns, busy_ns = sum(s.gpu_span_ns or 0 for s in sources), sum(s.gpu_busy_ns or 0 for s in sources)
    tables = [table for t in timelines for table in (t.kernels, t.graphs, t.copies)]
    seen = any(t.has_gpu_work for t in timelines)
    return GpuTotals(
        name=", ".join(dict.fromkeys(d.name for d in devices)) or None,
        devices=devices,
        devices_used=tuple(sorted({int(d) for table in tables for d in distinct(table.device) if d >= 0})),
        kernel_count=sum(s.kernel_count for s in sources),
        kernel_ns=sum(s.kernel_ns for s in sources),
        busy_ns=busy_ns if seen else None,
        span_ns=span_ns if seen else None,
        idle_ns=span_ns - busy_ns if seen else None,
        idle=idle if seen else None,
    )


def _notes(timeline: Timeline, measured: RangeInstances) -> list[str]:
    """What a reader must know about one capture."""
    prefix = f"{timeline.source}: "
    notes = [prefix + note for note in timeline.notes]
    if not len(timeline.kernels) and not len(timeline.graphs):
        only = "only copies and sets" if len(timeline.copies) else "so there are no GPU times"
        notes.append(f"{prefix}no GPU kernel was recorded, {only}")
    unknown = int((timeline.kernels.call < 0).sum())
    if unknown:
        notes.append(prefix + f"{unknown} kernel(s) have no recorded launch and belong to no range")
    sizes = timeline.copies.size_bytes
    if sizes is not None and (unsized := int((sizes < 0).sum())):
        notes.append(prefix + f"{unsized} copies or sets do not say how many bytes; the sum of their kind is unknown")
    if len(timeline.graphs):
        notes.append(
            prefix
            + f"{len(timeline.graphs)} CUDA graph launch(es) were traced as a whole: their kernels are not listed; "
            "capture with `nsys profile --cuda-graph-trace=node` (pipeline.nsys.cuda_graph_trace=node) to see them"
        )
    if measured.warmup_left_out:
        notes.append(prefix + f"{measured.warmup_left_out} warm-up range(s) are left out of the ranges")
    if measured.repeats_left_out:
        notes.append(
            prefix + f"{measured.repeats_left_out} range(s) inside a range of the same name are counted once, with it"
        )
    processes = distinct(timeline.kernels.process).tolist()
    if bool((timeline.kernels.device < 0).any()):
        notes.append(prefix + "some kernels do not say which device ran them")
    shared = _shared(timeline)
    if shared:
        notes.append(
            prefix + f"several processes worked on what each calls GPU {', '.join(str(d) for d in shared)}: busy and "
            "idle are each process's own, and where that is one GPU another process may have used it meanwhile"
        )
    several = max((len(distinct(timeline.kernels.device[timeline.kernels.process == p])) for p in processes), default=0)
    if several > 1:
        notes.append(prefix + f"a process used {several} devices: busy means that at least one of them ran a kernel")
    return notes


def _shared(timeline: Timeline) -> list[int]:
    """Numbers of devices on which kernels of several processes ran."""
    kernels = timeline.kernels
    processes = distinct(kernels.process)
    if len(processes) < 2:
        return []
    used = [int(d) for code in processes for d in distinct(kernels.device[kernels.process == code])]
    return sorted({device for device in used if device >= 0 and used.count(device) > 1})
