"""Copies each batch from pageable memory (CUDA)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def upload(batch: torch.Tensor) -> torch.Tensor:
    return batch.to("cuda")


def main() -> None:
    batch = torch.ones(64_000_000)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        upload(batch).mul_(2)
    torch.cuda.synchronize()


main()
