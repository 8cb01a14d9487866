"""What synchronisation costs: host calls that wait for the GPU, by name and place."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llm_perf_opt.analysis.gaps.host import HostRecord
from llm_perf_opt.analysis.gaps.verdict import readable
from llm_perf_opt.analysis.timeline.idle import IdleMap
from llm_perf_opt.analysis.timeline.timeline import Timeline, distinct

# Of each call, this many of the longest are asked for their place.
PLACED = 50
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class WaitRow:
    """Calls of one name. `gpu_idle_ns` is the part in which no kernel of the process ran: there the wait costs time.

    `places` are the operators (else frames) and ranges around the longest of them, the costliest first.
    """

    call: str
    count: int
    total_ns: int
    gpu_idle_ns: int
    places: tuple[str, ...]


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
            places=tuple(sorted(one.places, key=one.places.__getitem__, reverse=True)[:3]),
        )
        for call, one in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.call))[:SHOWN])


@dataclass(kw_only=True)
class _Waits:
    """Calls of one name while they are added up; `places` with the time in each."""

    count: int = 0
    total_ns: int = 0
    gpu_idle_ns: int = 0
    places: dict[str, int] = field(default_factory=dict)

    def add(self, other: "_Waits") -> None:
        self.count += other.count
        self.total_ns += other.total_ns
        self.gpu_idle_ns += other.gpu_idle_ns
        for name, time_ns in other.places.items():
            self.places[name] = self.places.get(name, 0) + time_ns


def _waits(timeline: Timeline, maps: Mapping[int, IdleMap]) -> Iterator[tuple[str, _Waits]]:
    calls = timeline.calls
    waits = np.flatnonzero(calls.waits & (calls.end_ns > calls.start_ns))
    for code in distinct(calls.name[waits]) if len(waits) and int(calls.name[waits].min()) >= 0 else ():
        mine = waits[calls.name[waits] == code]
        length = calls.end_ns[mine] - calls.start_ns[mine]
        one = _Waits(count=len(mine), total_ns=int(length.sum()))
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
