"""Drawings for sections, as SVG: work by shape under the GPU's rooflines, and amounts that change over time.

`draw_chart` is also what plug-ins draw with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from llm_perf_opt.core.units import digits, format_bytes, format_ms, si

WIDTH, HEIGHT = 900, 460
LEFT, RIGHT, TOP, BOTTOM = 78, 40, 20, 72
# Okabe and Ito's colours, distinguished by every common kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
RADIUS = (3.5, 15.0)


@dataclass(frozen=True, kw_only=True)
class ScatterPoint:
    """`weight` between 0 and 1 is the area; `text` is reported on hovering."""

    x: float
    y: float
    weight: float
    group: str
    text: str


def scatter_svg(points: Sequence[ScatterPoint], *, roofs: Mapping[str, float], slope: float | None, title: str) -> str:
    """FLOP per byte against FLOP/s, both logarithmic. `roofs` are FLOP/s by name, `slope` bytes/s."""
    xs = [p.x for p in points] + [roof / slope for roof in roofs.values() if slope]
    ys = [p.y for p in points] + list(roofs.values())
    x0, x1 = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)) + 1e-9)
    y0, y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 1e-9)
    axes = _Log(x0=x0, x1=max(x1, x0 + 1), y0=y0, y1=max(y1, y0 + 1))
    groups = list(dict.fromkeys(p.group for p in points))
    body = _log_grid(axes)
    for name, peak in roofs.items():
        body += _roof(axes, name, peak, slope)
    for point in sorted(points, key=lambda p: -p.weight):
        radius = RADIUS[0] + (RADIUS[1] - RADIUS[0]) * math.sqrt(point.weight)
        colour = COLOURS[groups.index(point.group) % len(COLOURS)]
        body.append(
            f'<circle cx="{axes.x(point.x):.1f}" cy="{axes.y(point.y):.1f}" r="{radius:.1f}" fill="{colour}" '
            f'fill-opacity="0.65" stroke="{colour}"><title>{escape(point.text)}</title></circle>'
        )
    return svg_page(title, [*body, *legend(groups)])


def steps_svg(lines: Mapping[str, Sequence[tuple[int, int]]], *, length_ns: int, title: str) -> str:
    """Bytes over time by name: each value holds until the next."""
    top = max((value for points in lines.values() for _, value in points), default=1) or 1
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def x(at_ns: int) -> float:
        return LEFT + (right - LEFT) * at_ns / max(length_ns, 1)

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * value / top

    body = []
    for part in range(5):
        value, at = top * part / 4, length_ns * part // 4
        body.append(f'<line x1="{LEFT}" y1="{y(value):.1f}" x2="{right}" y2="{y(value):.1f}" stroke="#ddd"/>')
        body.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{format_bytes(value)}</text>')
        body.append(f'<text x="{x(at):.1f}" y="{bottom + 16}" text-anchor="middle">{format_ms(at / 1e6)}</text>')
    for index, (name, points) in enumerate(lines.items()):
        colour, path, held = COLOURS[index % len(COLOURS)], [], None
        for at_ns, value in points:
            if held is not None:
                path.append(f"{x(at_ns):.1f},{y(held):.1f}")
            path.append(f"{x(at_ns):.1f},{y(value):.1f}")
            held = value
        if held is not None:
            path.append(f"{right},{y(held):.1f}")
        body.append(
            f'<polyline points="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="1.4">'
            f"<title>{escape(name)}</title></polyline>"
        )
    return svg_page(title, [*body, *legend(list(lines))])


@dataclass(frozen=True, kw_only=True)
class ChartBand:
    """A stretch of a chart that is shaded, from `start` to `end` on its x axis; equal labels have equal colours."""

    start: float
    end: float
    label: str


def draw_chart(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x_unit: str,
    y_unit: str,
    bands: Sequence[ChartBand] = (),
    stacked: bool = False,
) -> str:
    """Amounts over x by name, as SVG: points joined by lines, from zero up.

    Stacked, all lines have the same x values, each holds until the next, and areas are stacked in the order of
    the names. The unit `bytes` is shown with its prefix.
    """
    shown = _stack(lines) if stacked else lines
    xs = [x for points in shown.values() for x, _ in points]
    left, right = min(xs, default=0.0), max(xs, default=1.0)
    top = max((y for points in shown.values() for _, y in points), default=1.0) or 1.0
    bottom, edge = HEIGHT - BOTTOM, WIDTH - RIGHT

    def px(x: float) -> float:
        return LEFT + (edge - LEFT) * (x - left) / ((right - left) or 1.0)

    def py(y: float) -> float:
        return bottom - (bottom - TOP) * y / top

    labels = list(dict.fromkeys(band.label for band in bands))
    tints = {label: COLOURS[-1 - index % len(COLOURS)] for index, label in enumerate(labels)}
    height = bottom - TOP
    body = []
    for band in bands:
        x0, x1 = px(max(band.start, left)), px(min(band.end, right))
        if x1 > x0:
            body.append(
                f'<rect x="{x0:.1f}" y="{TOP}" width="{x1 - x0:.2f}" height="{height}" fill="{tints[band.label]}" '
                f'fill-opacity="0.18"><title>{escape(band.label)}</title></rect>'
            )
    for part in range(5):
        y, x = top * part / 4, left + (right - left) * part / 4
        text = format_bytes(y) if y_unit == "bytes" else f"{digits(y)} {escape(y_unit)}"
        body.append(f'<line x1="{LEFT}" y1="{py(y):.1f}" x2="{edge}" y2="{py(y):.1f}" stroke="#ddd"/>')
        body.append(f'<text x="{LEFT - 6}" y="{py(y) + 4:.1f}" text-anchor="end">{text}</text>')
        body.append(f'<text x="{px(x):.1f}" y="{bottom + 16}" text-anchor="middle">{digits(x)} {escape(x_unit)}</text>')
    for index, (name, points) in reversed(list(enumerate(shown.items()))):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in points)
        named = f"<title>{escape(name)}</title></polyline>"
        if stacked:
            path = f"{px(left):.1f},{bottom} {path} {px(right):.1f},{bottom}"
            body.append(f'<polyline points="{path}" fill="{colour}" stroke="none">{named}')
        else:
            body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4">{named}')
    names = list(lines)
    shades = [(label, tints[label]) for label in labels]
    return svg_page(
        title, [*body, *legend(names), *_band_legend(shades, start=LEFT + sum(34 + 7 * len(n) for n in names))]
    )


def _stack(lines: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """Sums from the first name up, as steps."""
    found: dict[str, list[tuple[float, float]]] = {}
    below: list[float] = []
    for name, points in lines.items():
        below = [y + (below[i] if below else 0.0) for i, (_, y) in enumerate(points)]
        steps: list[tuple[float, float]] = []
        for i, (x, _) in enumerate(points):
            if i:
                steps.append((x, below[i - 1]))
            steps.append((x, below[i]))
        found[name] = steps
    return found


def _band_legend(shades: Sequence[tuple[str, str]], *, start: int) -> list[str]:
    body, at = [], start
    for label, colour in shades:
        body.append(f'<rect x="{at}" y="{HEIGHT - 22}" width="11" height="11" fill="{colour}" fill-opacity="0.35"/>')
        body.append(f'<text x="{at + 16}" y="{HEIGHT - 12}">{escape(label)}</text>')
        at += 34 + 7 * len(label)
    return body


@dataclass(frozen=True, kw_only=True)
class _Log:
    """Decades of both axes."""

    x0: int
    x1: int
    y0: int
    y1: int

    def x(self, value: float) -> float:
        return LEFT + (math.log10(value) - self.x0) / (self.x1 - self.x0) * (WIDTH - RIGHT - LEFT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - self.y0) / (self.y1 - self.y0) * (HEIGHT - BOTTOM - TOP)


def _log_grid(axes: _Log) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    body = []
    for decade in range(axes.x0, axes.x1 + 1):
        at = axes.x(10.0**decade)
        body.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}" stroke="#ddd"/>')
        body.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{digits(10.0**decade, 1)}</text>')
    for decade in range(axes.y0, axes.y1 + 1):
        at = axes.y(10.0**decade)
        body.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" stroke="#ddd"/>')
        body.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{si(10.0**decade, count=3)}</text>')
    middle = (TOP + bottom) / 2
    centre = (LEFT + right) / 2
    body.append(f'<text x="{centre}" y="{bottom + 34}" text-anchor="middle">FLOP per byte of inputs and result</text>')
    body.append(f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">FLOP/s</text>')
    return body


def _roof(axes: _Log, name: str, peak: float, slope: float | None) -> list[str]:
    """Flat at the peak, and the memory's slope up to it."""
    right, left = 10.0**axes.x1, 10.0**axes.x0
    ridge = min(max(peak / slope, left), right) if slope else left
    corners = [(ridge, peak), (right, peak)]
    if slope:
        start = max(left, 10.0**axes.y0 / slope)
        corners = [(start, start * slope), *corners] if start < ridge else corners
    line = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in corners)
    # A halo keeps it readable over the grid.
    label = (
        f'<text x="{WIDTH - RIGHT - 4}" y="{axes.y(peak) - 6:.1f}" text-anchor="end" stroke="#fff" stroke-width="4" '
        f'paint-order="stroke">{escape(name)}</text>'
    )
    return [f'<polyline points="{line}" fill="none" stroke="#444" stroke-dasharray="5 3"/>', label]


def legend(groups: Sequence[str]) -> list[str]:
    """A square and a name for each group, in the order of the colours."""
    body, at = [], LEFT
    for index, name in enumerate(groups):
        body.append(f'<rect x="{at}" y="{HEIGHT - 22}" width="11" height="11" fill="{COLOURS[index % len(COLOURS)]}"/>')
        body.append(f'<text x="{at + 16}" y="{HEIGHT - 12}">{escape(name)}</text>')
        at += 34 + 7 * len(name)
    return body


# On a dark page: the ground, the words, and the lines behind what is drawn.
DARK = (
    "<style>@media (prefers-color-scheme: dark) { svg { fill: #e6ebf0 } rect:first-of-type { fill: #171d24 } "
    'line[stroke="#ddd"] { stroke: #2a333d } [stroke="#444"] { stroke: #9aa7b4 } [stroke="#fff"] { stroke: #171d24 } }'
    "</style>"
)


def svg_page(title: str, body: Sequence[str]) -> str:
    """The drawing around its body."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="14" fill="#222" role="img" aria-label={quoteattr(title)}>\n'
        f'{DARK}\n<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )
