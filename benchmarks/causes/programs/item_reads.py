"""Reads a tensor value by value (torch)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def mean_loss(losses: torch.Tensor) -> float:
    total = 0.0
    for loss in losses:
        total += loss.item()
    return total / len(losses)


def main() -> None:
    losses = torch.ones(4096)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        mean_loss(losses)


main()
