"""What each named range cost: its kernels by the call that launched them, GPU busy and idle time, launch-call time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.idle import IdleMap, IdleSplit
from llm_perf_opt.analysis.intervals import Flags, Ints, expand, segment_union
from llm_perf_opt.analysis.launches import LaunchCalls, Launched
from llm_perf_opt.analysis.nesting import nest
from llm_perf_opt.analysis.timeline import WARMUP_NAMES, Ranges, Timeline, distinct

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
    codes = [i for i, name in enumerate(timeline.names) if name.strip().lower() in WARMUP_NAMES]
    is_warm = np.isin(ranges.name, codes)
    out = is_warm.copy()
    process = timeline.thread_process[ranges.thread] if len(ranges) else ranges.thread
    for wide, owner in ((False, ranges.thread), (True, process)):
        source = is_warm & (ranges.process_wide == wide)
        for code in np.unique(owner[source]):
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
    names, index = np.unique(key, return_inverse=True)
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
