"""Looks for each id in a list."""

import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def unseen(ids: list[int], seen: list[int]) -> list[int]:
    return [number for number in ids if number not in seen]


def main() -> None:
    seen = list(range(3000))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        unseen(list(range(2900, 3100)), seen)


main()
