"""Drawings as SVG: rooflines, amounts over time, dots of a load test, and numbers over the keys of a sweep.

Every one has two axes with round steps and one unit each; a text that would touch another goes elsewhere, or is left
to the tooltip. `draw_chart` is also what plug-ins draw with.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from llm_perf_opt.capture.kernels.ncu_records import NcuKernel
from llm_perf_opt.core.units import digits, format_ms, si

WIDTH, HEIGHT = 900, 460
# What a letter takes, and the room around the axes.
LETTER, RIGHT, TOP, BELOW = 7.4, 40, 20, 72
LEGEND_ROW, TEXT_HEIGHT = 22, 15
# At most this many steps along an axis.
MOST_STEPS = 6
# Okabe and Ito's colours, distinguished by every common kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
RADIUS = (3.5, 15.0)
# The shape repeats what the colour says.
BOUNDS = {
    "compute": ("#D55E00", "square"),
    "memory": ("#0072B2", "circle"),
    "balanced": ("#009E73", "diamond"),
    "latency": ("#CC79A7", "triangle"),
    "unknown": ("#666666", "circle"),
}
# Steps of a thousand that an axis chooses from by its largest value.
SCALES: Mapping[str, Sequence[tuple[float, str]]] = {
    "ms": ((1e4, "s"), (1.0, "ms"), (1e-3, "µs"), (0.0, "ns")),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0.0, "B")),
}
SIZES = {"s": 1e3, "ms": 1.0, "µs": 1e-3, "ns": 1e-6, "TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
LONGEST_WORD = 18


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From `low` to `high`, with a label at some values; `text` says what it is."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    text: str = ""
    is_log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        if self.is_log:
            return math.log10(value / self.low) / math.log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(values: Iterable[float], *, unit: str = "", text: str = "", is_tight: bool = False) -> Axis:
    """Round steps of 1, 2 or 5 that hold zero and every value; tight: from the first value to the last."""
    found = [value for value in values if math.isfinite(value)]
    low, high = min(found, default=0.0), max(found, default=1.0)
    if not is_tight:
        low, high = min(0.0, low), max(0.0, high)
    if high <= low:
        high = low + 1.0
    step = round_step(high - low)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if is_tight:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    else:
        low, high = first * step, last * step
    size, word = _scale(max(abs(low), abs(high)), unit)
    places = max(0, -math.floor(math.log10(step / size) + 1e-9))
    labels = (f"{number * step / size:,.{places}f} {word}".strip() for number in range(first, last + 1))
    return Axis(
        low=low,
        high=high,
        ticks=tuple(zip((number * step for number in range(first, last + 1)), labels, strict=True)),
        text=text,
    )


def log_axis(values: Iterable[float], *, text: str, label: Callable[[float], str]) -> Axis:
    """Whole decades around all values."""
    found = list(values)
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)) + 1e-9)
    high = max(high, low + 1)
    ticks = tuple((10.0**decade, label(10.0**decade)) for decade in range(low, high + 1))
    return Axis(low=10.0**low, high=10.0**high, ticks=ticks, text=text, is_log=True)


def round_step(span: float) -> float:
    """A step of 1, 2 or 5 times a power of ten, of which at most six reach so far; 1 where there is nothing."""
    if not span > 0 or not math.isfinite(span):
        return 1.0
    size = 10.0 ** math.floor(math.log10(span / MOST_STEPS))
    return next(factor * size for factor in (1, 2, 5, 10) if factor * size >= span / MOST_STEPS * (1 - 1e-9))


def _scale(top: float, unit: str) -> tuple[float, str]:
    """The unit of a whole axis and its size."""
    if unit not in SCALES:
        return 1.0, unit
    word = next(word for least, word in SCALES[unit] if top >= least)
    return SIZES[word], word


class Drawing:
    """Two axes with a grid, what is drawn between them, and which places texts have taken."""

    def __init__(self, x_axis: Axis, y_axis: Axis, *, height: int = HEIGHT) -> None:
        self._x, self._y = x_axis, y_axis
        self._height = height
        beside = 20 if y_axis.text else 0
        self.left = 14 + beside + LETTER * max((len(label) for _, label in y_axis.ticks), default=0)
        self.right, self.top, self.bottom = WIDTH - RIGHT, TOP, height - BELOW
        self._texts: list[tuple[float, float, float, float]] = []
        self._segments: list[tuple[float, float, float, float]] = []
        self._body: list[str] = []
        self._grid()

    def x(self, value: float) -> float:
        return self.left + self._x.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self._y.share(value) * (self.bottom - self.top)

    @property
    def corners(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The values at the lower left and at the upper right."""
        return (self._x.low, self._y.low), (self._x.high, self._y.high)

    def add(self, svg: str) -> None:
        self._body.append(svg)

    def write(self, text: str, places: Sequence[tuple[float, float, str]], *, halo: bool = False) -> bool:
        """A text at the first of these places (x, y of its line, anchor) where it touches no other; not cut off."""
        for x, y, anchor in places:
            box = _text_box(text, x, y, anchor)
            free = all(box[2] < a or box[0] > c or box[3] < b or box[1] > d for a, b, c, d in self._texts)
            if box[0] >= 0 and box[2] <= WIDTH and free:
                self._texts.append(box)
                # A halo keeps it readable over the grid.
                around = ' stroke="#fff" stroke-width="4" paint-order="stroke"' if halo else ""
                self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{around}>{escape(text)}</text>')
                return True
        return False

    def name(self, x: float, y: float, text: str) -> None:
        """The name of a point, on the side where there is room for it."""
        px, py = self.x(x), self.y(y)
        sides = [
            (px - 8, py - 7, "end"),
            (px + 8, py + 17, "start"),
            (px + 8, py - 7, "start"),
            (px - 8, py + 17, "end"),
        ]
        sides = [side for side in sides if side[2] == "start" or side[0] - LETTER * len(text) > self.left]
        self.write(text, sorted(sides, key=lambda side: self._crosses(_text_box(text, *side))))

    def line(self, points: Iterable[tuple[float, float]], attributes: str, *, name: str = "") -> None:
        corners = [(self.x(x), self.y(y)) for x, y in points]
        self._segments += [(*start, *end) for start, end in itertools.pairwise(corners)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        said = f"<title>{escape(name)}</title>" if name else ""
        self.add(f'<polyline points="{path}" {attributes}>{said}</polyline>')

    def _crosses(self, box: tuple[float, float, float, float]) -> bool:
        """Whether a line runs through a box."""
        return any(_meets(segment, box) for segment in self._segments)

    def dot(self, x: float, y: float, radius: float, attributes: str, *, name: str = "") -> None:
        said = f"<title>{escape(name)}</title>" if name else ""
        self.add(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius:.1f}" {attributes}>{said}</circle>')

    def page(
        self, title: str, entries: Sequence[tuple[str, str]] = (), *, notes: Sequence[str] = (), is_inline: bool = False
    ) -> str:
        """The SVG. Entries of the legend are a mark, drawn at 0,0 to 11,11, and its name; many take several rows."""
        at, row, body = self.left, 0, list(self._body)
        for mark, name in entries:
            if at > self.left and at + 16 + LETTER * len(name) > WIDTH:
                at, row = self.left, row + 1
            top = self._height - LEGEND_ROW + row * LEGEND_ROW
            body.append(f'<g transform="translate({at:.1f} {top})">{mark}<text x="16" y="10">{escape(name)}</text></g>')
            at += 34 + LETTER * len(name)
        height = self._height + row * LEGEND_ROW
        for text in notes:
            body.append(f'<text x="14" y="{height + 14}" fill="#777" font-size="12">{escape(text)}</text>')
            height += 20
        return _svg(title, height, body, is_inline=is_inline)

    def _grid(self) -> None:
        for value, label in self._y.ticks:
            y = self.y(value)
            ends = f'x1="{self.left:.1f}" x2="{self.right}"'
            self.add(f'<line class="grid" {ends} y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            self.write(label, [(self.left - 6, y + 4, "end")])
        for value, label in self._x.ticks:
            x, half = self.x(value), LETTER * len(label) / 2
            if self._x.is_log:
                ends = f'y1="{self.top}" y2="{self.bottom}"'
                self.add(f'<line class="grid" {ends} x1="{x:.1f}" x2="{x:.1f}" stroke="#ddd"/>')
            self.write(label, [(min(max(x, half), WIDTH - half), self.bottom + 20, "middle")])
        middle, centre = (self.top + self.bottom) / 2, (self.left + self.right) / 2
        self.add(
            f'<text x="{centre:.1f}" y="{self.bottom + 40}" text-anchor="middle">{escape(self._x.text)}</text>'
            if self._x.text
            else ""
        )
        if self._y.text:
            turned = f"translate(16 {middle}) rotate(-90)"
            self.add(f'<text transform="{turned}" text-anchor="middle">{escape(self._y.text)}</text>')


def _text_box(text: str, x: float, y: float, anchor: str) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a text whose line is at `y`."""
    length = LETTER * len(text)
    left = {"start": x, "middle": x - length / 2, "end": x - length}[anchor]
    return left, y - TEXT_HEIGHT + 3, left + length, y + 3


def _meets(segment: tuple[float, float, float, float], box: tuple[float, float, float, float]) -> bool:
    """Whether a part of a straight line lies in a box: the shares of it between each pair of sides overlap."""
    x0, y0, x1, y1 = segment
    first, last = 0.0, 1.0
    for start, way, low, high in ((x0, x1 - x0, box[0], box[2]), (y0, y1 - y0, box[1], box[3])):
        if way == 0:
            if not low <= start <= high:
                return False
            continue
        enters, leaves = sorted(((low - start) / way, (high - start) / way))
        first, last = max(first, enters), min(last, leaves)
    return first <= last


# On a dark page: the ground, the words, and the lines behind what is drawn.
DARK = (
    "<style>@media (prefers-color-scheme: dark) { svg { fill: #e6ebf0 } .ground { fill: #171d24 } "
    'line[stroke="#ddd"] { stroke: #2a333d } [stroke="#444"] { stroke: #9aa7b4 } [stroke="#fff"] { stroke: #171d24 } }'
    "</style>"
)


def _svg(title: str, height: int, body: Sequence[str], *, is_inline: bool) -> str:
    """A file of its own, or a part of a page, whose style sheet it then takes its colours from."""
    drawn = "\n".join(filter(None, body))
    if is_inline:
        return (
            f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" width="100%" role="img" aria-label={quoteattr(title)} '
            f'font-size="14">\n{drawn}\n</svg>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="14" fill="#222" role="img" aria-label={quoteattr(title)}>\n'
        f'{DARK}\n<rect class="ground" width="{WIDTH}" height="{height}" fill="#fff"/>\n{drawn}\n</svg>\n'
    )


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _square(colour: str, opacity: float = 1.0) -> str:
    return f'<rect width="11" height="11" fill="{colour}" fill-opacity="{opacity:g}"/>'


def _entries(names: Iterable[str]) -> list[tuple[str, str]]:
    """A square for each name, in the order of the colours."""
    return [(_square(_colour(index)), name) for index, name in enumerate(names)]


@dataclass(frozen=True, kw_only=True)
class ScatterPoint:
    """`weight` between 0 and 1 is the area; `text` is reported on hovering."""

    x: float
    y: float
    weight: float
    group: str
    text: str


def scatter_svg(
    points: Sequence[ScatterPoint],
    *,
    roofs: Mapping[str, float],
    slope: float | None,
    title: str,
    x_text: str = "FLOP per byte of inputs and result",
    styles: Mapping[str, tuple[str, str]] | None = None,
    slope_name: str = "",
    notes: Sequence[str] = (),
) -> str:
    """FLOP per byte against FLOP/s, both logarithmic. `roofs` are FLOP/s by name, `slope` bytes/s.

    `styles`: colour and shape of each group; without it groups are circles in the order of the colours.
    """
    drawing = Drawing(
        log_axis(
            [*(p.x for p in points), *(roof / slope for roof in roofs.values() if slope)],
            text=x_text,
            label=lambda value: digits(value, 1),
        ),
        log_axis([*(p.y for p in points), *roofs.values()], text="FLOP/s", label=lambda value: si(value, count=3)),
    )
    groups = list(dict.fromkeys(p.group for p in points))
    shown = styles or {group: (_colour(index), "circle") for index, group in enumerate(groups)}
    _roofs(drawing, points, roofs, slope, slope_name)
    for point in sorted(points, key=lambda p: -p.weight):
        radius = RADIUS[0] + (RADIUS[1] - RADIUS[0]) * math.sqrt(point.weight)
        colour, shape = shown[point.group]
        mark = _shape(shape, drawing.x(point.x), drawing.y(point.y), radius)
        drawing.add(
            f'<g fill="{colour}" fill-opacity="0.65" stroke="{colour}"><title>{escape(point.text)}</title>{mark}</g>'
        )
    marks = [
        (f'<g fill="{shown[group][0]}">{_shape(shown[group][1], 5.5, 5.5, 5.0)}</g>', group)
        for group in (styles or groups)
        if group in groups
    ]
    return drawing.page(title, marks, notes=notes)


def _roofs(
    drawing: Drawing, points: Sequence[ScatterPoint], roofs: Mapping[str, float], slope: float | None, name: str
) -> None:
    """Each peak flat from where the memory's slope reaches it, its name at the right; the slope up to the highest."""
    drawn = 'fill="none" stroke="#444" stroke-dasharray="5 3"'
    (left, lowest), (right, _) = drawing.corners
    for text, peak in sorted(roofs.items(), key=lambda item: -item[1]):
        start = min(max(peak / slope, left), right) if slope else left
        drawing.line([(start, peak), (right, peak)], drawn)
        y, step = drawing.y(peak) - 6, LETTER * len(text) + 12
        drawing.write(text, [(drawing.right - 4 - step * number, y, "end") for number in range(3)], halo=True)
    if not slope or not (roofs or points):
        return
    low = max(left, lowest / slope)
    high = min(max(roofs.values(), default=max((p.y for p in points), default=lowest)) / slope, right)
    if high > low:
        drawing.line([(low, low * slope), (high, high * slope)], drawn)
        if name:
            middle = math.sqrt(low * high)
            x, y = drawing.x(middle), drawing.y(middle * slope)
            drawing.write(name, [(x - 8, y - 8, "end"), (x + 8, y + 17, "start")], halo=True)


def _shape(shape: str, x: float, y: float, r: float) -> str:
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>'
    corners = {
        "square": ((-r, -r), (r, -r), (r, r), (-r, r)),
        "diamond": ((0.0, -1.3 * r), (1.3 * r, 0.0), (0.0, 1.3 * r), (-1.3 * r, 0.0)),
        "triangle": ((0.0, -1.2 * r), (1.2 * r, r), (-1.2 * r, r)),
    }[shape]
    return '<polygon points="' + " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners) + '"/>'


def roofline_svg(kernels: Sequence[NcuKernel], *, title: str) -> str:
    """Kernels under the rooflines of their reports. Those without operations or traffic are counted below."""
    points = [
        ScatterPoint(
            x=kernel.intensity_flop_per_byte,
            y=kernel.flop_per_s,
            weight=(kernel.nsys_time_pct or 0.0) / 100,
            group=_bound_name(kernel.bound),
            text=_kernel_text(kernel),
        )
        for kernel in kernels
        if kernel.flop_per_s and kernel.intensity_flop_per_byte
    ]
    if not points:
        words = f'<text x="14" y="{TOP + 40}">No kernel with counted operations and memory traffic.</text>'
        return _svg(title, HEIGHT, [words], is_inline=False)
    bandwidth = max((k.peak_dram_bytes_per_s for k in kernels if k.peak_dram_bytes_per_s), default=None)
    roofs: dict[str, float] = {}
    for kernel in kernels:
        for pipe, rate in kernel.flop_per_s_by_pipe.items():
            if rate > 0 and pipe in kernel.peak_flop_per_s:
                roofs[pipe] = max(roofs.get(pipe, 0.0), kernel.peak_flop_per_s[pipe])
    notes = ["Size: share of GPU time. Rooflines: dense peaks at the clocks of the capture, as ncu reports them."]
    if left_out := len(kernels) - len(points):
        notes.append(f"Not drawn, no operations or traffic counted: {left_out}.")
    return scatter_svg(
        points,
        roofs={f"{pipe} {si(peak, 'FLOP/s', count=3)}": peak for pipe, peak in roofs.items()},
        slope=bandwidth,
        title=title,
        x_text="FLOP per byte of DRAM traffic",
        styles={_bound_name(bound): style for bound, style in BOUNDS.items()},
        slope_name=f"DRAM {si(bandwidth, 'B/s', count=3)}",
        notes=notes,
    )


def _bound_name(bound: str) -> str:
    return bound if bound == "balanced" else f"{bound}-bound"


def _kernel_text(kernel: NcuKernel) -> str:
    share = "" if kernel.nsys_time_pct is None else f", {kernel.nsys_time_pct:.1f} % of GPU time"
    rate = si(kernel.flop_per_s, "FLOP/s", count=3)
    return f"{kernel.short}: {rate} at {kernel.intensity_flop_per_byte:.3g} FLOP/byte, {kernel.bound}{share}"


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
    the names. The units `bytes` and `ms` are shown with the prefix that fits the axis.
    """
    shown = _stack(lines) if stacked else lines
    every = [point for points in shown.values() for point in points]
    x_axis = linear_axis((x for x, _ in every), unit=x_unit, is_tight=True)
    drawing = Drawing(x_axis, linear_axis((y for _, y in every), unit=y_unit))
    labels = list(dict.fromkeys(band.label for band in bands))
    tints = {label: COLOURS[-1 - index % len(COLOURS)] for index, label in enumerate(labels)}
    for band in bands:
        x0, x1 = drawing.x(max(band.start, x_axis.low)), drawing.x(min(band.end, x_axis.high))
        if x1 > x0:
            drawing.add(
                f'<rect x="{x0:.1f}" y="{drawing.top}" width="{x1 - x0:.2f}" height="{drawing.bottom - drawing.top}" '
                f'fill="{tints[band.label]}" fill-opacity="0.18"><title>{escape(band.label)}</title></rect>'
            )
    for index, (name, points) in reversed(list(enumerate(shown.items()))):
        if stacked:
            around = [(x_axis.low, 0.0), *points, (x_axis.high, 0.0)]
            drawing.line(around, f'fill="{_colour(index)}" stroke="none"', name=name)
        else:
            drawing.line(points, f'fill="none" stroke="{_colour(index)}" stroke-width="1.4"', name=name)
    return drawing.page(title, [*_entries(lines), *((_square(tints[label], 0.35), label) for label in labels)])


def _stack(lines: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """Sums from the first name up, as steps."""
    found: dict[str, list[tuple[float, float]]] = {}
    below: list[float] = []
    for name, points in lines.items():
        below = [y + (below[i] if below else 0.0) for i, (_, y) in enumerate(points)]
        found[name] = _held([(x, below[i]) for i, (x, _) in enumerate(points)])
    return found


def _held(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Each value until the next one comes."""
    steps: list[tuple[float, float]] = []
    for x, y in points:
        if steps:
            steps.append((x, steps[-1][1]))
        steps.append((x, y))
    return steps


def steps_svg(lines: Mapping[str, Sequence[tuple[int, int]]], *, length_ns: int, title: str) -> str:
    """Bytes over time by name: each value holds until the next."""
    held = {
        name: _held([*((at / 1e6, float(size)) for at, size in points), (length_ns / 1e6, float(points[-1][1]))])
        for name, points in lines.items()
        if points
    }
    return draw_chart(held, title=title, x_unit="ms", y_unit="bytes")


@dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """A point of a sweep: throughput, latency, and the load it was measured at."""

    x: float
    y_ms: float
    label: str


@dataclass(frozen=True, kw_only=True)
class LoadDot:
    """A dot and what is reported of it on hovering."""

    x: float
    y: float
    text: str


def dots_svg(groups: Mapping[str, Sequence[LoadDot]], *, title: str, x_text: str, y_text: str) -> str:
    """Dots by name, from zero on both axes."""
    every = [dot for group in groups.values() for dot in group]
    drawing = Drawing(linear_axis((p.x for p in every), text=x_text), linear_axis((p.y for p in every), text=y_text))
    for index, group in enumerate(groups.values()):
        for dot in group:
            drawing.dot(dot.x, dot.y, 5, f'fill="{_colour(index)}"', name=dot.text)
    return drawing.page(title, _entries(groups))


def over_time_svg(
    points: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    unit: str = "ms",
    x_text: str = "seconds since the start of the load, when the request was sent",
) -> str:
    """Seconds since the start against milliseconds (or another unit), a dot for every request, by name."""
    every = [point for group in points.values() for point in group]
    drawing = Drawing(linear_axis((x for x, _ in every), text=x_text), linear_axis((y for _, y in every), unit=unit))
    for index, group in enumerate(points.values()):
        for x, y in group:
            drawing.dot(x, y, 2.6, f'fill="{_colour(index)}" fill-opacity="0.6"')
    return drawing.page(title, _entries(points))


FEW_OTHERS = 4


def trade_svg(
    lines: Mapping[str, Sequence[LoadPoint]],
    *,
    x_text: str,
    title: str,
    others: Sequence[LoadPoint] = (),
    is_inline: bool = False,
) -> str:
    """Throughput against latency: the points of each name joined in their order, those of the first named.

    `others` are points of no line, named too where there are few.
    """
    every = [*others, *(point for group in lines.values() for point in group)]
    drawing = Drawing(linear_axis((p.x for p in every), text=x_text), linear_axis((p.y_ms for p in every), unit="ms"))
    groups = [(COLOURS[-1], others), *((_colour(index), group) for index, group in enumerate(lines.values()))]
    for colour, group in groups:
        if group is not others:
            drawing.line(((p.x, p.y_ms) for p in group), f'fill="none" stroke="{colour}" stroke-width="1.4"')
        for p in group:
            text = f"{p.label}: {digits(p.x)}, {format_ms(p.y_ms)}"
            drawing.dot(p.x, p.y_ms, 4.5, f'fill="{colour}"', name=text)
    few = others if len(others) <= FEW_OTHERS else ()
    for p in (*next(iter(lines.values()), ()), *few):
        drawing.name(p.x, p.y_ms, p.label)
    return drawing.page(title, _entries(lines), is_inline=is_inline)


@dataclass(frozen=True, kw_only=True)
class ChartPoint:
    """One run in a drawing: where it lies, its spread, and what is reported of it. `x` is a number or a word."""

    x: float | str
    y: float
    low: float | None
    high: float | None
    group: str
    text: str
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Numbers of many runs over one of their settings, or over time."""

    title: str
    x_label: str
    y_unit: str
    points: tuple[ChartPoint, ...]
    connect: bool = True


def chart_svg(chart: Chart) -> str:
    """Points with their spread; those of a group joined by a line, in the order they come. Part of a page."""
    values = [v for p in chart.points for v in (p.y, p.low, p.high) if v is not None]
    places, x_axis = _x_places([point.x for point in chart.points], chart.x_label)
    drawing = Drawing(x_axis, linear_axis(values, unit=chart.y_unit), height=HEIGHT - 40)
    groups = list(dict.fromkeys(point.group for point in chart.points))
    for number, group in enumerate(groups):
        colour = _colour(number)
        mine = [(x, point) for x, point in zip(places, chart.points, strict=True) if point.group == group]
        if chart.connect and len(mine) > 1:
            drawing.line(((x, p.y) for x, p in mine), f'fill="none" stroke="{colour}" stroke-opacity="0.5"')
        for x, point in mine:
            if point.low is not None and point.high is not None:
                drawing.line([(x, point.low), (x, point.high)], f'stroke="{colour}" stroke-opacity="0.6"')
            ring = f' stroke="{colour}" stroke-width="6" stroke-opacity="0.35"' if point.marked else ""
            drawing.dot(x, point.y, 4, f'fill="{colour}"{ring}', name=point.text)
    return drawing.page(chart.title, _entries(groups) if len(groups) > 1 else (), is_inline=True)


def _x_places(values: Sequence[float | str], text: str) -> tuple[list[float], Axis]:
    """Where each value lies, and the axis below: numbers by size, words side by side; each is a label."""
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) == len(values) and len(set(numbers)) > 1:
        low, high = min(numbers), max(numbers)
        is_log = low > 0 and high / low >= 16
        edge = (high / low) ** 0.04 if is_log else 0.04 * (high - low)
        ticks = tuple((value, f"{value:.4g}") for value in sorted(set(numbers)))
        ends = (low / edge, high * edge) if is_log else (low - edge, high + edge)
        return numbers, Axis(low=ends[0], high=ends[1], ticks=ticks, text=text, is_log=is_log)
    words = list(dict.fromkeys(str(value) for value in values))
    at = {word: float(index) for index, word in enumerate(words)}
    ticks = tuple((at[word], word[:LONGEST_WORD]) for word in words)
    return [at[str(value)] for value in values], Axis(
        low=-0.3, high=max(len(words) - 1, 0) + 0.3, ticks=ticks, text=text
    )
