"""What synchronisation costs, and what starts copies: host calls by name and place."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llm_perf_opt.analysis.gaps.host import HostRecord
from llm_perf_opt.analysis.gaps.verdict import readable
from llm_perf_opt.analysis.timeline.idle import IdleMap
from llm_perf_opt.analysis.timeline.intervals import Ints, innermost, nest
from llm_perf_opt.analysis.timeline.timeline import HostEvents, Ranges, Timeline, distinct

# Operators of the framework itself say less about a place than what calls them.
_FRAMEWORK_OPERATOR = re.compile(r"^(aten|c10|prims|c10d|fsdp)::|^ProfilerStep|^autograd::|^nn\.Module: ")
# Of each call, this many of the longest are asked for their place.
PLACED = 50
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class WaitRow:
    """Calls of one name. `gpu_idle_ns` is the part in which no kernel of the process ran: there the wait costs time.

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


def wait_rows(captures: Sequence[tuple[Timeline, Mapping[int, IdleMap]]]) -> tuple[WaitRow, ...]:
    """One row per call over all captures, the longest first."""
    found: dict[str, _Waits] = {}
    for timeline, maps in captures:
        for call, one in _waits(timeline, maps):
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
    told = np.array([_FRAMEWORK_OPERATOR.match(name) is None for name in timeline.names], np.bool_)
    mine = np.flatnonzero(told[events.name]) if len(events) else np.zeros(0, np.int64)
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


def _waits(timeline: Timeline, maps: Mapping[int, IdleMap]) -> Iterator[tuple[str, _Waits]]:
    calls = timeline.calls
    waits = np.flatnonzero(calls.waits & (calls.end_ns > calls.start_ns))
    refill = _refills(timeline, maps, waits)
    for code in distinct(calls.name[waits]) if len(waits) and int(calls.name[waits].min()) >= 0 else ():
        mine = waits[calls.name[waits] == code]
        length = calls.end_ns[mine] - calls.start_ns[mine]
        refill_ns = int(refill[calls.name[waits] == code].sum())
        one = _Waits(count=len(mine), total_ns=int(length.sum()), refill_ns=refill_ns)
        process = timeline.thread_process[calls.thread[mine]]
        for owner in distinct(process):
            some = mine[process == owner]
            busy = maps[int(owner)].busy
            covered = busy.covered_before(calls.end_ns[some]) - busy.covered_before(calls.start_ns[some])
            one.gpu_idle_ns += int((calls.end_ns[some] - calls.start_ns[some] - covered).sum())
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
