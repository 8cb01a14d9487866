"""Positions of everything in a roofline plot, in the units of its SVG; names are placed where they overlap nothing."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.report.view.roofline_view import Point, Roof, RooflineView
from llm_perf_opt.system.terminal import cut_text

WIDTH, HEIGHT = 900, 460
LEFT, RIGHT, TOP, BOTTOM = 74, 18, 16, 52
RADIUS = (4.0, 16.0)
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# The heaviest kernels are named where there is room.
NAMED, LONGEST_NAME = 10, 30
TEXT_HEIGHT, CHARACTER = 12.0, 6.4
Box = tuple[float, float, float, float]
Segment = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class RoofLine:
    """A peak as the points of a polyline; the label is at its right end."""

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
class Label:
    """The name of a point; `hides` are the classes that fade it with its phase."""

    kind: str
    text: str
    x: float
    y: float
    anchor: str
    hides: str


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
    labels: tuple[Label, ...]


def layout_roofline(view: RooflineView) -> RooflineLayout:
    axes = _Axes(view)
    # Small dots lie on top of large ones, so that every one can be reached.
    dots = [_dot(p, axes) for p in sorted(view.points, key=lambda p: -p.weight)]
    corners = [_corners(roof, axes, view) for roof in view.roofs]
    room = _Room(
        lines=[(*a, *b) for line in corners for a, b in itertools.pairwise(line)],
        dots=[(d.cx, d.cy, d.r + 2) for d in dots],
    )
    return RooflineLayout(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        x_ticks=tuple(Tick(at=axes.x(e), label=_power(e)) for e in range(view.x[0], view.x[1] + 1)),
        y_ticks=tuple(Tick(at=axes.y(e), label=_rate(e)) for e in range(view.y[0], view.y[1] + 1)),
        roofs=tuple(_roof(roof, line, room) for roof, line in zip(view.roofs, corners, strict=True)),
        dots=tuple(dots),
        labels=tuple(_labels(dots, room)),
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


class _Room:
    """What is taken already: lines, dots and texts."""

    def __init__(self, lines: Sequence[Segment], dots: Sequence[tuple[float, float, float]]) -> None:
        self._lines, self._dots = lines, dots
        self._texts: list[Box] = []

    def is_free(self, box: Box, *, own: tuple[float, float] | None = None) -> bool:
        left, top, right, bottom = box
        if left < LEFT or right > WIDTH - RIGHT or top < TOP or bottom > HEIGHT - BOTTOM:
            return False
        if any(left < r and right > lo and top < b and bottom > t for lo, t, r, b in self._texts):
            return False
        if any(_crosses(line, box) for line in self._lines):
            return False
        return not any(
            (x, y) != own and left - r < x < right + r and top - r < y < bottom + r for x, y, r in self._dots
        )

    def take(self, box: Box) -> None:
        self._texts.append(box)


def _crosses(line: Segment, box: Box) -> bool:
    """Whether a line, walked in small steps, comes into a box."""
    x0, y0, x1, y1 = line
    steps = max(2, int(math.hypot(x1 - x0, y1 - y0) / 3))
    left, top, right, bottom = box
    return any(
        left - 2 <= x0 + (x1 - x0) * i / steps <= right + 2 and top - 2 <= y0 + (y1 - y0) * i / steps <= bottom + 2
        for i in range(steps + 1)
    )


def _dot(point: Point, axes: _Axes) -> Dot:
    return Dot(
        cx=axes.x(math.log10(point.intensity)),
        cy=axes.y(math.log10(point.flops_per_s)),
        r=round(RADIUS[0] + (RADIUS[1] - RADIUS[0]) * point.weight, 1) if point.kind == "kernel" else 7.0,
        point=point,
    )


def _labels(dots: Sequence[Dot], room: _Room) -> Iterator[Label]:
    """Phases first, then the heaviest kernels; one that would lie on something is left out, its dot says it."""
    phases = [dot for dot in dots if dot.point.kind == "phase"]
    kernels = [dot for dot in dots if dot.point.kind == "kernel"][:NAMED]
    for dot in (*phases, *kernels):
        is_phase = dot.point.kind == "phase"
        text = cut_text(dot.point.phases[0] if is_phase else dot.point.label, LONGEST_NAME)
        width, reach = CHARACTER * len(text), dot.r + (7 if is_phase else 4)
        places = (
            (dot.cx + reach, dot.cy + 4, "start", 0.0),
            (dot.cx - reach, dot.cy + 4, "end", -width),
            (dot.cx, dot.cy - reach, "middle", -width / 2),
            (dot.cx, dot.cy + reach + TEXT_HEIGHT - 2, "middle", -width / 2),
        )
        for x, y, anchor, shift in places:
            box = (x + shift, y - TEXT_HEIGHT + 2, x + shift + width, y + 3)
            if room.is_free(box, own=(dot.cx, dot.cy)):
                room.take(box)
                yield Label(kind=dot.point.kind, text=text, x=x, y=y, anchor=anchor, hides=_hides(dot.point))
                break


def _hides(point: Point) -> str:
    return "".join(f" not-{phase}" for phase in ("prefill", "decode") if point.phases and phase not in point.phases)


def _corners(roof: Roof, axes: _Axes, view: RooflineView) -> list[tuple[float, float]]:
    """From where the slope enters the plot to the ridge, then flat to the right edge."""
    slope, flat = math.log10(roof.bytes_per_s), math.log10(roof.flops_per_s)
    start = max(float(view.x[0]), view.y[0] - slope)
    corners = [(start, start + slope), (flat - slope, flat), (float(view.x[1]), flat)]
    return [(axes.x(x), axes.y(y)) for x, y in corners]


def _roof(roof: Roof, corners: Sequence[tuple[float, float]], room: _Room) -> RoofLine:
    """Its label above the line, or below it where something is above, right of the slopes."""
    y, width = corners[-1][1], CHARACTER * 1.05 * len(roof.label)
    right = WIDTH - RIGHT - 6
    places = (y - 7, *(y + 17 + 16 * step for step in range(6)), y - 23, y - 39)
    boxes = [(right - width, at - TEXT_HEIGHT + 2, right, at + 3) for at in places]
    at, box = next(((a, b) for a, b in zip(places, boxes, strict=True) if room.is_free(b)), (places[1], boxes[1]))
    room.take(box)
    points = " ".join(f"{cx},{cy}" for cx, cy in corners)
    return RoofLine(kind=roof.kind, label=roof.label, points=points, label_y=at)


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
