"""What meets the limits, what is cheapest of it, and what nothing else beats: the Pareto front."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.runners.predict.row import Row


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Milliseconds to the first token and for each one after it; None: no limit."""

    ttft_ms: float | None
    tpot_ms: float | None

    def allow(self, row: Row) -> bool:
        """A row that fits into the memory and keeps both limits."""
        found = row.forecast
        if found is None or row.fits is not True:
            return False
        in_time = self.ttft_ms is None or found.ttft_ms <= self.ttft_ms
        return in_time and (self.tpot_ms is None or found.tpot_ms <= self.tpot_ms)


def rate_per_device(row: Row) -> float:
    """Output tokens per second that one device of the layout yields."""
    return 0.0 if row.forecast is None else row.forecast.output_tokens_per_s / row.case.layout.devices


def price(row: Row) -> float:
    """What is to be small: the cost of a token where prices are known, else the devices a token takes."""
    found = row.forecast
    if found is not None and found.cost is not None:
        return found.cost
    rate = rate_per_device(row)
    return 1 / rate if rate else float("inf")


def cheapest(rows: Sequence[Row]) -> list[Row]:
    """The cheapest row of each device, the cheapest device first."""
    best: dict[str, Row] = {}
    for row in rows:
        name = row.analysis.hardware.name if row.analysis.hardware else ""
        if name not in best or price(row) < price(best[name]):
            best[name] = row
    return sorted(best.values(), key=price)


def front(rows: Sequence[Row]) -> list[Row]:
    """Rows that no other beats in both time per token and price, the quickest first."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda r: (r.forecast.tpot_ms if r.forecast else 0.0, price(r))):
        if not found or price(row) < price(found[-1]):
            found.append(row)
    return found
