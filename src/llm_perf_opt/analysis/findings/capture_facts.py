"""What the rules look at in a capture alone: its ranges, its idle time and the reasons of it, its copies."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.analysis.gaps.edges import HostEdge
from llm_perf_opt.analysis.gaps.report import IdleReport
from llm_perf_opt.analysis.gaps.waits import CopyPlace
from llm_perf_opt.analysis.timeline.fusion import AttentionInPieces
from llm_perf_opt.analysis.timeline.launch_shapes import FewBlocks
from llm_perf_opt.analysis.timeline.rows import PUSH_POP, CopyRow, Idle, KernelRow, RangeRow
from llm_perf_opt.analysis.timeline.streams import SerialStreams

# Kernels of a range that run for this much longer than the GPU is busy inside it run on after it: its wall time is not
# what they cost, and its idle time may be filled by them.
RUNS_ON = 1.1
KERNELS_OF_A_GRAPH = 4
# From this share of the work or of its time on, graphs are how the program launches.
MOSTLY_GRAPHS = 0.5


@dataclass(frozen=True, kw_only=True)
class ExposedCommunication:
    """Communication of all processes, and the part of it beside which nothing else ran."""

    total_ns: int
    exposed_ns: int
    computation_ns: int


@dataclass(frozen=True, kw_only=True)
class FusibleChains:
    """Kernels without a product that follow each other on a stream: a compiler makes one of each such chain.

    `saved_ns` is what fusing saves at most: writing and reading what they pass on.
    """

    chains: int
    kernel_count: int
    time_ns: int
    saved_ns: int


@dataclass(frozen=True, kw_only=True)
class CaptureFacts:
    """One capture, or repetitions of one, from the first GPU work of each process to its last.

    `edges` are what the host does before and after that, where it is much: `span_ns` then has their time too.
    `world_size` is the number of ranks of the job this is a part of, where the capture says so; `captures` were given.
    `kept_share` is the part of what ran that a thinned out capture still holds. `copy_places` say what started the
    copies, where these take time.
    """

    source: str
    span_ns: int
    busy_ns: int
    kernel_count: int
    idle: Idle
    ranges: tuple[RangeRow, ...]
    copies: tuple[CopyRow, ...]
    report: IdleReport
    serial_streams: tuple[SerialStreams, ...] = ()
    exposed: ExposedCommunication | None = None
    fusible: FusibleChains | None = None
    pieces: AttentionInPieces | None = None
    few_blocks: FewBlocks | None = None
    kernels: tuple[KernelRow, ...] = ()
    world_size: int | None = None
    captures: int = 1
    gpu_name: str | None = None
    kept_share: float | None = None
    copy_places: tuple[CopyPlace, ...] = ()
    edges: tuple[HostEdge, ...] = ()

    @property
    def idle_ns(self) -> int:
        return self.span_ns - self.busy_ns

    @property
    def has_graphs(self) -> bool:
        """Whether the program launches most of its work as graphs already."""
        queue = self.report.queue
        return queue is not None and max(queue.graph_share, queue.graph_time_share) >= MOSTLY_GRAPHS

    @property
    def has_attention(self) -> bool:
        """Whether a kernel of the capture is attention: then it is a transformer."""
        return any(row.kernel_class == "attention" for row in self.kernels)

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


def replays_graphs(row: RangeRow) -> bool:
    """Whether most kernels of a range come from CUDA graphs: an eager program launches one kernel with a call."""
    return row.graph_launches > 0 or row.kernel_count >= KERNELS_OF_A_GRAPH * max(row.launch_calls, 1)


def runs_on(row: RangeRow) -> bool:
    """Whether the GPU works on after the range: then nothing can be said of the range by its idle time."""
    if row.gpu_busy_ns is None or row.gpu_idle_ns is None:
        return False
    return row.gpu_busy_ns > RUNS_ON * (row.wall_ns - row.gpu_idle_ns)
