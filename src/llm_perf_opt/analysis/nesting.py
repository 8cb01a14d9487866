"""Who contains whom among the intervals of one thread."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from llm_perf_opt.analysis.intervals import Flags, Ints


@dataclass(frozen=True, kw_only=True)
class Nesting:
    """`parent` is an index into the same columns, -1 at the top; `levels[d]` holds the intervals at depth d.

    `strict`: no interval overlaps another without lying inside it.
    """

    parent: Ints
    levels: tuple[Ints, ...]
    strict: bool = True

    def repeats_ancestor(self, name: Ints) -> Flags:
        """Whether some ancestor has the same name."""
        out = np.zeros(len(name), np.bool_)
        open_, above = np.arange(len(name), dtype=np.int32), self.parent.copy()
        while True:
            keep = above >= 0
            open_, above = open_[keep], above[keep]
            if not len(open_):
                return out
            same = name[open_] == name[above]
            out[open_[same]] = True
            open_, above = open_[~same], self.parent[above[~same]]

    def sum_up(self, value: Ints) -> Ints:
        """Each interval's value plus those of all it contains."""
        total = value.copy()
        for level in reversed(self.levels[1:]):
            np.add.at(total, self.parent[level], total[level])
        return total


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
    by_depth = np.argsort(depth, kind="stable").astype(np.int32)
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
    together = (np.diff(start[order]) == 0) & (np.diff(thread[order]) == 0)
    # Traces come nearly in order, so sorting by these two costs little; the third key is in no order at all.
    return np.lexsort((-end, start, thread)).astype(np.int32) if together.any() else order
