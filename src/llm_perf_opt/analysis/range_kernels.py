"""The kernels launched inside chosen ranges of a timeline, warm-ups left out."""

from collections.abc import Callable

import numpy as np

from llm_perf_opt.analysis.intervals import Flags, Ints
from llm_perf_opt.analysis.ncu_rows import NsysKernel
from llm_perf_opt.analysis.ranges import warmup_ranges
from llm_perf_opt.analysis.timeline import Timeline


def range_kernels(timeline: Timeline, wanted: Callable[[str], bool]) -> list[NsysKernel]:
    """Kernels by name, heaviest first, whose launching call lies in a range with a wanted name."""
    chosen = np.array([wanted(timeline.names[i]) for i in timeline.ranges.name], np.bool_)
    chosen &= ~warmup_ranges(timeline)
    call = timeline.kernels.call
    inside = np.zeros(len(timeline.kernels), np.bool_)
    inside[call >= 0] = _calls_inside(timeline, chosen)[call[call >= 0]]
    return _by_name(timeline, inside)


def first_range_sequence(timeline: Timeline, wanted: Callable[[str], bool]) -> list[str]:
    """Kernel names in the order of their launches inside the first range with a wanted name, warm-ups left out."""
    ranges, calls = timeline.ranges, timeline.calls
    chosen = np.array([wanted(timeline.names[i]) for i in ranges.name], np.bool_) & ~warmup_ranges(timeline)
    if not chosen.any():
        return []
    first = np.flatnonzero(chosen)[np.argmin(ranges.start_ns[chosen])]
    inside = (calls.start_ns >= ranges.start_ns[first]) & (calls.start_ns < ranges.end_ns[first])
    inside &= calls.thread == ranges.thread[first]
    call = timeline.kernels.call
    mine = np.flatnonzero((call >= 0) & inside[np.maximum(call, 0)])
    order = mine[np.argsort(calls.start_ns[call[mine]], kind="stable")]
    return [timeline.names[int(i)] for i in timeline.kernels.name[order]]


def all_kernels(timeline: Timeline) -> list[NsysKernel]:
    """All kernels by name, heaviest first."""
    return _by_name(timeline, np.ones(len(timeline.kernels), np.bool_))


def _by_name(timeline: Timeline, keep: Flags) -> list[NsysKernel]:
    kernels = timeline.kernels
    time_ns = (kernels.end_ns - kernels.start_ns)[keep]
    name, index, count = np.unique(kernels.name[keep], return_inverse=True, return_counts=True)
    total = np.zeros(len(name), np.int64)
    np.add.at(total, index, time_ns)
    rows = [
        NsysKernel(name=timeline.names[int(n)], instances=int(c), total_ns=int(t))
        for n, c, t in zip(name, count, total, strict=True)
    ]
    return sorted(rows, key=lambda row: -row.total_ns)


def _calls_inside(timeline: Timeline, chosen: Flags) -> Flags:
    """Which host calls start inside a chosen range of their own thread, or of their process for process-wide ranges."""
    calls, ranges = timeline.calls, timeline.ranges
    inside = np.zeros(len(calls), np.bool_)
    for wide, owner_of_call, owner_of_range in (
        (False, calls.thread, ranges.thread),
        (True, timeline.thread_process[calls.thread], timeline.thread_process[ranges.thread]),
    ):
        mine = chosen & (ranges.process_wide == wide)
        for owner in np.unique(owner_of_range[mine]):
            pick = mine & (owner_of_range == owner)
            start, end = _union(ranges.start_ns[pick], ranges.end_ns[pick])
            here = np.flatnonzero(owner_of_call == owner)
            position = np.searchsorted(start, calls.start_ns[here], side="right") - 1
            hit = (position >= 0) & (calls.start_ns[here] < end[np.maximum(position, 0)])
            inside[here[hit]] = True
    return inside


def _union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Intervals sorted and merged, so that nested ranges count once."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]
