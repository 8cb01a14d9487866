"""`energy.json`: what was metered and which part belongs to which phase."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from llm_perf_opt.plugins.energy.attribution import PhaseEnergy
from llm_perf_opt.plugins.energy.meters import Kind


@dataclass(frozen=True, kw_only=True)
class PhaseRow:
    """A phase on one device. `above_idle_*` is what is left when idle power for as long is taken off."""

    phase: str
    count: int
    seconds: float
    tokens: int | None
    joules: float | None
    error_j: float | None
    joules_per_token: float | None
    above_idle_j: float | None
    above_idle_j_per_token: float | None
    mean_w: float | None
    how: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Steadiness:
    """Clocks and temperature while requests ran, and how much of the samples each throttle reason was given in."""

    samples: int
    sm_clock_mhz_p10: float | None
    sm_clock_mhz_median: float | None
    sm_clock_mhz_p90: float | None
    temperature_c_min: float | None
    temperature_c_max: float | None
    throttle_shares: dict[str, float] | None


@dataclass(frozen=True, kw_only=True)
class DeviceEnergy:
    """One device. `check_pct` is how far the trapezoids of the power lie from the counter over all requests."""

    device: str
    kind: Kind
    energy_how: str
    power_how: str
    readings: int
    refresh_ms: float | None
    idle_w: float | None
    idle_reason: str | None
    counter_j: float | None
    trapezoid_j: float | None
    check_pct: float | None
    check_reason: str | None
    phases: tuple[PhaseRow, ...]
    steadiness: Steadiness | None


@dataclass(frozen=True, kw_only=True)
class EnergyDocument:
    """`headline` names the devices whose sum the metrics of the stage are; `warnings` what moved meanwhile."""

    schema_version: int = 1
    interval_ms: float
    idle_s: float
    headline: tuple[str, ...]
    devices: tuple[DeviceEnergy, ...]
    total: tuple[PhaseRow, ...]
    warnings: tuple[str, ...]


def phase_row(energy: PhaseEnergy, idle_w: float | None) -> PhaseRow:
    """A phase with idle power taken off, as far as both are known."""
    above = None if energy.joules is None or idle_w is None else energy.joules - idle_w * energy.seconds
    return PhaseRow(
        phase=energy.phase,
        count=energy.count,
        seconds=energy.seconds,
        tokens=energy.tokens,
        joules=energy.joules,
        error_j=energy.error_j,
        joules_per_token=energy.per_token,
        above_idle_j=above,
        above_idle_j_per_token=None if above is None or not energy.tokens else above / energy.tokens,
        mean_w=None if energy.joules is None or not energy.seconds else energy.joules / energy.seconds,
        how=energy.how,
        reason=energy.reason,
    )


def add_rows(rows: tuple[PhaseRow, ...]) -> PhaseRow:
    """The same phase on several devices; what is unknown of one is unknown of their sum."""
    first = rows[0]
    if len(rows) == 1:
        return first
    joules, above = _sum(r.joules for r in rows), _sum(r.above_idle_j for r in rows)
    reasons = [row.reason for row in rows if row.reason]
    return PhaseRow(
        phase=first.phase,
        count=first.count,
        seconds=first.seconds,
        tokens=first.tokens,
        joules=joules,
        error_j=None if joules is None else sum((r.error_j or 0.0) ** 2 for r in rows) ** 0.5 or None,
        joules_per_token=None if joules is None or not first.tokens else joules / first.tokens,
        above_idle_j=above,
        above_idle_j_per_token=None if above is None or not first.tokens else above / first.tokens,
        mean_w=None if joules is None or not first.seconds else joules / first.seconds,
        how=f"sum of {len(rows)} devices; " + first.how,
        reason=reasons[0] if reasons and joules is None else None,
    )


def with_rows(document: EnergyDocument, other: EnergyDocument, phase: str, *, said: str) -> EnergyDocument:
    """The document with what the other one, of another run, knows of a phase; `said` is how that was run."""

    def of(rows: tuple[PhaseRow, ...], others: tuple[PhaseRow, ...]) -> tuple[PhaseRow, ...]:
        known = {row.phase: replace(row, how=f"{said}; {row.how}") for row in others if row.joules is not None}
        return tuple(known.get(row.phase, row) if row.phase == phase else row for row in rows)

    by_device = {device.device: device.phases for device in other.devices}
    devices = tuple(replace(d, phases=of(d.phases, by_device.get(d.device, ()))) for d in document.devices)
    return replace(document, devices=devices, total=of(document.total, other.total))


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None
