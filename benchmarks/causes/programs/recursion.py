"""Computes the same values again and again."""

import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def paths(right: int, down: int) -> int:
    if right == 0 or down == 0:
        return 1
    return paths(right - 1, down) + paths(right, down - 1)


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        paths(8, 8)


main()
