"""What metrics.json, static.json, timeline.json and clock samples hold, as far as a report shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.analysis.findings.finding import Finding
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
class BoundRecord:
    datasheet: float | None
    achievable: float | None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class GroupRecord:
    params: float
    flops: float
    bytes: float
    flops_needed: float
    bytes_needed: float
    counted_flops: float | None = None
    counted_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseRecord:
    flops: float
    flops_needed: float
    bytes: float
    bytes_needed: float
    bound_ms: BoundRecord
    kv_read_bytes: float | None = None
    tokens: int | None = None
    limit: str | None = None
    groups: Mapping[str, GroupRecord] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HardwareRecord:
    name: str | None
    reason: str | None = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    memory_bandwidth_gb_s: float | None = None
    memory_gb: float | None = None
    achieved_tflops: Mapping[str, float] = field(default_factory=dict)
    achieved_bandwidth_gb_s: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WorkloadRecord:
    batch: int
    prompt_tokens: int
    context: int | None = None
    how: str | None = None


@dataclass(frozen=True, kw_only=True)
class ParameterRecord:
    total: int
    activated: int


@dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    weights_bytes: float | None = None
    kv_cache_bytes: float | None = None
    activations_bytes: float | None = None
    peak_bytes: float | None = None
    capacity_bytes: float | None = None
    largest_batch: int | None = None
    largest_context: int | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class DoubleEntryRecord:
    phase: str
    group: str
    quantity: str
    closed_form: float
    counted: float
    ratio: float | None
    agrees: bool
    explanation: str | None = None


@dataclass(frozen=True, kw_only=True)
class StaticFile:
    """`static.json`."""

    model: str
    dtype: str
    hardware: HardwareRecord
    workload: WorkloadRecord
    parameters: ParameterRecord
    kv_bytes_per_token: float
    memory: MemoryRecord
    phases: Mapping[str, PhaseRecord]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    double_entry: tuple[DoubleEntryRecord, ...] = ()
    notes: tuple[str, ...] = ()


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
    findings: tuple[Finding, ...] = ()
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


@dataclass(frozen=True, kw_only=True)
class ClockSample:
    """What the driver said at one moment; `throttle_reasons` empty: nothing lowers the clocks, None: it did not say."""

    at_ns: int
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_used_bytes: int | None = None
    temperature_c: float | None = None
    utilisation_pct: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ClockFile:
    """`gpu_samples.json`: clocks, power and memory sampled during the whole stage, loading included."""

    device: str
    interval_ms: float
    samples: tuple[ClockSample, ...]
    max_sm_clock_mhz: float | None = None
    power_limit_w: float | None = None
