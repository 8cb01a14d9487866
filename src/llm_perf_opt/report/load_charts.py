"""Drawings of a load test, as SVG: latency over time, and throughput against latency."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from llm_perf_opt.core.units import digits, format_ms
from llm_perf_opt.report.charts import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, legend, svg_page

LINES = 5


@dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """A point of a sweep: throughput, latency, and the load it was measured at."""

    x: float
    y_ms: float
    label: str


def over_time_svg(points: Mapping[str, Sequence[tuple[float, float]]], *, title: str) -> str:
    """Seconds since the start against milliseconds, a dot for every request, by name."""
    every = [point for group in points.values() for point in group]
    axes = _Linear(x_top=max((x for x, _ in every), default=1.0), y_top=max((y for _, y in every), default=1.0))
    body = axes.grid(x_text="seconds since the start of the load, when the request was sent")
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
    axes = _Linear(x_top=max((p.x for p in every), default=1.0), y_top=max((p.y_ms for p in every), default=1.0))
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
        body.append(
            f'<text x="{axes.x(point.x) + 6:.1f}" y="{axes.y(point.y_ms) - 6:.1f}">{escape(point.label)}</text>'
        )
    return svg_page(title, [*body, *legend(list(lines))])


@dataclass(frozen=True, kw_only=True)
class _Linear:
    """Both axes from zero."""

    x_top: float
    y_top: float

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - RIGHT - LEFT) * value / (self.x_top or 1.0)

    def y(self, value_ms: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value_ms / (self.y_top or 1.0)

    def grid(self, *, x_text: str) -> list[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        body = []
        for part in range(LINES):
            x, y = self.x_top * part / (LINES - 1), self.y_top * part / (LINES - 1)
            body.append(f'<line x1="{LEFT}" y1="{self.y(y):.1f}" x2="{right}" y2="{self.y(y):.1f}" stroke="#ddd"/>')
            body.append(f'<text x="{LEFT - 6}" y="{self.y(y) + 4:.1f}" text-anchor="end">{format_ms(y)}</text>')
            body.append(f'<text x="{self.x(x):.1f}" y="{bottom + 16}" text-anchor="middle">{digits(x)}</text>')
        centre = (LEFT + right) / 2
        body.append(f'<text x="{centre}" y="{bottom + 34}" text-anchor="middle">{escape(x_text)}</text>')
        return body
