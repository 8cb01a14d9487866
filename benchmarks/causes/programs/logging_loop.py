"""Writes a message for every token."""

import logging
import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))
log = logging.getLogger("decode")


def step(token: int) -> int:
    log.info("token %d of the answer", token)
    return token + 1


def main() -> None:
    with open(os.devnull, "w") as sink:
        logging.basicConfig(stream=sink, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        end = time.monotonic() + SECONDS
        token = 0
        while time.monotonic() < end:
            token = step(token)


main()
