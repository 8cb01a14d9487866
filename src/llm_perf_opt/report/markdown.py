"""Pieces every markdown page is made of: safe text, tables, footnotes with the sources of numbers."""

from collections.abc import Collection, Iterable, Sequence

from llm_perf_opt.analysis.findings.facts import Unknown
from llm_perf_opt.core.records import Metric
from llm_perf_opt.report.view.shown import Cell


def format_metric(metric: Metric) -> str:
    """The value with its unit, or why there is none."""
    if metric.value is None:
        return f"unknown ({escape(metric.reason or '')})"
    return f"{escape(format_value(metric.value))} {metric.unit}".strip()


def format_value(value: float | int | str) -> str:
    """Whole numbers with separators, others to four digits."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def escape(text: str) -> str:
    """Text safe inside a markdown table cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def code(text: str) -> str:
    """Text as code, safe in a table: inside backticks only the bar and the backtick itself need care."""
    return "`" + " ".join(text.replace("`", "'").replace("|", "\\|").split()) + "`"


def link(text: str, target: str) -> str:
    """Text that leads somewhere; brackets inside it would end it."""
    safe = escape(text).replace("[", "\\[").replace("]", "\\]")
    return f"[{safe}](<{target.replace('<', '%3C').replace('>', '%3E')}>)"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> list[str]:
    """A table; the columns named in `right` are aligned right. Cells must be safe already."""
    marks = ["---:" if name in right else "---" for name in header]
    return [_line(header), _line(marks), *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


class Footnotes:
    """Sources of numbers, each once, numbered in the order they come up."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, how: str, source: str | None) -> str:
        """The mark to put behind a number, or nothing when there is nothing to say."""
        text = ": ".join(part for part in (code(source) if source else "", escape(how)) if part)
        if not text:
            return ""
        return f"[^{self._numbers.setdefault(text, len(self._numbers) + 1)}]"

    def cell(self, cell: Cell) -> str:
        """A value with its mark, or unknown with its reason."""
        if isinstance(cell, Unknown):
            return f"unknown: {escape(cell.text)}"
        return escape(cell.text) + self.mark(cell.how, cell.source)

    def lines(self) -> list[str]:
        return [f"[^{number}]: {text}" for text, number in self._numbers.items()]
