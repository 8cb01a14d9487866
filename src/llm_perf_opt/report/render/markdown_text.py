"""Numbers on markdown pages: metrics with their unit, footnotes with the sources."""

from llm_perf_opt.core.markdown import code, escape
from llm_perf_opt.core.records import Metric
from llm_perf_opt.diagnosis.facts import Unknown
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
        spread = f" ({escape(cell.spread)})" if cell.spread else ""
        return escape(cell.text) + spread + self.mark(cell.how, cell.source)

    def lines(self) -> list[str]:
        return [f"[^{number}]: {text}" for text, number in self._numbers.items()]
