"""Student's distribution for whole degrees of freedom: exact sums, so that few repeats get honest intervals."""

import math
from functools import lru_cache

# Beyond this the halving below has used up a float's digits.
_HALVINGS = 200
# From here on the normal distribution is the same to three digits, and cheaper.
_LIKE_NORMAL = 500


def t_cdf(t: float, freedom: int) -> float:
    """The probability of a value below `t`; the sums are those for an odd and for an even number of degrees."""
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be at least 1, got {freedom}")
    if freedom > _LIKE_NORMAL or math.isinf(t):
        return math.erfc(-t / math.sqrt(2)) / 2
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    total = 0.0
    if freedom % 2:
        term = cosine
        for step in range(1, freedom - 1, 2):
            total += term
            term *= cosine * cosine * (step + 1) / (step + 2)
        inside = 2 / math.pi * (angle + sine * total)
    else:
        term = 1.0
        for step in range(0, freedom - 1, 2):
            total += term
            term *= cosine * cosine * (step + 1) / (step + 2)
        inside = sine * total
    return 0.5 + inside / 2


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: int) -> float:
    """The value below which lies this probability."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability between 0 and 1 is needed, got {probability}")
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    low, high = 0.0, 2.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def two_sided_p(t: float, freedom: int) -> float:
    """How often chance alone gives a value at least this far from zero."""
    return min(1.0, max(0.0, 2 * t_cdf(-abs(t), freedom)))
