"""What was recorded in the captures of one program, as the causes look at it; found out when first asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from llm_perf_opt.capture import kernel_names
from llm_perf_opt.capture.exclusive import DeviceTime
from llm_perf_opt.capture.idle import IdleMap, map_idle
from llm_perf_opt.capture.intervals import nest
from llm_perf_opt.capture.kernels.names import is_fusible
from llm_perf_opt.capture.ranges import RangeInstances, measure_ranges, merge_range_names
from llm_perf_opt.capture.ranks.rank_analysis import RanksAnalysis
from llm_perf_opt.capture.rows import PUSH_POP, CopyRow, Idle, KernelRow, RangeRow, summed
from llm_perf_opt.capture.shapes import ShapesAnalysis, least_fused_ns
from llm_perf_opt.capture.streams import StreamReport, report_streams
from llm_perf_opt.capture.tables import idle_of, kernel_and_copy_rows, range_rows, sum_idle
from llm_perf_opt.capture.timeline import Timeline, distinct, gpu_names
from llm_perf_opt.diagnosis.gaps.edges import HostEdge, find_edges
from llm_perf_opt.diagnosis.gaps.gap_report import CopyPlace, IdleReport, copy_places, report_idle
from llm_perf_opt.diagnosis.gaps.startup_gaps import StartUp, find_start_up
from llm_perf_opt.system.arrays import give_back_freed_memory

if TYPE_CHECKING:
    # What few captures need is loaded where it is needed: the catalogue of GPUs, and what single causes look at.
    from llm_perf_opt.capture.copy_kernels import CopyKernelRow
    from llm_perf_opt.capture.floors import CopyFloor
    from llm_perf_opt.capture.fusion import AttentionInPieces, Chains
    from llm_perf_opt.capture.gemms import MisalignedGemms
    from llm_perf_opt.capture.launch_shapes import FewBlocks, HottestKernel, LaunchShapeRow
    from llm_perf_opt.capture.operators import TraceDetail
    from llm_perf_opt.config.schema import HardwareSection
    from llm_perf_opt.model.hardware.gpu_generation import GpuGeneration

# Kernels of a range that run for this much longer than the GPU is busy inside it run on after it: its wall time is not
# what they cost, and its idle time may be filled by them.
RUNS_ON = 1.1
KERNELS_OF_A_GRAPH = 4
# From this share of the work or of its time on, graphs are how the program launches.
MOSTLY_GRAPHS = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One capture with its idle time by process and its range instances, all in columns."""

    timeline: Timeline
    idle: dict[int, IdleMap]
    ranges: RangeInstances


def measure_timeline(timeline: Timeline) -> Measured:
    """Find out when the GPU of a capture was idle, and what lies inside its ranges; numbered ranges are one.

    So are rare kernels of which a capture has too many names.
    """
    timeline = merge_range_names(timeline)
    if len(timeline.kernels.distinct_names) > kernel_names.MOST_NAMES:
        timeline = kernel_names.limit_kernel_names(timeline)
    idle = map_idle(timeline)
    measured = Measured(timeline=timeline, idle=idle, ranges=measure_ranges(timeline, idle))
    give_back_freed_memory(max(len(timeline.kernels), len(timeline.calls)))
    return measured


class CaptureEvidence:
    """One capture, repetitions of one, or the ranks of a job: from the first GPU work of each process to its last.

    `is_steady`: what follows start-up in a capture, which has no edges. `shapes`, `ranks` and the `details` of each
    capture are known where the captures have them.
    """

    def __init__(
        self,
        measured: Sequence[Measured],
        *,
        engine: str | None = None,
        is_steady: bool = False,
        shapes: ShapesAnalysis | None = None,
        ranks: RanksAnalysis | None = None,
        details: "Sequence[TraceDetail | None]" = (),
    ) -> None:
        self.measured = tuple(measured)
        self.timelines = [m.timeline for m in measured]
        self.engine, self.is_steady = engine, is_steady
        self.shapes, self.ranks = shapes, ranks
        # What follows start-up is cut out of the timeline: details, which index all of it, are of the whole.
        self.details = tuple(details) or (None,) * len(self.timelines)

    @property
    def source(self) -> str:
        return ", ".join(t.source for t in self.timelines)

    @property
    def has_gpu_work(self) -> bool:
        return any(t.has_gpu_work for t in self.timelines)

    @property
    def kernel_count(self) -> int:
        """A graph traced as a whole is work like a kernel."""
        return sum(len(t.kernels) + len(t.graphs) for t in self.timelines)

    @cached_property
    def busy_ns(self) -> int:
        return sum(one.busy.total for m in self.measured for one in m.idle.values())

    @cached_property
    def gpu_span_ns(self) -> int:
        """From the first GPU work of each process to its last, added up over processes."""
        return sum(one.span[1] - one.span[0] for m in self.measured for one in m.idle.values())

    @property
    def span_ns(self) -> int:
        """With what the host does before and after that, where it is much."""
        return self.gpu_span_ns + sum(edge.length_ns for edge in self.edges)

    @cached_property
    def processes(self) -> int:
        """Those that did GPU work, each with its own span in `span_ns`."""
        return sum(one.span[1] > one.span[0] for m in self.measured for one in m.idle.values())

    @cached_property
    def idle(self) -> Idle:
        """Why no kernel ran, from each process's first GPU work to its last."""
        splits = [
            one.split(np.array([one.span[0]]), np.array([one.span[1]]))
            for m in self.measured
            for one in m.idle.values()
        ]
        return sum_idle([idle_of(split, np.array([0])) for split in splits])

    @cached_property
    def ranges(self) -> tuple[RangeRow, ...]:
        return range_rows([(m.timeline, m.ranges) for m in self.measured])

    @cached_property
    def startups(self) -> tuple[StartUp, ...]:
        """What CUDA, its libraries and first uses start up in each capture."""
        return tuple(find_start_up(m.timeline, m.idle) for m in self.measured)

    @cached_property
    def report(self) -> IdleReport:
        captures = [(m.timeline, m.idle) for m in self.measured]
        return report_idle(captures, startups=self.startups, ranges=self.ranges)

    @cached_property
    def edges(self) -> tuple[HostEdge, ...]:
        if self.is_steady or not self.has_gpu_work:
            return ()
        return find_edges(
            [(m.timeline, m.idle) for m in self.measured],
            span_ns=self.gpu_span_ns,
            long_gaps_ns=self.idle.long_gaps_ns,
            startups=self.startups,
            run_on=frozenset(row.name for row in self.ranges if runs_on(row)),
        )

    @cached_property
    def _tables(self) -> tuple[tuple[KernelRow, ...], tuple[CopyRow, ...]]:
        return kernel_and_copy_rows(self.timelines)

    @property
    def kernels(self) -> tuple[KernelRow, ...]:
        return self._tables[0]

    @property
    def copies(self) -> tuple[CopyRow, ...]:
        return self._tables[1]

    @cached_property
    def device(self) -> DeviceTime:
        return DeviceTime([(m.timeline, m.idle) for m in self.measured])

    @cached_property
    def streams(self) -> StreamReport | None:
        return report_streams(self.timelines)

    @cached_property
    def chains(self) -> "Chains":
        """Kernels without a matmul that follow each other on a stream: a compiler makes one of each such chain."""
        from llm_perf_opt.capture.fusion import chains_of

        return summed([chains_of(timeline, is_fusible) for timeline in self.timelines])

    @cached_property
    def attention(self) -> "AttentionInPieces":
        """Attention as a matmul, a softmax and a matmul."""
        from llm_perf_opt.capture.fusion import attention_in_pieces

        parts = [
            attention_in_pieces(
                timeline,
                None if detail is None or self.shapes is None else least_fused_ns(timeline, detail, self.shapes.roof),
            )
            for timeline, detail in zip(self.timelines, self.details, strict=True)
        ]
        return summed(parts)

    @cached_property
    def copy_kernels(self) -> "tuple[CopyKernelRow, ...]":
        """Kernels that only move data, by what they do."""
        from llm_perf_opt.capture.copy_kernels import copy_kernel_rows

        return copy_kernel_rows(self.timelines, self.details)

    @cached_property
    def copy_floors(self) -> "Mapping[str, CopyFloor]":
        """The least time of all copies of a kind."""
        from llm_perf_opt.capture.floors import copy_floors

        return {row.kind: row for row in copy_floors(self.copies, self.generation, self.hardware)}

    @cached_property
    def misaligned(self) -> "MisalignedGemms | None":
        from llm_perf_opt.capture.gemms import misaligned_gemms

        return misaligned_gemms(self.kernels, () if self.shapes is None else self.shapes.rows)

    @cached_property
    def small_launches(self) -> "tuple[LaunchShapeRow, ...]":
        from llm_perf_opt.capture.launch_shapes import small_launches

        return small_launches(self.timelines)

    @cached_property
    def hottest(self) -> "HottestKernel | None":
        from llm_perf_opt.capture.launch_shapes import hottest_kernel

        return hottest_kernel(self.timelines, self.kernels, shapes=() if self.shapes is None else self.shapes.rows)

    @cached_property
    def hardware(self) -> "HardwareSection | None":
        """The catalogue's entry of the GPU."""
        return hardware_of(self.timelines)

    @cached_property
    def generation(self) -> "GpuGeneration | None":
        """The generation of the GPU, by its name, its capability or what its kernels are built for."""
        from llm_perf_opt.model.hardware.gpu_generation import gpu_generation

        devices = [device for t in self.timelines for device in t.devices]
        capability = next((d.compute_capability for d in devices if d.compute_capability), None)
        return gpu_generation(self.gpu_name, capability, [row.name for row in self.kernels], self.hardware)

    @cached_property
    def top_operators(self) -> tuple[tuple[str, int, int], ...]:
        """Operators by the time no operator inside of them takes: name, time and calls; of all threads."""
        found: dict[str, list[int]] = {}
        for timeline in self.timelines:
            events = timeline.operators
            tree = nest(events.thread, events.start_ns, events.end_ns)
            length = events.end_ns - events.start_ns
            inner = tree.parent >= 0
            own = length - np.bincount(tree.parent[inner], weights=length[inner], minlength=len(length))
            for code in distinct(events.name).tolist():
                mine = events.name == code
                row = found.setdefault(timeline.names[code], [0, 0])
                row[0] += int(own[mine].sum())
                row[1] += int(mine.sum())
        ranked = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
        return tuple((name, time_ns, count) for name, (time_ns, count) in ranked)

    @cached_property
    def few_blocks(self) -> "FewBlocks | None":
        from llm_perf_opt.capture.launch_shapes import few_blocks

        return few_blocks(self.timelines)

    @cached_property
    def copy_places(self) -> tuple[CopyPlace, ...]:
        return copy_places(self.timelines)

    @property
    def world_size(self) -> int:
        """The ranks of the job this is a part of."""
        return max((t.origin.world_size or 1 for t in self.timelines), default=1)

    @property
    def kept_share(self) -> float | None:
        """The part of what ran that a thinned out capture still holds."""
        return min((t.kept_share for t in self.timelines if t.kept_share is not None), default=None)

    @property
    def gpu_name(self) -> str | None:
        return gpu_names(self.timelines)

    @property
    def has_graphs(self) -> bool:
        """Whether the program launches most of its work as graphs already."""
        queue = self.report.queue
        return queue is not None and max(queue.graph_share, queue.graph_time_share) >= MOSTLY_GRAPHS

    def outermost(self, rows: Sequence[RangeRow]) -> list[RangeRow]:
        """Those of some rows that lie in none of the others."""
        # Only push/pop ranges have a parent, and it is of their kind.
        parent = {row.name: row.parent for row in self.ranges if row.style == PUSH_POP}
        named = {row.name for row in rows if row.style == PUSH_POP}

        def is_inside(row: RangeRow) -> bool:
            above, seen = row.parent, {row.name}
            while above is not None and above not in seen:
                if above in named:
                    return True
                seen.add(above)
                above = parent.get(above)
            return False

        return [row for row in rows if not is_inside(row)]


def hardware_of(timelines: Sequence[Timeline]) -> "HardwareSection | None":
    """The catalogue's entry of the GPU, where captures name one."""
    named = gpu_names(timelines)
    if named is None:
        return None
    # Here, for most captures need no catalogue, nor the configuration it is checked by.
    from llm_perf_opt.config.paths import conf_dir
    from llm_perf_opt.model.hardware.hardware import find_by_device_name, load_catalogue

    return find_by_device_name(load_catalogue(conf_dir() / "hardware"), named)


def replays_graphs(row: RangeRow) -> bool:
    """Whether most kernels of a range come from CUDA graphs: an eager program launches one kernel with a call."""
    return row.graph_launches > 0 or row.kernel_count >= KERNELS_OF_A_GRAPH * max(row.launch_calls, 1)


def runs_on(row: RangeRow) -> bool:
    """Whether the GPU works on after the range: then nothing can be reported of the range by its idle time."""
    if row.gpu_busy_ns is None or row.gpu_idle_ns is None:
        return False
    return row.gpu_busy_ns > RUNS_ON * (row.wall_ns - row.gpu_idle_ns)
