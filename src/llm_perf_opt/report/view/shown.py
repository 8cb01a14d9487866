"""The smallest things shown: a value with its source, or the reason why there is none."""

from dataclasses import dataclass

from llm_perf_opt.analysis.findings.facts import Known, Quantity, Unknown
from llm_perf_opt.report.units import format_quantity


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A value as text. `how` and `source` belong on hover or in a footnote."""

    text: str
    value: float | None = None
    how: str = ""
    source: str | None = None
    is_estimate: bool = False


@dataclass(frozen=True, kw_only=True)
class Missing:
    """No value: why, and what to switch on."""

    reason: str
    enable: str | None = None

    @property
    def text(self) -> str:
        return self.reason + (f" — enable {self.enable}" if self.enable else "")


Cell = Shown | Missing


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One headline number."""

    label: str
    cell: Cell
    explain: str


def show(quantity: Quantity) -> Cell:
    """A figure as a cell."""
    if isinstance(quantity, Unknown):
        return Missing(reason=quantity.reason, enable=quantity.enable)
    return Shown(
        text=("≈ " if quantity.is_estimate else "") + format_quantity(quantity.value, quantity.unit),
        value=quantity.value,
        how=quantity.how,
        source=quantity.source,
        is_estimate=quantity.is_estimate,
    )


def share(value: float, how: str, source: str | None) -> Known:
    """A share of one as a figure."""
    return Known(value=value, unit="share", how=how, source=source)
