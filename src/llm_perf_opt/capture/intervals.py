"""Sets of half-open time intervals as sorted, disjoint numpy columns.

Who contains whom among the intervals of one thread.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]
# Of so few windows the part inside is summed again.
FEW_WINDOWS = 4
# Rows of a long column to work on at a time: with what is worked out from them they fit into the cache of a core.
BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Intervals:
    """Disjoint intervals in order."""

    start: Ints
    end: Ints

    @property
    def total(self) -> int:
        return _length(self.start, self.end)

    def covered_before(self, times: Ints) -> Ints:
        """How much of the set lies before each time; two of these give the part inside a window."""
        if not len(self.start):
            return np.zeros(len(times), np.int64)
        index = np.searchsorted(self.start, times, side="right")
        inside = np.maximum(index - 1, 0)
        start = self.start[inside]
        partial = np.clip(times - start, 0, self.end[inside] - start)
        return np.where(index > 0, self._before[inside] + partial, 0)

    def inside(self, start: Ints, end: Ints) -> Ints:
        """The part inside each window. Nothing is kept: sums of a long capture are a column as large as its own."""
        if len(start) <= FEW_WINDOWS and "_before" not in self.__dict__:
            windows = zip(start.tolist(), end.tolist(), strict=True)
            return np.array([self._up_to(until) - self._up_to(since) for since, until in windows], np.int64)
        covered = self._covered_in_blocks(np.concatenate((start, end)))
        return covered[len(start) :] - covered[: len(start)]

    def _covered_in_blocks(self, times: Ints) -> Ints:
        """`covered_before`, with the sums of one block of intervals at a time."""
        if len(self.start) <= BLOCK_ROWS:
            return Intervals(start=self.start, end=self.end).covered_before(times)
        index = np.searchsorted(self.start, times, side="right")
        last = np.maximum(index - 1, 0)
        order = np.argsort(last, kind="stable")
        ordered = last[order]
        before = np.zeros(len(times), np.int64)
        total = 0
        for first in range(0, len(self.start), BLOCK_ROWS):
            block = slice(first, min(first + BLOCK_ROWS, len(self.start)))
            sums = np.zeros(block.stop - first + 1, np.int64)
            np.cumsum(self.end[block] - self.start[block], out=sums[1:])
            low, high = np.searchsorted(ordered, (first, block.stop))
            before[order[low:high]] = total + sums[ordered[low:high] - first]
            total += int(sums[-1])
        start = self.start[last]
        partial = np.clip(times - start, 0, self.end[last] - start)
        return np.where(index > 0, before + partial, 0)

    def _up_to(self, time: int) -> int:
        count = int(np.searchsorted(self.start, time, side="right"))
        if not count:
            return 0
        last = count - 1
        return _length(self.start[:last], self.end[:last]) + min(time, int(self.end[last])) - int(self.start[last])

    @cached_property
    def _before(self) -> Ints:
        """How much of the set lies before each of its intervals; asked for again and again."""
        before = np.zeros(len(self.start), np.int64)
        # In place: of a long capture a column of lengths is as large as this one.
        np.subtract(self.end[:-1], self.start[:-1], out=before[1:])
        np.cumsum(before, out=before)
        return before


def _length(start: Ints, end: Ints) -> int:
    """The sum of lengths without a column of them: the sums of times may run over, their difference does not."""
    return (int(end.sum()) - int(start.sum())) % 2**64


def union(start: Ints, end: Ints) -> Intervals:
    """Merge intervals that overlap or touch."""
    return union_and_first(start, end)[0]


def covered_ns(start: Ints, end: Ints) -> int:
    """The length of the union, without its columns where the intervals are in order."""
    if not len(start):
        return 0
    if not bool(np.all(start[1:] >= start[:-1])):
        return union(start, end).total
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1], [True]))
    return (int(reach.sum(where=opens[1:])) - int(start.sum(where=opens[:-1]))) % 2**64


def union_and_first(start: Ints, end: Ints) -> tuple[Intervals, Ints]:
    """The union, and the index of the interval that opened each part of it."""
    if not len(start):
        none = np.zeros(0, np.int64)
        return Intervals(start=none, end=none), none
    order: Ints | None = None
    if not bool(np.all(start[1:] >= start[:-1])):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = end if bool(np.all(end[1:] >= end[:-1])) else np.maximum.accumulate(end)
    apart = start[1:] > reach[:-1]
    if bool(apart.all()):
        return Intervals(start=start, end=reach), np.arange(len(start)) if order is None else order
    opens = np.concatenate(([True], apart))
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Nesting:
    """`parent` is an index into the same columns, -1 at the top; `levels[d]` holds the intervals at depth d.

    `strict`: no interval overlaps another without lying inside it.
    """

    parent: Ints
    levels: tuple[Ints, ...]
    strict: bool = True

    def repeats_ancestor(self, name: Ints) -> Flags:
        """Whether some ancestor has the same name."""
        return repeats_ancestor(self.parent, name)

    def sum_up(self, value: Ints) -> Ints:
        """Each interval's value plus those of all it contains."""
        total = value.copy()
        for level in reversed(self.levels[1:]):
            np.add.at(total, self.parent[level], total[level])
        return total


def repeats_ancestor(parent: Ints, name: Ints) -> Flags:
    """Of each interval whether some ancestor has the same name."""
    out = np.zeros(len(name), np.bool_)
    open_, above = np.arange(len(name), dtype=np.int32), parent.copy()
    while True:
        keep = above >= 0
        open_, above = open_[keep], above[keep]
        if not len(open_):
            return out
        same = name[open_] == name[above]
        out[open_[same]] = True
        open_, above = open_[~same], parent[above[~same]]


def nest(thread: Ints, start: Ints, end: Ints) -> Nesting:
    """Find the parents: of each interval the innermost around it on its thread. What only overlaps it is not."""
    # Indices in 32 bits: a long trace has many of them.
    parent = np.full(len(start), -1, np.int32)
    if not len(start):
        return Nesting(parent=parent, levels=())
    # An empty interval must still count as open for what starts with it.
    closed = np.maximum(end, start + 1)
    order = _by_start(thread, start, closed)
    depth = np.empty(len(start), np.int32)
    chunks = np.split(order, np.flatnonzero(np.diff(thread[order])) + 1)
    for chunk in chunks:
        # In place where it can be: these are the largest arrays of the analysis of a long trace.
        ends = closed[chunk]
        ends.sort(kind="stable")
        done = np.searchsorted(ends, start[chunk], side="right")
        del ends
        depth[chunk] = np.subtract(np.arange(len(chunk), dtype=np.int32), done, out=done)
        del done
    positions = _positions(depth[order])
    crossing: list[Ints] = []
    levels = [order[positions[0]]]
    for above, here in pairwise(positions):
        around = above[np.searchsorted(above, here) - 1]
        levels.append(order[here])
        parent[levels[-1]] = order[around]
        over = closed[levels[-1]] > closed[order[around]]
        if over.any():
            crossing.append(thread[levels[-1][over]])
    if not crossing:
        return Nesting(parent=parent, levels=tuple(levels))
    # Counting those open gives the depth only where all are nested.
    for chunk in (c for c in chunks if thread[c[0]] in np.concatenate(crossing)):
        _walk(chunk, closed, parent, depth)
    return Nesting(parent=parent, levels=tuple(order[p] for p in _positions(depth[order])), strict=False)


def _positions(depth: Ints) -> list[Ints]:
    """The positions of each depth, in order."""
    # Numbers of 16 bits are sorted by their digits, several times as fast.
    narrow = depth.astype(np.int16) if int(depth.max()) <= np.iinfo(np.int16).max else depth
    by_depth = np.argsort(narrow, kind="stable").astype(np.int32)
    return np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)


def _walk(chunk: Ints, closed: Ints, parent: Ints, depth: Ints) -> None:
    """Parents and depths of one thread with a stack; what ends too early to be around an interval leaves it."""
    stack: list[tuple[int, int]] = []
    for index, until in zip(chunk.tolist(), closed[chunk].tolist(), strict=True):
        while stack and stack[-1][1] < until:
            stack.pop()
        parent[index] = stack[-1][0] if stack else -1
        depth[index] = len(stack)
        stack.append((index, until))


def innermost(nesting: Nesting, thread: Ints, start: Ints, end: Ints, at_thread: Ints, at: Ints) -> Ints:
    """For each point of time on a thread, the innermost interval open then, or -1."""
    out = np.full(len(at), -1, np.int64)
    if not len(start):
        return out
    order = _by_start(thread, start, end)
    owner = thread[order]
    points_order = np.argsort(at_thread, kind="stable")
    for points in np.split(points_order, np.flatnonzero(np.diff(at_thread[points_order])) + 1):
        if not len(points):
            continue
        code = at_thread[points[0]]
        mine = order[np.searchsorted(owner, code, "left") : np.searchsorted(owner, code, "right")]
        if not len(mine):
            continue
        index = np.searchsorted(start[mine], at[points], side="right") - 1
        found = np.where(index >= 0, mine[np.maximum(index, 0)], -1)
        while True:
            past = (found >= 0) & (end[np.maximum(found, 0)] <= at[points])
            if not past.any():
                break
            found[past] = nesting.parent[found[past]]
        out[points] = found
    return out


def _by_start(thread: Ints, start: Ints, end: Ints) -> Ints:
    """The order by thread and start, the longest first where several start together."""
    order = np.lexsort((start, thread)).astype(np.int32)
    starts, threads = start[order], thread[order]
    together = (starts[1:] == starts[:-1]) & (threads[1:] == threads[:-1])
    # Traces come nearly in order, so sorting by these two costs little; the third key is in no order at all.
    return np.lexsort((-end, start, thread)).astype(np.int32) if together.any() else order


def in_order(times: Ints) -> Ints:
    """Sorted; captures mostly list them so already."""
    return times if bool((times[1:] >= times[:-1]).all()) else np.sort(times, kind="stable")
