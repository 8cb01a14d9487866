"""Sorts all requests again when one is added."""

import os
import time
from dataclasses import dataclass

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


@dataclass
class Request:
    priority: int


class Scheduler:
    def __init__(self) -> None:
        self.waiting = [Request(number * 7919 % 10_007) for number in range(5000)]

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self.waiting.sort(key=lambda waiting: -waiting.priority)
        self.waiting.pop()


def main() -> None:
    scheduler = Scheduler()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        scheduler.add(Request(500))


main()
