"""Ranks, their times, and what they waited for, as `analysis.json` has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from llm_perf_opt.capture.timeline import Timeline

if TYPE_CHECKING:
    # Every command that reads a capture would pay for the whole configuration otherwise.
    from llm_perf_opt.config.schema import HardwareSection

# A rank is a straggler if the others wait this many times longer for it than for all others, and for such a share of
# their time.
STRAGGLER_FACTOR = 2.0
STRAGGLER_SHARE = 0.01


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
    found = find_collectives(timelines, args, understood.ranks, as_ranks=understood.kind == RANKS, hardware=hardware)
    rows: list[RankRow] = []
    devices: list[DeviceRow] = []
    for timeline, rank, came in zip(timelines, understood.ranks, found.arrivals, strict=True):
        one, gpus = _rows(timeline, rank, came)
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


def _rows(timeline: Timeline, rank: int | None, arrivals: Arrivals | None) -> tuple[list[RankRow], list[DeviceRow]]:
    communicates = communication_kernels(timeline)
    processes = processes_with_work(timeline)
    named = timeline.origin.processes
    rows: list[RankRow] = []
    devices: list[DeviceRow] = []
    for process in processes:
        used = devices_of(timeline, process)
        label = named[process] if process < len(named) else None
        row = RankRow(
            rank=rank if len(processes) == 1 else None,
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
