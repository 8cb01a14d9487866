"""What each named range cost: its kernels by the call that launched them, GPU busy and idle time, launch-call time.

GPU work and host calls in launch order, so that what a range launched is one slice.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.timeline.idle import IdleMap, IdleSplit
from llm_perf_opt.analysis.timeline.intervals import Flags, Ints, expand, nest, segment_union
from llm_perf_opt.analysis.timeline.timeline import Activities, Ranges, Timeline, distinct, grouped, is_warmup


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
            for code in distinct(who).astype(who.dtype):
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
            before = _sums_before(end - start)
            out[mine] = before[(first + count)[mine]] - before[first[mine]]
        return out


class LaunchCalls:
    """Host calls that started GPU work, each counted once however much it started."""

    def __init__(self, timeline: Timeline) -> None:
        calls = timeline.calls
        # Nearly all calls kept of a capture launch: the others count nothing, which is cheaper than to leave them out.
        self._order = _Order(timeline, calls.thread, calls.start_ns)
        self._launches = calls.launches.view(np.int8)
        self._length = calls.end_ns - calls.start_ns
        self._length[~calls.launches] = 0

    def inside(self, ranges: Ranges) -> tuple[Ints, Ints]:
        first, among, wide = self._order.slices(ranges)
        count, time = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
        for by_process in (False, True):
            mine = wide == by_process
            if mine.any():
                low, high = first[mine], (first + among)[mine]
                for column, out in ((self._launches, count), (self._length, time)):
                    before = _sums_before(self._order.arrange(column, by_process=by_process))
                    out[mine] = before[high] - before[low]
        return count, time


def _sums_before(column: Ints) -> Ints:
    """The sum of all before each entry, and of all."""
    out = np.zeros(len(column) + 1, np.int64)
    np.cumsum(column, out=out[1:])
    return out


# Pairs of range and kernel looked at in one go: bounds the memory, whatever the capture's length.
BATCH_PAIRS = 250_000


@dataclass(frozen=True, kw_only=True)
class RangeInstances:
    """Columns, one entry per counted range instance; `name` indexes the timeline's names, -1 in `parent_name`: none."""

    name: Ints
    parent_name: Ints
    process_wide: Flags
    start_ns: Ints
    wall_ns: Ints
    kernel_count: Ints
    kernel_ns: Ints
    graph_launches: Ints
    gpu_busy_ns: Ints
    launch_calls: Ints
    launch_ns: Ints
    idle: IdleSplit
    warmup_left_out: int
    repeats_left_out: int
    kernels_by_key: dict[int, tuple[Ints, Ints, Ints]]

    def __len__(self) -> int:
        return len(self.name)


def measure_ranges(timeline: Timeline, maps: Mapping[int, IdleMap], *, detailed_names: int = 32) -> RangeInstances:
    """Measure every range that is neither warm-up nor inside a range of its own name."""
    ranges = timeline.ranges
    warm = warmup_ranges(timeline)
    parent_name, repeats = _parents(timeline)
    keep = np.flatnonzero(~warm & ~repeats)
    chosen = _take(ranges, keep)
    kernels = Launched(timeline, timeline.kernels)
    graphs = Launched(timeline, timeline.graphs)
    calls = LaunchCalls(timeline)
    k_first, k_count = kernels.inside(chosen)
    g_first, g_count = graphs.inside(chosen)
    kernel_ns = kernels.time_between(k_first, k_count)
    detailed = _most_expensive(range_keys(chosen.name, chosen.process_wide), kernel_ns, detailed_names)
    busy, by_name = _busy(timeline, kernels, graphs, (k_first, k_count, g_first, g_count), chosen, detailed)
    launch_calls, launch_ns = calls.inside(chosen)
    return RangeInstances(
        name=chosen.name,
        parent_name=parent_name[keep],
        process_wide=chosen.process_wide,
        start_ns=chosen.start_ns,
        wall_ns=chosen.end_ns - chosen.start_ns,
        kernel_count=k_count,
        kernel_ns=kernel_ns,
        graph_launches=g_count,
        gpu_busy_ns=busy,
        launch_calls=launch_calls,
        launch_ns=launch_ns,
        idle=_idle(timeline, chosen, maps),
        warmup_left_out=int(warm.sum()),
        repeats_left_out=int((repeats & ~warm).sum()),
        kernels_by_key=by_name,
    )


def warmup_ranges(timeline: Timeline) -> Flags:
    """Ranges that are warm-up or lie inside one on their thread (or, for a start/end one, in their process)."""
    ranges = timeline.ranges
    codes = [i for i, name in enumerate(timeline.names) if is_warmup(name)]
    is_warm = np.isin(ranges.name, codes)
    out = is_warm.copy()
    process = timeline.thread_process[ranges.thread] if len(ranges) else ranges.thread
    for wide, owner in ((False, ranges.thread), (True, process)):
        source = is_warm & (ranges.process_wide == wide)
        for code in distinct(owner[source]).tolist():
            mine = source & (owner == code)
            out |= (owner == code) & _inside_one(ranges.start_ns[mine], ranges.end_ns[mine], ranges)
    return out


def _inside_one(start: Ints, end: Ints, ranges: Ranges) -> Flags:
    """Whether each range lies wholly inside one of some intervals, which may overlap."""
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order])
    index = np.searchsorted(start[order], ranges.start_ns, side="right") - 1
    return (index >= 0) & (reach[np.maximum(index, 0)] >= ranges.end_ns)


def _parents(timeline: Timeline) -> tuple[Ints, Flags]:
    """The name of the range around each push/pop range, and whether a range of the same name is around it."""
    ranges = timeline.ranges
    name = np.full(len(ranges), -1, np.int64)
    repeats = np.zeros(len(ranges), np.bool_)
    own = np.flatnonzero(~ranges.process_wide)
    tree = nest(ranges.thread[own], ranges.start_ns[own], ranges.end_ns[own])
    has = tree.parent >= 0
    name[own[has]] = ranges.name[own[tree.parent[has]]]
    repeats[own] = tree.repeats_ancestor(ranges.name[own])
    return name, repeats


def _take(ranges: Ranges, index: Ints) -> Ranges:
    return Ranges(
        start_ns=ranges.start_ns[index],
        end_ns=ranges.end_ns[index],
        name=ranges.name[index],
        thread=ranges.thread[index],
        process_wide=ranges.process_wide[index],
    )


def range_keys(name: Ints, process_wide: Flags) -> Ints:
    """One number for a range's name and style."""
    return name * 2 + process_wide


def _most_expensive(key: Ints, time_ns: Ints, limit: int) -> Ints:
    """The range keys with the most kernel time."""
    names, index = grouped(key)
    total = np.bincount(index, weights=time_ns, minlength=len(names)) if len(names) else np.zeros(0)
    return names[np.argsort(-total, kind="stable")[:limit]]


def _busy(
    timeline: Timeline,
    kernels: Launched,
    graphs: Launched,
    slices: tuple[Ints, Ints, Ints, Ints],
    ranges: Ranges,
    detailed: Ints,
) -> tuple[Ints, dict[int, tuple[Ints, Ints, Ints]]]:
    """The union of each range's kernels and whole graphs, and the kernels of the detailed ranges by name."""
    k_first, k_count, g_first, g_count = slices
    busy = np.zeros(len(ranges), np.int64)
    tally = _Tally(detailed, timeline)
    for by_process in (False, True):
        mine = np.flatnonzero((ranges.process_wide == by_process) & (k_count + g_count > 0))
        if not len(mine):
            continue
        ks, ke, kn = kernels.view(by_process)
        gs, ge, _ = graphs.view(by_process)
        batch = np.cumsum(k_count[mine] + g_count[mine]) // BATCH_PAIRS
        for part in np.split(mine, np.flatnonzero(np.diff(batch)) + 1):
            index = expand(k_first[part], k_count[part])
            owner = np.repeat(np.arange(len(part)), k_count[part])
            start, end = ks[index], ke[index]
            keys = range_keys(ranges.name[part], ranges.process_wide[part])
            tally.add(keys[owner], kn[index], end - start)
            if g_count[part].any():
                graph = expand(g_first[part], g_count[part])
                owner = np.concatenate((owner, np.repeat(np.arange(len(part)), g_count[part])))
                start, end = np.concatenate((start, gs[graph])), np.concatenate((end, ge[graph]))
            busy[part] = segment_union(owner, start, end, len(part))
    return busy, tally.result()


class _Tally:
    """Kernel instances and time by kernel name, for a few range keys."""

    def __init__(self, detailed: Ints, timeline: Timeline) -> None:
        self._rows = {int(code): row for row, code in enumerate(detailed)}
        self._lookup = np.full(2 * len(timeline.names), -1, np.int64)
        self._lookup[detailed] = np.arange(len(detailed))
        self._names = int(timeline.kernels.name.max()) + 1 if len(timeline.kernels) else 1
        self._count = np.zeros(len(detailed) * self._names, np.int64)
        self._time = np.zeros(len(detailed) * self._names, np.int64)

    def add(self, range_key: Ints, kernel_name: Ints, time_ns: Ints) -> None:
        row = self._lookup[range_key]
        wanted = row >= 0
        key = row[wanted] * self._names + kernel_name[wanted]
        size = len(self._count)
        self._count += np.bincount(key, minlength=size)
        # Sums of whole nanoseconds stay exact in float64 up to 104 days.
        self._time += np.bincount(key, weights=time_ns[wanted], minlength=size).astype(np.int64)

    def result(self) -> dict[int, tuple[Ints, Ints, Ints]]:
        """Per range key: kernel names, instances and times."""
        out: dict[int, tuple[Ints, Ints, Ints]] = {}
        for code, row in self._rows.items():
            part = slice(row * self._names, (row + 1) * self._names)
            name = np.flatnonzero(self._count[part])
            out[code] = (name, self._count[part][name], self._time[part][name])
        return out


def _idle(timeline: Timeline, ranges: Ranges, maps: Mapping[int, IdleMap]) -> IdleSplit:
    """The idle split inside each range's wall time, against the GPU work of the range's own process."""
    columns = {k: np.zeros(len(ranges), np.int64) for k in IdleSplit.__dataclass_fields__}
    process = timeline.thread_process[ranges.thread] if len(ranges) else ranges.thread
    for code in distinct(process):
        mine = np.flatnonzero(process == code)
        split = maps[int(code)].split(ranges.start_ns[mine], ranges.end_ns[mine])
        for key, column in columns.items():
            column[mine] = split.__dict__[key]
    return IdleSplit(**columns)
