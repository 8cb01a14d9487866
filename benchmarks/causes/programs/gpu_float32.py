"""Multiplies in float32 without TF32 (CUDA)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def layer(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden @ weight


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    hidden, weight = torch.ones(8192, 8192, device="cuda"), torch.ones(8192, 8192, device="cuda")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for _ in range(8):
            layer(hidden, weight)
        # The queue holds a thousand launches, which would take many seconds.
        torch.cuda.synchronize()


main()
