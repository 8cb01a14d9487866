"""Looks for NaN in all activations after each layer (torch)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def check(activations: torch.Tensor) -> None:
    assert torch.isfinite(activations).all(), "not finite"


def layer(activations: torch.Tensor) -> torch.Tensor:
    check(activations)
    return activations


def main() -> None:
    activations = torch.ones(2_000_000)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        layer(activations)


main()
