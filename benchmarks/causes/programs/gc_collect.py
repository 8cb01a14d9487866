"""Collects garbage in each step of a loop over many objects."""

import gc
import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def step(cache: list[list[int]]) -> int:
    gc.collect()
    return len(cache)


def main() -> None:
    cache = [[number] for number in range(400_000)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        step(cache)


main()
