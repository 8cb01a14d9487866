"""One phase on one device: bounds, estimate, what limits it, tokens per second."""

from dataclasses import dataclass

from llm_perf_opt.analysis.hardware import CPU
from llm_perf_opt.analysis.roofline import (
    Bound,
    Ceilings,
    Estimate,
    Limit,
    achievable_ceilings,
    bound,
    datasheet_ceilings,
    estimate,
    launch_band,
    limit_of,
    missing_ceiling,
)
from llm_perf_opt.analysis.static.closed_form import Phase
from llm_perf_opt.analysis.static.dtypes import Dtypes
from llm_perf_opt.config.schema import HardwareSection


@dataclass(frozen=True, kw_only=True)
class Operators:
    """How many operators a phase starts and what the small ones move; `how` says where that is from."""

    count: float
    other_bytes: float
    how: str


@dataclass(frozen=True, kw_only=True)
class PhasePrediction:
    """None wherever a ceiling is not known, with the reason beside it."""

    tokens: int
    datasheet: Bound | None
    datasheet_reason: str | None
    achievable: Bound | None
    achievable_reason: str | None
    estimate: Estimate | None
    launch_ms: float
    limit: Limit | None
    operators: Operators

    def tokens_per_s(self, ms: float | None) -> float | None:
        return self.tokens / (ms / 1e3) if ms else None


def predict_phase(
    phase: Phase, *, tokens: int, dtypes: Dtypes, hardware: HardwareSection | None, operators: Operators
) -> PhasePrediction:
    """`tokens` is what the phase yields: the prompt's tokens, or one per sequence."""
    sheet, why_no_sheet = _bound(phase, dtypes, hardware, "datasheet")
    reach, why_no_reach = _bound(phase, dtypes, hardware, "achievable")
    launch_us = hardware.launch_us if hardware is not None else None
    launch_ms = operators.count * launch_band(launch_us)[1] / 1e3
    known = reach or sheet
    return PhasePrediction(
        tokens=tokens,
        datasheet=sheet,
        datasheet_reason=why_no_sheet,
        achievable=reach,
        achievable_reason=why_no_reach,
        estimate=_estimate(phase, dtypes, hardware, operators) if reach else None,
        launch_ms=launch_ms,
        limit=limit_of(known, launch_ms) if known else None,
        operators=operators,
    )


def ceilings_of(hardware: HardwareSection, kind: str) -> Ceilings | None:
    return achievable_ceilings(hardware) if kind == "achievable" else datasheet_ceilings(hardware)


def _bound(
    phase: Phase, dtypes: Dtypes, hardware: HardwareSection | None, kind: str
) -> tuple[Bound | None, str | None]:
    if hardware is None:
        return None, "the hardware is not known"
    ceilings = ceilings_of(hardware, kind)
    reason = missing_ceiling(hardware, ceilings, dtypes, kind)
    if ceilings is None or reason is not None:
        return None, reason
    return bound(phase.total, dtypes, ceilings), None


def _estimate(phase: Phase, dtypes: Dtypes, hardware: HardwareSection | None, operators: Operators) -> Estimate | None:
    ceilings = achievable_ceilings(hardware) if hardware is not None else None
    if hardware is None or ceilings is None:
        return None
    return estimate(
        phase.groups,
        dtypes,
        ceilings,
        operators=operators.count,
        launch_us=hardware.launch_us,
        other_bytes=operators.other_bytes,
        is_synchronous=hardware.name == CPU,
    )
