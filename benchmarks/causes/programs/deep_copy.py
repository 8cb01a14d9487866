"""Keeps a copy of the whole state in each step."""

import os
import time
from copy import deepcopy as clone

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def snapshot(state: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    return clone(state)


def main() -> None:
    state = {"cache": [[number] * 4 for number in range(2000)]}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        snapshot(state)


main()
