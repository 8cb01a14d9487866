"""Serialises the whole state in each step."""

import json
import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def checkpoint(state: list[dict[str, int]]) -> int:
    return len(json.dumps(state, indent=1))


def main() -> None:
    state = [{"step": step, "loss": step * 7} for step in range(2000)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        checkpoint(state)


main()
