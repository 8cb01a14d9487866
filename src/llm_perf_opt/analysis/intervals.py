"""Sets of half-open time intervals as sorted, disjoint numpy columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Disjoint intervals in order."""

    start: Ints
    end: Ints

    @property
    def total(self) -> int:
        return int((self.end - self.start).sum())

    def covered_before(self, times: Ints) -> Ints:
        """How much of the set lies before each time; two of these give the part inside a window."""
        if not len(self.start):
            return np.zeros(len(times), np.int64)
        length = self.end - self.start
        before = np.concatenate(([0], np.cumsum(length)))
        index = np.searchsorted(self.start, times, side="right")
        inside = np.maximum(index - 1, 0)
        partial = np.clip(times - self.start[inside], 0, length[inside])
        return np.where(index > 0, before[inside] + partial, 0)


def union(start: Ints, end: Ints) -> Intervals:
    """Merge intervals that overlap or touch."""
    return union_and_first(start, end)[0]


def union_and_first(start: Ints, end: Ints) -> tuple[Intervals, Ints]:
    """The union, and the index of the interval that opened each part of it."""
    if not len(start):
        none = np.zeros(0, np.int64)
        return Intervals(start=none, end=none), none
    order: Ints | None = None
    if not bool(np.all(start[1:] >= start[:-1])):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((opens[1:], [True]))
    first = np.flatnonzero(opens)
    return Intervals(start=start[opens], end=reach[last]), first if order is None else order[first]


def gaps_of(parts: Intervals) -> Intervals:
    """What lies between the first and the last of a set."""
    return Intervals(start=parts.end[:-1], end=parts.start[1:])


def intersect(a_start: Ints, a_end: Ints, b: Intervals) -> Intervals:
    """The common part of disjoint intervals and a set."""
    index = np.searchsorted(b.end, a_start, side="right")
    stop = np.searchsorted(b.start, a_end, side="left")
    count = np.maximum(stop - index, 0)
    left = np.repeat(np.arange(len(a_start)), count)
    right = expand(index, count)
    start = np.maximum(a_start[left], b.start[right])
    end = np.minimum(a_end[left], b.end[right])
    return union(start, end)


def without(a: Intervals, b: Intervals) -> Intervals:
    """What of the first set is not in the second."""
    if not len(a.start) or not len(b.start):
        return a
    low, high = min(a.start[0], b.start[0]), max(a.end[-1], b.end[-1])
    rest = Intervals(start=np.concatenate(([low], b.end)), end=np.concatenate((b.start, [high])))
    return intersect(a.start, a.end, rest)


def expand(first: Ints, count: Ints) -> Ints:
    """The indices first[i], first[i]+1, … of each i, one after the other."""
    total = int(count.sum())
    offset: Ints = np.repeat(first - (np.cumsum(count) - count), count)
    offset += np.arange(total)
    return offset


def segment_union(owner: Ints, start: Ints, end: Ints, count: int) -> Ints:
    """The length of the union of the intervals of each owner (0 … count-1; every owner has at least one)."""
    same = owner[1:] == owner[:-1]
    if not bool(np.all(~same & (owner[1:] > owner[:-1]) | same & (start[1:] >= start[:-1]))):
        order = np.lexsort((start, owner))
        owner, start, end = owner[order], start[order], end[order]
    opens = np.searchsorted(owner, np.arange(count))
    low = start[opens]
    span = np.maximum.reduceat(end, opens) - low
    # Lay the owners end to end on one axis, so that one running maximum serves all of them.
    shift = np.cumsum(span + 1) - (span + 1) - low
    start, end = start + shift[owner], end + shift[owner]
    reach = np.maximum.accumulate(end)
    previous = np.concatenate(([start[0]], reach[:-1]))
    previous[opens] = start[opens]
    return np.add.reduceat(np.maximum(end - np.maximum(start, previous), 0), opens)
