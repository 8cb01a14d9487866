"""Draws noise one number at a time."""

import os
import random
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def noise(count: int) -> list[float]:
    return [random.gauss(0.0, 1.0) for _ in range(count)]


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        noise(5000)


main()
