"""All about the idle time of captures: the part `idle` of `analysis.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.analysis.gaps.iterations import Iterations, find_iterations
from llm_perf_opt.analysis.gaps.longest import LongGaps, find_long_gaps, merge_long_gaps
from llm_perf_opt.analysis.gaps.queue import Queue, measure_queue
from llm_perf_opt.analysis.gaps.waits import WaitRow, wait_rows
from llm_perf_opt.analysis.timeline.idle import IdleMap
from llm_perf_opt.analysis.timeline.timeline import Timeline

Framework = Literal["torch", "jax", "other"]


@dataclass(frozen=True, kw_only=True)
class IdleReport:
    """Gaps, queue, waits and steps of all captures together."""

    framework: Framework
    gaps: LongGaps
    queue: Queue | None
    waits: tuple[WaitRow, ...]
    iterations: Iterations | None


def report_idle(captures: Sequence[tuple[Timeline, Mapping[int, IdleMap]]]) -> IdleReport:
    """Look into the idle time of captures of one program."""
    gaps = [find_long_gaps(timeline, maps, source=i) for i, (timeline, maps) in enumerate(captures)]
    timelines = [timeline for timeline, _ in captures]
    return IdleReport(
        framework=framework_of(timelines),
        gaps=merge_long_gaps(gaps),
        queue=measure_queue(timelines),
        waits=wait_rows(captures),
        iterations=find_iterations(timelines),
    )


def framework_of(timelines: Sequence[Timeline]) -> Framework:
    """Which framework a program was written with, by the names of its kernels and ranges."""
    if any(timeline.kind == "torch" for timeline in timelines):
        return "torch"
    names = [name for timeline in timelines for name in timeline.names]
    if any("at::native" in name or name.startswith(("aten::", "void at::", "triton_poi_fused")) for name in names):
        return "torch"
    if any(name.startswith(("XlaModule", "Thunk:", "TSL:", "XlaLaunch")) for name in names):
        return "jax"
    return "other"
