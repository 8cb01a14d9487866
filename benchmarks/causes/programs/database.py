"""Commits each row to a database."""

import os
import sqlite3
import tempfile
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def record(store: sqlite3.Connection, step: int) -> None:
    store.execute("INSERT INTO steps VALUES (?)", (step,))
    store.commit()


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        store = sqlite3.connect(os.path.join(scratch, "steps.db"))
        store.execute("CREATE TABLE steps (step INTEGER)")
        end = time.monotonic() + SECONDS
        step = 0
        while time.monotonic() < end:
            record(store, step)
            step += 1
        store.close()


main()
