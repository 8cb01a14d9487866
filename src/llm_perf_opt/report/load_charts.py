"""Drawings of a load test, as SVG: latency over time, and throughput against latency."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from llm_perf_opt.core.units import digits, format_ms
from llm_perf_opt.report.charts import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, legend, svg_page

# At most this many steps up an axis.
LINES = 6


@dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """A point of a sweep: throughput, latency, and the load it was measured at."""

    x: float
    y_ms: float
    label: str


def over_time_svg(
    points: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    unit: str = "ms",
    x_text: str = "seconds since the start of the load, when the request was sent",
) -> str:
    """Seconds since the start against milliseconds (or another unit), a dot for every request, by name."""
    every = [point for group in points.values() for point in group]
    axes = _Linear.up_to(max((x for x, _ in every), default=1.0), max((y for _, y in every), default=1.0))
    body = axes.grid(x_text=x_text, unit=unit)
    for index, group in enumerate(points.values()):
        colour = COLOURS[index % len(COLOURS)]
        body += [
            f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="2.6" fill="{colour}" fill-opacity="0.6"/>'
            for x, y in group
        ]
    return svg_page(title, [*body, *legend(list(points))])


def trade_svg(lines: Mapping[str, Sequence[LoadPoint]], *, x_text: str, title: str) -> str:
    """Throughput against latency, the points of each name joined in the order of the load."""
    every = [point for group in lines.values() for point in group]
    axes = _Linear.up_to(max((p.x for p in every), default=1.0), max((p.y_ms for p in every), default=1.0))
    body = axes.grid(x_text=x_text)
    for index, group in enumerate(lines.values()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{axes.x(p.x):.1f},{axes.y(p.y_ms):.1f}" for p in group)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        for point in group:
            at = f'"{axes.x(point.x):.1f}" cy="{axes.y(point.y_ms):.1f}"'
            text = f"{point.label}: {digits(point.x)}, {format_ms(point.y_ms)}"
            body.append(f'<circle cx={at} r="4" fill="{colour}"><title>{escape(text)}</title></circle>')
    for point in next(iter(lines.values()), ()):
        # To the left of a point near the edge, where it would be cut off on its right.
        is_last = point.x > 0.8 * axes.x_top
        x, anchor = axes.x(point.x) + (-8 if is_last else 6), "end" if is_last else "start"
        y = axes.y(point.y_ms) - 6
        body.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(point.label)}</text>')
    return svg_page(title, [*body, *legend(list(lines))])


def frontier_svg(best: Sequence[LoadPoint], others: Sequence[LoadPoint], *, x_text: str, title: str) -> str:
    """Configurations by throughput and latency; those of the frontier are joined and named."""
    every = [*best, *others]
    axes = _Linear.up_to(max((p.x for p in every), default=1.0), max((p.y_ms for p in every), default=1.0))
    body = axes.grid(x_text=x_text)
    path = " ".join(f"{axes.x(p.x):.1f},{axes.y(p.y_ms):.1f}" for p in best)
    body.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.4"/>')
    for points, colour in ((others, COLOURS[-1]), (best, COLOURS[0])):
        for point in points:
            text = escape(f"{point.label}: {digits(point.x)}, {format_ms(point.y_ms)}")
            x, y = axes.x(point.x), axes.y(point.y_ms)
            body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"><title>{text}</title></circle>')
    for point in best:
        is_last = point.x > 0.6 * axes.x_top
        x, anchor = axes.x(point.x) + (-8 if is_last else 6), "end" if is_last else "start"
        y = axes.y(point.y_ms) - 7
        body.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(point.label)}</text>')
    return svg_page(title, [*body, *legend(["frontier"])])


@dataclass(frozen=True, kw_only=True)
class _Linear:
    """Both axes from zero in round steps."""

    x_step: float
    y_step: float
    x_count: int
    y_count: int

    @classmethod
    def up_to(cls, x: float, y: float) -> "_Linear":
        """The smallest that holds both values."""
        x_step, y_step = round_step(x), round_step(y)
        return cls(
            x_step=x_step,
            y_step=y_step,
            x_count=max(1, math.ceil(x / x_step - 1e-9)),
            y_count=max(1, math.ceil(y / y_step - 1e-9)),
        )

    @property
    def x_top(self) -> float:
        return self.x_step * self.x_count

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - RIGHT - LEFT) * value / self.x_top

    def y(self, value_ms: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value_ms / (self.y_step * self.y_count)

    def grid(self, *, x_text: str, unit: str = "ms") -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        body = []
        for part in range(self.y_count + 1):
            y = self.y(self.y_step * part)
            text = f"{self.y_step * part:,g} {unit}".strip()
            body.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
            body.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for part in range(self.x_count + 1):
            x = self.x_step * part
            body.append(f'<text x="{self.x(x):.1f}" y="{bottom + 16}" text-anchor="middle">{x:,g}</text>')
        centre = (LEFT + right) / 2
        body.append(f'<text x="{centre}" y="{bottom + 34}" text-anchor="middle">{escape(x_text)}</text>')
        return body


def round_step(top: float) -> float:
    """A step of 1, 2 or 5 times a power of ten, of which at most six reach so far; 1 where there is nothing."""
    if not top > 0 or not math.isfinite(top):
        return 1.0
    size = 10.0 ** math.floor(math.log10(top / LINES))
    return next(factor * size for factor in (1, 2, 5, 10) if factor * size >= top / LINES * (1 - 1e-9))
