"""Adds up a column of a table row by row (pandas)."""

import os
import time

import pandas as pd

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def total(table: pd.DataFrame) -> float:
    found = 0.0
    for _, row in table.iterrows():
        found += row["price"] * row["count"]
    return found


def main() -> None:
    table = pd.DataFrame({"price": [1.5] * 500, "count": list(range(500))})
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        total(table)


main()
