"""What metrics.json, timeline.json and clock samples hold, as far as a report shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.analysis.findings.finding import FindingRecord
from llm_perf_opt.analysis.kernel_table import CopyRow, KernelRow
from llm_perf_opt.analysis.module_tree import ModuleTree
from llm_perf_opt.analysis.range_table import Idle, RangeKernel


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Statistics of one measured quantity."""

    mean: float | None
    std: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    n: int
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    name: str
    parameters: int | None = None
    dtype: str | None = None
    device: str | None = None
    device_name: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CleanPass:
    metrics: Mapping[str, Stats]
    repeats: int | None = None
    samples: int | None = None
    warmup_rounds: int | None = None
    peak_memory_bytes: int | None = None
    peak_memory_how: str | None = None
    peak_memory_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class MetricsFile:
    """`metrics.json` of the workload."""

    model: ModelRecord
    clean: CleanPass
    slowdown: Mapping[str, float | None] | None = None
    modules: Mapping[str, Mapping[str, float]] | None = None
    modules_by: str | None = None
    modules_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class CaptureSource:
    """One capture an analysis was made of."""

    path: str
    kind: str
    producer: str | None = None
    kernel_count: int = 0


@dataclass(frozen=True, kw_only=True)
class GpuTotals:
    """What the captures say of the GPU as a whole."""

    name: str | None = None
    kernel_count: int = 0
    kernel_ns: int = 0
    busy_ns: int | None = None
    span_ns: int | None = None
    idle_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class GraphTotals:
    """CUDA graphs whose kernels were not listed."""

    launches_traced_as_a_whole: int = 0
    total_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class InstanceRecord:
    """One time a range was open, under the profiler; GPU times are None where no GPU work was recorded."""

    wall_ns: int
    launch_ns: int
    idle: Idle | None


@dataclass(frozen=True, kw_only=True)
class RangeRecord:
    """All instances of one range name; `kernels` is None where they were not tallied."""

    name: str
    instances: int
    kernel_count: int
    kernel_ns: int
    gpu_busy_ns: int | None
    typical: InstanceRecord
    kernels: tuple[RangeKernel, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CaptureFile:
    """`analysis.json` of nsys, of a torch trace, or of `llm-perf analyze`."""

    sources: tuple[CaptureSource, ...] = ()
    gpu: GpuTotals = GpuTotals()
    graphs: GraphTotals = GraphTotals()
    kernels: tuple[KernelRow, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    ranges: tuple[RangeRecord, ...] = ()
    findings: tuple[FindingRecord, ...] = ()
    notes: tuple[str, ...] = ()
    tree: ModuleTree | None = None


@dataclass(frozen=True, kw_only=True)
class TimelineFile:
    """`timeline.json`: events of a few steps as `[start, end, lane, name]`, times in ns since the window began.

    Lanes index `threads` or `streams`; kernels carry the index of their class as fifth column.
    """

    window_ns: tuple[int, int]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    threads: tuple[str, ...]
    streams: tuple[str, ...]
    ranges: tuple[tuple[int, int, int, int], ...]
    calls: tuple[tuple[int, int, int, int], ...]
    kernels: tuple[tuple[int, int, int, int, int], ...]
    source: str
    kind: str
    memory: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    left_out: int = 0
    notes: tuple[str, ...] = ()
