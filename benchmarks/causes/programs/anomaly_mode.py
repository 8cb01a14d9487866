"""Trains with the debug mode of autograd left on (torch)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))
torch.autograd.set_detect_anomaly(True)


def train_step(model: torch.nn.Module, batch: torch.Tensor) -> None:
    loss = model(batch).square().mean()
    loss.backward()


def main() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(16)))
    batch = torch.ones(8, 32)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        train_step(model, batch)


main()
