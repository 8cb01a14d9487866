"""Cleans text with a pattern in a loop."""

import os
import re
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))
TEXT = "the quick brown fox jumps over the lazy dog 1234 times, " * 400


def clean(text: str) -> int:
    return len(re.sub(r"(\w+)\s+(\w+)", r"\2 \1", text))


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        clean(TEXT)


main()
