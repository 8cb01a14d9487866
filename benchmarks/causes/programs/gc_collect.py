"""Collects garbage in each step of a loop over many objects."""

import gc
import time

SECONDS = 2.0


def step(cache: list[list[int]]) -> int:
    gc.collect()
    return len(cache)


def main() -> None:
    cache = [[number] for number in range(400_000)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        step(cache)


main()
