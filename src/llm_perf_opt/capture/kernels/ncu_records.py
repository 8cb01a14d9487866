"""What Nsight Compute measured on one kernel launch, as plain records.

The rows an analysis of ncu's launches gives: one per kernel.

Numbers and units as Nsight Compute prints them, brought to base units.

ncu scales with decimal prefixes (a Kbyte is 1000 bytes) and has changed its words between versions: `usecond` and `us`,
`cycle/nsecond` and `Ghz`, `Gbyte/second` and `Gbyte/s`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, UnsetType


@dataclass(frozen=True, kw_only=True)
class NcuValue:
    """One metric in base units (byte, ns, hz, byte/s); `value` is None for `n/a` and words. `text` is as printed.

    `is_undefined`: the metric was collected and is NaN or infinite, as a ratio over nothing is; then it has no value.
    """

    value: float | None
    unit: str
    text: str
    is_undefined: bool = False


@dataclass(frozen=True, kw_only=True)
class NcuRule:
    """One finding of ncu's own rules. `speedup_pct` is ncu's estimate, of the whole kernel when `scope` is global."""

    rule: str
    section: str
    kind: str
    text: str
    scope: str | None = None
    speedup_pct: float | None = None


@dataclass(frozen=True, kw_only=True)
class NcuLaunch:
    """One profiled launch (or one range, under range replay). Metrics are keyed by ncu's metric names."""

    launch_id: str
    kernel: str
    grid: str | None = None
    block: str | None = None
    device: str | None = None
    compute_capability: str | None = None
    nvtx: tuple[str, ...] = ()
    metrics: Mapping[str, NcuValue] = field(default_factory=dict)
    rules: tuple[NcuRule, ...] = ()
    source: str = ""

    def number(self, name: str) -> float | None:
        """The value of a metric, or None when it was not collected or is not a number."""
        found = self.metrics.get(name)
        return None if found is None else found.value

    def is_undefined(self, *names: str) -> bool:
        """Whether one of these metrics was collected and is NaN or infinite."""
        return any(name in self.metrics and self.metrics[name].is_undefined for name in names)

    def first(self, *names: str) -> float | None:
        """The first of these metrics that has a value."""
        return next((value for value in map(self.number, names) if value is not None), None)

    def text(self, name: str) -> str | None:
        """A metric as printed, for those that hold words."""
        found = self.metrics.get(name)
        return found.text if found is not None and found.text else None


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
    """One kernel. Times and rates are means over its profiled launches, weighted by time where they are ratios.

    `stalls_pct` are the reasons warps waited, `breakdown_pct` the busiest units by ncu's own metric names, both of the
    first launch and the largest first; `shared_bytes_per_block` is static, dynamic and the driver's together.
    """

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
    blocks: tuple[str, ...] = ()
    shared_bytes_per_block: float | None = None
    breakdown_pct: Mapping[str, float] = field(default_factory=dict)
    hit_rates_pct: Mapping[str, float] = field(default_factory=dict)


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


_PREFIX = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
# Whole factors, so that 239.008 us is exactly 239008 ns.
_PER_NS = {"": 1e9, "m": 1e6, "u": 1e3, "n": 1.0}
_COUNTED = re.compile(
    r"([KkMGTP]?)(byte|bit|hz|inst|cycle|sector|request|warp|thread|block|wavefront|flop|op|tag|instruction)s?"
)
_TIME = re.compile(r"([mun]?)(?:second|s)")
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NOT_FINITE = re.compile(r"[-+]?(?:nan|inf|infinity)(?:\(.*\))?(?:\s*[(;{].*)?", re.IGNORECASE | re.DOTALL)
# With `--print-metric-instances` the aggregate is followed by the instances in brackets or after a semicolon.
_WITH_INSTANCES = re.compile(r"([-+]?[\d.,eE+-]+)\s*[(;{].*", re.DOTALL)


def parse_number(text: str) -> float | None:
    """The number in a cell, or None for `n/a`, `no data`, words and anything ambiguous."""
    text = text.strip()
    match = _WITH_INSTANCES.fullmatch(text)
    if match:
        text = match[1]
    if _GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    return float(text) if _PLAIN.fullmatch(text) else None


def is_undefined(text: str) -> bool:
    """Whether a cell holds NaN or an infinity."""
    return _NOT_FINITE.fullmatch(text.strip()) is not None


def base_unit(unit: str) -> tuple[float, str]:
    """The factor that brings a value in this unit to the base unit, and the base unit's name."""
    numerator, *denominators = unit.strip().split("/")
    factor, name = _base_part(numerator)
    for part in denominators:
        divisor, below = _base_part(part)
        factor, name = (factor * 1e9 / divisor, f"{name}/s") if below == "ns" else (factor / divisor, f"{name}/{below}")
    return (factor, "hz") if name == "cycle/s" else (factor, name)


def parse_value(text: str, unit: str) -> NcuValue:
    """A cell with its unit as a value in base units."""
    factor, name = base_unit(unit)
    number = parse_number(text)
    printed = f"{text.strip()} {unit.strip()}".strip()
    if number is None:
        return NcuValue(value=None, unit=name, text=printed, is_undefined=is_undefined(text))
    return NcuValue(value=number * factor, unit=name, text=printed)


def _base_part(part: str) -> tuple[float, str]:
    part = part.strip()
    time = _TIME.fullmatch(part)
    if time:
        return _PER_NS[time[1]], "ns"
    counted = _COUNTED.fullmatch(part)
    return (_PREFIX[counted[1]], counted[2]) if counted else (1.0, part)
