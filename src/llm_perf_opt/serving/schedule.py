"""When requests are sent in an open loop: moments from a seed, whatever the server does."""

import math
import random
from itertools import accumulate
from typing import Literal


def arrival_times(
    rate: float, *, arrival: Literal["poisson", "constant"], requests: int, duration_s: float, seed: int
) -> tuple[float, ...]:
    """Seconds from the start; at most so many requests, none after the duration.

    Poisson: gaps are drawn from an exponential distribution and stretched so that their mean is 1 / rate, as
    `vllm bench serve` does: a Poisson process of which the number of arrivals is known. Without that, the load of a few
    hundred requests would differ from the rate that was asked for by several percent. There is a gap before the first
    request too, else a short load would have more requests a second than it was asked for. A duration in which less
    than one request is due sends one at once.
    """
    # Rounding must not lose a request: 0.29 * 100 is 28.999….
    count = math.floor(min(float(requests), rate * duration_s) + 1e-9)
    if count < 1:
        return (0.0,)
    gaps = [1.0] * count
    if arrival == "poisson":
        draw = random.Random(seed)
        gaps = [draw.expovariate(1.0) for _ in range(count)]
    stretch = count / rate / sum(gaps)
    return tuple(accumulate(gap * stretch for gap in gaps))
