"""Statistics of measured values: mean, standard deviation and percentiles, or the reason why there are none.

Percentiles interpolate linearly between the two nearest ranks; the standard deviation is that of a sample (n - 1).
"""

import math
from collections.abc import Iterable, Sequence

from llm_perf_opt.core.documents import Stats

PERCENTILES = (50, 90, 99)
PERCENTILE_METHOD = "linear interpolation between the nearest ranks, rank = (n - 1) * p / 100"
STD_METHOD = "sample standard deviation (n - 1); null when n < 2"


def percentile(ordered: Sequence[float], percent: float) -> float:
    """A percentile of values in ascending order."""
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summarise(values: Iterable[float], *, reason: str) -> Stats:
    """The statistics of these values; with none of them, nulls and the reason."""
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        return Stats(mean=None, std=None, p50=None, p90=None, p99=None, n=0, reason=reason)
    mean = math.fsum(ordered) / count
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in ordered) / (count - 1)) if count > 1 else None
    p50, p90, p99 = (percentile(ordered, p) for p in PERCENTILES)
    return Stats(mean=mean, std=std, p50=p50, p90=p90, p99=p99, n=count)
