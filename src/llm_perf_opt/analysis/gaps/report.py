"""All about the idle time of captures: the part `idle` of `analysis.json`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.analysis.gaps.host import RANGE
from llm_perf_opt.analysis.gaps.iterations import Iterations, find_iterations
from llm_perf_opt.analysis.gaps.longest import LongGaps, Reason, find_long_gaps, merge_long_gaps
from llm_perf_opt.analysis.gaps.queue import Queue, measure_queue
from llm_perf_opt.analysis.gaps.verdict import readable
from llm_perf_opt.analysis.gaps.waits import WaitRow, wait_rows
from llm_perf_opt.analysis.timeline.idle import IdleMap
from llm_perf_opt.analysis.timeline.rows import RangeRow
from llm_perf_opt.analysis.timeline.timeline import Timeline

Framework = Literal["torch", "jax", "other"]
Engine = Literal["vLLM", "SGLang"]
# Servers of language models, by the place of their code and the namespace of their operators.
_ENGINES: tuple[tuple[Engine, re.Pattern[str]], ...] = (
    ("SGLang", re.compile(r"(^|/)sglang/|^sgl_kernel::|^sglang[:.]")),
    ("vLLM", re.compile(r"(^|/)vllm/|^vllm::")),
)
_TRAINING = re.compile(
    r"^autograd::engine::evaluate_function|^Optimizer\.(step|zero_grad)|[a-z]Backward\d*$|multi_tensor_apply\w*<.*Adam"
    r"|FusedAdam|_bwd_|_backward\b|_backward_|layer_norm_grad"
)
_COMPILED = re.compile(r"^triton_(poi|red|per|tem)_fused|CompiledFxGraph|^CompiledFunction(Backward)?$|^Torch-Compiled")
_XLA = re.compile(r"^(XlaModule|Thunk:|TSL:|XlaLaunch)|^(loop|input|wrapped|gemm)_(\w+_)?fusion(_\w+)?$")
# A range of so many instances, of which the typical one has no long gap, had it in single ones.
FEW_INSTANCES = 3


@dataclass(frozen=True, kw_only=True)
class IdleReport:
    """Gaps, queue, waits and steps of all captures together, and what kind of program ran."""

    framework: Framework
    gaps: LongGaps
    queue: Queue | None
    waits: tuple[WaitRow, ...]
    iterations: Iterations | None
    engine: Engine | None = None
    trains: bool = False
    compiled: bool = False


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
        engine=next((engine for engine, mark in _ENGINES if _any_name(timelines, mark)), None),
        trains=_any_name(timelines, _TRAINING),
        compiled=_any_name(timelines, _COMPILED),
    )


def judge_by_ranges(report: IdleReport, ranges: Sequence[RangeRow]) -> IdleReport:
    """The report in which gaps of single instances of a range are told from those every instance has."""
    single = {
        readable(row.name)
        for row in ranges
        if row.instances >= FEW_INSTANCES and row.typical.idle is not None and row.typical.idle.long_gaps_ns == 0
    }

    def judged(reason: Reason) -> Reason:
        is_single = reason.verdict == "host_work" and reason.kind == RANGE and reason.name in single
        return replace(reason, verdict="single_instances") if is_single else reason

    return replace(report, gaps=replace(report.gaps, reasons=tuple(judged(one) for one in report.gaps.reasons)))


def framework_of(timelines: Sequence[Timeline]) -> Framework:
    """Which framework a program was written with, by the names of its kernels and ranges."""
    if any(timeline.kind == "torch" for timeline in timelines):
        return "torch"
    names = [name for timeline in timelines for name in timeline.names]
    if any("at::native" in name or name.startswith(("aten::", "void at::", "triton_poi_fused")) for name in names):
        return "torch"
    return "jax" if _any_name(timelines, _XLA) else "other"


def _any_name(timelines: Sequence[Timeline], mark: re.Pattern[str]) -> bool:
    return any(mark.search(name) for timeline in timelines for name in timeline.names)
