"""Launches that leave most of a GPU empty, the time a kernel runs alone, and the hottest kernel."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.capture.exclusive import alone_ns
from llm_perf_opt.capture.launch_shapes import (
    FewBlocks,
    FewBlocksRow,
    HottestKernel,
    LaunchShapeRow,
    few_blocks,
    hottest_kernel,
    small_launches,
)
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.tables import kernel_rows
from llm_perf_opt.capture.timeline import Activities, CapturedGpu, Timeline
from tests.support.trace_builder import event, write_trace

Kernel = tuple[str, int, list[int], list[int]]
RTX_3090 = CapturedGpu(name="NVIDIA GeForce RTX 3090", sm_count=82, compute_capability="8.6")


def _timeline(tmp_path: Path, kernels: Sequence[Kernel], gpu: CapturedGpu = RTX_3090) -> Timeline:
    """Kernels `(name, µs, grid, block)` one after the other."""
    events, at = [], 100
    for number, (name, length, grid, block) in enumerate(kernels, start=1):
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{number}", "0.5", correlation=number))
        lane = {"pid": 0, "tid": 7, "correlation": number, "device": 0, "stream": 7}
        events.append(event("kernel", name, f"{at}", f"{length}", **lane, grid=grid, block=block))
        at += length + 1
    found = read_torch_trace(write_trace(tmp_path / "t.json", events), detailed=True).timeline
    return replace(found, devices=(gpu,))


FAN2: Kernel = ("Fan2(float*, float*, float*, int, int, int)", 680, [1024, 1024, 1], [4, 4, 1])
FAN1: Kernel = ("Fan1(float*, float*, int, int)", 4, [4, 1, 1], [1024, 1, 1])


def test_blocks_smaller_than_a_warp_leave_most_threads_of_an_sm_unused(tmp_path: Path) -> None:
    """Sixteen threads in each of the sixteen blocks an SM of this GPU holds: 256 of 1,536."""
    assert small_launches([_timeline(tmp_path, [FAN2, FAN1] * 3)]) == (
        LaunchShapeRow(
            why="smaller than a warp",
            name="Fan2(float*, float*, float*, int, int, int)",
            short_name="Fan2",
            kernel_class="other",
            instances=3,
            time_ns=2_040_000,
            alone_ns=2_040_000,
            grid=(1024, 1024, 1),
            block=(4, 4, 1),
            floor_ns=340_000,
            how="an SM holds 16 blocks, so 256 of its 1,536 threads are in use",
        ),
    )


def test_blocks_of_a_gpu_whose_limits_are_not_known_have_no_floor(tmp_path: Path) -> None:
    (row,) = small_launches([_timeline(tmp_path, [FAN2], CapturedGpu(name="A GPU of tomorrow"))])
    assert (row.floor_ns, row.how) == (None, "unknown: the capture does not give the GPU's compute capability")


def test_one_block_uses_one_sm_and_how_much_others_could_take_is_not_known(tmp_path: Path) -> None:
    scan: Kernel = ("my_scan(float*)", 820, [1, 1, 1], [16, 1, 1])
    tiny: Kernel = ("my_fill(float*)", 2, [1, 1, 1], [128, 1, 1])
    waits: Kernel = ("at::cuda::spin_kernel(long)", 900, [1, 1, 1], [1, 1, 1])
    talks: Kernel = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(X)", 900, [1, 1, 1], [96, 1, 1])
    rows = small_launches([_timeline(tmp_path, [scan, tiny, waits, talks])])
    assert [(row.why, row.short_name, row.time_ns, row.floor_ns) for row in rows] == [
        ("one block", "my_scan", 820_000, None),
        ("one block", "my_fill", 2_000, None),
    ]


def test_few_blocks_have_the_time_of_all_sms_as_floor(tmp_path: Path) -> None:
    scan: Kernel = ("my_scan(float*)", 820, [8, 1, 1], [128, 1, 1])
    assert few_blocks([_timeline(tmp_path, [scan, FAN1])]) == FewBlocks(
        sm_count=82,
        alone_ns=820_000,
        floor_ns=80_000,
        how="the same work shared evenly by all 82 SMs",
        rows=(
            FewBlocksRow(
                short_name="my_scan", kernel_class="reduction", instances=1, total_ns=820_000, blocks=8, threads=128
            ),
        ),
    )


def _hottest(timeline: Timeline) -> HottestKernel | None:
    kernels = timeline.kernels
    return hottest_kernel([timeline], kernel_rows(timeline.names, kernels.name, kernels.end_ns - kernels.start_ns))


def test_the_hottest_kernel_is_named_with_its_launch_and_what_limits_it(tmp_path: Path) -> None:
    assert _hottest(_timeline(tmp_path, [FAN2, FAN1])) == HottestKernel(
        name="Fan2(float*, float*, float*, int, int, int)",
        short_name="Fan2",
        kernel_class="other",
        instances=1,
        total_ns=680_000,
        mean_ns=680_000.0,
        share=680 / 684,
        grid=(1024, 1024, 1),
        block=(4, 4, 1),
        limit="blocks smaller than a warp",
        how="its blocks have 16 threads, a warp has 32",
    )


@pytest.mark.parametrize(
    ("kernel", "limit"),
    [
        (("my_scan(float*)", 100, [8, 1, 1], [128, 1, 1]), "grid too small to fill the GPU"),
        (("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(X)", 100, [8, 1, 1], [128, 1, 1]), None),
        (("my_kernel(float*)", 100, [800, 1, 1], [128, 1, 1]), None),
    ],
)
def test_a_launch_shape_limits_only_what_computes(tmp_path: Path, kernel: Kernel, limit: str | None) -> None:
    found = _hottest(_timeline(tmp_path, [kernel]))
    assert found is not None
    assert found.limit == limit


def test_no_kernel_is_hottest_where_none_ran() -> None:
    assert hottest_kernel([], ()) is None


def test_time_alone_is_that_of_one_kernel_on_its_gpu() -> None:
    """0–10 and 5–20 on one GPU, 0–30 on another; 30–40 twice at the same time."""
    start, end = np.array([0, 5, 0, 30, 30]), np.array([10, 20, 30, 40, 40])
    none = np.zeros(5, np.int64)
    kernels = Activities(
        start_ns=start, end_ns=end, name=none, call=none, process=none, device=np.array([0, 0, 1, 0, 0]), stream=none
    )
    assert alone_ns(kernels).tolist() == [5, 10, 30, 0, 0]
