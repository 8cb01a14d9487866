"""What Nsight Compute measured on one kernel launch, as plain records."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class NcuValue:
    """One metric in base units (byte, ns, hz, byte/s); `value` is None for `n/a` and words. `text` is as printed."""

    value: float | None
    unit: str
    text: str


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

    def first(self, *names: str) -> float | None:
        """The first of these metrics that has a value."""
        return next((value for value in map(self.number, names) if value is not None), None)

    def text(self, name: str) -> str | None:
        """A metric as printed, for those that hold words."""
        found = self.metrics.get(name)
        return found.text if found is not None and found.text else None
