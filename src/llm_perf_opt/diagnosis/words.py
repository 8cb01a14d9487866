"""Text of findings, made last: templates of a cause filled with numbers."""

import string
from collections.abc import Callable, Mapping
from typing import Any

from llm_perf_opt.core.units import count_of, format_bytes, format_factor, format_ms, format_percent
from llm_perf_opt.diagnosis.claim import Value
from llm_perf_opt.system.terminal import cut_text

NAME_WIDTH = 100
# Before the noun of a count: `{gaps:# gap}`.
COUNTED = "# "


class _Numbers(string.Formatter):
    """Formats of our own: `ms` and `us` of nanoseconds, `pct` of a share, `x` of a ratio, `n` of a count, `bytes`,
    `gbs` of bytes per second, `name` for names that may be long, `# noun` for a count with its noun."""

    def format_field(self, value: Any, spec: str) -> str:
        if spec.startswith(COUNTED):
            return count_of(value, spec.removeprefix(COUNTED))
        return FORMATS[spec](value) if spec in FORMATS else format(value, spec)


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "ms": lambda ns: format_ms(ns / 1e6),
    "us": lambda ns: f"{ns / 1e3:,.1f} µs",
    "pct": lambda share: format_percent(share) if share < 0.1 else f"{100 * share:.0f} %",
    "x": format_factor,
    "n": lambda count: f"{count:,.0f}",
    "bytes": format_bytes,
    "gbs": lambda rate: f"{rate / 1e9:,.1f} GB/s",
    "name": lambda name: cut(str(name)),
}
_NUMBERS = _Numbers()


def fill(template: str, values: Mapping[str, Value]) -> str:
    """A template with its numbers. A missing one is a defect of the cause, and an error."""
    return _NUMBERS.vformat(template, (), values)


def cut(name: str) -> str:
    return cut_text(name, NAME_WIDTH)


def capitalized(text: str) -> str:
    """With a capital letter where it begins with a word of ours; names of ranges stay as they are."""
    return text[:1].upper() + text[1:]
