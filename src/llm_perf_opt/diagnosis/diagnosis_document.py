"""The documents an analysis is written as: `analysis.json` (tables and findings) and `diagnosis.json` (the answer)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, UnsetType

from llm_perf_opt.capture.allocator_memory import MemoryCurve
from llm_perf_opt.capture.critical import CriticalPath
from llm_perf_opt.capture.exclusive import KernelTime
from llm_perf_opt.capture.frames import PythonTree
from llm_perf_opt.capture.graphs import GraphReplays
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.capture.operators import ModuleRow, ModuleTree, OperatorRow
from llm_perf_opt.capture.ranks.rank_analysis import RanksAnalysis
from llm_perf_opt.capture.ranks.traffic import TrafficRow
from llm_perf_opt.capture.rows import CopyRow, CounterRow, KernelRow, RangeRow
from llm_perf_opt.capture.shapes import ShapesAnalysis
from llm_perf_opt.capture.streams import StreamReport
from llm_perf_opt.capture.timeline import CapturedGpu
from llm_perf_opt.diagnosis.gaps.edges import HostEdge
from llm_perf_opt.diagnosis.gaps.gap_report import IdleReport
from llm_perf_opt.diagnosis.gaps.host_alone import HostAlone
from llm_perf_opt.diagnosis.ledger import Cell, Finding, Ledger

VerdictKind = Literal[
    "finding", "one_time", "healthy", "largest_cell", "not_recorded", "kernels_only", "no_gpu_work", "nothing_measured"
]


@dataclass(frozen=True, kw_only=True, repr=False)
class ScopeRecord:
    """One scope with its ledger: `cells` sum to `wall_ns`. `processes` are those whose spans it adds up."""

    id: str
    kind: str
    place: str
    wall_ns: int
    clean: bool
    instances: int
    processes: int
    source: str
    cells: tuple[Cell, ...]
    kernels: tuple[KernelTime, ...]

    def __repr__(self) -> str:
        return f"ScopeRecord({self.id}: {self.wall_ns / 1e6:,.3f} ms in {len(self.cells)} cells)"

    @property
    def ledger(self) -> Ledger:
        """The cells with what sums over them."""
        return Ledger(wall_ns=self.wall_ns, cells=self.cells)


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is known about the program observed; `traits` are what advice asks for: `torch`, `training`, `vLLM`, …"""

    framework: str
    engine: str | None
    gpu_name: str | None
    world_size: int
    ranks_given: int
    traits: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What was recorded, what was not, and the part of the judged time of which nothing says what happened.

    `lost_launches` are those of the `launches` without GPU work in the captures; `gpu_was_traced`: the profiler
    recorded GPU activity, so a capture without any is of a window in which nothing ran. `counted_kernels` were recorded
    with hardware counters and without times. `kept_share` is the part of what ran that a thinned out capture still
    holds. Of a run without a capture nothing is `recorded` and nothing `missing`.
    """

    recorded: tuple[str, ...]
    missing: tuple[str, ...]
    unrecorded_share: float
    lost_launches: int = 0
    launches: int = 0
    gpu_was_traced: bool = False
    counted_kernels: int = 0
    kept_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer in one or two sentences. `rule` is the finding it is about, `scope` the time it is about.

    `hottest_kernel` is always named.
    """

    kind: VerdictKind
    text: str
    rule: str | None = None
    hottest_kernel: str | None = None
    scope: str | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What `diagnosis.json` holds. `measured_gains` are those `llm-perf optimize` measured, by cause."""

    schema_version: Literal[1] = 1
    verdict: Verdict
    program: Program
    scopes: tuple[ScopeRecord, ...]
    claims: tuple[Finding, ...]
    coverage: Coverage
    measured_gains: Mapping[str, float] = field(default_factory=dict)

    def scope(self, name: str) -> ScopeRecord | None:
        return next((scope for scope in self.scopes if scope.id == name), None)


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """One capture given, and its own totals; no busy time where the file holds no times of day.

    `gpu_busy_ns` and `gpu_span_ns` are added up over the `processes` that used a GPU; `gpu_elapsed_ns` is the time from
    the first GPU work of any of them to the last.
    """

    path: str
    kind: str
    producer: str | None
    schema: str | None
    kernel_count: int
    kernel_names: int
    kernel_ns: int
    gpu_busy_ns: int | None
    gpu_span_ns: int | None
    range_count: int
    notes: tuple[str, ...]
    gpu_elapsed_ns: int | None = None
    processes: int = 1


@dataclass(frozen=True, kw_only=True)
class GpuIdle:
    """Why the GPU was idle over the whole capture; the parts add up to `idle_ns`."""

    waiting_for_host_ns: int
    between_kernels_ns: int
    waiting_for_copy_or_sync_ns: int
    unattributed_ns: int


@dataclass(frozen=True, kw_only=True)
class GpuTotals:
    """The devices, and busy and idle time of each process from its first GPU work to its last, added up.

    `processes` is how many these are, in all captures: with more than one, no time here is one that went by.

    Captures do not say which of several GPUs a kernel's device number means, so all of them are named. Times other than
    that of the kernels are None where no GPU work was recorded, or none with times of day.
    """

    name: str | None
    devices: tuple[CapturedGpu, ...]
    devices_used: tuple[int, ...]
    kernel_count: int
    kernel_ns: int
    busy_ns: int | None
    span_ns: int | None
    idle_ns: int | None
    idle: GpuIdle | None
    processes: int = 1


@dataclass(frozen=True, kw_only=True)
class GraphTotals:
    """CUDA graphs whose kernels were not listed."""

    launches_traced_as_a_whole: int
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class AfterSetup:
    """What came after a capture's start-up, judged by itself: shares and gains of its findings are of this part alone.

    `idle`, `streams` and the tables are of this part as well: what a page or terminal shows.
    """

    span_ns: int
    busy_ns: int
    kernel_count: int
    graph_count: int
    findings: tuple[Finding, ...]
    idle: IdleReport | UnsetType = UNSET
    streams: StreamReport | UnsetType = UNSET
    kernels: tuple[KernelRow, ...] | UnsetType = UNSET
    copies: tuple[CopyRow, ...] | UnsetType = UNSET
    python: tuple[PythonTree, ...] | UnsetType = UNSET


@dataclass(frozen=True, kw_only=True)
class ShownTables:
    """The tables of the scope a reader is shown; `of_scope` says which where that is not all of the capture."""

    kernels: tuple[KernelRow, ...]
    copies: tuple[CopyRow, ...]
    python: tuple[PythonTree, ...]
    of_scope: str | None = None


@dataclass(frozen=True, kw_only=True)
class CaptureAnalysis:
    """What `analysis.json` of nsys and of a torch trace holds, and what `llm-perf analyze --json` prints.

    Of the last parts only those are written that the kind of capture has: `operators` and `modules` of a torch trace
    given to `analyze`, `tree` of the torch profiler stage, `ncu` of ncu files given alongside a capture, `counters` of
    a torch trace with hardware counters, `streams` where a GPU used several, `ranks` where several processes or GPUs
    worked or kernels communicated, `shapes` of a trace with input shapes, `critical_paths` of ranges with GPU work,
    `memory` of a trace with memory events, `python` of one with frames, `graph_replays` where another
    trace says what graphs replay, `after_setup` where most of a capture is a one-time cost, `host_edges` where the host
    works long before the first GPU work and after the last, `host_alone` of operators without kernels.
    """

    schema_version: Literal[1] = 1
    sources: tuple[SourceRow, ...]
    gpu: GpuTotals
    kernels: tuple[KernelRow, ...]
    copies: tuple[CopyRow, ...]
    graphs: GraphTotals
    ranges: tuple[RangeRow, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    diagnosis: Diagnosis | UnsetType = UNSET
    idle: IdleReport | UnsetType = UNSET
    streams: StreamReport | UnsetType = UNSET
    operators: tuple[OperatorRow, ...] | UnsetType = UNSET
    modules: tuple[ModuleRow, ...] | UnsetType = UNSET
    tree: ModuleTree | UnsetType = UNSET
    ncu: NcuAnalysis | UnsetType = UNSET
    counters: tuple[CounterRow, ...] | UnsetType = UNSET
    ranks: RanksAnalysis | UnsetType = UNSET
    traffic: tuple[TrafficRow, ...] | UnsetType = UNSET
    shapes: ShapesAnalysis | UnsetType = UNSET
    critical_paths: tuple[CriticalPath, ...] | UnsetType = UNSET
    memory: tuple[MemoryCurve, ...] | UnsetType = UNSET
    python: tuple[PythonTree, ...] | UnsetType = UNSET
    graph_replays: tuple[GraphReplays, ...] | UnsetType = UNSET
    after_setup: AfterSetup | UnsetType = UNSET
    host_edges: tuple[HostEdge, ...] | UnsetType = UNSET
    host_alone: HostAlone | UnsetType = UNSET

    @property
    def shown(self) -> ShownTables:
        """The tables of the steady state, where start-up is much of the capture; else those of all of it."""
        rest = self.after_setup
        if rest is UNSET or rest.kernels is UNSET or rest.copies is UNSET:
            python = () if self.python is UNSET else self.python
            return ShownTables(kernels=self.kernels, copies=self.copies, python=python)
        return ShownTables(
            kernels=rest.kernels,
            copies=rest.copies,
            python=() if rest.python is UNSET else rest.python,
            of_scope="the steady state, start-up left out",
        )
