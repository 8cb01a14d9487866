"""2,000 samples and then an hour of the same: the memory of the workload stays flat."""

import os
import time
from pathlib import Path
from statistics import linear_regression

import psutil
import pytest

from llm_perf_opt.workload.session import run_inference
from tests.support.workload_fakes import FakeConfig, prompts

pytestmark = [pytest.mark.drill, pytest.mark.soak]
SAMPLES = 2_000
ROUND_SAMPLES = 200
LARGEST_GROWTH_BYTES = 64 << 20
# What the straight line through the later rounds may climb while all samples are done once more.
LARGEST_TREND_BYTES = 16 << 20


def test_memory_stays_flat(tmp_path: Path) -> None:
    until = time.monotonic() + float(os.environ.get("LLM_PERF_SOAK_S", "3600"))
    dataset = prompts(tmp_path / "p.txt", [str(n % 29 + 1) for n in range(ROUND_SAMPLES)])
    config = FakeConfig(dataset=dataset, repeats=1).build(tmp_path)
    process = psutil.Process()
    done: list[int] = []
    used: list[int] = []
    while not done or done[-1] < SAMPLES or time.monotonic() < until:
        run_inference(config, tmp_path / "out", warmup_rounds=0, output=None)
        done.append(len(done) * ROUND_SAMPLES + ROUND_SAMPLES)
        used.append(process.memory_info().rss)
    # The first quarter fills caches and the allocator's arenas.
    later = len(done) // 4
    trend = linear_regression(done[later:], used[later:]).slope * done[-1]
    told = (
        f"{done[-1]} samples: {used[0] >> 20} MiB after one round, {max(used) >> 20} MiB at most, "
        f"{used[-1] >> 20} MiB now, {trend / (1 << 20):+.1f} MiB by the trend of as many more"
    )
    print(told)
    assert max(used) - used[0] < LARGEST_GROWTH_BYTES, told
    assert trend < LARGEST_TREND_BYTES, told
