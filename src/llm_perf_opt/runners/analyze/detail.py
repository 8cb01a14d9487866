"""What analysis.json has beyond ranges, kernels and findings: critical paths, and what a detailed reading adds."""

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.analysis.capture import CaptureAnalysis, Measured
from llm_perf_opt.analysis.hardware.hardware import find_by_device_name, load_catalogue
from llm_perf_opt.analysis.timeline.critical import critical_paths
from llm_perf_opt.analysis.timeline.frames import python_tree
from llm_perf_opt.analysis.timeline.memory import memory_curves
from llm_perf_opt.analysis.timeline.operators import TraceDetail
from llm_perf_opt.analysis.timeline.shapes import roof_of, shape_rows, sum_shapes
from llm_perf_opt.analysis.timeline.timeline import Timeline
from llm_perf_opt.config.paths import conf_dir


def add_critical_paths(analysis: CaptureAnalysis, measured: Sequence[Measured]) -> CaptureAnalysis:
    """The analysis with the critical paths of its ranges, where there are any."""
    paths = critical_paths([m.timeline for m in measured], analysis.ranges)
    return replace(analysis, critical_paths=paths) if paths else analysis


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
