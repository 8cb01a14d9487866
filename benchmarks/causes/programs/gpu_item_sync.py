"""Reads a loss after each small step (CUDA)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def train_step(weight: torch.Tensor, batch: torch.Tensor) -> float:
    loss = (batch @ weight).square().mean()
    return float(loss.item())


def main() -> None:
    weight, batch = torch.ones(2, 256, 256, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        train_step(weight, batch)
    torch.cuda.synchronize()


main()
