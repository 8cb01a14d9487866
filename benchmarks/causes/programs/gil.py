"""The main thread starves while three threads run Python."""

import os
import threading
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def heartbeat(end: float) -> int:
    count = 0
    while time.monotonic() < end:
        count += 1
    return count


def serve(end: float) -> int:
    handled = 0
    while time.monotonic() < end:
        handled += 1
    return handled


end = time.monotonic() + SECONDS
threads = [threading.Thread(target=heartbeat, args=(end,)) for _ in range(3)]
for thread in threads:
    thread.start()
serve(end)
for thread in threads:
    thread.join()
