"""Compresses each message at the highest level."""

import os
import time
import zlib

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


class Packer:
    def __init__(self, level: int) -> None:
        self.level = level

    def pack(self, message: bytes) -> bytes:
        return zlib.compress(message, self.level)


def main() -> None:
    packer = Packer(9)
    message = b"".join(b"token %d is %d, " % (n, n * n % 977) for n in range(20_000))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        packer.pack(message)


main()
