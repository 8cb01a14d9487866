"""A coroutine that sleeps without giving up its turn."""

import asyncio
import os
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


async def poll(rounds: int) -> None:
    for _ in range(rounds):
        time.sleep(0.05)
        await asyncio.sleep(0)


asyncio.run(poll(int(SECONDS / 0.05)))
