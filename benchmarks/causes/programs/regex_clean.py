"""Cleans text with a pattern in a loop."""

import re
import time

SECONDS = 2.0
TEXT = "the quick brown fox jumps over the lazy dog 1234 times, " * 400


def clean(text: str) -> int:
    return len(re.sub(r"(\w+)\s+(\w+)", r"\2 \1", text))


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        clean(TEXT)


main()
