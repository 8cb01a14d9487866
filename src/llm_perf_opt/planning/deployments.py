"""What meets the limits and what is cheapest of it: layouts, requests in flight, and replicas for a demand.

For each layout the most requests in flight (or arrivals) that meet the limits are found by bisection; a demand divided
by that is the number of replicas. `Evaluate` is the prediction of one case, so nothing here composes or reads files.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from llm_perf_opt.model.estimate.parallel import Layout, layout_problem
from llm_perf_opt.model.estimate.queueing import LoadTimes
from llm_perf_opt.model.estimate.requests import Forecast
from llm_perf_opt.model.static.parts import Model, Moe
from llm_perf_opt.planning.predict_request import Case
from llm_perf_opt.planning.predicted_rows import Row

POWERS = (1, 2, 4, 8, 16, 32, 64)
LARGEST_BATCH = 1024
# The most requests in flight are found to within this share.
CLOSE = 1 / 32
LEAST_PER_S = 1e-4
Evaluate = Callable[[Case], Row]
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Milliseconds to the first token and for each further one; None: no limit. `is_median`: else 95th percentile."""

    ttft_ms: float | None
    tpot_ms: float | None
    is_median: bool = False

    def first_ms(self, times: LoadTimes | Forecast) -> float:
        return times.ttft_ms if self.is_median else times.ttft_p95_ms

    def keeps(self, times: LoadTimes | Forecast) -> bool:
        """Whether both limits are kept."""
        in_time = self.ttft_ms is None or self.first_ms(times) <= self.ttft_ms
        return in_time and (self.tpot_ms is None or times.tpot_ms <= self.tpot_ms)

    def allow(self, row: Row) -> bool:
        """A row that fits into the memory and keeps both limits."""
        return row.forecast is not None and row.fits is True and self.keeps(row.forecast)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What has to be served: users that wait for each answer, or requests per second. `headroom`: a share on top."""

    users: int | None = None
    per_s: float | None = None
    headroom: float = 0.0


def layouts(model: Model, most: int) -> list[Layout]:
    """The ways to spread one replica over at most `devices` devices, as engines support them."""
    has_experts = any(isinstance(layer.feed_forward, Moe) for layer, _ in model.decoder.blocks)
    found = []
    for tp in POWERS:
        for other in POWERS:
            if tp * other > most:
                continue
            found.append(Layout(tp=tp, pp=other))
            if has_experts and tp * other > 1:
                # Attention on each device or group of `tp`, experts over all of them.
                found.append(Layout(tp=tp, dp=other, ep=tp * other))
    return [layout for layout in found if layout_problem(model.decoder, layout) is None]


def batches(evaluate: Evaluate, case: Case, limits: Limits) -> Iterator[Row]:
    """Requests in flight in powers of two until they do not fit, and between those the most that meet the limits."""

    def at(batch: int) -> Row:
        return evaluate(replace(case, batch=batch, concurrency=batch * case.layout.dp))

    best, refused = 0, None
    batch = 1
    while batch <= LARGEST_BATCH:
        row = at(batch)
        yield row
        if limits.allow(row):
            best = batch
        elif refused is None and best:
            refused = batch
        if row.fits is not True:
            break
        batch *= 2
    while best and refused is not None and refused - best > max(1, best * CLOSE):
        middle = (best + refused) // 2
        row = at(middle)
        yield row
        best, refused = (middle, refused) if limits.allow(row) else (best, middle)


def serve(evaluate: Evaluate, rows: Sequence[Row], limits: Limits, demand: Demand) -> Row | None:
    """The demand on as many copies of a layout as it takes. None: no arrival at all is served within the limits.

    `rows`: the layout with more and more requests in flight. Users are taken in a steady state: as many arrivals as
    keep that many requests in flight.
    """
    case = rows[0].case
    most = _most_arrivals(evaluate, rows, limits)
    if most is None or most.forecast is None or most.case.rate is None:
        return None
    share = 1 + demand.headroom
    if demand.per_s is not None:
        copies = math.ceil(demand.per_s * share / most.case.rate)
        found = _at_rate(evaluate, case, copies, demand.per_s)
        return found if limits.allow(found) else None
    users = demand.users or 0
    copies = math.ceil(users * share / most.forecast.in_flight)
    low, high = 0.0, copies * most.case.rate
    while high - low > CLOSE / 4 * high:
        middle = (low + high) / 2
        found = _at_rate(evaluate, case, copies, middle)
        is_short = found.forecast is not None and found.forecast.in_flight < users
        low, high = (middle, high) if is_short else (low, middle)
    found = _at_rate(evaluate, case, copies, low)
    return found if limits.allow(found) else None


def slowest_replicas(
    evaluate: Evaluate, rows: Sequence[Row], limits: Limits, demand: Demand, slower: float
) -> int | None:
    """Copies of a layout where everything takes `slower` times as long. None: no number of them meets the limits."""
    tight = replace(
        limits,
        ttft_ms=None if limits.ttft_ms is None else limits.ttft_ms / slower,
        tpot_ms=None if limits.tpot_ms is None else limits.tpot_ms / slower,
    )
    most = _most_arrivals(evaluate, rows, tight)
    if most is None or most.forecast is None or most.case.rate is None:
        return None
    share = 1 + demand.headroom
    if demand.per_s is not None:
        return math.ceil(demand.per_s * share * slower / most.case.rate)
    return math.ceil((demand.users or 0) * share / most.forecast.in_flight)


def _most_arrivals(evaluate: Evaluate, rows: Sequence[Row], limits: Limits) -> Row | None:
    """The most arrivals that one copy of a layout serves within the limits. None: none at all."""
    case = rows[0].case
    # No layout takes more arrivals than it completes with all requests in flight that fit.
    rates = [row.forecast.output_tokens_per_s / (case.output or 1) for row in rows if row.forecast is not None]

    def kept(per_s: float) -> Row | None:
        row = evaluate(replace(case, concurrency=None, rate=per_s))
        return row if limits.allow(row) else None

    return highest_kept(kept, 1.2 * max(rates)) if rates else None


def highest_kept(kept: Callable[[float], Found | None], highest: float) -> Found | None:
    """What `kept` gives for the most arrivals per second that meet the limits; it gives None for more."""
    low, high, best = 0.0, highest, None
    while high - low > CLOSE * high and high > LEAST_PER_S:
        middle = (low + high) / 2
        found = kept(middle)
        low, high = (low, middle) if found is None else (middle, high)
        best = best if found is None else found
    return best


def _at_rate(evaluate: Evaluate, case: Case, copies: int, per_s: float) -> Row:
    """A rate on copies of a layout; `batch` is what one engine has to allow for, twice the spread above the mean."""
    layout = replace(case.layout, dp=case.layout.dp * copies)
    found = evaluate(replace(case, layout=layout, concurrency=None, rate=per_s))
    if found.forecast is None:
        return found
    each = found.forecast.in_flight / layout.dp
    return evaluate(replace(found.case, batch=math.ceil(each + 2 * math.sqrt(each))))


def rate_per_device(found: Forecast, layout: Layout) -> float:
    """Output tokens per second that one device of the layout yields."""
    return found.output_tokens_per_s / layout.devices


def price(row: Row) -> tuple[bool, float]:
    """What is to be small: the cost of a token, else, behind all that have a price, the devices a token takes.

    What could not be estimated is last.
    """
    found = row.forecast
    if found is None:
        return True, math.inf
    return (True, 1 / rate_per_device(found, row.case.layout)) if found.cost is None else (False, found.cost)


def bill(row: Row) -> tuple[bool, float, float]:
    """What is to be small for a demand: the price of an hour, else the devices, and then the time to first token."""
    found, hardware, count = row.forecast, row.analysis.hardware, row.case.layout.devices
    hourly = None if hardware is None else hardware.price_per_hour
    first = math.inf if found is None else found.ttft_p95_ms
    return (True, count, first) if hourly is None else (False, hourly * count, first)


def best_of_each(rows: Sequence[Row], key: Callable[[Row], tuple[float, ...]]) -> list[Row]:
    """The best row of each device, the best device first."""
    best: dict[str, Row] = {}
    for row in rows:
        name = row.analysis.hardware.name if row.analysis.hardware else ""
        if name not in best or key(row) < key(best[name]):
            best[name] = row
    return sorted(best.values(), key=key)


def front(rows: Sequence[Row]) -> list[Row]:
    """Rows that no other beats in both time per token and price, the quickest first."""
    known = [(row.forecast.tpot_ms, price(row), row) for row in rows if row.forecast is not None]
    found: list[Row] = []
    for _, cost, row in sorted(known, key=lambda each: each[:2]):
        if not found or cost < price(found[-1]):
            found.append(row)
    return found
