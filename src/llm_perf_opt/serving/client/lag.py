"""How late the event loop of a client is: the delay it adds to the time of an event.

A task wakes at fixed moments and notes how late it does. While a loop is blocked it misses several moments; each of
them is counted with the delay an event at that moment had, so the figures are those of an event at any time.
"""

import asyncio
import math
import time
from dataclasses import dataclass

PERIOD_S = 0.04
# Delays above this are not counted one by one.
MOST_MISSED = 100_000


@dataclass(frozen=True, kw_only=True)
class LoopLag:
    """Delays in seconds over `n` moments."""

    mean_s: float
    p99_s: float
    most_s: float
    n: int


class LagMeter:
    """Collects delays in a histogram of 2 % steps, so that a long load takes no more memory than a short one."""

    STEP = math.log(1.02)
    SMALLEST_S = 1e-5

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self._sum = 0.0
        self._most = 0.0
        self._count = 0

    def add(self, late_s: float, *, period_s: float = PERIOD_S) -> None:
        """A wake-up that was late, and the moments it missed meanwhile."""
        missed = min(int(max(0.0, late_s) / period_s), MOST_MISSED)
        for number in range(missed + 1):
            self._one(max(0.0, late_s - number * period_s))

    def _one(self, late_s: float) -> None:
        self._count += 1
        self._sum += late_s
        self._most = max(self._most, late_s)
        bin_ = math.ceil(math.log(max(late_s, self.SMALLEST_S) / self.SMALLEST_S) / self.STEP)
        self._bins[bin_] = self._bins.get(bin_, 0) + 1

    async def run(self) -> None:
        """Measure until cancelled."""
        due = time.perf_counter() + PERIOD_S
        while True:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            late = max(0.0, time.perf_counter() - due)
            self.add(late)
            due += PERIOD_S * (1 + int(late / PERIOD_S))

    def result(self) -> LoopLag | None:
        if not self._count:
            return None
        target, seen = 0.99 * self._count, 0
        p99 = 0.0
        for bin_, count in sorted(self._bins.items()):
            seen += count
            p99 = self.SMALLEST_S * math.exp(bin_ * self.STEP)
            if seen >= target:
                break
        return LoopLag(mean_s=self._sum / self._count, p99_s=min(p99, self._most), most_s=self._most, n=self._count)


def joined(lags: "list[LoopLag]") -> LoopLag | None:
    """Several processes as one: each of them has a part of the events, so the mean is theirs and the rest the worst."""
    if not lags:
        return None
    total = sum(lag.n for lag in lags)
    return LoopLag(
        mean_s=sum(lag.mean_s * lag.n for lag in lags) / total,
        p99_s=max(lag.p99_s for lag in lags),
        most_s=max(lag.most_s for lag in lags),
        n=total,
    )
