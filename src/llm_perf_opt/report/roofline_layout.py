"""Where everything of a roofline plot lies, in the units of its SVG."""

import math
from dataclasses import dataclass

from llm_perf_opt.report.view.roofline import Point, Roof, RooflineView

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
