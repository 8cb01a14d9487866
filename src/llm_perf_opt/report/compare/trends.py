"""Pages of many runs: a table, and drawings of numbers over time or over the keys of a sweep."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from llm_perf_opt.report.compare.compare_page import page_environment, style_sheet
from llm_perf_opt.report.draw import Chart, chart_svg


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
