"""Debug mode left on: each launch waits for its kernel (CUDA)."""

import os
import time

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def step(rows: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        rows = torch.relu(rows * 1.0001)
    return rows


def main() -> None:
    rows = torch.ones(4096, 4096, device="cuda")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        step(rows)
    torch.cuda.synchronize()


main()
