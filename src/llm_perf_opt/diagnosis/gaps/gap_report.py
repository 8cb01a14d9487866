"""All about the idle time of captures: the part `idle` of `analysis.json`.

What synchronisation and memory calls cost, and what starts copies, is found here: host calls by name and place.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llm_perf_opt.capture.idle import IdleMap, idle_in
from llm_perf_opt.capture.intervals import Flags, Ints, innermost, nest
from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.rows import RangeRow
from llm_perf_opt.capture.timeline import HostEvents, Ranges, Timeline, distinct, join
from llm_perf_opt.diagnosis.gaps.gap_verdict import flags_of, means, readable
from llm_perf_opt.diagnosis.gaps.host_gaps import HostRecord
from llm_perf_opt.diagnosis.gaps.long_gaps import LongGaps, find_long_gaps, merge_long_gaps
from llm_perf_opt.diagnosis.gaps.startup_gaps import StartUp, StartUpRow, find_start_up, start_up_rows
from llm_perf_opt.diagnosis.gaps.traits import (
    AllocatorFlushes,
    GilWaits,
    Iterations,
    LaunchBlocking,
    Queue,
    TimeSlices,
    find_allocator_flushes,
    find_gil_waits,
    find_iterations,
    find_launch_blocking,
    find_time_slices,
    measure_queue,
)

# A range of this many instances, of which the typical one has no long gap, had it in single ones.
FEW_INSTANCES = 3


# Operators of the framework itself say less about a place than what calls them.
_FRAMEWORK_OPERATOR = re.compile(r"^(aten|c10|prims|c10d|fsdp)::|^ProfilerStep|^autograd::|^nn\.Module: ")
# Of each call, this many of the longest are requested their place.
PLACED = 50
SHOWN = 20
# Of the operators around a wait, this many are named.
LONGEST_CHAIN = 3


@dataclass(frozen=True, kw_only=True)
class WaitRow:
    """Calls of one name, without those of start-up.

    `gpu_idle_ns` is the part in which no kernel of the process ran: there the wait costs time.
    `refill_ns` is what came after that: from the return of a call that found the GPU idle to the next kernel, where a
    launch can be the reason. Nothing was queued any more.
    `places` are the operators (else frames) and ranges around the longest of them, the costliest first.
    """

    call: str
    count: int
    total_ns: int
    gpu_idle_ns: int
    places: tuple[str, ...]
    refill_ns: int = 0


def wait_rows(captures: Sequence[tuple[Timeline, Mapping[int, IdleMap], StartUp]]) -> tuple[WaitRow, ...]:
    """The calls that wait for the GPU: one row per name over all captures, the longest first.

    What frees memory is none of them: see `memory_rows`.
    """
    return _rows([(timeline, maps, _waiting(timeline, maps, startup)) for timeline, maps, startup in captures])


def memory_rows(captures: Sequence[tuple[Timeline, Mapping[int, IdleMap], StartUp]]) -> tuple[WaitRow, ...]:
    """As `wait_rows`, of the calls that allocate or free memory."""
    picked = []
    for timeline, maps, startup in captures:
        memory, calls = startup.memory, timeline.calls
        picked.append((timeline, maps, memory[calls.end_ns[memory] > calls.start_ns[memory]]))
    return _rows(picked)


def _waiting(timeline: Timeline, maps: Mapping[int, IdleMap], startup: StartUp) -> Ints:
    """The calls that wait for the GPU, while there is work for it."""
    calls = timeline.calls
    waits = np.flatnonzero(calls.waits)
    waits = waits[(calls.end_ns[waits] > calls.start_ns[waits]) & ~startup.calls[waits]]
    waits = waits[~flags_of(timeline.names, "frees")[calls.name[waits]]]
    # What ends before the first GPU work of its process, or begins after the last, delays none of it.
    process = timeline.thread_process[calls.thread[waits]]
    inside = np.zeros(len(waits), np.bool_)
    for owner in distinct(process).tolist():
        begun, ended = maps[owner].span
        inside |= (process == owner) & (calls.end_ns[waits] > begun) & (calls.start_ns[waits] < ended)
    found: Ints = waits[inside]
    return found


def _rows(captures: Sequence[tuple[Timeline, Mapping[int, IdleMap], Ints]]) -> tuple[WaitRow, ...]:
    found: dict[str, _Waits] = {}
    for timeline, maps, waits in captures:
        for call, one in _waits(timeline, maps, waits):
            found.setdefault(call, _Waits()).add(one)
    rows = [
        WaitRow(
            call=call,
            count=one.count,
            total_ns=one.total_ns,
            gpu_idle_ns=one.gpu_idle_ns,
            refill_ns=one.refill_ns,
            places=tuple(sorted(one.places, key=one.places.__getitem__, reverse=True)[:3]),
        )
        for call, one in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.call))[:SHOWN])


@dataclass(frozen=True, kw_only=True)
class SyncRow:
    """Waits for the GPU in one call and place. `operators` are those around it, innermost first; Python frames where
    no operator is.

    `per_step` is how many of them each step has, None where no steps are known.
    """

    call: str
    operators: tuple[str, ...]
    count: int
    per_step: float | None
    total_ns: int
    gpu_idle_ns: int


def sync_rows(
    captures: Sequence[tuple[Timeline, Mapping[int, IdleMap], StartUp]], *, steps: int | None
) -> tuple[SyncRow, ...]:
    """One row per call and place over all captures, the most first; `steps` are those of all captures."""
    count: dict[tuple[str, tuple[str, ...]], int] = {}
    total: dict[tuple[str, tuple[str, ...]], int] = {}
    idle: dict[tuple[str, tuple[str, ...]], int] = {}
    for timeline, maps, startup in captures:
        waits = _waiting(timeline, maps, startup)
        waits = waits[timeline.calls.name[waits] >= 0]
        start, end = timeline.calls.start_ns[waits], timeline.calls.end_ns[waits]
        idle_ns = idle_in(timeline, maps, timeline.calls.thread[waits], start, end)
        for i, place in enumerate(_places(timeline, waits)):
            # What the profiler does, a run without it does not.
            if any(means(name, "profiles") for name in place):
                continue
            key = (readable(timeline.names[timeline.calls.name[waits[i]]]), place)
            count[key] = count.get(key, 0) + 1
            total[key] = total.get(key, 0) + int(end[i] - start[i])
            idle[key] = idle.get(key, 0) + int(idle_ns[i])
    order = sorted(count, key=lambda key: (-count[key], -total[key], key))
    return tuple(
        SyncRow(
            call=key[0],
            operators=key[1],
            count=count[key],
            per_step=count[key] / steps if steps else None,
            total_ns=total[key],
            gpu_idle_ns=idle[key],
        )
        for key in order[:SHOWN]
    )


def _places(timeline: Timeline, waits: Ints) -> list[tuple[str, ...]]:
    """The names around each call, innermost first: of operators, else of frames."""
    found: list[tuple[str, ...]] = [()] * len(waits)
    for events in (timeline.operators, timeline.frames):
        open_ = np.array([i for i, place in enumerate(found) if not place], np.int64)
        if not len(open_) or not len(events):
            continue
        at, thread = timeline.calls.start_ns[waits[open_]], timeline.calls.thread[waits[open_]]
        ordered = np.sort(at)
        # Few events hold a wait: only those are nested.
        holds = np.searchsorted(ordered, events.end_ns) > np.searchsorted(ordered, events.start_ns)
        mine = np.flatnonzero(holds)
        columns = (events.thread[mine], events.start_ns[mine], events.end_ns[mine])
        tree = nest(*columns)
        around = innermost(tree, *columns, thread, at)
        chains: dict[int, tuple[str, ...]] = {-1: ()}
        for i, inner in zip(open_.tolist(), around.tolist(), strict=True):
            if inner not in chains:
                chains[inner] = _chain(timeline, events.name[mine], tree.parent, inner)
            found[i] = chains[inner]
    return found


def _chain(timeline: Timeline, name: Ints, parent: Ints, inner: int) -> tuple[str, ...]:
    names: list[str] = []
    while inner >= 0 and len(names) < LONGEST_CHAIN:
        names.append(readable(timeline.names[name[inner]]))
        inner = int(parent[inner])
    return tuple(names)


@dataclass(frozen=True, kw_only=True)
class HeldRow:
    """Waits of one call while work was launched and did not start, and no kernel ran.

    `ended_by` is the kernel at the end of the longest of them; before `first_kernels` of them it was the first kernel
    of its name, whose code is loaded then.
    """

    call: str
    count: int
    held_ns: int
    longest_ns: int
    ended_by: str | None
    first_kernels: int


def held_rows(captures: Sequence[tuple[Timeline, Mapping[int, IdleMap]]]) -> tuple[HeldRow, ...]:
    """By the call that lies in such a time, not by what waits most elsewhere; the costliest first."""
    found: dict[str, list[tuple[int, str | None, bool]]] = {}
    for timeline, maps in captures:
        for code, one in maps.items():
            if len(one.held.start):
                for call, held in _held(timeline, one, timeline.thread_process == code):
                    found.setdefault(call, []).append(held)
    rows = []
    for call, times in found.items():
        longest_ns, ended_by, _ = max(times, key=lambda held: held[0])
        rows.append(
            HeldRow(
                call=call,
                count=len(times),
                held_ns=sum(ns for ns, _, _ in times),
                longest_ns=longest_ns,
                ended_by=ended_by,
                first_kernels=sum(is_first for _, _, is_first in times),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.held_ns, row.call)))


def _held(timeline: Timeline, one: IdleMap, own: Flags) -> Iterator[tuple[str, tuple[int, str | None, bool]]]:
    """The call with most of each time in which work was held, how long that was, and what ended it."""
    calls = timeline.calls
    waits = np.flatnonzero(calls.waits & own[calls.thread] & (calls.name >= 0))
    compute = join([timeline.kernels, timeline.graphs])
    order = np.argsort(compute.start_ns, kind="stable")
    start = compute.start_ns[order]
    for begun, ended in zip(one.held.start.tolist(), one.held.end.tolist(), strict=True):
        overlap = np.minimum(calls.end_ns[waits], ended) - np.maximum(calls.start_ns[waits], begun)
        if not len(waits) or int(overlap.max()) <= 0:
            continue
        name = readable(timeline.names[calls.name[waits[int(np.argmax(overlap))]]])
        place = int(np.searchsorted(start, ended))
        if place == len(start):
            yield name, (ended - begun, None, False)
            continue
        kernel = int(compute.name[order[place]])
        is_first = not bool((compute.name[order[:place]] == kernel).any())
        yield name, (ended - begun, short_kernel_name(timeline.names[kernel]), is_first)


@dataclass(frozen=True, kw_only=True)
class CopyPlace:
    """Copies started inside one range, or one operator of the program's own, and the time they took."""

    name: str
    count: int
    time_ns: int


def copy_places(timelines: Sequence[Timeline]) -> tuple[CopyPlace, ...]:
    """What started the copies, the most time first; what nothing is known of is left out."""
    count: dict[str, int] = {}
    time: dict[str, int] = {}
    for timeline in timelines:
        copies = timeline.copies
        known = np.flatnonzero(copies.call >= 0)
        place = np.full(len(known), -1, np.int64)
        for events in (timeline.operators, timeline.ranges):
            found = _named_around(timeline, events, copies.call[known])
            # A range is what the program calls the place itself.
            place = np.where(found >= 0, found, place)
        for code in distinct(place[place >= 0]).tolist():
            mine = known[place == code]
            name = readable(timeline.names[code])
            count[name] = count.get(name, 0) + len(mine)
            time[name] = time.get(name, 0) + int((copies.end_ns[mine] - copies.start_ns[mine]).sum())
    order = sorted(time, key=lambda name: (-time[name], name))
    return tuple(CopyPlace(name=name, count=count[name], time_ns=time[name]) for name in order)


def _named_around(timeline: Timeline, events: HostEvents | Ranges, call: Ints) -> Ints:
    """For each call the innermost event around it that is none of the framework's own, as a name's code, or -1."""
    is_own_operator = np.array([_FRAMEWORK_OPERATOR.match(name) is None for name in timeline.names], np.bool_)
    mine = np.flatnonzero(is_own_operator[events.name]) if len(events) else np.zeros(0, np.int64)
    columns = (events.thread[mine], events.start_ns[mine], events.end_ns[mine])
    found = innermost(nest(*columns), *columns, timeline.calls.thread[call], timeline.calls.start_ns[call])
    return np.where(found >= 0, events.name[mine][np.maximum(found, 0)], -1) if len(mine) else found


@dataclass(kw_only=True)
class _Waits:
    """Calls of one name while they are added up; `places` with the time in each."""

    count: int = 0
    total_ns: int = 0
    gpu_idle_ns: int = 0
    refill_ns: int = 0
    places: dict[str, int] = field(default_factory=dict)

    def add(self, other: "_Waits") -> None:
        self.count += other.count
        self.total_ns += other.total_ns
        self.gpu_idle_ns += other.gpu_idle_ns
        self.refill_ns += other.refill_ns
        for name, time_ns in other.places.items():
            self.places[name] = self.places.get(name, 0) + time_ns


def _waits(timeline: Timeline, maps: Mapping[int, IdleMap], waits: Ints) -> Iterator[tuple[str, _Waits]]:
    calls = timeline.calls
    refill = _refills(timeline, maps, waits)
    for code in distinct(calls.name[waits]) if len(waits) and int(calls.name[waits].min()) >= 0 else ():
        mine = waits[calls.name[waits] == code]
        length = calls.end_ns[mine] - calls.start_ns[mine]
        refill_ns = int(refill[calls.name[waits] == code].sum())
        one = _Waits(count=len(mine), total_ns=int(length.sum()), refill_ns=refill_ns)
        one.gpu_idle_ns = int(
            idle_in(timeline, maps, calls.thread[mine], calls.start_ns[mine], calls.end_ns[mine]).sum()
        )
        order = np.argsort(-length, kind="stable")[:PLACED]
        longest, record = mine[order], HostRecord(timeline, int(length[order[-1]]))
        for index in longest.tolist():
            start, end = int(calls.start_ns[index]), int(calls.end_ns[index])
            place = record.place(start, end, int(calls.thread[index]))
            if place is not None:
                name = readable(place)
                one.places[name] = one.places.get(name, 0) + end - start
        yield readable(timeline.names[code]), one


def _refills(timeline: Timeline, maps: Mapping[int, IdleMap], waits: Ints) -> Ints:
    """For each wait the time from its return to the next kernel, 0 where a kernel runs then or another wait follows."""
    calls = timeline.calls
    found = np.zeros(len(waits), np.int64)
    process = timeline.thread_process[calls.thread[waits]]
    for owner in distinct(process):
        one = maps[int(owner)]
        if not len(one.busy.start):
            continue
        mine = np.flatnonzero(process == owner)
        mine = mine[np.argsort(calls.end_ns[waits[mine]], kind="stable")]
        end = calls.end_ns[waits[mine]]
        following = np.searchsorted(one.busy.start, end)
        is_last = np.append(following[1:] != following[:-1], True) & (following < len(one.busy.start))
        is_idle = (following == 0) | (one.busy.end[np.maximum(following - 1, 0)] <= end)
        picked = np.flatnonzero(is_last & is_idle)
        rest = one.busy.start[following[picked]] - end[picked]
        found[mine[picked]] = np.where(rest < one.long_from_ns, rest, 0)
    return found


@dataclass(frozen=True, kw_only=True)
class IdleReport:
    """Gaps, queue, waits and steps of all captures together.

    `startup` is what CUDA, its libraries and first uses cost, `memory` what
    calls that allocate and free do, `syncs` the waits by place, `held` those while launched work did not start. The
    traits (`launch_blocking`, `flushes`, `slices`, `gil`) are None where the captures do not show them.
    """

    gaps: LongGaps
    queue: Queue | None
    waits: tuple[WaitRow, ...]
    iterations: Iterations | None
    startup: tuple[StartUpRow, ...] = ()
    memory: tuple[WaitRow, ...] = ()
    syncs: tuple[SyncRow, ...] = ()
    held: tuple[HeldRow, ...] = ()
    launch_blocking: LaunchBlocking | None = None
    flushes: AllocatorFlushes | None = None
    slices: TimeSlices | None = None
    gil: GilWaits | None = None


def report_idle(
    captures: Sequence[tuple[Timeline, Mapping[int, IdleMap]]],
    *,
    startups: Sequence[StartUp] | None = None,
    ranges: Sequence[RangeRow] = (),
) -> IdleReport:
    """Attribute the idle time of captures of one program.

    `startups` are those of the captures, where they are known already. By `ranges` gaps of single instances are
    reported from those every instance has.
    """
    if startups is None:
        startups = [find_start_up(timeline, maps) for timeline, maps in captures]
    known = [(timeline, maps, startup) for (timeline, maps), startup in zip(captures, startups, strict=True)]
    gaps = [find_long_gaps(timeline, maps, source=i, startup=found) for i, (timeline, maps, found) in enumerate(known)]
    timelines = [timeline for timeline, _ in captures]
    iterations = find_iterations(timelines)
    return IdleReport(
        gaps=merge_long_gaps(gaps, single=_single_ranges(ranges)),
        queue=measure_queue(timelines),
        waits=wait_rows(known),
        iterations=iterations,
        startup=start_up_rows(known),
        memory=memory_rows(known),
        syncs=sync_rows(known, steps=None if iterations is None else iterations.count),
        held=held_rows(captures),
        launch_blocking=find_launch_blocking(timelines),
        flushes=find_allocator_flushes(known),
        slices=find_time_slices(captures),
        gil=find_gil_waits(captures),
    )


def _single_ranges(ranges: Sequence[RangeRow]) -> frozenset[str]:
    """Ranges whose long gaps lie in single instances: the typical one has none."""
    return frozenset(
        readable(row.name)
        for row in ranges
        if row.instances >= FEW_INSTANCES and row.typical.idle is not None and row.typical.idle.long_gaps_ns == 0
    )
