"""Appends to an array in each step."""

import os
import time

import numpy as np

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def collect(count: int) -> np.ndarray:
    history = np.empty((0, 64))
    for step in range(count):
        history = np.concatenate([history, np.full((8, 64), step)])
    return history


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        collect(400)


main()
