"""optimize.html: one file that opens offline."""

from dataclasses import dataclass

from llm_perf_opt.core.units import format_factor, format_quantity
from llm_perf_opt.optimize.optimize_document import HIGHER_IS_BETTER, UNITS, ExperimentRow, OptimizeDocument
from llm_perf_opt.report.compare.compare_page import page_environment, style_sheet
from llm_perf_opt.report.optimize.optimize_text import (
    CALIBRATION_COLUMNS,
    COLUMNS,
    DEFECT,
    RIGHT,
    calibration_cells,
    defects,
    detail_parts,
    distance_words,
    row_cells,
    set_words,
)

CHIP = {
    "helped": "ok",
    "no gain": "skipped",
    "slower": "skipped",
    "wrong": "failed",
    "over a limit": "failed",
    "failed": "failed",
    "not tried": "skipped",
}


@dataclass(frozen=True, kw_only=True)
class FallBar:
    """One bar of the way from start to best; what a step saved is drawn from the old value to the new one."""

    label: str
    title: str
    value: str
    gain: str
    kind: str
    left: float
    width: float


@dataclass(frozen=True, kw_only=True)
class GainBar:
    """An experiment on the scale of all gains: its interval, its estimate, and the bound it was promised."""

    row: ExperimentRow
    cells: tuple[str, ...]
    chip: str
    left: float
    width: float
    at: float | None
    bound_at: float | None
    none_at: float


def render_page(found: OptimizeDocument) -> str:
    """The page; texts are escaped by the template."""
    tried = [row for row in found.experiments if row.status != "not tried"]
    return (
        page_environment()
        .get_template("optimize.html.j2")
        .render(
            found=found,
            tone="good" if found.best is not None else "warn",
            fall=fall_bars(found),
            columns=COLUMNS,
            right=[COLUMNS.index(name) for name in RIGHT],
            bars=gain_bars(tried, found.objective),
            details={row.name: detail_parts(row) for row in tried},
            passed=[row for row in found.experiments if row.status == "not tried"],
            settings=set_words(found),
            distance=distance_words(found),
            calibration_columns=CALIBRATION_COLUMNS,
            calibration=[calibration_cells(rule) for rule in found.calibration],
            defects=[rule.rule for rule in defects(found)],
            defect=DEFECT,
            style=style_sheet(),
        )
    )


def fall_bars(found: OptimizeDocument) -> list[FallBar]:
    """The start, each verified step, the best, and the bound of the hardware."""
    if not found.path:
        return []
    unit = UNITS[found.objective]
    far = found.distance
    top = max([step.value for step in found.path] + ([far.bound] if far else []))

    def bar(label: str, title: str, low: float, high: float, value: float, gain: str, kind: str) -> FallBar:
        left, width = 100 * low / top, 100 * (high - low) / top
        return FallBar(
            label=label,
            title=title,
            value=format_quantity(value, unit),
            gain=gain,
            kind=kind,
            left=round(left, 2),
            width=round(max(width, 0.3), 2),
        )

    first, last = found.path[0], found.path[-1]
    bars = [bar(first.name, first.title, 0.0, first.value, first.value, "", "wall")]
    for before, step in zip(found.path, found.path[1:], strict=False):
        low, high = sorted((before.value, step.value))
        gain = "" if step.gain is None else format_factor(step.gain)
        bars.append(bar(step.name, step.title, low, high, step.value, gain, "idle"))
    if len(found.path) > 1:
        total = "" if found.gain is None else format_factor(found.gain)
        bars.append(bar("best", "all of it together", 0.0, last.value, last.value, total, "work"))
    if far is not None and found.objective not in HIGHER_IS_BETTER:
        bars.append(bar("bound", far.how, 0.0, far.bound, far.bound, "", "bound"))
    return bars


def gain_bars(rows: list[ExperimentRow], objective: str) -> list[GainBar]:
    """On one scale from nothing to the largest gain; bounds beyond it end at its edge."""
    gains = [row.total_gain for row in rows if row.total_gain is not None]
    top = 1.15 * max([*gains, 1.0])

    def place(gain: float) -> float:
        return round(min(100.0, 100 * gain / top), 2)

    found = []
    for row in rows:
        known = row.total_interval(objective)
        left = 0.0 if known is None else place(known[0])
        found.append(
            GainBar(
                row=row,
                cells=row_cells(row, objective),
                chip=CHIP[row.status],
                left=left,
                width=0.0 if known is None else max(0.4, place(known[1]) - left),
                at=None if row.total_gain is None else place(row.total_gain),
                bound_at=None if row.bound is None or row.bound.gain is None else place(row.bound.gain),
                none_at=place(1.0),
            )
        )
    return found
