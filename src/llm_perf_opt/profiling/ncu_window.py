"""A second look for kernels that ncu did not meet by name: a window of consecutive launches that holds them.

ncu 2025.3 was seen to name some library kernels (cuBLASLt, cuDNN) after another one while it filters, though its report
has them right; a filter by name then misses them. Their place in the order of launches is known from the timeline.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# About as many launches as a layer of a model has, so that one window can hold every kernel of a layer.
MAX_WIDTH = 64


@dataclass(frozen=True, kw_only=True)
class Window:
    """Launches `start` to `start + width` of a sequence; `names` are the wanted kernels among them."""

    start: int
    width: int
    names: frozenset[str]


def best_window(
    sequence: Sequence[str], weights: Mapping[str, float], *, first: int, last: int, width: int = MAX_WIDTH
) -> Window | None:
    """The shortest window in `sequence[first:last]`, of at most `width`, with the most weight of distinct names."""
    counts: Counter[str] = Counter()
    best: Window | None = None
    best_weight, weight, start = 0.0, 0.0, first
    for end in range(first, min(last, len(sequence))):
        name = sequence[end]
        if name in weights:
            weight += 0.0 if counts[name] else weights[name]
            counts[name] += 1
        # Give up at the front what is too far away, unwanted, or stands again further on.
        while end - start + 1 > width or (start < end and (counts[sequence[start]] != 1)):
            if counts[sequence[start]] == 1:
                weight -= weights[sequence[start]]
            if sequence[start] in weights:
                counts[sequence[start]] -= 1
            start += 1
        found = Window(start=start, width=end - start + 1, names=frozenset(n for n, c in counts.items() if c))
        is_shorter = best is not None and found.width < best.width
        if weight > best_weight * (1 + 1e-9) or (weight > best_weight * (1 - 1e-9) and is_shorter):
            best, best_weight = found, weight
    return best if best is not None and best.names else None
