"""Makes objects that refer to each other alongside a large heap."""

import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


class Node:
    def __init__(self) -> None:
        self.next = self


def build(count: int) -> list[Node]:
    return [Node() for _ in range(count)]


def main() -> None:
    kept = [[number] for number in range(300_000)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        build(20_000)
    del kept


main()
