"""A consumer that waits for a slow producer."""

import os
import threading
import time
from queue import Queue

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def produce(batches: Queue[int | None]) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(0.05)
        batches.put(1)
    batches.put(None)


def consume(batches: Queue[int | None]) -> int:
    count = 0
    while batches.get() is not None:
        count += 1
    return count


batches: Queue[int | None] = Queue()
threading.Thread(target=produce, args=(batches,)).start()
consume(batches)
