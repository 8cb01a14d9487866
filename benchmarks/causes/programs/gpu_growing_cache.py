"""Joins the cache with each token (CUDA)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def append(cache: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    return torch.cat([cache, token], dim=1)


def main() -> None:
    token = torch.ones(32, 1, 4096, device="cuda", dtype=torch.float16)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        cache = token
        for _ in range(1000):
            cache = append(cache, token)
    torch.cuda.synchronize()


main()
