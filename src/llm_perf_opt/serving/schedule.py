"""When requests are sent in an open loop: moments from a seed, whatever the server does."""

import math
import random
from itertools import accumulate
from typing import Literal


def arrival_times(
    rate: float, *, arrival: Literal["poisson", "constant"], requests: int, duration_s: float, seed: int
) -> tuple[float, ...]:
    """Seconds from the start, the first at once; at most so many requests, none at or after the duration.

    Poisson: gaps are drawn from an exponential distribution and stretched so that their mean is 1 / rate, as
    `vllm bench serve` does: a Poisson process of which the number of arrivals is known. Without that, the load of a few
    hundred requests would differ from the rate that was asked for by several percent.
    """
    count = max(1, math.ceil(min(float(requests), rate * duration_s)))
    gaps = [1.0] * count
    if arrival == "poisson":
        draw = random.Random(seed)
        gaps = [draw.expovariate(1.0) for _ in range(count)]
    stretch = count / rate / sum(gaps)
    times = (0.0, *accumulate(gap * stretch for gap in gaps[:-1]))
    return tuple(at for at in times if at < duration_s)
