"""The one assembler: captures in, everything `llm-perf analyze` and the profiler stages say about them out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import UNSET, UnsetType

from llm_perf_opt.capture.allocator_memory import memory_curves
from llm_perf_opt.capture.critical import critical_paths
from llm_perf_opt.capture.frames import PythonTree, python_tree
from llm_perf_opt.capture.idle import LONG_GAP_NS
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.capture.operators import (
    TraceDetail,
    merge_modules,
    merge_operators,
    module_rows,
    operator_rows,
)
from llm_perf_opt.capture.ranges import RangeInstances
from llm_perf_opt.capture.ranks.collectives import recorded_args
from llm_perf_opt.capture.ranks.identify import Kind
from llm_perf_opt.capture.ranks.rank_analysis import analyze_ranks
from llm_perf_opt.capture.rows import CounterRow, KernelRow, RangeRow
from llm_perf_opt.capture.shapes import ShapesAnalysis, roof_of, shape_rows, sum_shapes
from llm_perf_opt.capture.tables import is_alone
from llm_perf_opt.capture.timeline import HostEvents, Timeline, distinct, gpu_names, since
from llm_perf_opt.core.units import count_of
from llm_perf_opt.diagnosis.diagnose import coverage_of, diagnosis_of, judge, kernels_alone
from llm_perf_opt.diagnosis.diagnosis_document import (
    AfterSetup,
    CaptureAnalysis,
    Diagnosis,
    GpuIdle,
    GpuTotals,
    GraphTotals,
    SourceRow,
)
from llm_perf_opt.diagnosis.evidence import CaptureEvidence, Measured, hardware_of, measure_timeline
from llm_perf_opt.diagnosis.gaps.gap_verdict import is_tuning
from llm_perf_opt.diagnosis.gaps.host_alone import HostAlone, sum_host_alone
from llm_perf_opt.diagnosis.gaps.startup_gaps import AUTOTUNING
from llm_perf_opt.diagnosis.ledger import ONE_TIME, Finding
from llm_perf_opt.diagnosis.program import program_of
from llm_perf_opt.diagnosis.scope import Scope, capture_scope, host_scope

# Ranges of more names than this are for no reader, and would make the answer larger than the capture.
RANGES_KEPT = 500
# From this share of start-up on, the rest of a capture is its own scope: if it has this many kernels, this part of
# the GPU's work, and few kernels of an autotuner.
MUCH_STARTUP, MOSTLY_STARTUP = 0.1, 0.3
ENOUGH_TO_JUDGE, LEAST_WORK, MOST_TUNING = 50, 0.2, 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedCapture:
    """One capture as it was read. `operators`, `modules`, `counters` and `detail` are those of a torch trace."""

    timeline: Timeline
    operators: HostEvents | None = None
    modules: HostEvents | None = None
    counters: tuple[CounterRow, ...] = ()
    detail: TraceDetail | None = None


@dataclass(frozen=True, kw_only=True)
class Analyzed:
    """The analysis, and the columns it was made of."""

    analysis: CaptureAnalysis
    measured: tuple[Measured, ...]
    notes: tuple[str, ...] = field(default=())


def analyze_timelines(timelines: Sequence[Timeline]) -> CaptureAnalysis:
    """Analyze one capture, or several repetitions of one."""
    return analyze_captures([RecordedCapture(timeline=timeline) for timeline in timelines]).analysis


def analyze_captures(
    captures: Sequence[RecordedCapture],
    *,
    files_are: Kind | None = None,
    engine: str | None = None,
    ncu: NcuAnalysis | None = None,
    summary: tuple[KernelRow, ...] = (),
    ranks_from: Sequence[Timeline] | None = None,
) -> Analyzed:
    """Tables, findings and the diagnosis of captures of one program.

    `files_are` says what several captures are, `engine` which server was recorded. `ranks_from` are the captures of all
    ranks where only the first of them is analyzed. `summary` are kernels without a timeline.
    """
    measured = [measure_timeline(capture.timeline) for capture in captures]
    # Ranges of equal names with numbers are one from here on.
    timelines = [m.timeline for m in measured]
    pairs = list(zip(captures, timelines, strict=True))
    shapes = _shapes(captures, timelines)
    recorded = [None if c.detail is None else recorded_args(t, c.detail) for c, t in pairs]
    of_ranks = timelines if ranks_from is None else ranks_from
    has_one_gpu = is_alone(of_ranks)
    ranks = (
        None
        if has_one_gpu and files_are is None
        else analyze_ranks(
            of_ranks,
            said=files_are,
            recorded=recorded if ranks_from is None else None,
            # What the link between GPUs needs for a message.
            hardware=None if has_one_gpu else hardware_of(timelines),
        )
    )
    evidence = CaptureEvidence(
        measured,
        engine=engine,
        shapes=shapes,
        ranks=ranks,
        details=[capture.detail for capture in captures],
    )
    kernels = evidence.kernels or summary
    ncu = None if ncu is None else joined(ncu, kernels)
    steady = _steady(evidence) if evidence.has_gpu_work else None
    counters = tuple(row for capture in captures for row in capture.counters)
    has_kernels = any(len(t.kernels) or len(t.graphs) for t in timelines)
    # Launches whose work was lost say that the program used a GPU: it is not judged as one that did not.
    is_lost = any(t.lost_launches for t in timelines)
    alone = None if has_kernels or is_lost else sum_host_alone(timelines)
    diagnosis = _diagnose(evidence, steady, ncu, alone=None if counters else alone, counters=counters, summary=summary)
    sources = tuple(_source(m) for m in evidence.measured)
    operators = [operator_rows(t, c.operators) for c, t in pairs if c.operators is not None]
    modules = [module_rows(t, c.modules) for c, t in pairs if c.modules is not None]
    curves = [memory_curves(c.detail.memory, t.source) for c, t in pairs if c.detail is not None]
    analysis = CaptureAnalysis(
        sources=sources,
        gpu=_gpu(evidence, sources),
        kernels=kernels,
        copies=evidence.copies,
        graphs=GraphTotals(
            launches_traced_as_a_whole=sum(len(t.graphs) for t in timelines),
            total_ns=sum(int((t.graphs.end_ns - t.graphs.start_ns).sum()) for t in timelines),
        ),
        ranges=evidence.ranges[:RANGES_KEPT],
        findings=diagnosis.claims,
        notes=(
            *(note for m in evidence.measured for note in _notes(m.timeline, m.ranges, is_counted=bool(counters))),
            *_left_out(evidence.ranges),
        ),
        diagnosis=diagnosis,
        idle=evidence.report if evidence.has_gpu_work else UNSET,
        streams=or_unset(evidence.streams),
        operators=merge_operators(operators) if operators else UNSET,
        modules=merge_modules(modules) if operators else UNSET,
        ncu=or_unset(ncu),
        counters=counters or UNSET,
        ranks=or_unset(ranks),
        shapes=or_unset(shapes),
        critical_paths=critical_paths(timelines, evidence.ranges) or UNSET,
        memory=tuple(curve for some in curves for curve in some) or UNSET,
        python=_python(evidence.timelines, evidence.details) or UNSET,
        after_setup=UNSET
        if steady is None
        else _after_setup(steady, evidence.details, diagnosis.claims, evidence.report.gaps.setup_end_ns),
        host_edges=evidence.edges or UNSET,
        host_alone=or_unset(alone),
    )
    return Analyzed(analysis=analysis, measured=tuple(measured), notes=() if ranks is None else ranks.notes)


Part = TypeVar("Part")


def or_unset(part: Part | None) -> Part | UnsetType:
    """A part of a document, left out where there is none."""
    return UNSET if part is None else part


def joined(ncu: NcuAnalysis, kernels: Sequence[KernelRow]) -> NcuAnalysis:
    """What ncu measured, joined with the kernels of a timeline, if there is one."""
    if not kernels:
        return ncu
    from llm_perf_opt.capture.kernels.ncu_analysis import join_nsys
    from llm_perf_opt.capture.kernels.ncu_records import NsysKernel

    return join_nsys(ncu, [NsysKernel(name=k.name, instances=k.instances, total_ns=k.total_ns) for k in kernels])


def _diagnose(
    evidence: CaptureEvidence,
    steady: CaptureEvidence | None,
    ncu: NcuAnalysis | None,
    *,
    alone: HostAlone | None,
    counters: Sequence[CounterRow],
    summary: Sequence[KernelRow],
) -> Diagnosis:
    """`alone` is None also where kernels with hardware counters ran, at an unknown time."""
    program = program_of(evidence)
    if evidence.has_gpu_work:
        scopes = _scopes(evidence, steady, ncu)
    else:
        scopes = [] if alone is None or not alone.span_ns else [host_scope(evidence, alone)]
    counted = sum(row.instances for row in counters)
    return diagnosis_of(
        judge(scopes, program),
        scopes,
        program,
        coverage_of(evidence, scopes, counted=counted),
        kernels_alone=kernels_alone(ncu, summary),
    )


def _scopes(evidence: CaptureEvidence, steady: CaptureEvidence | None, ncu: NcuAnalysis | None) -> list[Scope]:
    """The whole capture for one-time costs, and the steady state for those that recur; one scope where both are one."""
    kernels = () if ncu is None else ncu.kernels
    if steady is None:
        return [capture_scope(evidence, "steady", kernels)]
    return [capture_scope(evidence, "capture", kernels), capture_scope(steady, "steady", kernels, is_whole=False)]


def _steady(evidence: CaptureEvidence) -> CaptureEvidence | None:
    """What follows start-up in one capture, where that is much and enough follows; else the capture is one scope.

    Of several captures and of one that was thinned out the rest is left alone: what ranks wait for, and what is
    missing, would be counted as its own.
    """
    if len(evidence.measured) != 1 or evidence.kept_share is not None:
        return None
    timeline, begins_ns = evidence.timelines[0], evidence.report.gaps.setup_end_ns
    ledger = capture_scope(evidence).ledger
    # Start-up may all lie before the first GPU work.
    is_before = begins_ns is None and any(edge.sets_up for edge in evidence.edges)
    # A search for the fastest algorithm keeps the GPU busy, with kernels that do not run again.
    searched = sum(row.total_ns for row in evidence.report.startup if row.cost == AUTOTUNING and not row.recurs)
    share = max(ledger.share(*ONE_TIME), searched / max(evidence.span_ns, 1))
    if (begins_ns is None and not is_before) or share < MUCH_STARTUP:
        return None
    rest = CaptureEvidence(
        evidence.measured
        if begins_ns is None
        else [measure_timeline(since(timeline, begins_ns, before_ns=LONG_GAP_NS))],
        engine=evidence.engine,
        is_steady=True,
        shapes=evidence.shapes,
        ranks=evidence.ranks,
    )
    tuning = sum(row.instances for row in rest.kernels if is_tuning(row.name))
    if (
        rest.kernel_count < ENOUGH_TO_JUDGE
        or not rest.span_ns
        or rest.busy_ns < LEAST_WORK * evidence.busy_ns
        or tuning > MOST_TUNING * rest.kernel_count
        or capture_scope(rest).ledger.share(*ONE_TIME) >= MOSTLY_STARTUP
    ):
        return None
    return rest


def _after_setup(
    steady: CaptureEvidence,
    details: Sequence[TraceDetail | None],
    findings: Sequence[Finding],
    begins_ns: int | None,
) -> AfterSetup:
    return AfterSetup(
        span_ns=steady.span_ns,
        busy_ns=steady.busy_ns,
        kernel_count=sum(len(t.kernels) for t in steady.timelines),
        graph_count=sum(len(t.graphs) for t in steady.timelines),
        findings=tuple(finding for finding in findings if finding.scope == "steady"),
        idle=steady.report,
        streams=or_unset(steady.streams),
        kernels=steady.kernels,
        copies=steady.copies,
        python=_python(steady.timelines, details, since_ns=begins_ns) or UNSET,
    )


def _shapes(captures: Sequence[RecordedCapture], timelines: Sequence[Timeline]) -> ShapesAnalysis | None:
    """What the shapes of operators say, where they were recorded."""
    sums = [sum_shapes(t, c.detail) for c, t in zip(captures, timelines, strict=True) if c.detail is not None]
    if not any(one.found for one in sums):
        return None
    return shape_rows(sums, roof_of(gpu_names(timelines), hardware_of(timelines)))


def _python(
    timelines: Sequence[Timeline], details: Sequence[TraceDetail | None], *, since_ns: int | None = None
) -> tuple[PythonTree, ...]:
    """The call trees of Python; from a moment on, of frames that began before it the rest."""
    known = [(t, detail.frames) for t, detail in zip(timelines, details, strict=True) if detail is not None]
    trees = (python_tree(t, frames if since_ns is None else frames.since(since_ns)) for t, frames in known)
    return tuple(tree for tree in trees if tree is not None)


def _left_out(ranges: Sequence[RangeRow]) -> list[str]:
    """What to say where there are more ranges than a reader can use: an answer must not outgrow its capture."""
    more = ranges[RANGES_KEPT:]
    if not more:
        return []
    wall_ms = sum(row.wall_ns for row in more) / 1e6
    return [f"{len(more):,} ranges of other names, {wall_ms:,.3f} ms in all, are left out: the shortest of them"]


def _source(measured: Measured) -> SourceRow:
    timeline, maps = measured.timeline, measured.idle
    kernels, seen = timeline.kernels, timeline.has_gpu_work
    spans = [one.span for one in maps.values() if one.span[1] > one.span[0]]
    return SourceRow(
        path=timeline.source,
        kind=timeline.kind,
        producer=timeline.producer,
        schema=timeline.schema,
        kernel_count=len(kernels),
        kernel_names=len(kernels.distinct_names),
        kernel_ns=int((kernels.end_ns - kernels.start_ns).sum()),
        gpu_busy_ns=sum(m.busy.total for m in maps.values()) if seen else None,
        gpu_span_ns=sum(m.span[1] - m.span[0] for m in maps.values()) if seen else None,
        range_count=len(measured.ranges),
        notes=timeline.notes,
        gpu_elapsed_ns=max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else None,
        processes=max(len(spans), 1),
    )


def _gpu(evidence: CaptureEvidence, sources: Sequence[SourceRow]) -> GpuTotals:
    timelines, reasons = evidence.timelines, evidence.idle
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
        name=evidence.gpu_name,
        devices=devices,
        devices_used=tuple(sorted({int(d) for table in tables for d in distinct(table.device) if d >= 0})),
        kernel_count=sum(s.kernel_count for s in sources),
        kernel_ns=sum(s.kernel_ns for s in sources),
        busy_ns=busy_ns if seen else None,
        span_ns=span_ns if seen else None,
        idle_ns=span_ns - busy_ns if seen else None,
        idle=idle if seen else None,
        processes=sum(s.processes for s in sources) or 1,
    )


def _notes(timeline: Timeline, measured: RangeInstances, *, is_counted: bool) -> list[str]:
    """What a reader must know about one capture."""
    prefix = f"{timeline.source}: "
    notes = [prefix + note for note in timeline.notes]
    # Kernels with hardware counters were recorded, though not when they ran.
    if not len(timeline.kernels) and not len(timeline.graphs) and not is_counted:
        only = "only copies and sets" if len(timeline.copies) else "so there are no GPU times"
        notes.append(f"{prefix}no GPU kernel was recorded, {only}")
    notes += [prefix + note for note in measured.notes]
    sizes = timeline.copies.size_bytes
    if sizes is not None and (unsized := int((sizes < 0).sum())):
        notes.append(prefix + f"{unsized} copies or sets do not say how many bytes; the sum of their kind is unknown")
    if len(timeline.graphs):
        notes.append(
            prefix
            + f"{count_of(len(timeline.graphs), 'CUDA graph launch')} traced as a whole, without a list of kernels; "
            "capture with `nsys profile --cuda-graph-trace=node` (pipeline.nsys.cuda_graph_trace=node) to see them"
        )
    if measured.warmup_left_out:
        notes.append(prefix + f"left out of the ranges: {count_of(measured.warmup_left_out, 'warm-up range')}")
    if measured.repeats_left_out:
        notes.append(
            prefix
            + f"counted once, with the outer range of the same name: {count_of(measured.repeats_left_out, 'range')}"
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
