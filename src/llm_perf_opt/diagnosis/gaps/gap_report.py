"""All about the idle time of captures: the part `idle` of `analysis.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.capture.idle import IdleMap
from llm_perf_opt.capture.rows import RangeRow
from llm_perf_opt.capture.timeline import Timeline
from llm_perf_opt.diagnosis.gaps.gap_verdict import readable
from llm_perf_opt.diagnosis.gaps.iterations import Iterations, find_iterations
from llm_perf_opt.diagnosis.gaps.long_gaps import LongGaps, find_long_gaps, merge_long_gaps
from llm_perf_opt.diagnosis.gaps.queue import Queue, measure_queue
from llm_perf_opt.diagnosis.gaps.startup_gaps import StartUp, StartUpRow, find_start_up, start_up_rows
from llm_perf_opt.diagnosis.gaps.traits import (
    AllocatorFlushes,
    GilWaits,
    LaunchBlocking,
    TimeSlices,
    find_allocator_flushes,
    find_gil_waits,
    find_launch_blocking,
    find_time_slices,
)
from llm_perf_opt.diagnosis.gaps.waits import HeldRow, SyncRow, WaitRow, held_rows, memory_rows, sync_rows, wait_rows

# A range of this many instances, of which the typical one has no long gap, had it in single ones.
FEW_INSTANCES = 3


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
