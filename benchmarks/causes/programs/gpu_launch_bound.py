"""Many small kernels, one launch each (CUDA)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def step(rows: torch.Tensor) -> torch.Tensor:
    for _ in range(300):
        rows = rows * 1.0001 + 0.5
    return rows


def main() -> None:
    rows = torch.ones(64, 64, device="cuda")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        step(rows)
    torch.cuda.synchronize()


main()
