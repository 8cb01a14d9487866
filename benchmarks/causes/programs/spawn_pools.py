"""Starts new pools of processes, each of which imports the program's packages again."""

import multiprocessing
import os
import time

import numpy as np

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def square(value: float) -> float:
    return float(np.square(value))


def score(values: list[float]) -> float:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return sum(pool.map(square, values))


if __name__ == "__main__":
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        score([1.0, 2.0])
