"""2,000 samples and then an hour of the same: the memory of the workload stays flat."""

import os
import time
from pathlib import Path

import psutil
import pytest

from llm_perf_opt.workload.session import run_inference
from tests.support.workload_fakes import FakeConfig, prompts

pytestmark = [pytest.mark.drill, pytest.mark.soak]
SAMPLES = 2_000
ROUND_SAMPLES = 200
LARGEST_GROWTH_BYTES = 64 << 20


def test_memory_stays_flat(tmp_path: Path) -> None:
    until = time.monotonic() + float(os.environ.get("LLM_PERF_SOAK_S", "3600"))
    dataset = prompts(tmp_path / "p.txt", [str(n % 29 + 1) for n in range(ROUND_SAMPLES)])
    config = FakeConfig(dataset=dataset, repeats=1).build(tmp_path)
    process = psutil.Process()
    done, early, largest, used = 0, 0, 0, 0
    while done < SAMPLES or time.monotonic() < until:
        run_inference(config, tmp_path / "out", warmup_rounds=0, output=None)
        done += ROUND_SAMPLES
        used = process.memory_info().rss
        early = early or used
        largest = max(largest, used)
    print(f"{done} samples: {early >> 20} MiB after one round, {used >> 20} MiB now, {largest >> 20} MiB at most")
    assert done >= SAMPLES
    assert largest - early < LARGEST_GROWTH_BYTES, f"{early >> 20} MiB after one round, {largest >> 20} MiB at most"
