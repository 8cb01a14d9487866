"""When requests are sent in an open loop: moments from a seed, whatever the server does."""

import random
from typing import Literal


def arrival_times(
    rate: float, *, arrival: Literal["poisson", "constant"], requests: int, duration_s: float, seed: int
) -> tuple[float, ...]:
    """Seconds from the start, the first at once; at most so many requests, none at or after the duration.

    Poisson: gaps are drawn from an exponential distribution with the mean 1 / rate.
    """
    draw = random.Random(seed)
    times: list[float] = []
    at = 0.0
    while len(times) < requests and at < duration_s:
        times.append(at)
        at = len(times) / rate if arrival == "constant" else at + draw.expovariate(rate)
    return tuple(times)
