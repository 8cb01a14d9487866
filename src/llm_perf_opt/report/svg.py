"""Drawings as SVG: a roofline of kernels on two logarithmic axes, and histograms of a few figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from llm_perf_opt.capture.kernels.ncu_records import NcuKernel
from llm_perf_opt.core.units import si

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 48, 96
# Okabe and Ito's colours, distinguished by every common kind of colour vision; the shape repeats what the colour says.
STYLE = {
    "compute": ("#D55E00", "square"),
    "memory": ("#0072B2", "circle"),
    "balanced": ("#009E73", "diamond"),
    "latency": ("#CC79A7", "triangle"),
    "unknown": ("#666666", "circle"),
}
PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 300, 200, 44
COLUMNS = 2
BINS = 10
BAR_FILL = "#0072B2"


@dataclass(frozen=True, kw_only=True)
class _Axes:
    """Decades of both axes."""

    x0: int
    x1: int
    y0: int
    y1: int

    def x(self, intensity: float) -> float:
        share = (math.log10(intensity) - self.x0) / (self.x1 - self.x0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        share = (math.log10(rate) - self.y0) / (self.y1 - self.y0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def roofline_svg(kernels: Sequence[NcuKernel], *, title: str) -> str:
    """Draw kernels under the rooflines of their reports. Kernels without operations or traffic are counted below."""
    drawn = [k for k in kernels if k.flop_per_s and k.intensity_flop_per_byte]
    bandwidth = max((k.peak_dram_bytes_per_s for k in kernels if k.peak_dram_bytes_per_s), default=None)
    roofs = _roofs(drawn)
    body = [f'<text x="{LEFT}" y="26" font-size="17">{escape(title)}</text>']
    if drawn:
        axes = _axes(drawn, roofs, bandwidth)
        body += [*_grid(axes), *_roof_lines(axes, roofs, bandwidth), *(_point(axes, k) for k in drawn)]
    else:
        body.append(f'<text x="{LEFT}" y="{TOP + 40}">No kernel with counted operations and memory traffic.</text>')
    body += _legend(drawn, len(kernels) - len(drawn))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#222" role="img" aria-label={quoteattr(title)}>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _roofs(kernels: Sequence[NcuKernel]) -> dict[str, float]:
    """The dense peaks of the pipes in use."""
    roofs: dict[str, float] = {}
    for kernel in kernels:
        for pipe, rate in kernel.flop_per_s_by_pipe.items():
            if rate > 0 and pipe in kernel.peak_flop_per_s:
                roofs[pipe] = max(roofs.get(pipe, 0.0), kernel.peak_flop_per_s[pipe])
    return roofs


def _axes(kernels: Sequence[NcuKernel], roofs: Mapping[str, float], bandwidth: float | None) -> _Axes:
    xs = [k.intensity_flop_per_byte for k in kernels if k.intensity_flop_per_byte]
    ys = [k.flop_per_s for k in kernels if k.flop_per_s] + list(roofs.values())
    if bandwidth:
        xs += [peak / bandwidth for peak in roofs.values()]
    x0, x1 = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))
    y0, y1 = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    return _Axes(x0=x0, x1=max(x1, x0 + 1), y0=y0, y1=max(y1, y0 + 1))


def _grid(axes: _Axes) -> list[str]:
    bottom, out = HEIGHT - BOTTOM, []
    for decade in range(axes.x0, axes.x1 + 1):
        x = axes.x(10.0**decade)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{si(10.0**decade, count=3)}</text>')
    for decade in range(axes.y0, axes.y1 + 1):
        y = axes.y(10.0**decade)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{si(10.0**decade, count=3)}</text>')
    middle = (TOP + bottom) / 2
    out.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{bottom + 36}" text-anchor="middle">FLOP per byte of DRAM traffic</text>'
    )
    out.append(f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">FLOP/s</text>')
    return out


def _roof_lines(axes: _Axes, roofs: Mapping[str, float], bandwidth: float | None) -> list[str]:
    """Each pipe's flat peak from where the memory peak reaches it, and the memory peak below the highest of them."""
    out = []
    right = 10.0**axes.x1
    for pipe, peak in sorted(roofs.items(), key=lambda item: -item[1]):
        start = max(10.0**axes.x0, peak / bandwidth) if bandwidth else 10.0**axes.x0
        y = axes.y(peak)
        out.append(_line(axes.x(min(start, right)), y, axes.x(right), y))
        label = f"{escape(pipe)} {si(peak, 'FLOP/s', count=3)}"
        out.append(f'<text x="{WIDTH - RIGHT - 4}" y="{y - 4:.1f}" text-anchor="end">{label}</text>')
    if bandwidth:
        x0, top = 10.0**axes.x0, max(roofs.values(), default=10.0**axes.y1)
        low = max(x0, 10.0**axes.y0 / bandwidth)
        high = min(top / bandwidth, right)
        if high > low:
            out.append(_line(axes.x(low), axes.y(low * bandwidth), axes.x(high), axes.y(high * bandwidth)))
            x, y = axes.x(math.sqrt(low * high)), axes.y(math.sqrt(low * high) * bandwidth)
            out.append(
                f'<text x="{x - 8:.1f}" y="{y - 8:.1f}" text-anchor="end">DRAM {si(bandwidth, "B/s", count=3)}</text>'
            )
    return out


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#222" stroke-width="1.5"/>'


def _point(axes: _Axes, kernel: NcuKernel) -> str:
    assert kernel.flop_per_s and kernel.intensity_flop_per_byte
    x, y = axes.x(kernel.intensity_flop_per_byte), axes.y(kernel.flop_per_s)
    share = "" if kernel.nsys_time_pct is None else f", {kernel.nsys_time_pct:.1f} % of GPU time"
    rate = si(kernel.flop_per_s, "FLOP/s", count=3)
    words = f"{kernel.short}: {rate} at {kernel.intensity_flop_per_byte:.3g} FLOP/byte, {kernel.bound}{share}"
    # The area grows with the share of time.
    size = 4.0 + 1.6 * math.sqrt(kernel.nsys_time_pct or 0.0)
    colour, shape = STYLE[kernel.bound]
    drawn = f"<title>{escape(words)}</title>{_shape(shape, x, y, size)}"
    return f'<g fill="{colour}" fill-opacity="0.75" stroke="#222">{drawn}</g>'


def _shape(shape: str, x: float, y: float, r: float) -> str:
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>'
    corners = {
        "square": ((-r, -r), (r, -r), (r, r), (-r, r)),
        "diamond": ((0.0, -1.3 * r), (1.3 * r, 0.0), (0.0, 1.3 * r), (-1.3 * r, 0.0)),
        "triangle": ((0.0, -1.2 * r), (1.2 * r, r), (-1.2 * r, r)),
    }[shape]
    return '<polygon points="' + " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners) + '"/>'


def _legend(drawn: Sequence[NcuKernel], not_drawn: int) -> list[str]:
    out, x, y = [], float(LEFT), HEIGHT - 40.0
    for bound in (b for b in STYLE if any(k.bound == b for k in drawn)):
        colour, shape = STYLE[bound]
        out.append(f'<g fill="{colour}" stroke="#222">{_shape(shape, x + 6, y - 4, 5.0)}</g>')
        out.append(f'<text x="{x + 18:.0f}" y="{y:.0f}">{bound}-bound</text>' if bound != "balanced" else
                   f'<text x="{x + 18:.0f}" y="{y:.0f}">balanced</text>')  # fmt: skip
        x += 130
    note = "Size: share of GPU time. Rooflines: dense peaks at the clocks of the capture, as ncu reports them."
    if not_drawn:
        note += f" Not drawn, no operations or traffic counted: {not_drawn}."
    out.append(f'<text x="{LEFT}" y="{HEIGHT - 14}" fill="#555">{note}</text>')
    return out


def histograms_svg(series: Mapping[str, Sequence[float]], *, title: str) -> str:
    """One panel per series with at least one value; percentages span 0 to 100, everything else its own values."""
    panels = [(name, values) for name, values in series.items() if values]
    rows = -(-len(panels) // COLUMNS)
    width, height = COLUMNS * PANEL_WIDTH, 40 + max(rows, 1) * PANEL_HEIGHT
    body = [f'<text x="14" y="24" font-size="16">{escape(title)}</text>']
    if not panels:
        body.append('<text x="14" y="60">No values.</text>')
    for index, (name, values) in enumerate(panels):
        left, top = index % COLUMNS * PANEL_WIDTH, 40 + index // COLUMNS * PANEL_HEIGHT
        body += _panel(name, values, left, top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="#222">\n<rect width="{width}" height="{height}" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def bin_counts(values: Sequence[float], low: float, high: float) -> list[int]:
    """How many values fall into each of BINS equal parts; the highest value belongs to the last one."""
    counts = [0] * BINS
    span = (high - low) or 1.0
    for value in values:
        counts[min(BINS - 1, max(0, int((value - low) / span * BINS)))] += 1
    return counts


def _panel(name: str, values: Sequence[float], left: int, top: int) -> list[str]:
    low, high = (0.0, 100.0) if name.endswith("%") else (min(values), max(values))
    counts = bin_counts(values, low, high)
    bottom, wide = top + PANEL_HEIGHT - MARGIN, (PANEL_WIDTH - 2 * MARGIN) / BINS
    tall = PANEL_HEIGHT - 2 * MARGIN
    out = [f'<text x="{left + MARGIN}" y="{top + 24}">{escape(name)} (n = {len(values)})</text>']
    for index, count in enumerate(counts):
        size = tall * count / max(counts)
        x = left + MARGIN + index * wide
        out.append(
            f'<rect x="{x:.1f}" y="{bottom - size:.1f}" width="{wide - 1:.1f}" height="{size:.1f}" fill="{BAR_FILL}"/>'
        )
        if count:
            out.append(f'<text x="{x + wide / 2:.1f}" y="{bottom - size - 3:.1f}" text-anchor="middle">{count}</text>')
    right = left + PANEL_WIDTH - MARGIN
    out.append(f'<line x1="{left + MARGIN}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="#222"/>')
    out.append(f'<text x="{left + MARGIN}" y="{bottom + 16}">{low:.4g}</text>')
    out.append(f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{high:.4g}</text>')
    return out
