"""`memory.json`: memory over time by kind, its peak, and what ran out; written inside the workload's process."""

from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.plugins.memory.cpu import OperatorMemory


@dataclass(frozen=True, kw_only=True)
class Site:
    """What was alive at the peak from one place in the code."""

    kind: str
    module: str
    place: str
    count: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The moment with the most tensor bytes, and the allocation that made it; stacks are innermost first."""

    at_s: float
    phase: str
    total_bytes: int
    by_kind: Mapping[str, int]
    made_by_bytes: int
    module: str
    operator: str
    stack: tuple[str, ...]
    sites: tuple[Site, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryPhase:
    """A phase of the workload on the clock of the timeline; `monotonic_ns` is its start for other clocks."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class RanOut:
    """An allocation that failed; `asked_bytes` and `device_free_bytes` None: the error did not say."""

    error: str
    at_s: float | None
    asked_bytes: int | None
    device_free_bytes: int | None
    module: str
    stack: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryDocument:
    """Times are seconds from the start of loading. `None` is what the device or the method does not report.

    `measured_peak_bytes` is torch's own counter on a GPU, independent of the timeline; `reserved` is what the allocator
    held, `device_used` what the whole device had in use, `resident` the resident set of the process on a CPU.
    """

    schema_version: int = 1
    device: str
    how: str
    zero_monotonic_ns: int
    at_s: tuple[float, ...]
    by_kind: Mapping[str, tuple[int, ...]]
    reserved: tuple[tuple[float, int], ...] = ()
    device_used: tuple[tuple[float, int], ...] = ()
    resident: tuple[tuple[float, int], ...] = ()
    phases: tuple[MemoryPhase, ...] = ()
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    activations_bytes: int | None = None
    workspace_bytes: int | None = None
    measured_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    used_before_bytes: int | None = None
    peak: Peak | None = None
    operators: tuple[OperatorMemory, ...] = ()
    ran_out: RanOut | None = None
    notes: tuple[str, ...] = ()
