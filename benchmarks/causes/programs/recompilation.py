"""Compiles again for each length of the input (torch)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))
torch._dynamo.config.recompile_limit = 1000


@torch.compile(backend="eager", dynamic=False)
def score(tokens: torch.Tensor) -> torch.Tensor:
    return (tokens * 2 + 1).relu().sum()


def main() -> None:
    end = time.monotonic() + SECONDS
    length = 2
    while time.monotonic() < end:
        score(torch.ones(length))
        length += 1


main()
