"""The memory that the analysis of a long capture takes."""

import tracemalloc

import numpy as np

from llm_perf_opt.capture.timeline import Activities, Calls, Ranges, Timeline, no_activities
from llm_perf_opt.diagnosis.analyze import analyze_timelines

KERNELS, RANGES = 200_000, 20
# Besides the columns of a kernel and of its call, which are 70.
MOST_BYTES = 160


def test_the_analysis_of_a_long_capture_takes_little_more_memory_than_its_columns() -> None:
    start = 1_000 + 10_000 * np.arange(KERNELS)
    one = np.zeros(KERNELS, np.int32)
    index = np.arange(KERNELS, dtype=np.int32)
    every = KERNELS // RANGES
    timeline = Timeline(
        source="long.sqlite", kind="nsys", producer=None, schema=None,
        names=("gemm", "norm", "cudaLaunchKernel", "step", "Copy"),
        kernels=Activities(start_ns=start + 5_000, end_ns=start + 8_000, name=index % 2, call=index, process=one,
                           device=one, stream=one),
        copies=Activities(start_ns=start[:1] + 9_000, end_ns=start[:1] + 9_500, name=one[:1] + 4, call=index[:1],
                          process=one[:1], device=one[:1], stream=one[:1], size_bytes=start[:1]),
        graphs=no_activities(),
        calls=Calls(start_ns=start, end_ns=start + 3_000, thread=one, name=one + 2, launches=one == 0, waits=one != 0),
        ranges=Ranges(start_ns=start[::every] - 500, end_ns=start[every - 1 :: every] + 9_000,
                      name=np.full(RANGES, 3), thread=np.zeros(RANGES, np.int64),
                      process_wide=np.zeros(RANGES, np.bool_)),
        thread_process=np.zeros(1, np.int64),
    )  # fmt: skip
    analyze_timelines([timeline])
    tracemalloc.start()
    try:
        analysis = analyze_timelines([timeline])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert analysis.critical_paths
    assert peak < MOST_BYTES * KERNELS
