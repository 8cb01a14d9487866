"""A loop that polls with a fixed sleep."""

import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def poll(count: int) -> int:
    seen = 0
    for _ in range(count):
        time.sleep(0.05)
        seen += 1
    return seen


poll(int(SECONDS / 0.05))
