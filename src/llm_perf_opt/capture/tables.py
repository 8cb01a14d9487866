"""Range instances gathered by name: the rows of `ranges[]`.

Kernels by name and copies by kind: instances, total, share, mean, median, least, most, standard deviation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_perf_opt.capture.idle import IdleSplit
from llm_perf_opt.capture.intervals import BLOCK_ROWS, Flags, Ints, union
from llm_perf_opt.capture.kernels.names import classify_kernel, distinct_short_names, short_kernel_name
from llm_perf_opt.capture.ranges import RangeInstances, range_keys
from llm_perf_opt.capture.rows import (
    PUSH_POP,
    START_END,
    CopyRow,
    Idle,
    KernelRow,
    RangeInstance,
    RangeKernel,
    RangeRow,
    ranked,
    rate,
)
from llm_perf_opt.capture.timeline import Activities, Timeline, distinct

COMMUNICATION = "communication"

KERNELS_PER_RANGE = 50


def range_rows(parts: Sequence[tuple[Timeline, RangeInstances]]) -> tuple[RangeRow, ...]:
    """Rows by total wall time, over all captures given."""
    found: dict[tuple[str, str], list[tuple[int, Ints]]] = {}
    for source, (timeline, instances) in enumerate(parts):
        for wide in (False, True):
            index = np.flatnonzero(instances.process_wide == wide)
            order = index[np.argsort(instances.name[index], kind="stable")]
            names = instances.name[order]
            for group in np.split(order, np.flatnonzero(np.diff(names)) + 1) if len(order) else []:
                key = (timeline.names[instances.name[group[0]]], START_END if wide else PUSH_POP)
                found.setdefault(key, []).append((source, group))
    kernels = sorted({t.names[code] for t, _ in parts for code in t.kernels.distinct_names.tolist()})
    short_names = dict(zip(kernels, distinct_short_names(kernels), strict=True))
    rows = [_row(name, style, groups, parts, short_names) for (name, style), groups in found.items()]
    return tuple(sorted(rows, key=lambda r: (-r.wall_ns, r.name, r.style)))


def _row(
    name: str,
    style: str,
    groups: list[tuple[int, Ints]],
    parts: Sequence[tuple[Timeline, RangeInstances]],
    short_names: Mapping[str, str],
) -> RangeRow:
    def total(column: str) -> int:
        return sum(int(parts[s][1].__dict__[column][g].sum()) for s, g in groups)

    seen = any(timeline.has_gpu_work for timeline, _ in parts)
    last_source, last_group = groups[-1]
    newest = last_group[np.argmax(parts[last_source][1].start_ns[last_group])]
    last = range_instance(parts[last_source][1], int(newest), last_source, seen=seen)
    # Of instances of one length the earlier comes first, wherever it is in the file.
    columns = [(s, parts[s][1].wall_ns[g].tolist(), parts[s][1].start_ns[g].tolist(), g.tolist()) for s, g in groups]
    walls = sorted((w, s, at, i) for s, *columns_of in columns for w, at, i in zip(*columns_of, strict=True))
    _, middle_source, _, middle = walls[(len(walls) - 1) // 2]
    kernels = _kernels(groups, parts, short_names) if total("kernel_count") else ()
    timeline, instances = parts[groups[0][0]]
    parents = instances.parent_name[groups[0][1]]
    quarter = len(walls) // 4
    return RangeRow(
        name=name,
        style=style,
        parent=timeline.names[parents[0]] if parents[0] >= 0 and bool((parents == parents[0]).all()) else None,
        instances=sum(len(g) for _, g in groups),
        wall_ns=total("wall_ns"),
        kernel_count=total("kernel_count"),
        kernel_ns=total("kernel_ns"),
        graph_launches=total("graph_launches"),
        gpu_busy_ns=total("gpu_busy_ns") if seen else None,
        gpu_idle_ns=sum(int(parts[s][1].idle.idle_ns[g].sum()) for s, g in groups) if seen else None,
        launch_calls=total("launch_calls"),
        launch_ns=total("launch_ns"),
        idle=sum_idle([idle_of(parts[s][1].idle, g) for s, g in groups]) if seen else None,
        last=last,
        typical=range_instance(parts[middle_source][1], middle, middle_source, seen=seen),
        kernels=kernels,
        wall_spread=(walls[-1 - quarter][0] - walls[quarter][0]) / max(walls[(len(walls) - 1) // 2][0], 1),
        elapsed_ns=sum(_elapsed(parts[s][1], g) for s, g in groups),
        processes=sum(len(distinct(parts[s][1].process[g])) for s, g in groups),
        devices=sum(_devices(parts[s][1], g) for s, g in groups),
    )


def _elapsed(instances: RangeInstances, group: Ints) -> int:
    """When at least one of some instances was open."""
    start = instances.start_ns[group]
    return union(start, start + instances.wall_ns[group]).total


def _devices(instances: RangeInstances, group: Ints) -> int:
    """On how many GPUs the work of the instances of one name ran."""
    key = int(range_keys(instances.name[group[:1]], instances.process_wide[group[:1]])[0])
    works = bool((instances.kernel_count[group] + instances.graph_launches[group]).any())
    return int(works) if instances.devices_by_key is None else instances.devices_by_key.get(key, 0)


def range_instance(instances: RangeInstances, index: int, source: int, *, seen: bool) -> RangeInstance:
    """One instance as a record; `seen`: whether there was GPU work to time."""
    return RangeInstance(
        source=source,
        start_ns=int(instances.start_ns[index]),
        wall_ns=int(instances.wall_ns[index]),
        kernel_count=int(instances.kernel_count[index]),
        gpu_busy_ns=int(instances.gpu_busy_ns[index]) if seen else None,
        gpu_idle_ns=int(instances.idle.idle_ns[index]) if seen else None,
        launch_ns=int(instances.launch_ns[index]),
        idle=idle_of(instances.idle, np.array([index])) if seen else None,
    )


def idle_of(split: IdleSplit, group: Ints) -> Idle:
    """Some windows of a split together."""
    copy, sync = int(split.copy_ns[group].sum()), int(split.sync_ns[group].sum())
    return Idle(
        waiting_for_host_ns=int(split.host_ns[group].sum()),
        between_kernels_ns=int(split.between_ns[group].sum()),
        waiting_for_copy_or_sync_ns=copy + sync,
        copy_ns=copy,
        sync_ns=sync,
        unattributed_ns=int(split.unattributed_ns[group].sum()),
        starting_ns=int(split.starting_ns[group].sum()),
        long_gaps_ns=int(split.long_ns[group].sum()),
        held_ns=int(split.held_ns[group].sum()),
    )


def sum_idle(parts: list[Idle]) -> Idle:
    return Idle(**{key: sum(p.__dict__[key] for p in parts) for key in Idle.__dataclass_fields__})


def _kernels(
    groups: list[tuple[int, Ints]], parts: Sequence[tuple[Timeline, RangeInstances]], short_names: Mapping[str, str]
) -> tuple[RangeKernel, ...] | None:
    """The kernels of a range by time, or None where they were not tallied."""
    found: dict[str, list[int]] = {}
    for source, group in groups:
        timeline, instances = parts[source]
        key = range_keys(instances.name[group[:1]], instances.process_wide[group[:1]])
        tally = instances.kernels_by_key.get(int(key[0]))
        if tally is None:
            return None
        for code, count, time_ns in zip(*tally, strict=True):
            entry = found.setdefault(timeline.names[code], [0, 0])
            entry[0] += int(count)
            entry[1] += int(time_ns)
    rows = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))[:KERNELS_PER_RANGE]
    return tuple(
        RangeKernel(
            name=name,
            short_name=short_names[name],
            kernel_class=classify_kernel(name),
            instances=count,
            total_ns=time_ns,
        )
        for name, (count, time_ns) in rows
    )


# Clocks of NVIDIA's GPUs count in steps of many nanoseconds: a long capture has few lengths, and they are counted.
# Those between, and very long ones, are few.
CLOCK_STEP = 32
MOST_ODD = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics:
    """Columns, one entry per group present."""

    group: Ints
    instances: Ints
    total: Ints
    median: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
    least: Ints
    most: Ints
    stddev: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"


def group_statistics(group: Ints, value: Ints) -> Statistics:
    """Exact statistics of whole, non-negative values by group. The deviation is the sample's (n - 1), as in nsys."""
    group, value, times = _tallied(group, value)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(group)) + 1)) if len(group) else np.zeros(0, np.int64)
    ends = np.append(starts[1:], len(group))[: len(starts)] - 1
    below = np.cumsum(times) - times
    first = below[starts]
    count = below[ends] + times[ends] - first
    total = _summed(value * times, starts)
    # Those in the middle are the same one where there are an odd number.
    middle = [value[np.searchsorted(below, first + place, "right") - 1] for place in ((count - 1) // 2, count // 2)]
    off = value - np.repeat(total / np.maximum(count, 1), ends - starts + 1)
    squares = _summed(off * off * times, starts)
    return Statistics(
        group=group[starts],
        instances=count,
        total=total,
        median=(middle[0] + middle[1]) / 2,
        least=value[starts],
        most=value[ends],
        stddev=np.sqrt(squares / np.maximum(count - 1, 1)),
    )


def _summed(values: Any, starts: Ints) -> Any:
    return np.add.reduceat(values, starts) if len(starts) else np.zeros(0, values.dtype)


def _tallied(group: Ints, value: Ints) -> tuple[Ints, Ints, Ints]:
    """The values of every group in order, and how often each is there; one may be there several times."""
    groups = int(group.max()) + 1 if len(group) else 1
    room = len(value) // groups
    odd = (value & (CLOCK_STEP - 1)) != 0
    odd |= value >= room * CLOCK_STEP
    rest = np.flatnonzero(odd)
    if len(rest) > MOST_ODD * len(value):
        return (*_in_order(group, value), np.ones(len(value), np.int64))
    key = group.astype(np.int64)
    key *= room
    for first in range(0, len(value), BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        key[block] += value[block] // CLOCK_STEP
    key[rest] = groups * room
    tally = np.bincount(key, minlength=groups * room)[: groups * room]
    found = np.flatnonzero(tally)
    group = np.concatenate((found // max(room, 1), group[rest]))
    value = np.concatenate((found % max(room, 1) * CLOCK_STEP, value[rest]))
    times = np.concatenate((tally[found], np.ones(len(rest), np.int64)))
    order = np.lexsort((value, group))
    return group[order], value[order], times[order]


def _in_order(group: Ints, value: Ints) -> tuple[Ints, Ints]:
    """Sorted by group and value."""
    bits = int(value.max()).bit_length() if len(value) else 0
    width = (int(group.max()) + 1).bit_length() + bits if len(value) else 0
    if width >= 63:
        order = np.lexsort((value, group))
        return group[order], value[order]
    # One integer key sorts several times faster than two columns, one of 32 bits twice as fast again.
    key: Ints = group.astype(np.int32) if width < 31 else group.astype(np.int64)
    key <<= bits
    key |= value.astype(key.dtype, copy=False)
    key.sort()
    group = key >> bits
    key &= (1 << bits) - 1
    return group, key.astype(np.int64, copy=False)


def kernel_rows(names: tuple[str, ...], group: Ints, duration_ns: Ints) -> tuple[KernelRow, ...]:
    """Kernels by total time, then by name."""
    found = group_statistics(group, duration_ns)
    whole = int(found.total.sum())
    rows = []
    for i, code in enumerate(found.group):
        name, total, count = names[code], int(found.total[i]), int(found.instances[i])
        rows.append(
            KernelRow(
                name=name,
                short_name=short_kernel_name(name),
                kernel_class=classify_kernel(name),
                instances=count,
                total_ns=total,
                avg_ns=total / count,
                med_ns=float(found.median[i]),
                min_ns=int(found.least[i]),
                max_ns=int(found.most[i]),
                stddev_ns=float(found.stddev[i]),
                time_pct=100.0 * total / whole if whole else 0.0,
            )
        )
    return ranked(rows)


def copy_rows(names: tuple[str, ...], copies: Activities) -> tuple[CopyRow, ...]:
    """Copies and sets by kind."""
    found = group_statistics(copies.name, copies.end_ns - copies.start_ns)
    rows = []
    for i, code in enumerate(found.group):
        size = _size(copies, copies.name == code)
        total, count = int(found.total[i]), int(found.instances[i])
        rows.append(
            CopyRow(
                kind=names[code],
                instances=count,
                total_ns=total,
                size_bytes=size,
                avg_ns=total / count,
                min_ns=int(found.least[i]),
                max_ns=int(found.most[i]),
                bytes_per_s=rate(size, total),
            )
        )
    return tuple(sorted(rows, key=lambda r: (-r.total_ns, r.kind)))


def _size(copies: Activities, chosen: Flags) -> int | None:
    """The bytes of some copies together, or None where one does not say."""
    sizes = None if copies.size_bytes is None else copies.size_bytes[chosen]
    return None if sizes is None or bool((sizes < 0).any()) else int(sizes.sum())


def communication_kernels(timeline: Timeline) -> Flags:
    """Which kernels communicate with other GPUs."""
    kernels = timeline.kernels
    wanted = np.zeros(len(timeline.names), np.bool_)
    for code in kernels.distinct_names.tolist():
        wanted[code] = classify_kernel(timeline.names[code]) == COMMUNICATION
    return wanted[kernels.name] if len(kernels) else np.zeros(0, np.bool_)


def kernel_and_copy_rows(timelines: Sequence[Timeline]) -> tuple[tuple[KernelRow, ...], tuple[CopyRow, ...]]:
    """Kernels and copies of all captures together, under shared name codes."""
    if len(timelines) == 1:
        only = timelines[0]
        time_ns = only.kernels.end_ns - only.kernels.start_ns
        return kernel_rows(only.names, only.kernels.name, time_ns), copy_rows(only.names, only.copies)
    if not timelines:
        return (), ()
    names: dict[str, int] = {}
    recode = [np.array([names.setdefault(n, len(names)) for n in t.names], np.int64) for t in timelines]
    group = np.concatenate([r[t.kernels.name] for r, t in zip(recode, timelines, strict=True)])
    time_ns = np.concatenate([t.kernels.end_ns - t.kernels.start_ns for t in timelines])
    shared = tuple(names)
    by_kind: dict[str, list[CopyRow]] = {}
    for t in timelines:
        for row in copy_rows(t.names, t.copies):
            by_kind.setdefault(row.kind, []).append(row)
    copies = tuple(sorted((_merge_copies(rows) for rows in by_kind.values()), key=lambda r: (-r.total_ns, r.kind)))
    return kernel_rows(shared, group, time_ns), copies


def _merge_copies(rows: list[CopyRow]) -> CopyRow:
    count, total = sum(r.instances for r in rows), sum(r.total_ns for r in rows)
    sizes = [r.size_bytes for r in rows if r.size_bytes is not None]
    return CopyRow(
        kind=rows[0].kind,
        instances=count,
        total_ns=total,
        size_bytes=sum(sizes) if len(sizes) == len(rows) else None,
        avg_ns=total / count,
        min_ns=min(r.min_ns for r in rows),
        max_ns=max(r.max_ns for r in rows),
        bytes_per_s=rate(sum(sizes) if len(sizes) == len(rows) else None, total),
    )


def processes_with_work(timeline: Timeline) -> list[int]:
    """The processes that used a GPU."""
    used = [distinct(work.process) for work in (timeline.kernels, timeline.copies, timeline.graphs)]
    return [int(process) for process in distinct(np.concatenate(used))]


def devices_of(timeline: Timeline, process: int) -> tuple[int, ...]:
    """The devices a process used, -1 where the capture does not say."""
    tables = (timeline.kernels, timeline.copies, timeline.graphs)
    used = [distinct(work.device[work.process == process]) for work in tables]
    return tuple(distinct(np.concatenate(used)).tolist())


def is_alone(timelines: Sequence[Timeline]) -> bool:
    """Whether one process ran on one GPU and no kernel communicates: then nothing is to be reported of ranks."""
    if len(timelines) != 1 or not timelines[0].has_gpu_work:
        return not any(timeline.has_gpu_work for timeline in timelines)
    timeline = timelines[0]
    processes = processes_with_work(timeline)
    if len(processes) > 1 or len(devices_of(timeline, processes[0])) > 1:
        return False
    return not bool(communication_kernels(timeline).any())
