"""A module of the program's own fills a table when it is imported."""

import os
import sys
import tempfile
from pathlib import Path

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))
TABLES = f"""
import time


def build_table():
    table, end = {{}}, time.monotonic() + {SECONDS}
    while time.monotonic() < end:
        for n in range(1000):
            table[n * len(table) % 65537] = n
    return table


TABLE = build_table()
"""


with tempfile.TemporaryDirectory() as folder:
    Path(folder, "tables_of_own.py").write_text(TABLES, encoding="utf-8")
    sys.path.insert(0, folder)
    import tables_of_own

    print(len(tables_of_own.TABLE))
