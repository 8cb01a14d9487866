"""Attention as two matmuls and a softmax over long sequences (CUDA)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(query, key.transpose(-1, -2)) / query.shape[-1] ** 0.5
    return torch.matmul(torch.softmax(scores, dim=-1), value)


def main() -> None:
    query = torch.ones(4, 32, 4096, 64, device="cuda", dtype=torch.float16)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        attend(query, query, query)
    torch.cuda.synchronize()


main()
