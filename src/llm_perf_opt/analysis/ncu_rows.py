"""The rows an analysis of ncu's launches gives: one per kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType

LATENCY_BELOW_PCT = 60.0
BALANCED_WITHIN_PCT = 10.0
BOUND_RULE = (
    f"latency: compute and memory throughput both below {LATENCY_BELOW_PCT:g} % of their peak; balanced: within "
    f"{BALANCED_WITHIN_PCT:g} points of each other; otherwise the larger of the two"
)

Bound = Literal["compute", "memory", "latency", "balanced", "unknown"]


@dataclass(frozen=True, kw_only=True)
class NsysKernel:
    """A kernel of a timeline: what ncu's rows are joined with."""

    name: str
    instances: int
    total_ns: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What one rule of ncu says about a kernel, and its estimate of what following it would bring."""

    rule: str
    text: str
    speedup_pct: float | None
    scope: str | None


@dataclass(frozen=True, kw_only=True)
class NcuKernel:
    """One kernel. Times and rates are means over its profiled launches, weighted by time where they are ratios."""

    kernel: str
    short: str
    launches: int
    grids: tuple[str, ...]
    ranges: tuple[str, ...]
    duration_ns: float | None
    duration_min_ns: float | None
    duration_max_ns: float | None
    flop: float | None
    flop_per_s: float | None
    flop_per_s_by_pipe: Mapping[str, float]
    dram_bytes: float | None
    dram_bytes_per_s: float | None
    l2_bytes_per_s: float | None
    l1_bytes_per_s: float | None
    intensity_flop_per_byte: float | None
    compute_sol_pct: float | None
    memory_sol_pct: float | None
    dram_sol_pct: float | None
    compute_roof_pct: float | None
    memory_roof_pct: float | None
    roof_pct: float | None
    bound: Bound
    occupancy_pct: float | None
    occupancy_theoretical_pct: float | None
    occupancy_limiter: str | None
    waves_per_sm: float | None
    registers_per_thread: float | None
    stalls_pct: Mapping[str, float]
    advice: tuple[Advice, ...]
    passes: float | None
    peak_flop_per_s: Mapping[str, float]
    peak_dram_bytes_per_s: float | None
    missing: Mapping[str, str]
    nsys_names: tuple[str, ...] = ()
    nsys_instances: int | None = None
    nsys_total_ns: float | None = None
    nsys_time_pct: float | None = None
    headroom_ns: float | None = None


@dataclass(frozen=True, kw_only=True)
class NcuAnalysis:
    """All kernels of a capture, heaviest first, and how many of them the timeline knows: what `ncu/kernels.json` holds.

    `label` is the range in the report of one range. `capture_notes` say how the launches were chosen and recorded,
    `plots` are paths from the root of the run.
    """

    schema_version: Literal[1] = 1
    label: str | UnsetType = UNSET
    kernels: tuple[NcuKernel, ...]
    launches: int
    device: str | None
    bound_rule: str = BOUND_RULE
    match_rate: float | None = None
    matched: int | None = None
    unmatched: tuple[str, ...] = ()
    joined_with: str | None = None
    notes: tuple[str, ...] = ()
    capture_notes: tuple[str, ...] = ()
    plots: tuple[str, ...] = ()
