"""What the waterfall and the rules look at: a run's figures, each known with its source or unknown with a reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llm_perf_opt.capture.kernels.ncu_records import NcuKernel
from llm_perf_opt.capture.rows import Idle
from llm_perf_opt.core.names import DECODE, PREFILL

if TYPE_CHECKING:
    from llm_perf_opt.core.documents import Deployment, HostDocument
    from llm_perf_opt.core.records import Spread

# What a deployment can do already; advice to do it is not given again.
COMPILED, TUNED, GRAPHS, STATIC_CACHE = "compiled", "tuned", "graphs", "static_cache"
GRAPH_MODES = ("reduce-overhead", "max-autotune")
PER = {PREFILL: "per prompt", DECODE: "per token"}


@dataclass(frozen=True, kw_only=True)
class Known:
    """A figure. `how` says how it was obtained, `source` the file it can be checked against."""

    value: float
    unit: str
    how: str
    source: str | None = None
    is_estimate: bool = False
    spread: "Spread | None" = None


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """No figure: why, and what to switch on to get it; `brief` where the whole reason is reported already."""

    reason: str
    enable: str | None = None
    brief: str | None = None

    @property
    def text(self) -> str:
        return self.reason + (f" — enable {self.enable}" if self.enable else "")


Quantity = Known | Unknown
NOT_WATCHED = Unknown(reason="the allocator was not watched", enable="pipeline.memory.enable=true")


def value_of(quantity: Quantity) -> float | None:
    return quantity.value if isinstance(quantity, Known) else None


@dataclass(frozen=True, kw_only=True)
class PhaseKernel:
    """What one kernel takes in one step of a phase, on average."""

    name: str
    short_name: str
    kernel_class: str
    per_step: float
    ms_per_step: float


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """The GPU during one step of a phase, from a capture.

    Kernel times are means of all instances; `wall_ms`, `launch_ms` and `idle` are those of a typical one. `wall_ms` was
    measured under the profiler: it scales the idle split and is never shown as a latency. `is_graph`: most kernels come
    from replays of CUDA graphs.
    """

    instances: int
    wall_ms: float
    busy_ms: float
    kernel_sum_ms: float
    kernel_count: float
    launch_ms: float
    idle: Idle
    kernels: tuple[PhaseKernel, ...] | None
    source: str
    is_graph: bool = False


@dataclass(frozen=True, kw_only=True)
class PhaseFacts:
    """One phase, all times of one step: a whole prefill, or one decoded token of every sequence.

    `between_operators_ms`: on a CPU, what passes from one operator to the next on average, under the profiler.
    """

    name: str
    wall: Quantity
    datasheet: Quantity
    achievable: Quantity
    flops: Quantity
    bytes: Quantity
    gpu: GpuFacts | Unknown
    operators: Quantity
    is_cpu: bool = False
    limit: str | None = None
    steps_per_request: float | None = None
    between_operators_ms: float | None = None

    @property
    def per(self) -> str:
        return PER[self.name]


@dataclass(frozen=True, kw_only=True)
class KernelFacts:
    """One kernel over the whole capture, with what ncu measured on it."""

    name: str
    short_name: str
    kernel_class: str
    instances: int
    total_ns: float
    avg_ns: float
    time_pct: float
    ncu: NcuKernel | None = None
    min_ns: float | None = None
    max_ns: float | None = None
    stddev_ns: float | None = None


@dataclass(frozen=True, kw_only=True)
class CopyFacts:
    """Copies or sets of one kind over the whole capture."""

    kind: str
    instances: int
    total_ns: int
    size_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """Predicted and measured memory in bytes. `kv_dtype`, `weight_dtype`: the formats cache and weights were predicted
    in. `reserved` and `allocated` are the most the allocator kept and had in use, where the stage `memory` watched it.
    """

    weights: Quantity
    kv_cache: Quantity
    kv_per_token: Quantity
    kv_read_per_step: Quantity
    activations: Quantity
    predicted_peak: Quantity
    measured_peak: Quantity
    capacity: Quantity
    kv_dtype: str | None = None
    weight_dtype: str | None = None
    reserved: Quantity = NOT_WATCHED
    allocated: Quantity = NOT_WATCHED


@dataclass(frozen=True, kw_only=True)
class ClockFacts:
    """What was sampled of a working GPU's clocks during the whole stage: idle samples, loading's too, are left out.

    `samples` counts what is left, `throttle_reasons` in how many of them the driver named each reason, or is None when
    it never answered.
    """

    sm_clock_mhz: tuple[float, ...]
    max_sm_clock_mhz: float | None
    throttle_reasons: Mapping[str, int] | None
    samples: int
    idle_samples: int
    source: str


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Samples of a program's stacks, the file they are in, and how long the program ran without a profiler."""

    samples: "HostDocument"
    source: str
    wall: Quantity


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Everything the rules may look at.

    `request_ms` is a request of the clean pass, preparation included, `prepare` what passes in it before the model has
    its input; `deployment` is how the model was
    run, None where it was not recorded; `is_compiled`: torch.compile wrote some of the kernels.
    """

    dtype: str | None
    is_cpu: bool | None
    batch: int | None
    context: int | None
    phases: Mapping[str, PhaseFacts]
    kernels: tuple[KernelFacts, ...]
    copies: tuple[CopyFacts, ...]
    memory: MemoryFacts
    slowdowns: Mapping[str, Known] = field(default_factory=dict)
    clocks: ClockFacts | Unknown = Unknown(reason="clocks and power were not sampled")
    kernel_source: str = ""
    ncu_source: str = ""
    bytes_per_s: float | None = None
    request_ms: float | None = None
    prepare: Quantity = Unknown(reason="no clean pass was run")
    deployment: "Deployment | None" = None
    is_compiled: bool = False
    host: HostFacts | None = None

    def already(self, phase: str | None) -> frozenset[str]:
        """What the run does already in a phase, in the terms of `Suggestion.done`; ours compiles decode steps alone."""
        run = self.deployment
        done = {COMPILED} if self.is_compiled and run is None else set()
        if run is not None and phase == DECODE:
            done |= {COMPILED} if run.compile != "none" else set()
            done |= {TUNED} if run.compile.startswith("max-autotune") else set()
            done |= {GRAPHS} if run.cuda_graph or run.compile in GRAPH_MODES else set()
            done |= {STATIC_CACHE} if run.cache == "static" else set()
        return frozenset(done)
