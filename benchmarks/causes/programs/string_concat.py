"""Joins an answer byte by byte."""

import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def receive(parts: list[bytes]) -> int:
    answer = b""
    for part in parts:
        answer += part
    return len(answer)


def main() -> None:
    parts = [b"token "] * 20_000
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        receive(parts)


main()
