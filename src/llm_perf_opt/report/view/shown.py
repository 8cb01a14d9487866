"""The smallest things shown: a value with its source, or the reason why there is none."""

from dataclasses import dataclass

from llm_perf_opt.core.records import Spread
from llm_perf_opt.core.units import format_quantity
from llm_perf_opt.diagnosis.facts import Known, Quantity, Unknown


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A value as text. `how` and `source` belong on hover or in a footnote."""

    text: str
    value: float | None = None
    how: str = ""
    source: str | None = None
    is_estimate: bool = False
    spread: str = ""


Cell = Shown | Unknown


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One headline number. `key` says which, where more than the page reads it."""

    label: str
    cell: Cell
    explain: str
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class TimePart:
    """A part of a time: `share` of one. `kind` is that of a step of the waterfall."""

    label: str
    kind: str
    share: float


@dataclass(frozen=True, kw_only=True)
class TimeSplit:
    """Where a time goes, on one bar: `what` it is the time of, such as one token; `note` says what is outside of it."""

    what: str
    total: str
    parts: tuple[TimePart, ...]
    is_estimate: bool = False
    note: str = ""

    @property
    def largest(self) -> tuple[TimePart, ...]:
        """What to read first."""
        return tuple(sorted(self.parts, key=lambda part: -part.share))


@dataclass(frozen=True, kw_only=True)
class BoundDistance:
    """How many times the bound a phase takes."""

    phase: str
    factor: str
    wall: str
    bound: str
    per: str


def show(quantity: Quantity) -> Cell:
    """A figure as a cell."""
    if isinstance(quantity, Unknown):
        return quantity
    return Shown(
        text=("≈ " if quantity.is_estimate else "") + format_quantity(quantity.value, quantity.unit),
        value=quantity.value,
        how=quantity.how,
        source=quantity.source,
        is_estimate=quantity.is_estimate,
        spread="" if quantity.spread is None else format_spread(quantity.spread, quantity.unit),
    )


def format_spread(spread: Spread, unit: str) -> str:
    """`p10–p90 9.81–10.4 ms, n = 30`; a single value has no spread."""
    if spread.n == 1:
        return "n = 1"
    low, high = (format_quantity(value, unit) for value in (spread.p10, spread.p90))
    number, _, same = low.rpartition(" ")
    start = f"{number}–" if number and high.endswith(f" {same}") else f"{low} – "
    return f"p10–p90 {start}{high}, n = {spread.n:,}"


def share(value: float, how: str, source: str | None) -> Known:
    """A share of one as a figure."""
    return Known(value=value, unit="share", how=how, source=source)
