"""Sends work to a pool of processes and waits for it."""

import os
import time
from concurrent.futures import ProcessPoolExecutor

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def work(seconds: float) -> int:
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        count += 1
    return count


def score(pool: ProcessPoolExecutor) -> int:
    return pool.submit(work, SECONDS).result()


if __name__ == "__main__":
    with ProcessPoolExecutor(1) as pool:
        score(pool)
