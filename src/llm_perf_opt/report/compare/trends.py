"""Pages of many runs: a table, and drawings of numbers over time or over the keys of a sweep."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from llm_perf_opt.core.units import format_quantity
from llm_perf_opt.report.charts import COLOURS
from llm_perf_opt.report.compare.page import page_environment, style_sheet

WIDTH, HEIGHT = 620, 300
RIGHT, TOP, BOTTOM = 16, 16, 56
# A letter at this size of text, and the room an axis has alongside its words.
LETTER, BESIDE = 6.8, 14
TICKS = 4
# Words on the axis of a key that is not a number.
LONGEST_WORD = 18


@dataclass(frozen=True, kw_only=True)
class ChartPoint:
    """One run in a drawing: where it lies, its spread, and what is reported of it. `x` is a number or a word."""

    x: float | str
    y: float
    low: float | None
    high: float | None
    group: str
    text: str
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    x_label: str
    y_unit: str
    points: tuple[ChartPoint, ...]
    connect: bool = True


@dataclass(frozen=True, kw_only=True)
class RunsTable:
    """Rows of text under columns; `marked` are the rows to point out, `links` their reports, where there are any."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...]
    marked: tuple[int, ...] = ()
    links: tuple[str | None, ...] = ()


def render_runs_page(
    *, title: str, sentence: str, table: RunsTable, charts: Sequence[Chart], notes: Sequence[str] = ()
) -> str:
    """A page with a table and drawings."""
    drawn = [(chart, Markup(chart_svg(chart))) for chart in charts if chart.points]
    return (
        page_environment()
        .get_template("runs.html.j2")
        .render(title=title, sentence=sentence, table=table, charts=drawn, notes=notes, style=style_sheet())
    )


def report_link(run: str, page: Path) -> str | None:
    """From a page to the report of a run; None where there is none, or the run is in a store."""
    report = Path(run) / "report.html"
    if "://" in run or not report.is_file():
        return None
    return quote(Path(os.path.relpath(report.resolve(), page.resolve().parent)).as_posix())


def chart_svg(chart: Chart) -> str:
    """Points with their spread; those of a group joined by a line, in the order they come."""
    values = [v for p in chart.points for v in (p.y, p.low, p.high) if v is not None]
    low, high = min(0.0, *values), max(values) or 1.0
    steps = [low + (high - low) * step / TICKS for step in range(TICKS + 1)]
    labels = [format_quantity(value, chart.y_unit) for value in steps]
    left = BESIDE + LETTER * max(map(len, labels))
    xs, ticks = _x_places([point.x for point in chart.points], left)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / ((high - low) or 1.0)

    body = []
    for value, text in zip(steps, labels, strict=True):
        ends = f'x1="{left:.1f}" x2="{WIDTH - RIGHT}"'
        body.append(f'<line class="grid" {ends} y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        body.append(f'<text x="{left - 6:.1f}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for at, word in ticks:
        half = LETTER * len(word) / 2
        at = min(max(at, half), WIDTH - half)
        body.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(word)}</text>')
    body.append(
        f'<text x="{(left + WIDTH) / 2:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(chart.x_label)}</text>'
    )
    groups = list(dict.fromkeys(point.group for point in chart.points))
    for number, group in enumerate(groups):
        colour = COLOURS[number % len(COLOURS)]
        mine = [(x, point) for x, point in zip(xs, chart.points, strict=True) if point.group == group]
        if chart.connect and len(mine) > 1:
            line = " ".join(f"{x:.1f},{y(point.y):.1f}" for x, point in mine)
            body.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-opacity="0.5"/>')
        for x, point in mine:
            if point.low is not None and point.high is not None:
                ends = f'y1="{y(point.low):.1f}" y2="{y(point.high):.1f}"'
                body.append(f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{colour}" stroke-opacity="0.6"/>')
            ring = f' stroke="{colour}" stroke-width="6" stroke-opacity="0.35"' if point.marked else ""
            said = f"<title>{escape(point.text)}</title>"
            body.append(f'<circle cx="{x:.1f}" cy="{y(point.y):.1f}" r="4" fill="{colour}"{ring}>{said}</circle>')
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" '
        f'aria-label="{escape(chart.title)}" font-size="12">{"".join(body)}</svg>{_legend(groups)}'
    )


def _legend(groups: Sequence[str]) -> str:
    if len(groups) < 2:
        return ""
    items = [
        f'<li><span class="key" style="background:{COLOURS[i % len(COLOURS)]}"></span> {escape(group)}</li>'
        for i, group in enumerate(groups)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _x_places(values: Sequence[float | str], left: float) -> tuple[list[float], list[tuple[float, str]]]:
    """Where each value lies, and the words below the axis: numbers by size, words side by side."""
    inside = WIDTH - left - RIGHT - 40
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) == len(values) and len(set(numbers)) > 1:
        low, high = min(numbers), max(numbers)
        logarithmic = low > 0 and high / low >= 16

        def share(value: float) -> float:
            if logarithmic:
                return math.log(value / low) / math.log(high / low)
            return (value - low) / (high - low)

        places = [left + 20 + inside * share(value) for value in numbers]
        words_at = [(left + 20 + inside * share(value), f"{value:.4g}") for value in sorted(set(numbers))]
        return places, _apart(words_at)
    words = list(dict.fromkeys(str(value) for value in values))
    gap = inside / max(len(words) - 1, 1)
    at = {word: left + 20 + gap * index for index, word in enumerate(words)}
    return [at[str(value)] for value in values], _apart([(at[word], word[:LONGEST_WORD]) for word in words])


def _apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Without those that would touch the one before."""
    kept: list[tuple[float, str]] = []
    for at, word in ticks:
        if not kept or at - kept[-1][0] > BESIDE + LETTER * (len(word) + len(kept[-1][1])) / 2:
            kept.append((at, word))
    return kept
