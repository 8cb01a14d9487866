"""What a detailed reading of torch traces adds to their analysis."""

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.analysis.capture import CaptureAnalysis
from llm_perf_opt.analysis.hardware.hardware import find_by_device_name, load_catalogue
from llm_perf_opt.analysis.timeline.operators import TraceDetail
from llm_perf_opt.analysis.timeline.shapes import roof_of, shape_rows, sum_shapes
from llm_perf_opt.analysis.timeline.timeline import Timeline
from llm_perf_opt.config.paths import conf_dir


def add_detail(analysis: CaptureAnalysis, traces: Sequence[tuple[Timeline, TraceDetail]]) -> CaptureAnalysis:
    """The analysis with what its traces have of it."""
    sums = [sum_shapes(timeline, detail) for timeline, detail in traces]
    if any(one.found for one in sums):
        gpu = analysis.gpu.name
        hardware = None if gpu is None else find_by_device_name(load_catalogue(conf_dir() / "hardware"), gpu)
        shapes = shape_rows(sums, roof_of(gpu, hardware))
        if shapes is not None:
            analysis = replace(analysis, shapes=shapes)
    return analysis
