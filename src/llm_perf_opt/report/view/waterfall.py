"""Waterfall: the steps of each phase, laid out on one scale."""

from dataclasses import dataclass

from llm_perf_opt.analysis.findings.facts import Unknown
from llm_perf_opt.analysis.findings.waterfall import KnownStep, UnknownStep, Waterfall
from llm_perf_opt.core.units import format_factor, format_ms

# Narrower bars would vanish on the screen.
MIN_WIDTH_PCT = 0.25


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """One step. `left_pct` and `width_pct` place its bar; without `missing` all texts are set."""

    key: str
    label: str
    kind: str
    left_pct: float
    width_pct: float
    total: str
    added: str
    factor: str
    how: str
    source: str | None
    is_estimate: bool
    missing: Unknown | None = None


@dataclass(frozen=True, kw_only=True)
class WaterfallView:
    """One phase."""

    phase: str
    title: str
    per: str
    rows: tuple[BarRow, ...]
    summary: str
    notes: tuple[str, ...]


def waterfall_view(waterfall: Waterfall) -> WaterfallView:
    known = [step for step in waterfall.steps if isinstance(step, KnownStep)]
    scale = max((step.to_ms for step in known), default=0.0)
    return WaterfallView(
        phase=waterfall.phase,
        title=f"{waterfall.phase.capitalize()}, {waterfall.per}",
        per=waterfall.per,
        rows=tuple(_row(step, scale) for step in waterfall.steps),
        summary=_summary(waterfall),
        notes=waterfall.notes,
    )


def _row(step: KnownStep | UnknownStep, scale: float) -> BarRow:
    if isinstance(step, UnknownStep):
        return BarRow(
            key=step.key,
            label=step.label,
            kind=step.kind,
            left_pct=0.0,
            width_pct=0.0,
            total="unknown",
            added="",
            factor="",
            how="",
            source=None,
            is_estimate=False,
            missing=step.why,
        )
    low, high = min(step.from_ms, step.to_ms), max(step.from_ms, step.to_ms)
    left = 100 * low / scale if scale > 0 else 0.0
    width = max(100 * (high - low) / scale if scale > 0 else 0.0, MIN_WIDTH_PCT)
    is_first = step.from_ms == 0
    sign = "+" if step.delta_ms >= 0 else "−"
    return BarRow(
        key=step.key,
        label=step.label,
        kind=step.kind,
        left_pct=min(left, 100 - MIN_WIDTH_PCT),
        width_pct=min(width, 100 - min(left, 100 - MIN_WIDTH_PCT)),
        total=format_ms(step.to_ms),
        added="" if is_first else f"{sign}{format_ms(abs(step.delta_ms))}",
        factor="" if is_first or step.factor is None else format_factor(step.factor),
        how=step.how,
        source=step.source,
        is_estimate=step.is_estimate,
    )


def _summary(waterfall: Waterfall) -> str:
    """One sentence for those who do not see the bars."""
    wall = waterfall.known("wall")
    bound = waterfall.known("achievable") or waterfall.known("datasheet")
    if wall is None:
        return "The clean wall time is not known."
    if bound is None or bound.to_ms <= 0:
        return f"{format_ms(wall.to_ms)} {waterfall.per}; the bound is not known."
    factor = format_factor(wall.to_ms / bound.to_ms)
    text = f"{format_ms(wall.to_ms)} {waterfall.per}, {factor} the bound of {format_ms(bound.to_ms)}"
    if waterfall.idle_share is not None:
        text += f"; the GPU idles {100 * waterfall.idle_share:.0f} % of it"
    return text + "."
