"""The load a configuration is measured at: given, or climbed to in steps of two until more load brings no more."""

from collections.abc import Callable

FIRST_CONCURRENCY, MOST_CONCURRENCY = 8, 1024
# A step that adds less is not taken; the noise of a short level is of this size.
LEAST_STEP = 0.05


def climb(measure: Callable[[int], float], *, first: int = FIRST_CONCURRENCY) -> int:
    """The concurrency with the largest value, from `first` upwards, and downwards where upwards brings nothing."""
    best, value = first, measure(first)
    at = first
    while at * 2 <= MOST_CONCURRENCY:
        at *= 2
        found = measure(at)
        if found <= value * (1 + LEAST_STEP):
            break
        best, value = at, found
    if best > first:
        return best
    at = first
    while at > 1:
        at //= 2
        found = measure(at)
        # Where nothing was good at all, less load may be.
        if value > 0 and found <= value * (1 + LEAST_STEP):
            break
        best, value = at, found
    return best
