"""report.html: one file that opens offline, styles, script and data inside it."""

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from llm_perf_opt.analysis.findings.facts import Unknown
from llm_perf_opt.report.roofline_layout import layout_roofline
from llm_perf_opt.report.units import digits, format_count, format_ms, format_percent
from llm_perf_opt.report.view.kernels import KernelRowView, KernelsView
from llm_perf_opt.report.view.report import ReportView
from llm_perf_opt.report.view.timeline import TimelineView

PACKAGE = "llm_perf_opt.report"
ROWS_WITHOUT_SCRIPT = 40
FINDINGS_OPEN = 3


def render_html(view: ReportView) -> str:
    """The page. Texts are escaped by the template; only our own style, script and packed data go in as they are."""
    environment = Environment(
        loader=PackageLoader(PACKAGE, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"ms": format_ms, "percent": format_percent, "digits": digits, "count": format_count}
    environment.tests["missing"] = lambda value: isinstance(value, Unknown)
    return environment.get_template("report.html.j2").render(
        view=view,
        layout=layout_roofline(view.roofline),
        style=Markup(_text("report.css")),
        script=Markup(_text("report.js")),
        data=Markup(json_for_script(page_data(view))),
        has_modules=any(row.module for row in view.kernels.rows),
        rows_without_script=ROWS_WITHOUT_SCRIPT,
        findings_open=FINDINGS_OPEN,
    )


def _text(name: str) -> str:
    return (files(PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def json_for_script(data: Any) -> str:
    """JSON that cannot end a script element or start a comment, whatever names it holds."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def page_data(view: ReportView) -> dict[str, Any]:
    """What the script draws from."""
    return {"kernels": _kernels(view.kernels), "timeline": _timeline(view.timeline)}


def _kernels(view: KernelsView) -> dict[str, Any]:
    return {"totals": view.totals_ms, "rows": [_row(row) for row in view.rows]}


def _row(row: KernelRowView) -> list[Any]:
    """Columns in the order the script knows them."""
    numbers = (row.mean_us, row.roof_pct, row.dram_bytes_per_s, row.flop_per_s, row.occupancy_pct, row.floor_us)
    return [
        row.short_name,
        row.name if row.name != row.short_name else 0,
        row.kernel_class,
        [_short(v) for v in row.time_ms],
        [_short(v) for v in row.launches],
        row.bound,
        [_short(v) for v in numbers],
        row.module or 0,
        row.limiter or 0,
        row.advice or 0,
    ]


def _short(value: float | None) -> float | int | None:
    """Six digits are more than anybody reads."""
    if value is None:
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _timeline(view: TimelineView) -> dict[str, Any] | None:
    if view.missing is not None:
        return None
    return {
        "length": view.length_ns,
        "names": view.names,
        "classes": view.classes,
        "jumps": view.jumps,
        "tracks": [[t.label, t.kind, t.depth, t.count, t.data] for t in view.tracks],
    }
