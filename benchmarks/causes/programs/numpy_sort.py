"""Sorts all logits on the host to pick the best few."""

import os
import time

import numpy as np

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def sample(logits: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(logits)[-count:]


def main() -> None:
    logits = np.random.default_rng(0).standard_normal(200_000)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        sample(logits, 50)


main()
