"""A loop that writes small records and waits for the disk each time."""

import os
import tempfile
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def store(folder: str) -> int:
    count = 0
    end = time.monotonic() + SECONDS
    with open(os.path.join(folder, "records"), "wb") as file:
        while time.monotonic() < end:
            file.write(b"x" * 1_000_000)
            file.flush()
            os.fsync(file.fileno())
            count += 1
            if count % 50 == 0:
                file.seek(0)
    return count


with tempfile.TemporaryDirectory() as scratch:
    store(scratch)
