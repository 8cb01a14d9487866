"""Computes a digest of each block again and again."""

import os
import time
from hashlib import sha256

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def fingerprint(block: bytes) -> str:
    state = sha256()
    state.update(block)
    return state.hexdigest()


def main() -> None:
    block = b"weights" * 200_000
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        fingerprint(block)


main()
