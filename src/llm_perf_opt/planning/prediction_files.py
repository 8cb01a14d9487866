"""Predictions as files: CSV with every column, and a picture of speed against throughput."""

import csv
from collections.abc import Sequence
from html import escape
from pathlib import Path

from llm_perf_opt.planning.prediction import COLUMNS, Row, middle_ms

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 440, 80, 60, 40
COLOURS = ("#3366aa", "#cc5533", "#338855", "#885599", "#aa8822", "#448899")


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Raw numbers; an empty cell is not known."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.key for column in COLUMNS])
        for row in rows:
            writer.writerow(["" if (value := column.value(row)) is None else value for column in COLUMNS])


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Milliseconds a token to the right, tokens per second upwards; one colour for each model and device."""
    points = [(row, *found) for row in rows if (found := _point(row)) is not None]
    path.write_text(_svg(points), encoding="utf-8")


def _point(row: Row) -> tuple[float, float] | None:
    """A served request's where an output length was given, else the decode step's."""
    if row.forecast is not None:
        return row.forecast.tpot_ms, row.forecast.output_tokens_per_s
    ms = middle_ms(row.decode)
    rate = row.decode.tokens_per_s(ms)
    return None if ms is None or rate is None else (ms, rate * row.case.layout.dp)


def _svg(points: Sequence[tuple[Row, float, float]]) -> str:
    right = max((x for _, x, _ in points), default=1.0) * 1.1
    high = max((y for _, _, y in points), default=1.0) * 1.1
    names = list(dict.fromkeys(_name(row) for row, _, _ in points))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - 20}" stroke="#444" fill="none"/>',
        f'<text x="{WIDTH // 2}" y="{HEIGHT - 15}" text-anchor="middle">estimated ms per token</text>',
        f'<text x="{LEFT}" y="{TOP - 12}">estimated tokens per second</text>',
    ]
    for share in (0.25, 0.5, 0.75, 1.0):
        x, y = _place(right * share, high * share, right, high)
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{right * share:.3g}</text>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{high * share:,.0f}</text>')
    for row, x_value, y_value in points:
        x, y = _place(x_value, y_value, right, high)
        colour = COLOURS[names.index(_name(row)) % len(COLOURS)]
        title = f"{_name(row)}, batch {row.analysis.shape.batch}: {x_value:.3g} ms, {y_value:,.0f} tokens/s"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"><title>{escape(title)}</title></circle>')
    for index, name in enumerate(names):
        y = TOP + 16 * index
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<text x="{WIDTH - 24}" y="{y}" text-anchor="end" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _place(x: float, y: float, right: float, high: float) -> tuple[float, float]:
    return LEFT + (WIDTH - 20 - LEFT) * x / right, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * y / high


def _name(row: Row) -> str:
    device = row.analysis.hardware.name if row.analysis.hardware else "unknown"
    layout = row.case.layout
    spread = "" if layout.devices == 1 else f" x{layout.devices}"
    return f"{row.analysis.name} {device}{spread} {row.formats} {row.case.engine}"
