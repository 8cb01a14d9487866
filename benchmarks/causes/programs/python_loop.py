"""A loop over characters in Python."""

import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def tidy(rows: list[str]) -> list[int]:
    out = []
    for row in rows:
        total = 0
        for character in row:
            total += ord(character) % 7
        out.append(total)
    return out


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        tidy(["a row of text to tidy up"] * 500)


main()
