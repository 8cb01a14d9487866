"""The ranges that cause work: of a range's own thread, and of threads that launch for it while it is blocked.

Autograd runs the backward pass on its own thread, and data-parallel workers launch for a step that waits for them.
The thread that opened the range launches nothing meanwhile. A call of such a helper thread belongs to the innermost
range that is open on the thread it works for, and a range of the helper lies inside that range. So every piece of work
has one innermost range, and the rows of ranges that nest add up.

A helper is autograd's thread, known by its operators, or a thread whose ranges hold less than half of its launches and
whose launches come in bursts while the other thread makes no call. Threads with ranges of their own, as the workers of
a server, keep what they launch. Where ranges of several threads could be the cause, none of them is taken.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Intervals, Ints, Nesting, innermost, nest, union
from llm_perf_opt.capture.timeline import Activities, Timeline, distinct
from llm_perf_opt.core.names import MODULE_PREFIX

# Names that autograd gives to what it runs: `MulBackward0`, `torch::autograd::AccumulateGrad`.
_BACKWARD = re.compile(r"^(torch::)?autograd::|Backward(s|N|\d+)?(, |$)")
# Ranges around the forward of a module. A replica's thread runs modules for the thread that waits for it.
_MODULES = (MODULE_PREFIX, "nn.Module: ")
# From this share of its outermost operators on a thread is autograd's.
MOSTLY_BACKWARD = 0.5
# A thread that launches this share of its work inside its own ranges needs no ranges of other threads.
OWN_SHARE = 0.5
# Launches between two of the other thread, on average; two threads that launch at the same pace have two.
LEAST_BURST = 4
# This share of a helper's launch calls may overlap calls of the thread it works for.
MOST_OVERLAP = 0.1
# A forward pass launches at least this share of what its backward pass does.
LEAST_FORWARD = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Ownership:
    """Indices of ranges and calls are those of the timeline.

    `parent` is the innermost range around each push/pop range, on its thread or on the thread it works for (-1: none).
    `cause` is the innermost range of another thread for which a call was made (-1: none), None where no thread works
    for another. `ambiguous` counts launch calls that ranges of several threads could have caused.
    """

    parent: Ints
    cause: Ints | None
    ambiguous: int
    _pushed: Ints
    _tree: Nesting

    def innermost(self, timeline: Timeline, call: Ints) -> Ints:
        """The innermost push/pop range that owns each call, or -1."""
        ranges, calls = timeline.ranges, timeline.calls
        columns = (ranges.thread[self._pushed], ranges.start_ns[self._pushed], ranges.end_ns[self._pushed])
        found = innermost(self._tree, *columns, calls.thread[call], calls.start_ns[call])
        caused = np.full(len(call), -1) if self.cause is None else self.cause[call]
        return np.where(found >= 0, self._pushed[np.maximum(found, 0)], caused) if len(self._pushed) else caused

    def working_thread(self, timeline: Timeline) -> Ints:
        """Of each call the thread for which it was made: its own, or the one that was blocked meanwhile."""
        thread = timeline.calls.thread
        if self.cause is None:
            return thread
        return np.where(self.cause >= 0, timeline.ranges.thread[np.maximum(self.cause, 0)], thread)

    def with_ancestors(self, range_index: Ints) -> tuple[Ints, Ints]:
        """For each range (-1: none) it and all around it: positions in `range_index`, and ranges."""
        positions, found = [], []
        at: Ints = np.arange(len(range_index))
        open_: Ints = range_index
        while len(at):
            keep = open_ >= 0
            at, open_ = at[keep], open_[keep]
            positions.append(at)
            found.append(open_)
            open_ = self.parent[open_]
        none = np.zeros(0, np.int64)
        return np.concatenate([none, *positions]), np.concatenate([none, *found])


def find_ownership(timeline: Timeline) -> Ownership:
    """Find the range that caused each call of a helper thread."""
    ranges = timeline.ranges
    pushed = np.flatnonzero(~ranges.process_wide)
    tree = nest(ranges.thread[pushed], ranges.start_ns[pushed], ranges.end_ns[pushed])
    parent = np.full(len(ranges), -1, np.int64)
    inner = np.flatnonzero(tree.parent >= 0)
    parent[pushed[inner]] = pushed[tree.parent[inner]]
    helped = _Helpers(timeline, pushed).find()
    cause, ambiguous = None, 0
    if helped:
        cause, ambiguous = _causes(timeline, helped, pushed, tree, parent)
    return Ownership(parent=parent, cause=cause, ambiguous=ambiguous, _pushed=pushed, _tree=tree)


class _Helpers:
    """Which threads launch for which others."""

    def __init__(self, timeline: Timeline, pushed: Ints) -> None:
        self._timeline = timeline
        self._pushed = pushed
        self._ranged = distinct(timeline.ranges.thread[pushed]).tolist()
        self._known_calls: dict[tuple[int, bool], tuple[Ints, Ints]] = {}
        self._known_ranges: dict[tuple[int, bool], Intervals] = {}

    def find(self) -> dict[int, list[int]]:
        """For each helper the threads it may work for."""
        timeline = self._timeline
        launched = self._launch_counts()
        process = timeline.thread_process
        rivals = {
            helper: others
            for helper in np.flatnonzero(launched).tolist()
            if (others := [t for t in self._ranged if t != helper and process[t] == process[helper]])
        }
        if not rivals:
            return {}
        backward = {thread for thread in rivals if self._is_autograd(thread)}
        found: list[tuple[int, int, int]] = []
        for helper, others in rivals.items():
            if helper not in backward and self._own_share(helper) >= OWN_SHARE:
                continue
            kept = [t for t in others if t not in backward]
            if helper in backward and len(kept) > 1:
                kept = [t for t in kept if launched[t] >= LEAST_FORWARD * launched[helper]]
            for worked_for in kept:
                count, in_bursts = self._bursts(helper, worked_for)
                if count and (in_bursts or helper in backward):
                    found.append((count, helper, worked_for))
        return _one_way(found)

    def _launch_counts(self) -> Ints:
        """Launching calls of each thread."""
        calls, threads = self._timeline.calls, len(self._timeline.thread_process)
        if not len(self._ranged) or not len(calls):
            return np.zeros(threads, np.int64)
        used = distinct(calls.thread)
        if len(used) == 1 and used.tolist() == self._ranged:
            return np.zeros(threads, np.int64)
        return np.bincount(calls.thread[calls.launches], minlength=threads)

    def _is_autograd(self, thread: int) -> bool:
        """Whether most of the outermost operators of a thread are autograd's; where it has none, of its ranges."""
        ranges, pushed = self._timeline.ranges, self._pushed
        mine = pushed[ranges.thread[pushed] == thread]
        marks = ranges.as_events.take(mine)
        for events in (self._timeline.operators, marks):
            index = np.flatnonzero(events.thread == thread)
            if not len(index):
                continue
            index = index[np.lexsort((-events.end_ns[index], events.start_ns[index]))]
            reach = np.maximum.accumulate(events.end_ns[index])
            outermost = np.concatenate(([True], events.start_ns[index][1:] >= reach[:-1]))
            names = events.name[index[outermost]]
            codes = [code for code in distinct(names).tolist() if _BACKWARD.search(self._timeline.names[code])]
            return bool(np.isin(names, codes).mean() >= MOSTLY_BACKWARD)
        return False

    def _own_share(self, thread: int) -> float:
        """The share of a thread's launches inside its own ranges, those of modules left out."""
        at, _ = self._calls(thread, launches=True)
        return float(self._inside(at, thread, modules=False).mean())

    def _bursts(self, helper: int, worked_for: int) -> tuple[int, bool]:
        """Launches of a helper inside ranges of another thread, and whether they come while that one makes no call."""
        start, end = self._calls(helper, launches=True)
        inside = self._inside(start, worked_for)
        start, end = start[inside], end[inside]
        if not len(start):
            return 0, False
        others, until = self._calls(worked_for, launches=False)
        overlaps = np.zeros(len(start), np.bool_)
        if len(others):
            last = np.searchsorted(others, end, "left") - 1
            reach = np.maximum.accumulate(until)
            overlaps = (last >= 0) & (reach[np.maximum(last, 0)] > start)
        launches, _ = self._calls(worked_for, launches=True)
        bursts = len(distinct(np.searchsorted(launches, start)))
        in_bursts = overlaps.mean() <= MOST_OVERLAP and (bursts == 1 or len(start) >= LEAST_BURST * bursts)
        return len(start), bool(in_bursts)

    def _inside(self, at: Ints, thread: int, *, modules: bool = True) -> Flags:
        """Which moments lie inside a range of a thread."""
        key = (thread, modules)
        if key not in self._known_ranges:
            ranges, pushed = self._timeline.ranges, self._pushed
            mine = pushed[ranges.thread[pushed] == thread]
            if not modules:
                names = self._timeline.names
                codes = [code for code in distinct(ranges.name[mine]).tolist() if names[code].startswith(_MODULES)]
                mine = mine[~np.isin(ranges.name[mine], codes)]
            self._known_ranges[key] = union(ranges.start_ns[mine], ranges.end_ns[mine])
        open_ = self._known_ranges[key]
        if not len(open_.start):
            return np.zeros(len(at), np.bool_)
        index = np.searchsorted(open_.start, at, side="right") - 1
        return (index >= 0) & (at < open_.end[np.maximum(index, 0)])

    def _calls(self, thread: int, *, launches: bool) -> tuple[Ints, Ints]:
        """Starts and ends of the calls of a thread, in order of their starts."""
        key = (thread, launches)
        if key not in self._known_calls:
            calls = self._timeline.calls
            mine = np.flatnonzero((calls.thread == thread) & calls.launches if launches else calls.thread == thread)
            mine = mine[np.argsort(calls.start_ns[mine], kind="stable")]
            self._known_calls[key] = (calls.start_ns[mine], calls.end_ns[mine])
        return self._known_calls[key]


def _one_way(found: Sequence[tuple[int, int, int]]) -> dict[int, list[int]]:
    """Helpers and the threads they work for, most launches first; one that works for others has no helpers."""
    kept: dict[int, list[int]] = {}
    for _, helper, worked_for in sorted(found, key=lambda pair: (-pair[0], pair[1], pair[2])):
        if worked_for not in kept and all(helper not in others for others in kept.values()):
            kept.setdefault(helper, []).append(worked_for)
    return kept


def _causes(
    timeline: Timeline, helped: Mapping[int, Sequence[int]], pushed: Ints, tree: Nesting, parent: Ints
) -> tuple[Ints, int]:
    """The cause of each call; the parents of the helpers' own ranges are filled in."""
    ranges, calls = timeline.ranges, timeline.calls
    start, end = ranges.start_ns[pushed], ranges.end_ns[pushed]
    thread = ranges.thread[pushed]
    columns = (thread, start, end)
    cause = np.full(len(calls), -1, np.int64)
    ambiguous = 0
    root = np.arange(len(pushed))
    for level in tree.levels[1:]:
        root[level] = root[tree.parent[level]]

    def around(worked_for: Sequence[int], at: Ints, until: Ints) -> tuple[Ints, Flags]:
        """The innermost range around each interval on one of some threads, or -1; and where several have one."""
        one, several = np.full(len(at), -1, np.int64), np.zeros(len(at), np.bool_)
        for other in worked_for:
            found = innermost(tree, *columns, np.full(len(at), other), at)
            while (outside := (found >= 0) & (end[np.maximum(found, 0)] < until)).any():
                found[outside] = tree.parent[found[outside]]
            several |= (one >= 0) & (found >= 0)
            one = np.where(found >= 0, found, one)
        one[several] = -1
        return one, several

    for helper, worked_for in helped.items():
        mine = np.flatnonzero(calls.thread == helper)
        own = np.flatnonzero((thread == helper) & (tree.parent < 0))
        above, several_own = around(worked_for, start[own], end[own])
        parent[pushed[own[above >= 0]]] = pushed[above[above >= 0]]
        at = calls.start_ns[mine]
        found, several = around(worked_for, at, at + 1)
        inside = innermost(tree, *columns, calls.thread[mine], at)
        top = np.flatnonzero(inside >= 0)
        if len(top):
            # What lies in a range of the helper belongs where that range does.
            place = np.full(len(pushed), -1, np.int64)
            place[own] = np.arange(len(own))
            of = place[root[inside[top]]]
            found[top], several[top] = above[of], several_own[of]
        cause[mine[found >= 0]] = pushed[found[found >= 0]]
        ambiguous += int((several & calls.launches[mine]).sum())
    return cause, ambiguous


@dataclass(frozen=True, kw_only=True, eq=False)
class Unlaunched:
    """Work whose launch call was not recorded. `owner` is the innermost range that launched each, or -1.

    A stream runs its work in the order of the launches, so what starts between two recorded launches of a range was
    launched in it (`placed`), and what starts before the first recorded launch was queued before it (`queued_before`),
    mostly before the recording began. Of the others nothing is known.
    """

    index: Ints
    owner: Ints
    placed: int
    queued_before: int


def place_unlaunched(timeline: Timeline, work: Activities, ownership: Ownership) -> Unlaunched:
    """Decide by the order of the work on each stream which range launched what has no recorded launch."""
    index = np.flatnonzero(work.call < 0)
    owner = np.full(len(index), -1, np.int64)
    if not len(index):
        return Unlaunched(index=index, owner=owner, placed=0, queued_before=0)
    order = np.lexsort((work.start_ns, work.stream, work.device, work.process))
    call, start = work.call[order], work.start_ns[order]
    where = (work.process[order], work.device[order], work.stream[order])
    stream = np.cumsum(np.concatenate(([True], np.any([w[1:] != w[:-1] for w in where], axis=0))))
    place = np.arange(len(order))
    before = np.maximum.accumulate(np.where(call >= 0, place, -1))
    after = np.minimum.accumulate(np.where(call >= 0, place, len(order))[::-1])[::-1]
    unknown = np.flatnonzero((call < 0) & (where[2] >= 0))
    before, after = before[unknown], after[unknown]
    has_before = (before >= 0) & (stream[np.maximum(before, 0)] == stream[unknown])
    has_after = (after < len(order)) & (stream[np.minimum(after, len(order) - 1)] == stream[unknown])
    first = has_after & ~has_before
    both = np.flatnonzero(has_before & has_after)
    first_call, next_call = call[before[both]], call[after[both]]
    lower = timeline.calls.start_ns[first_call]
    upper = np.minimum(timeline.calls.start_ns[next_call], start[unknown[both]])
    working = ownership.working_thread(timeline)
    # Launched on the thread of the call before or of the one after it: both must mean the same range.
    known = (working[first_call] == working[next_call]) & (lower <= upper)
    same_thread = timeline.calls.thread[first_call] == timeline.calls.thread[next_call]
    found = _around(timeline, ownership, first_call, lower, upper, same_thread)
    place_of = np.full(len(work), -1, np.int64)
    place_of[index] = np.arange(len(index))
    owner[place_of[order[unknown[both[known]]]]] = found[known]
    placed = int((owner >= 0).sum())
    return Unlaunched(
        index=index,
        owner=owner,
        placed=placed,
        queued_before=int(first.sum()),
    )


def _around(
    timeline: Timeline, ownership: Ownership, call: Ints, lower: Ints, upper: Ints, may_be_helper: Flags
) -> Ints:
    """The innermost range that owns each call and is open from one moment to another, or -1.

    Where it may not be a helper's own range, it is one of the thread for which the helper works.
    """
    ranges = timeline.ranges
    found = ownership.innermost(timeline, call).copy()
    if not len(ranges):
        return found
    working = ownership.working_thread(timeline)[call]
    while True:
        at = np.maximum(found, 0)
        outside = (ranges.start_ns[at] > lower) | (ranges.end_ns[at] <= upper)
        outside |= ~may_be_helper & (ranges.thread[at] != working)
        outside &= found >= 0
        if not outside.any():
            return found
        found[outside] = ownership.parent[found[outside]]
