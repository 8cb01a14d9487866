"""Computes on one thread of several (torch)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))
torch.set_num_threads(1)


def attend(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query @ key


def main() -> None:
    query, key = torch.ones(1024, 1024), torch.ones(1024, 1024)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        attend(query, key)


main()
