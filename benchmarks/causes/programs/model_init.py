"""Builds the model again for each request (torch)."""

import os
import time

import torch

SECONDS = 2 * float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def build() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(1500, 1500) for _ in range(8)))


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        build()


main()
