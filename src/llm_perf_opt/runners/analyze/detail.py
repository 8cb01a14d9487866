"""What analysis.json has beyond ranges, kernels and findings: critical paths, and what a detailed reading adds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llm_perf_opt.analysis.capture import CaptureAnalysis, Measured
from llm_perf_opt.analysis.findings.finding import FindingRecord, of_thinned_capture, rank_of_capture
from llm_perf_opt.analysis.findings.rules import unfused_elementwise
from llm_perf_opt.analysis.findings.rules.above_bound import find_below_roof
from llm_perf_opt.analysis.findings.rules.kernel_gaps import find_devices_in_turns
from llm_perf_opt.analysis.findings.rules.needless_copies import find_late_ranks, without_waiting
from llm_perf_opt.analysis.ranks.analysis import RanksAnalysis
from llm_perf_opt.analysis.timeline.critical import critical_paths
from llm_perf_opt.analysis.timeline.frames import python_tree
from llm_perf_opt.analysis.timeline.graphs import attribute_replays, graph_reference, replayed_kernels
from llm_perf_opt.analysis.timeline.memory import memory_curves
from llm_perf_opt.analysis.timeline.operators import TraceDetail
from llm_perf_opt.analysis.timeline.shapes import ShapesAnalysis, roof_of, shape_rows, sum_shapes
from llm_perf_opt.analysis.timeline.timeline import Timeline

# Operators that attention in pieces is made of.
PIECES = ("aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::matmul")


def add_critical_paths(analysis: CaptureAnalysis, measured: Sequence[Measured]) -> CaptureAnalysis:
    """The analysis with the critical paths of its ranges, where there are any."""
    paths = critical_paths([m.timeline for m in measured], analysis.ranges)
    return replace(analysis, critical_paths=paths) if paths else analysis


def add_graph_replays(
    analysis: CaptureAnalysis, measured: Sequence[Measured], reference: Path | None
) -> tuple[CaptureAnalysis, list[str]]:
    """The analysis with what graphs replay, as another trace names it; and what to say where that did not help."""
    replayed = [(m.timeline, count) for m in measured if (count := replayed_kernels(m.timeline))]
    if reference is None:
        return analysis, [
            f"{timeline.source}: {count:,} kernel(s) run in graph replays and belong to no operator; a trace of the "
            "graph's capture, or of a run without graphs, given as --graphs-from says to which"
            for timeline, count in replayed
        ]
    from llm_perf_opt.profiling.parsers.torch_trace import read_torch_trace

    trace = read_torch_trace(reference)
    known = graph_reference(replace(trace.timeline, source=str(reference)), trace.modules)
    found = [attribute_replays(timeline, known) for timeline, _ in replayed]
    if not replayed:
        return analysis, [f"{reference}: not used, no kernel of the captures was launched by a graph"]
    return replace(analysis, graph_replays=tuple(one for one in found if one is not None)), []


def _judge_shapes(analysis: CaptureAnalysis, shapes: ShapesAnalysis) -> CaptureAnalysis:
    """The analysis with what its shapes say among the findings."""
    gpu, found = analysis.gpu, [record.finding() for record in analysis.findings]
    if not gpu.span_ns or gpu.busy_ns is None:
        return analysis
    in_pieces = any(finding.rule == unfused_elementwise.ATTENTION.id for finding in found)
    found += find_below_roof(
        shapes.rows,
        kernel_ns=shapes.kernel_ns,
        busy_ns=gpu.busy_ns,
        span_ns=analysis.judged_ns,
        source=", ".join(source.path for source in analysis.sources),
        told=frozenset(PIECES) if in_pieces else frozenset(),
    )
    return replace(analysis, findings=tuple(FindingRecord.of(finding) for finding in rank_of_capture(found)))


def add_ranks(analysis: CaptureAnalysis, ranks: RanksAnalysis, kept_share: float | None) -> CaptureAnalysis:
    """The analysis with its ranks, and with what their waiting for each other says among the findings."""
    analysis = replace(analysis, ranks=ranks)
    if not analysis.gpu.span_ns:
        return analysis
    source = ", ".join(source.path for source in analysis.sources)
    late = find_late_ranks(ranks, span_ns=analysis.judged_ns, source=source)
    turns = find_devices_in_turns(ranks, span_ns=analysis.judged_ns, source=source)
    if kept_share is not None:
        late, turns = ([of_thinned_capture(finding, kept_share) for finding in part] for part in (late, turns))
    found = [*without_waiting([record.finding() for record in analysis.findings], late), *late, *turns]
    return replace(analysis, findings=tuple(FindingRecord.of(finding) for finding in rank_of_capture(found)))


def add_detail(analysis: CaptureAnalysis, traces: Sequence[tuple[Timeline, TraceDetail]]) -> CaptureAnalysis:
    """The analysis with what its traces have of shapes, memory and Python."""
    sums = [sum_shapes(timeline, detail) for timeline, detail in traces]
    if any(one.found for one in sums):
        # Here, for captures without shapes need no catalogue, nor the configuration it is checked by.
        from llm_perf_opt.analysis.hardware.hardware import find_by_device_name, load_catalogue
        from llm_perf_opt.config.paths import conf_dir

        gpu = analysis.gpu.name
        hardware = None if gpu is None else find_by_device_name(load_catalogue(conf_dir() / "hardware"), gpu)
        shapes = shape_rows(sums, roof_of(gpu, hardware))
        if shapes is not None:
            analysis = _judge_shapes(replace(analysis, shapes=shapes), shapes)
    curves = tuple(curve for timeline, detail in traces for curve in memory_curves(detail.memory, timeline.source))
    if curves:
        analysis = replace(analysis, memory=curves)
    trees = [python_tree(timeline, detail.frames) for timeline, detail in traces]
    found = tuple(tree for tree in trees if tree is not None)
    return replace(analysis, python=found) if found else analysis
