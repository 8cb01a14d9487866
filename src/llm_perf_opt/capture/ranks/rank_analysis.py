"""Ranks, their times, and what they waited for, as `analysis.json` has it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from llm_perf_opt.capture.ranks.collectives import (
    Arrivals,
    CollectiveRow,
    LongestCollective,
    RecordedArgs,
    find_collectives,
)
from llm_perf_opt.capture.ranks.identify import RANKS, Kind, Understood, identify
from llm_perf_opt.capture.ranks.overlap import Split, split_time
from llm_perf_opt.capture.tables import communication_kernels, devices_of, is_alone, processes_with_work
from llm_perf_opt.capture.timeline import Timeline, take

if TYPE_CHECKING:
    # Every command that reads a capture would pay for the whole configuration otherwise.
    from llm_perf_opt.config.schema import HardwareSection

# A rank is a straggler if the others wait this many times longer for it than for all others, and for such a share of
# their time.
STRAGGLER_FACTOR = 2.0
STRAGGLER_SHARE = 0.01
PROCESSES_ARE_RANKS = "the processes of one capture communicate; they are numbered by GPU, or in their order"


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One process of one capture; `rank` is None where nothing says it.

    Busy means that at least one of `devices` ran a kernel. `arrivals` is there where the collectives of several ranks
    could be matched.
    """

    rank: int | None
    source: str
    host: str | None
    process: str | None
    devices: tuple[int, ...]
    time: Split
    arrivals: Arrivals | None


@dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """One GPU of one process: busy is the union of what ran on it."""

    rank: int | None
    source: str
    process: str | None
    device: int
    time: Split


@dataclass(frozen=True, kw_only=True)
class RanksAnalysis:
    """`files_are` and `how` say what several captures were taken for, and why.

    `devices` lists GPUs where a process used several. `straggler` is the rank the others wait for most, where they do;
    who waits for whom is known of several ranks only. `longest` is the longest collective of all.
    """

    files_are: Kind
    how: str
    world_size: int | None
    rows: tuple[RankRow, ...]
    devices: tuple[DeviceRow, ...]
    collectives: tuple[CollectiveRow, ...]
    longest: LongestCollective | None
    straggler: int | None
    notes: tuple[str, ...]


def analyze_ranks(
    timelines: Sequence[Timeline],
    *,
    said: Kind | None = None,
    recorded: Sequence[RecordedArgs | None] | None = None,
    hardware: "HardwareSection | None" = None,
) -> RanksAnalysis | None:
    """None where one process ran on one GPU and did not communicate: there is nothing to say then.

    `hardware` is the GPUs' entry of the catalogue, for what the link between them needs for a message.
    """
    working = [t for t in timelines if t.has_gpu_work]
    if not working or (said is None and is_alone(working)):
        return None
    understood = identify(timelines, said)
    args = list(recorded) if recorded is not None else [None] * len(timelines)
    members = _members(timelines, args, understood.ranks)
    if len(members) > len(timelines):
        understood = replace(understood, how=PROCESSES_ARE_RANKS)
    found = find_collectives(
        [member.timeline for member in members],
        [member.args for member in members],
        [member.rank for member in members],
        as_ranks=understood.kind == RANKS,
        hardware=hardware,
    )
    rows: list[RankRow] = []
    devices: list[DeviceRow] = []
    for member, came in zip(members, found.arrivals, strict=True):
        one, gpus = _rows(member, came)
        rows += one
        devices += gpus
    if len(rows) == 1 and not devices and not found.rows and said is None:
        return None
    sizes = {t.origin.world_size for t in timelines if t.origin.world_size is not None}
    world = max(sizes, default=None)
    return RanksAnalysis(
        files_are=understood.kind,
        how=understood.how,
        world_size=world,
        rows=tuple(rows),
        devices=tuple(devices),
        collectives=found.rows,
        longest=found.longest,
        straggler=_straggler(rows),
        notes=tuple(_notes(timelines, understood, rows, world)),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Member:
    """A capture, or one of the communicating processes of the only one, with its kernels alone."""

    timeline: Timeline
    args: RecordedArgs | None
    rank: int | None
    processes: tuple[int, ...]


def _members(
    timelines: Sequence[Timeline], args: Sequence[RecordedArgs | None], ranks: Sequence[int | None]
) -> list[_Member]:
    """The captures; where there is one of several processes that all communicate, these are the ranks of a job."""
    if len(timelines) == 1:
        timeline, processes = timelines[0], processes_with_work(timelines[0])
        kernels, communicates = timeline.kernels, communication_kernels(timeline)
        mine = [np.flatnonzero(kernels.process == process) for process in processes]
        if len(processes) > 1 and all(communicates[rows].any() for rows in mine):
            used = [devices_of(timeline, process) for process in processes]
            # As launchers number them: by the GPU where each process has its own number, else in their order.
            numbered = len(set(used)) == len(used) and all(len(gpus) == 1 for gpus in used)
            return [
                _Member(
                    timeline=replace(timeline, kernels=take(kernels, rows)),
                    args=None if args[0] is None else replace(args[0], code=args[0].code[rows]),
                    rank=gpus[0] if numbered else number,
                    processes=(process,),
                )
                for number, (process, rows, gpus) in enumerate(zip(processes, mine, used, strict=True))
            ]
    return [
        _Member(timeline=timeline, args=one, rank=rank, processes=tuple(processes_with_work(timeline)))
        for timeline, one, rank in zip(timelines, args, ranks, strict=True)
    ]


def _rows(member: _Member, arrivals: Arrivals | None) -> tuple[list[RankRow], list[DeviceRow]]:
    timeline, processes = member.timeline, member.processes
    communicates = communication_kernels(timeline)
    named = timeline.origin.processes
    rows: list[RankRow] = []
    devices: list[DeviceRow] = []
    for process in processes:
        used = devices_of(timeline, process)
        label = named[process] if process < len(named) else None
        row = RankRow(
            rank=member.rank if len(processes) == 1 else None,
            source=timeline.source,
            host=timeline.origin.host,
            process=label,
            devices=used,
            time=split_time(timeline, communicates, process=process),
            arrivals=arrivals if len(processes) == 1 else None,
        )
        rows.append(row)
        if len(used) > 1:
            devices += [
                DeviceRow(
                    rank=row.rank,
                    source=row.source,
                    process=label,
                    device=device,
                    time=split_time(timeline, communicates, process=process, device=device),
                )
                for device in used
            ]
    return rows, devices


def _straggler(rows: Sequence[RankRow]) -> int | None:
    """The rank the others wait for clearly longer than for any other, where that matters."""
    known = [(row, row.arrivals) for row in rows if row.arrivals is not None]
    if len(known) < 2:
        return None
    row, came = max(known, key=lambda pair: pair[1].held_up_ns)
    rest = sum(other.held_up_ns for _, other in known) - came.held_up_ns
    matters = came.held_up_ns > STRAGGLER_SHARE * max(r.time.span_ns for r, _ in known)
    return row.rank if matters and came.held_up_ns > STRAGGLER_FACTOR * rest else None


def _notes(
    timelines: Sequence[Timeline], understood: Understood, rows: Sequence[RankRow], world: int | None
) -> list[str]:
    notes = []
    if len(timelines) > 1:
        what = "ranks of one job" if understood.kind == RANKS else "repetitions of one run"
        other = "repeats" if understood.kind == RANKS else "ranks"
        notes.append(
            f"the {len(timelines)} captures were taken as {what} ({understood.how}); --as {other} says otherwise"
        )
    given = len({r.rank for r in rows if r.rank is not None})
    if world is not None and understood.kind == RANKS and given < world and len(timelines) > 1:
        notes.append(f"{given} of {world} ranks were given: waiting and skew are among these alone")
    return notes
