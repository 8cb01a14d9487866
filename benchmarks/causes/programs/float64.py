"""Multiplies float32 activations by weights that are float64 by accident."""

import os
import time

import numpy as np

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def forward(activations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return activations @ weights


def main() -> None:
    activations = np.ones((256, 1024), dtype=np.float32)
    weights = np.random.default_rng(0).standard_normal((1024, 1024))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        forward(activations, weights)


main()
