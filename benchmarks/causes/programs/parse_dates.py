"""Parses the same kind of date in every line."""

import os
import time
from datetime import datetime

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def read_line(line: str) -> float:
    return datetime.strptime(line, "%Y-%m-%d %H:%M:%S").timestamp()


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        read_line("2026-11-18 12:30:59")


main()
