"""Histograms of a few figures as one SVG drawing."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 300, 200, 44
COLUMNS = 2
BINS = 10
COLOUR = "#0072B2"


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
            f'<rect x="{x:.1f}" y="{bottom - size:.1f}" width="{wide - 1:.1f}" height="{size:.1f}" fill="{COLOUR}"/>'
        )
        if count:
            out.append(f'<text x="{x + wide / 2:.1f}" y="{bottom - size - 3:.1f}" text-anchor="middle">{count}</text>')
    right = left + PANEL_WIDTH - MARGIN
    out.append(f'<line x1="{left + MARGIN}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="#222"/>')
    out.append(f'<text x="{left + MARGIN}" y="{bottom + 16}">{low:.4g}</text>')
    out.append(f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{high:.4g}</text>')
    return out
