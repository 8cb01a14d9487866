"""Prints a line for each token and flushes it."""

import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def show(token: int) -> None:
    print("token", token, token * 17 % 1009, flush=True)


def main() -> None:
    end = time.monotonic() + SECONDS
    token = 0
    while time.monotonic() < end:
        show(token)
        token += 1


main()
