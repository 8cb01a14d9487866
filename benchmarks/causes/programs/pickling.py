"""Packs the whole state for a checkpoint in each step."""

import os
import pickle
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def save(state: dict[int, tuple[int, str]]) -> int:
    return len(pickle.dumps(state))


def main() -> None:
    state = {number: (number, f"name {number}") for number in range(50_000)}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        save(state)


main()
