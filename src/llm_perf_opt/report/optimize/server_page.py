"""optimize.html of a server's settings: the frontier, each flag's gain, every configuration, what to start."""

from dataclasses import dataclass

from markupsafe import Markup

from llm_perf_opt.optimize.server.configuration_rows import FRONTIER_Y, WORST_FIRST, frontier_axis
from llm_perf_opt.optimize.server.server_document import SERVER_UNITS, ConfigurationRow, OptimizeServerDocument
from llm_perf_opt.report.compare.compare_page import page_environment, style_sheet
from llm_perf_opt.report.draw import LoadPoint, trade_svg
from llm_perf_opt.report.optimize.server_text import (
    FLAG_COLUMNS,
    FLAG_RIGHT,
    LEGEND,
    ROW_COLUMNS,
    ROW_RIGHT,
    details,
    facts_text,
    flag_cells,
    option_text,
    row_cells,
)

CHIP = {
    "start": "skipped",
    "screened": "skipped",
    "verified": "ok",
    "not better": "skipped",
    "wrong": "failed",
    "over a limit": "failed",
    "failed": "failed",
}


@dataclass(frozen=True, kw_only=True)
class ShownConfiguration:
    """A row of the table, and what it opens to."""

    cells: tuple[str, ...]
    chip: str
    details: str


def render_server_page(found: OptimizeServerDocument) -> str:
    """The page; texts are escaped by the template."""
    return (
        page_environment()
        .get_template("optimize_server.html.j2")
        .render(
            found=found,
            tone="good" if found.best is not None else "warn",
            facts=facts_text(found),
            chart=_chart(found),
            legend=LEGEND,
            columns=ROW_COLUMNS,
            right=[ROW_COLUMNS.index(name) for name in ROW_RIGHT],
            rows=[_shown(row, found.objective) for row in found.configurations],
            flag_columns=FLAG_COLUMNS,
            flag_right=[FLAG_COLUMNS.index(name) for name in FLAG_RIGHT],
            flags=[flag_cells(one) for one in found.flags],
            options=[(one.flag, option_text(one)) for one in found.options],
            style=style_sheet(),
        )
    )


def _shown(row: ConfigurationRow, objective: str) -> ShownConfiguration:
    return ShownConfiguration(cells=row_cells(row, objective), chip=CHIP[row.status], details=details(row))


def _chart(found: OptimizeServerDocument) -> Markup | None:
    """Every configuration that ran, its answers as they should be; the frontier is joined."""
    x = frontier_axis(found.configurations)
    rows = [
        row
        for row in found.configurations
        if row.status not in WORST_FIRST and x in row.metrics and FRONTIER_Y in row.metrics
    ]
    if len(rows) < 2:
        return None

    def point(row: ConfigurationRow) -> LoadPoint:
        return LoadPoint(x=row.metrics[x], y_ms=row.metrics[FRONTIER_Y], label=row.name)

    best = sorted((point(row) for row in rows if row.on_frontier), key=lambda one: one.x)
    others = [point(row) for row in rows if not row.on_frontier]
    title = "Throughput against the median time of a request"
    # Labels are escaped where the drawing is made.
    return Markup(
        trade_svg({"frontier": best}, x_text=f"{x} ({SERVER_UNITS[x]})", title=title, others=others, is_inline=True)
    )
