"""compare.html: one file that opens offline, with both timelines one above the other on one scale."""

from dataclasses import dataclass
from html import escape
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.window import TimelineWindow
from llm_perf_opt.comparison.comparison import CompareDocument, MetricComparison
from llm_perf_opt.comparison.differences import DifferenceWaterfall, StepKind
from llm_perf_opt.core.units import format_ms, format_ms_in_column
from llm_perf_opt.report.compare.compare_text import (
    FORCED,
    KERNEL_COLUMNS,
    ROW_COLUMNS,
    about_rows,
    changed_kernels,
    gate_words,
    kernel_cells,
    metric_notes,
    metric_table,
    row_cells,
    signed_ms,
    value_notes,
    verdict_words,
)
from llm_perf_opt.report.render.glossary import heading, upper_first, words

PACKAGE = "llm_perf_opt.report"
TONE = {"better": "good", "same": "good", "worse": "bad", "failed": "bad"}
KERNELS, ROWS = 200, 40
# Of a timeline; a page with more rectangles scrolls badly.
MOST_KERNELS = 4000
WIDTH, LANE = 1240, 18
BAR_KIND: dict[StepKind, str] = {
    "kernel": "work",
    "module": "work",
    "overlap": "bound",
    "idle": "idle",
    "rest": "unexplained",
}


@dataclass(frozen=True, kw_only=True)
class IntervalBar:
    """A metric's interval on the scale of all, in percent of the width; `zero` is where nothing changed."""

    cells: tuple[str, ...]
    left: float
    width: float
    at: float
    zero: float
    known: bool


@dataclass(frozen=True, kw_only=True)
class StepBar:
    label: str
    added: str
    total: str
    kind: str
    left: float
    width: float


@dataclass(frozen=True, kw_only=True)
class WaterfallBars:
    title: str
    bars: tuple[StepBar, ...]


def render_page(found: CompareDocument, timelines: tuple[TimelineWindow | None, TimelineWindow | None]) -> str:
    """The page; texts are escaped by the template."""
    changed = changed_kernels(found.kernels)
    tables = {
        name: [row_cells(name, row) for row in rows if row.difference][:ROWS] for name, rows in found.tables.items()
    }
    return (
        page_environment()
        .get_template("compare.html.j2")
        .render(
            found=found,
            tone=TONE.get(found.verdict, "warn"),
            verdict=verdict_words(found),
            title=page_title(found),
            subject=page_subject(found),
            about=about_rows(found),
            forced=FORCED,
            metrics=interval_bars(found.metrics),
            metric_columns=metric_table(found.metrics)[0],
            metric_notes=[*value_notes(found.metrics), *metric_notes(found.metrics)],
            gates=[(gate, gate_words(gate)) for gate in found.gates],
            waterfalls=[waterfall_bars(w) for w in found.waterfalls],
            kernel_columns=KERNEL_COLUMNS,
            kernels=[(kernel_cells(row), row) for row in changed[:KERNELS]],
            kernels_left_out=max(0, len(changed) - KERNELS),
            row_columns=ROW_COLUMNS,
            tables={name: rows for name, rows in tables.items() if rows},
            timelines=Markup(timeline_pair(found, timelines)),
            style=style_sheet(),
        )
    )


def page_title(found: CompareDocument) -> str:
    """What a tab or a subject line needs: the verdict of what."""
    return f"{verdict_words(found)}: {page_subject(found)}"


def page_subject(found: CompareDocument) -> str:
    """What was run; of captures, which know their device alone, the two files."""
    return found.what if found.what and found.base.passes else f"{found.base.name} → {found.candidate.name}"


def page_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(PACKAGE, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"heading": heading, "words": words, "upper_first": upper_first}
    return environment


def style_sheet() -> Markup:
    return Markup((files(PACKAGE) / "templates" / "report.css").read_text(encoding="utf-8"))


def interval_bars(metrics: tuple[MetricComparison, ...]) -> list[IntervalBar]:
    """All intervals on one scale around no change."""
    edges = [value for row in metrics for value in (row.low, row.high, row.ratio) if value is not None]
    reach = max((abs(value - 1) for value in edges), default=0.0) or 0.01

    def place(ratio: float) -> float:
        return round(50 + 48 * (ratio - 1) / reach, 2)

    return [
        IntervalBar(
            cells=cells,
            left=place(row.low if row.low is not None else row.ratio),
            width=0.0 if row.low is None or row.high is None else place(row.high) - place(row.low),
            at=place(row.ratio),
            zero=50.0,
            known=row.low is not None,
        )
        for row, cells in zip(metrics, metric_table(metrics)[1], strict=True)
    ]


def waterfall_bars(found: DifferenceWaterfall) -> WaterfallBars:
    """Bars from the base to the candidate; each begins where the one before it ends."""
    totals = [found.base_ms]
    for step in found.steps:
        totals.append(totals[-1] + step.difference_ms)
    low, high = min(*totals, 0.0), max(*totals, found.candidate_ms)
    scale = 100 / ((high - low) or 1.0)
    places = 3 if high < 1000 else 1

    def bar(label: str, kind: str, start: float, end: float, added: str, total: float) -> StepBar:
        left = (min(start, end) - low) * scale
        width = abs(end - start) * scale
        return StepBar(
            label=label,
            added=added,
            total=format_ms_in_column(total, places=places),
            kind=kind,
            left=round(left, 2),
            width=round(width, 2),
        )

    bars = [bar("base", "wall", 0.0, found.base_ms, "", found.base_ms)]
    for step, start, end in zip(found.steps, totals, totals[1:], strict=False):
        added = signed_ms(step.difference_ms, places=places)
        bars.append(bar(step.label, BAR_KIND[step.kind], start, end, added, end))
    bars.append(bar("candidate", "wall", 0.0, found.candidate_ms, "", found.candidate_ms))
    return WaterfallBars(title=found.title, bars=tuple(bars))


def timeline_pair(found: CompareDocument, timelines: tuple[TimelineWindow | None, TimelineWindow | None]) -> str:
    """Both windows on one scale, the base above."""
    drawn = [(side, window) for side, window in zip((found.base, found.candidate), timelines, strict=True) if window]
    length = max((window.window_ns[1] - window.window_ns[0] for _, window in drawn), default=0)
    if len(drawn) < 2 or not length:
        return ""
    parts = []
    for side, window in drawn:
        shown = format_ms((window.window_ns[1] - window.window_ns[0]) / 1e6)
        part = f"{shown} of it; {window.left_out:,} events after them are not drawn" if window.left_out else shown
        parts.append(f"<h3>{escape(side.name)}</h3><p class='small muted'>{part}, from {escape(window.source)}</p>")
        parts.append(_timeline_svg(window, length))
    return "".join(parts)


def _timeline_svg(window: TimelineWindow, length_ns: int) -> str:
    scale = WIDTH / length_ns
    lanes = max(len(window.streams), 1)
    boxes = []
    for start, end, _, name in window.ranges[:MOST_KERNELS]:
        boxes.append(_box(start, end, 0, scale, "none", window.names[name], outline=True))
    # The longest, so that what is left out is what could hardly be seen.
    longest = sorted(window.kernels, key=lambda kernel: kernel[0] - kernel[1])[:MOST_KERNELS]
    for start, end, lane, name, kind in longest:
        colour = f"var(--c-{window.classes[kind].replace(' ', '-')})"
        boxes.append(_box(start, end, lane + 1, scale, colour, short_kernel_name(window.names[name])))
    height = (lanes + 1) * LANE
    left_out = max(0, len(window.kernels) - MOST_KERNELS)
    note = f"<p class='small muted'>The {left_out:,} shortest kernels are not drawn.</p>" if left_out else ""
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" width="100%" role="img" '
        f'aria-label="ranges above, kernels by stream below">{"".join(boxes)}</svg>{note}'
    )


def _box(start: int, end: int, lane: int, scale: float, colour: str, text: str, *, outline: bool = False) -> str:
    x, width = start * scale, max(0.4, (end - start) * scale)
    stroke = ' stroke="var(--muted)" stroke-width="0.6"' if outline else ""
    duration = format_ms((end - start) / 1e6)
    return (
        f'<rect x="{x:.2f}" y="{lane * LANE + 1}" width="{width:.2f}" height="{LANE - 3}" fill="{colour}"{stroke}>'
        f"<title>{escape(text)}: {duration}</title></rect>"
    )
