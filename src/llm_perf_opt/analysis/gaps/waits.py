"""What synchronisation costs: host calls that wait for the GPU, by name and place."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.gaps.host import HostRecord
from llm_perf_opt.analysis.gaps.verdict import readable, unnumbered
from llm_perf_opt.analysis.timeline.idle import IdleMap
from llm_perf_opt.analysis.timeline.timeline import Timeline, distinct

# Of each call, this many of the longest are asked for their place.
PLACED = 50
SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class WaitRow:
    """Calls of one name. `gpu_idle_ns` is the part in which no kernel of the process ran: there the wait costs time.

    `places` are the ranges, operators or frames around the longest of them, the costliest first.
    """

    call: str
    count: int
    total_ns: int
    gpu_idle_ns: int
    places: tuple[str, ...]


def wait_rows(timeline: Timeline, maps: Mapping[int, IdleMap]) -> tuple[WaitRow, ...]:
    """One row per call, the longest first."""
    calls = timeline.calls
    waits = np.flatnonzero(calls.waits & (calls.end_ns > calls.start_ns))
    record: HostRecord | None = None
    rows = []
    for code in distinct(calls.name[waits]) if len(waits) and int(calls.name[waits].min()) >= 0 else ():
        mine = waits[calls.name[waits] == code]
        length = calls.end_ns[mine] - calls.start_ns[mine]
        idle = 0
        process = timeline.thread_process[calls.thread[mine]]
        for owner in distinct(process):
            some = mine[process == owner]
            busy = maps[int(owner)].busy
            covered = busy.covered_before(calls.end_ns[some]) - busy.covered_before(calls.start_ns[some])
            idle += int((calls.end_ns[some] - calls.start_ns[some] - covered).sum())
        longest = mine[np.argsort(-length, kind="stable")[:PLACED]]
        record = record or HostRecord(timeline, 0)
        places: dict[str, int] = {}
        for index in longest.tolist():
            start, end = int(calls.start_ns[index]), int(calls.end_ns[index])
            place = record.place(start, end, int(calls.thread[index]))
            if place is not None:
                name = unnumbered(readable(place))
                places[name] = places.get(name, 0) + end - start
        rows.append(
            WaitRow(
                call=readable(timeline.names[code]),
                count=len(mine),
                total_ns=int(length.sum()),
                gpu_idle_ns=idle,
                places=tuple(sorted(places, key=lambda name: -places[name])[:3]),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.call))[:SHOWN])
