"""A loop that polls with a fixed sleep."""

import time


def poll(count: int) -> int:
    seen = 0
    for _ in range(count):
        time.sleep(0.05)
        seen += 1
    return seen


poll(40)
