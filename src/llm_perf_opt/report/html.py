"""report.html: one file that opens offline, styles, script and data inside it.

Where everything of a roofline plot lies, in the units of its SVG.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from llm_perf_opt.analysis.findings.facts import Unknown
from llm_perf_opt.core.units import digits, format_count, format_ms, format_percent
from llm_perf_opt.report.kernel_columns import MEASURED, KernelColumn, Value, script_values
from llm_perf_opt.report.view.kernels import VIEWS, KernelsView
from llm_perf_opt.report.view.report import ReportView
from llm_perf_opt.report.view.roofline import Point, Roof, RooflineView
from llm_perf_opt.report.view.timeline import Jump, TimelineView, Track

WIDTH, HEIGHT = 900, 460
LEFT, RIGHT, TOP, BOTTOM = 74, 18, 16, 52
RADIUS = (4.0, 16.0)
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class RoofLine:
    """A roof as the points of a polyline; the label stands at its right end."""

    kind: str
    label: str
    points: str
    label_y: float


@dataclass(frozen=True, kw_only=True)
class Dot:
    cx: float
    cy: float
    r: float
    point: Point


@dataclass(frozen=True, kw_only=True)
class RooflineLayout:
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    roofs: tuple[RoofLine, ...]
    dots: tuple[Dot, ...]


def layout_roofline(view: RooflineView) -> RooflineLayout:
    axes = _Axes(view)
    # Small dots lie on top of large ones, so that every one can be reached.
    points = sorted(view.points, key=lambda p: -p.weight)
    return RooflineLayout(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        x_ticks=tuple(Tick(at=axes.x(e), label=_power(e)) for e in range(view.x[0], view.x[1] + 1)),
        y_ticks=tuple(Tick(at=axes.y(e), label=_rate(e)) for e in range(view.y[0], view.y[1] + 1)),
        roofs=tuple(_roof(roof, axes, view) for roof in view.roofs),
        dots=tuple(
            Dot(
                cx=axes.x(math.log10(p.intensity)),
                cy=axes.y(math.log10(p.flops_per_s)),
                r=round(RADIUS[0] + (RADIUS[1] - RADIUS[0]) * p.weight, 1) if p.kind == "kernel" else 7.0,
                point=p,
            )
            for p in points
        ),
    )


class _Axes:
    """Powers of ten to SVG units."""

    def __init__(self, view: RooflineView) -> None:
        self._x, self._y = view.x, view.y

    def x(self, exponent: float) -> float:
        share = (exponent - self._x[0]) / (self._x[1] - self._x[0])
        return round(LEFT + share * (WIDTH - RIGHT - LEFT), 1)

    def y(self, exponent: float) -> float:
        share = (exponent - self._y[0]) / (self._y[1] - self._y[0])
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)


def _roof(roof: Roof, axes: _Axes, view: RooflineView) -> RoofLine:
    """From where the slope enters the plot to the ridge, then flat to the right edge."""
    slope, flat = math.log10(roof.bytes_per_s), math.log10(roof.flops_per_s)
    start = max(float(view.x[0]), view.y[0] - slope)
    corners = [(start, start + slope), (flat - slope, flat), (float(view.x[1]), flat)]
    points = " ".join(f"{axes.x(x)},{axes.y(y)}" for x, y in corners)
    return RoofLine(kind=roof.kind, label=roof.label, points=points, label_y=axes.y(flat))


def _power(exponent: int) -> str:
    """10³ as people write it; the powers around one in plain digits."""
    if -2 <= exponent <= 3:
        return f"{10.0**exponent:g}"
    return "10" + str(exponent).translate(SUPERSCRIPT)


def _rate(exponent: int) -> str:
    for name, power in (("P", 15), ("T", 12), ("G", 9), ("M", 6)):
        if exponent >= power:
            return f"{10 ** (exponent - power):g} {name}"
    return _power(exponent)


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
        data=Markup(json_for_script(msgspec.to_builtins(page_data(view)))),
        measured=[column for column in MEASURED if not view.is_bare or _is_filled(column, view)],
        has_modules=any(row.module for row in view.kernels.rows),
        rows_without_script=ROWS_WITHOUT_SCRIPT,
        findings_open=FINDINGS_OPEN,
    )


def _is_filled(column: KernelColumn, view: ReportView) -> bool:
    return any(column.value(row) is not None for row in view.kernels.rows)


def _text(name: str) -> str:
    return (files(PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def json_for_script(data: Any) -> str:
    """JSON that cannot end a script element or start a comment, whatever names it holds."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@dataclass(frozen=True, kw_only=True)
class KernelData:
    """Kernels as the script reads them: `fields` names the values of a row, `units` says how a number is written."""

    totals: Mapping[str, float | None]
    units: Mapping[str, str]
    fields: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, kw_only=True)
class TimelineData:
    """The timeline as the script reads it."""

    length: int
    names: tuple[str, ...]
    classes: tuple[str, ...]
    jumps: tuple[Jump, ...]
    tracks: tuple[Track, ...]


@dataclass(frozen=True, kw_only=True)
class PageData:
    """What the script draws from."""

    kernels: KernelData
    timeline: TimelineData | None


def page_data(view: ReportView) -> PageData:
    return PageData(kernels=_kernels(view.kernels), timeline=_timeline(view.timeline))


def _kernels(view: KernelsView) -> KernelData:
    rows = [script_values(row) for row in view.rows]
    return KernelData(
        totals=dict(zip(VIEWS, view.totals_ms, strict=True)),
        units={column.key: column.unit for column in MEASURED if column.unit is not None},
        fields=tuple(rows[0]) if rows else (),
        rows=tuple(tuple(_short(value) for value in row.values()) for row in rows),
    )


def _short(value: Value) -> Value:
    """Six digits are more than anybody reads."""
    if value is None or isinstance(value, str):
        return value
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _timeline(view: TimelineView) -> TimelineData | None:
    if view.missing is not None:
        return None
    return TimelineData(
        length=view.length_ns,
        names=view.names,
        classes=view.classes,
        jumps=view.jumps,
        tracks=view.tracks,
    )
