"""Makes a new buffer in each step."""

import os
import time

import numpy as np

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def prepare(size: int) -> np.ndarray:
    return np.ones(size, dtype=np.float32)


def main() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        prepare(8_000_000)


main()
