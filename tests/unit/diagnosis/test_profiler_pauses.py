"""Time in which the profiler itself holds the program up is its own cause."""

from pathlib import Path

import pytest

from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from tests.support.trace_builder import event, write_trace


def test_pauses_of_the_profiler_are_named_and_promise_nothing(tmp_path: Path) -> None:
    events: list[str] = []
    for i in range(6):
        at = 10_000 * i
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at}", "5", correlation=i + 1))
        events.append(event("kernel", "gemm", f"{at + 10}", "990", pid=0, tid=7, correlation=i + 1, device=0))
        events.append(event("overhead", "Buffer Flush", f"{at + 1_000}", "9000", pid=-1, tid=0))
    analysis = analyze_timelines([read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline])
    found = next(f for f in analysis.findings if f.rule == "profiler_pauses")
    # Five gaps of 9 ms between six kernels of 0.99 ms.
    assert found.share == pytest.approx(45.0 / 51.0, rel=0.01)
    assert (found.max_gain, found.is_one_time, found.cells.keys()) == (None, False, {"idle.profiler"})
    assert "Buffer Flush" in found.title
