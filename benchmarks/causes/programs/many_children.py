"""Starts a program for each file."""

import os
import subprocess
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def convert(name: str) -> str:
    return subprocess.check_output(["sh", "-c", f"sleep 0.05; echo {name}"], text=True)


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        convert("image")


main()
