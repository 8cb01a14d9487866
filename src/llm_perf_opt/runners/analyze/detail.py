"""What analysis.json has beyond ranges, kernels and findings: critical paths, and what a detailed reading adds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llm_perf_opt.analysis.capture import CaptureAnalysis, Measured
from llm_perf_opt.analysis.hardware.hardware import find_by_device_name, load_catalogue
from llm_perf_opt.analysis.timeline.critical import critical_paths
from llm_perf_opt.analysis.timeline.frames import python_tree
from llm_perf_opt.analysis.timeline.graphs import attribute_replays, graph_reference, replayed_kernels
from llm_perf_opt.analysis.timeline.memory import memory_curves
from llm_perf_opt.analysis.timeline.operators import TraceDetail
from llm_perf_opt.analysis.timeline.shapes import roof_of, shape_rows, sum_shapes
from llm_perf_opt.analysis.timeline.timeline import Timeline
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.profiling.parsers.torch_trace import read_torch_trace


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
    trace = read_torch_trace(reference)
    known = graph_reference(replace(trace.timeline, source=str(reference)), trace.modules)
    found = [attribute_replays(timeline, known) for timeline, _ in replayed]
    if not replayed:
        return analysis, [f"{reference}: not used, no kernel of the captures was launched by a graph"]
    return replace(analysis, graph_replays=tuple(one for one in found if one is not None)), []


def add_detail(analysis: CaptureAnalysis, traces: Sequence[tuple[Timeline, TraceDetail]]) -> CaptureAnalysis:
    """The analysis with what its traces have of shapes, memory and Python."""
    sums = [sum_shapes(timeline, detail) for timeline, detail in traces]
    if any(one.found for one in sums):
        gpu = analysis.gpu.name
        hardware = None if gpu is None else find_by_device_name(load_catalogue(conf_dir() / "hardware"), gpu)
        shapes = shape_rows(sums, roof_of(gpu, hardware))
        if shapes is not None:
            analysis = replace(analysis, shapes=shapes)
    curves = tuple(curve for timeline, detail in traces for curve in memory_curves(detail.memory, timeline.source))
    if curves:
        analysis = replace(analysis, memory=curves)
    trees = [python_tree(timeline, detail.frames) for timeline, detail in traces]
    found = tuple(tree for tree in trees if tree is not None)
    return replace(analysis, python=found) if found else analysis
