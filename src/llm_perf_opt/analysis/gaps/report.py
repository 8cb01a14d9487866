"""All about the idle time of captures: the part `idle` of `analysis.json`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.analysis.gaps.host import RANGE
from llm_perf_opt.analysis.gaps.iterations import Iterations, find_iterations
from llm_perf_opt.analysis.gaps.longest import LongGaps, Reason, find_long_gaps, merge_long_gaps
from llm_perf_opt.analysis.gaps.queue import Queue, measure_queue
from llm_perf_opt.analysis.gaps.startup import StartUp, StartUpRow, find_start_up, start_up_rows
from llm_perf_opt.analysis.gaps.traits import (
    AllocatorFlushes,
    LaunchBlocking,
    TimeSlices,
    find_allocator_flushes,
    find_launch_blocking,
    find_time_slices,
)
from llm_perf_opt.analysis.gaps.verdict import readable
from llm_perf_opt.analysis.gaps.waits import HeldRow, SyncRow, WaitRow, held_rows, memory_rows, sync_rows, wait_rows
from llm_perf_opt.analysis.timeline.idle import IdleMap
from llm_perf_opt.analysis.timeline.rows import RangeRow
from llm_perf_opt.analysis.timeline.timeline import Timeline

# `directives`: loops that a compiler made kernels of (OpenMP, OpenACC).
Framework = Literal["torch", "jax", "tensorflow", "directives", "other"]
Engine = Literal["vLLM", "SGLang", "TensorRT-LLM", "llama.cpp", "transformers serve"]
# Servers of language models, by the place of their code and the namespace of their operators and kernels. They use each
# other's kernels, so the one that others borrow from comes later.
_ENGINES: tuple[tuple[Engine, re.Pattern[str]], ...] = (
    ("SGLang", re.compile(r"(^|/)sglang/|\bsgl_kernel::|\bsglang[:.]")),
    ("vLLM", re.compile(r"(^|/)vllm/|\bvllm::")),
    ("TensorRT-LLM", re.compile(r"(^|/)tensorrt_llm/|^(?!.*flashinfer).*\btensorrt_llm::")),
    ("llama.cpp", re.compile(r"\(ggml_type\)|\bggml_cuda|^(void )?(mul_mat_vec_q|rms_norm_f32|quantize_q8_1)\b")),
    ("transformers serve", re.compile(r"(^|/)transformers/(cli/serv|generation/continuous_batching)")),
)
_TRAINING = re.compile(
    r"^autograd::engine::evaluate_function|^Optimizer\.(step|zero_grad)|[a-z]Backward\d*$|multi_tensor_apply\w*<.*Adam"
    r"|FusedAdam|_bwd_|_backward\b|_backward_|layer_norm_grad"
)
_COMPILED = re.compile(r"^triton_(poi|red|per|tem)_fused|CompiledFxGraph|^CompiledFunction(Backward)?$|^Torch-Compiled")
_XLA = re.compile(r"^(XlaModule|Thunk:|TSL:|XlaLaunch)|^(loop|input|wrapped|gemm)_(\w+_)?fusion(_\w+)?$")
# How Intel's runtime launches.
_OTHER_RUNTIME = re.compile(r"^(urEnqueueKernelLaunch|zeCommandListAppendLaunch)")
_HIP = re.compile(r"^hip(Launch|ExtModuleLaunch|ModuleLaunch|GraphLaunch|ExtLaunch)")
_OTHER_DEVICE = re.compile(r"\bIntel\b|Gaudi|\bHPU\b|Ascend|\bMTIA\b")
_TORCH = re.compile(r"at::native|c10::|^aten::|^void at::|^triton_poi_fused")
_TENSORFLOW = re.compile(r"\btensorflow::|\bEigen::internal::EigenMetaKernel|(^|/)tensorflow/")
_DIRECTIVES = re.compile(r"^nvkernel_\w+_F\d+L\d+|^__omp_offloading_|^\w+_\d+_gpu(__red)?$|\$_omp_fn\$\d+$")
# A range of so many instances, of which the typical one has no long gap, had it in single ones.
FEW_INSTANCES = 3


@dataclass(frozen=True, kw_only=True)
class IdleReport:
    """Gaps, queue, waits and steps of all captures together, and what kind of program ran.

    `without_graphs`: on a GPU whose work cannot be recorded as graphs from the framework (not CUDA, not HIP).
    `is_hip`: AMD's runtime launched the work. `startup` is what CUDA, its libraries and first uses cost, `memory` what
    calls that allocate and free do, `syncs` the waits by place, `held` those while launched work did not start. The
    traits (`launch_blocking`, `flushes`, `slices`) are None where the captures do not show them.
    """

    framework: Framework
    gaps: LongGaps
    queue: Queue | None
    waits: tuple[WaitRow, ...]
    iterations: Iterations | None
    engine: Engine | None = None
    trains: bool = False
    compiled: bool = False
    without_graphs: bool = False
    is_hip: bool = False
    startup: tuple[StartUpRow, ...] = ()
    memory: tuple[WaitRow, ...] = ()
    syncs: tuple[SyncRow, ...] = ()
    held: tuple[HeldRow, ...] = ()
    launch_blocking: LaunchBlocking | None = None
    flushes: AllocatorFlushes | None = None
    slices: TimeSlices | None = None


def report_idle(
    captures: Sequence[tuple[Timeline, Mapping[int, IdleMap]]],
    *,
    engine: Engine | None = None,
    startups: Sequence[StartUp] | None = None,
) -> IdleReport:
    """Look into the idle time of captures of one program; `engine` is the server it is known to be.

    `startups` are those of the captures, where they are known already.
    """
    if startups is None:
        startups = [find_start_up(timeline, maps) for timeline, maps in captures]
    known = [(timeline, maps, startup) for (timeline, maps), startup in zip(captures, startups, strict=True)]
    gaps = [find_long_gaps(timeline, maps, source=i, startup=found) for i, (timeline, maps, found) in enumerate(known)]
    timelines = [timeline for timeline, _ in captures]
    iterations = find_iterations(timelines)
    return IdleReport(
        framework=framework_of(timelines),
        gaps=merge_long_gaps(gaps),
        queue=measure_queue(timelines),
        waits=wait_rows(known),
        iterations=iterations,
        engine=engine or next((name for name, mark in _ENGINES if _any_name(timelines, mark)), None),
        trains=_any_name(timelines, _TRAINING),
        compiled=_any_name(timelines, _COMPILED),
        is_hip=_any_name(timelines, _HIP),
        startup=start_up_rows(known),
        memory=memory_rows(known),
        syncs=sync_rows(known, steps=None if iterations is None else iterations.count),
        held=held_rows(captures),
        launch_blocking=find_launch_blocking(timelines),
        flushes=find_allocator_flushes(known),
        slices=find_time_slices(captures),
        without_graphs=_any_name(timelines, _OTHER_RUNTIME)
        or any(_OTHER_DEVICE.search(device.name) for timeline in timelines for device in timeline.devices),
    )


def judge_by_ranges(report: IdleReport, ranges: Sequence[RangeRow]) -> IdleReport:
    """The report in which gaps of single instances of a range are told from those every instance has.

    Where they come to the end of the capture, single instances stall again and again.
    """
    single = {
        readable(row.name)
        for row in ranges
        if row.instances >= FEW_INSTANCES and row.typical.idle is not None and row.typical.idle.long_gaps_ns == 0
    }

    def judged(reason: Reason) -> Reason:
        is_single = reason.verdict == "host_work" and reason.kind == RANGE and reason.name in single
        return replace(reason, verdict="stalls" if reason.recurs else "single_instances") if is_single else reason

    return replace(report, gaps=replace(report.gaps, reasons=tuple(judged(one) for one in report.gaps.reasons)))


def framework_of(timelines: Sequence[Timeline]) -> Framework:
    """Which framework a program was written with, by the names of its kernels and ranges."""
    if any(timeline.kind == "torch" for timeline in timelines):
        return "torch"
    found: tuple[tuple[Framework, re.Pattern[str]], ...] = (
        ("torch", _TORCH),
        ("tensorflow", _TENSORFLOW),
        ("jax", _XLA),
        ("directives", _DIRECTIVES),
    )
    return next((framework for framework, mark in found if _any_name(timelines, mark)), "other")


def _any_name(timelines: Sequence[Timeline], mark: re.Pattern[str]) -> bool:
    return any(mark.search(name) for timeline in timelines for name in timeline.names)
