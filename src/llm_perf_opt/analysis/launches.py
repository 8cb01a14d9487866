"""GPU work and host calls in launch order, so that what a range launched is one slice."""

import numpy as np

from llm_perf_opt.analysis.intervals import Flags, Ints
from llm_perf_opt.analysis.timeline import Activities, Ranges, Timeline


class _Order:
    """Things that happened at a time on a thread, sorted so that those inside a range are one slice.

    Two orders are kept: by thread for push/pop ranges, by process for start/end ranges.
    """

    def __init__(self, timeline: Timeline, thread: Ints, at: Ints) -> None:
        self._process_of = timeline.thread_process
        self._by_thread = _sorted(thread, at)
        one_thread = len(thread) == 0 or bool((thread == thread[0]).all())
        owner = thread if one_thread else self._process_of[thread]
        self._by_process = self._by_thread if one_thread else _sorted(owner, at)
        self._one_thread = one_thread

    def slices(self, ranges: Ranges) -> tuple[Ints, Ints, Flags]:
        """First position and count of what lies in each range (its end excluded), and which order is meant."""
        first = np.zeros(len(ranges), np.int64)
        count = np.zeros(len(ranges), np.int64)
        wide = ranges.process_wide
        for group, (_, owner, at) in ((~wide, self._by_thread), (wide, self._by_process)):
            index = np.flatnonzero(group)
            if not len(index) or not len(at):
                continue
            of_process = bool(wide[index[0]])
            if of_process and self._one_thread:
                here = self._process_of[ranges.thread[index]] == self._process_of[owner[0]]
                who = np.where(here, owner[0], -1)
            else:
                who = self._process_of[ranges.thread[index]] if of_process else ranges.thread[index]
            for code in np.unique(who):
                mine = index[who == code]
                lo, hi = np.searchsorted(owner, code, "left"), np.searchsorted(owner, code, "right")
                first[mine] = lo + np.searchsorted(at[lo:hi], ranges.start_ns[mine], "left")
                stop = lo + np.searchsorted(at[lo:hi], ranges.end_ns[mine], "left")
                count[mine] = np.maximum(stop - first[mine], 0)
        return first, count, wide

    def arrange(self, column: Ints, *, by_process: bool) -> Ints:
        order = (self._by_process if by_process else self._by_thread)[0]
        return column if order is None else column[order]

    @property
    def same_order(self) -> bool:
        return self._one_thread


def _sorted(owner: Ints, at: Ints) -> tuple[Ints | None, Ints, Ints]:
    """The order by owner and time (None: as it is), and both columns in it."""
    one = len(owner) == 0 or bool((owner == owner[0]).all())
    if one and bool(np.all(at[1:] >= at[:-1])):
        return None, owner, at
    order = np.argsort(at, kind="stable") if one else np.lexsort((at, owner))
    return order, owner[order], at[order]


class Launched:
    """GPU work in the order of its launching calls."""

    def __init__(self, timeline: Timeline, work: Activities) -> None:
        known = work.call >= 0
        self._all_known = bool(known.all())
        pick = slice(None) if self._all_known else np.flatnonzero(known)
        call = work.call[pick]
        calls = timeline.calls
        none = np.zeros(0, np.int64)
        thread = calls.thread[call] if len(calls) else none
        at = calls.start_ns[call] if len(calls) else none
        self._order = _Order(timeline, thread, at)
        self._start, self._end, self._name = work.start_ns[pick], work.end_ns[pick], work.name[pick]
        if not len(calls):
            self._start = self._end = self._name = none
        self._wide = np.zeros(0, np.bool_)
        self._views: dict[bool, tuple[Ints, Ints, Ints]] = {}

    def inside(self, ranges: Ranges) -> tuple[Ints, Ints]:
        first, count, self._wide = self._order.slices(ranges)
        return first, count

    def view(self, by_process: bool) -> tuple[Ints, Ints, Ints]:
        """Start, end and name in the order the slices index."""
        key = by_process and not self._order.same_order
        if key not in self._views:
            self._views[key] = (
                self._order.arrange(self._start, by_process=key),
                self._order.arrange(self._end, by_process=key),
                self._order.arrange(self._name, by_process=key),
            )
        return self._views[key]

    def time_between(self, first: Ints, count: Ints) -> Ints:
        """The summed time of the slices."""
        out = np.zeros(len(first), np.int64)
        for by_process in (False, True):
            mine = self._wide == by_process
            if not mine.any():
                continue
            start, end, _ = self.view(by_process)
            before = np.concatenate(([0], np.cumsum(end - start)))
            out[mine] = before[(first + count)[mine]] - before[first[mine]]
        return out


class LaunchCalls:
    """Host calls that started GPU work, each counted once however much it started."""

    def __init__(self, timeline: Timeline) -> None:
        calls = timeline.calls
        pick = np.flatnonzero(calls.launches)
        self._order = _Order(timeline, calls.thread[pick], calls.start_ns[pick])
        self._length = calls.end_ns[pick] - calls.start_ns[pick]

    def inside(self, ranges: Ranges) -> tuple[Ints, Ints]:
        first, count, wide = self._order.slices(ranges)
        time = np.zeros(len(first), np.int64)
        for by_process in (False, True):
            mine = wide == by_process
            if mine.any():
                length = self._order.arrange(self._length, by_process=by_process)
                before = np.concatenate(([0], np.cumsum(length)))
                time[mine] = before[(first + count)[mine]] - before[first[mine]]
        return count, time
