"""Predictions as files: CSV with every column, and a picture of speed against throughput."""

import csv
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.units import digits
from llm_perf_opt.planning.predicted_rows import COLUMNS, Row, middle_ms
from llm_perf_opt.report.draw import LoadDot, dots_svg


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
    dots = {
        name: [
            LoadDot(x=x, y=y, text=f"{name}, batch {row.analysis.shape.batch}: {digits(x)} ms, {y:,.0f} tokens/s")
            for row, x, y in points
            if _name(row) == name
        ]
        for name in dict.fromkeys(_name(row) for row, _, _ in points)
    }
    text = dots_svg(
        dots, title="Estimated speed", x_text="estimated ms per token", y_text="estimated tokens per second"
    )
    path.write_text(text, encoding="utf-8")


def _point(row: Row) -> tuple[float, float] | None:
    """A served request's where an output length was given, else the decode step's."""
    if row.forecast is not None:
        return row.forecast.tpot_ms, row.forecast.output_tokens_per_s
    ms = middle_ms(row.decode)
    rate = row.decode.tokens_per_s(ms)
    return None if ms is None or rate is None else (ms, rate * row.case.layout.dp)


def _name(row: Row) -> str:
    device = row.analysis.hardware.name if row.analysis.hardware else "unknown"
    layout = row.case.layout
    spread = "" if layout.devices == 1 else f" x{layout.devices}"
    return f"{row.analysis.name} {device}{spread} {row.formats} {row.case.engine}"
