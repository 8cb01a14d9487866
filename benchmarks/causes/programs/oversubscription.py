"""Starts many more workers than there are processors."""

import hashlib
import os
import threading
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))
WORKERS = 8 * (os.cpu_count() or 1)
BLOCK = b"block" * 100_000


def digest(end: float) -> None:
    while time.monotonic() < end:
        hashlib.sha256(BLOCK).hexdigest()


def main() -> None:
    end = time.monotonic() + SECONDS
    threads = [threading.Thread(target=digest, args=(end,)) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    digest(end)


main()
