"""The highest load that meets the SLO, from few levels: which load to try next, and what the levels say together.

Every level gives one number: how close its requests come to the limits. A request's ratio is its worst latency over the
limit of that latency; a level's is the quantile of them that has to be 1 at most (`load.slo.share`). The capacity is
the load at which that quantile is 1. It is bracketed by a level that meets the SLO and one that does not; a line
through the logarithms of the ratios near it gives the capacity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Literal

import numpy as np
import numpy.typing as npt

from llm_perf_opt.core.percentiles import percentile
from llm_perf_opt.core.units import digits
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import CapacityResult, LevelResult, Resource, tpot_s
from llm_perf_opt.serving.serving_config import LoadLevel, SloSection

MOST_LEVELS = 8
# Concurrency of the first level, which shows how much the server completes; four times more while it meets the SLO.
FIRST_CONCURRENCY = 32
GROWTH = 4
MOST_CONCURRENCY = 4096
# Shares of the throughput of a saturated server that are tried first.
FIRST_SHARE = 0.8
# Near enough: the bracket is this narrow.
NARROW = 0.02
# And so is the confidence interval, to each side; else the capacity itself is measured once more.
SURE = 0.02
# A new load is not nearer to an end of the bracket than this share of it.
MARGIN = 0.15
# The server starts empty: requests of this first share of a level have seen less of a queue.
SETTLING = 0.3
# A ratio above this says as little as this; a failed request has it.
MOST_RATIO = 100.0
LEAST_RATIO = 1e-6
BLOCKS = 8
DRAWS = 300
# Levels with a ratio up to this factor from 1 lie on one line.
NEAR = 2.0
Z_95 = 1.96
FULL_CACHE = 0.9
BUSY_GPU_PCT = 90.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A level as the search sees it. `ratios` are those of its requests in the order they were sent.

    `number` is its place among the levels. `throughput` is None where no request was completed.
    """

    number: int
    load: float
    ratios: tuple[float, ...]
    share: float
    throughput: float | None
    is_exploring: bool = False
    is_valid: bool = True

    @property
    def ratio(self) -> float:
        return quantile(self.ratios, self.share)

    @property
    def meets(self) -> bool:
        return self.ratio <= 1.0

    def is_same_load(self, other: "Trial") -> bool:
        return (self.load, self.is_exploring) == (other.load, other.is_exploring)


@dataclass(kw_only=True)
class CapacitySearch:
    """Chooses the next level from those before; at most `most_levels`."""

    by: Literal["rate", "concurrency"]
    slo: SloSection
    most_levels: int = MOST_LEVELS
    trials: list[Trial] = field(default_factory=list)

    def next(self) -> LoadLevel | None:
        """The level to measure now, or None when the capacity is known well enough."""
        if len(self.trials) >= self.most_levels:
            return None
        level = self._choose()
        return None if level is None else replace(level, repeat=1 + sum(self._is_at(level, one) for one in self.trials))

    def _choose(self) -> LoadLevel | None:
        last = self.trials[-1] if self.trials else None
        if last is None:
            return LoadLevel(concurrency=FIRST_CONCURRENCY)
        if not last.is_valid:
            if sum(one.is_same_load(last) for one in self.trials) == 1:
                # A busy moment of this machine makes a client late, too.
                return self._level_of(last)
            if not last.is_exploring and last.meets:
                # More load only makes the client later.
                return None
        if self.by == "concurrency":
            return self._next_concurrency()
        return self._next_rate(last)

    def _level_of(self, trial: Trial) -> LoadLevel:
        if self.by == "concurrency" or trial.is_exploring:
            return LoadLevel(concurrency=int(trial.load))
        return LoadLevel(rate=trial.load)

    def _is_at(self, level: LoadLevel, trial: Trial) -> bool:
        return self._level_of(trial) == level

    def add(self, run: LoadRun, level: LevelResult) -> None:
        by_rate = self.by == "rate"
        self.trials.append(
            Trial(
                number=len(self.trials),
                load=_load_of(run.level),
                ratios=ratios_of(run, self.slo),
                share=self.slo.share,
                throughput=level.requests_per_s,
                is_exploring=by_rate and level.rate is None,
                is_valid=level.invalid is None,
            )
        )

    @property
    def bracket(self) -> tuple[Trial | None, Trial | None]:
        """The highest load below which every load met the SLO, and the lowest that missed it."""
        measured = sorted((one for one in self._counted if not one.is_exploring), key=lambda one: one.load)
        missed = next((one for one in measured if not one.meets), None)
        below = [one for one in measured if one.meets and (missed is None or one.load < missed.load)]
        return (below[-1] if below else None), missed

    @property
    def _counted(self) -> list[Trial]:
        """The levels without those whose client was late in one measurement of the load and not in another."""
        valid = [one for one in self.trials if one.is_valid]
        return [one for one in self.trials if one.is_valid or not any(one.is_same_load(other) for other in valid)]

    def _next_rate(self, last: Trial) -> LoadLevel | None:
        met, missed = self.bracket
        if last.is_exploring:
            if last.is_valid and last.meets and GROWTH * last.load <= MOST_CONCURRENCY:
                return LoadLevel(concurrency=int(GROWTH * last.load))
            known = [one for one in self._counted if one.throughput is not None]
            # A late client has completed less than the server can.
            best = max(known, key=lambda one: (one.is_valid, one.number), default=None)
            return _rate(FIRST_SHARE * (best.throughput or 0.0)) if best is not None else None
        if missed is None:
            explored = [one.throughput for one in self.trials if one.is_exploring and one.throughput is not None]
            # Above what a saturated server completes no rate is sustained.
            return _rate(max(last.load * 1.15, min(max(explored, default=last.load), last.load * 2)))
        if met is None:
            return _rate(missed.load / 2)
        if not _is_narrow(met, missed):
            return _rate(_between(met, missed))
        value, half = estimate(self._near(met, missed), np.random.default_rng(0))
        return None if half < SURE * value else _rate(value)

    def _next_concurrency(self) -> LoadLevel | None:
        met, missed = self.bracket
        if missed is None:
            load = int(GROWTH * (met.load if met is not None else 1))
            return LoadLevel(concurrency=load) if load <= MOST_CONCURRENCY else None
        if met is None:
            return LoadLevel(concurrency=max(1, int(missed.load // GROWTH))) if missed.load > 1 else None
        if _is_narrow(met, missed) or missed.load - met.load <= 1:
            return None
        load = min(max(round(_between(met, missed)), int(met.load) + 1), int(missed.load) - 1)
        return LoadLevel(concurrency=load)

    def result(self, runs: Sequence[LoadRun], levels: Sequence[LevelResult], *, seed: int = 0) -> CapacityResult:
        """The capacity with its confidence interval, and what limits it."""
        met, missed = self.bracket
        # What is short is seen best where most of it is missing.
        worst = max(self._counted, key=lambda one: one.ratio, default=None)
        nearest = missed or met
        limit = None if nearest is None else binding_limit(runs[nearest.number], self.slo)
        resource: Resource = "unknown"
        why = ""
        if worst is not None:
            resource, why = limiting_resource(levels[worst.number], limit)
        if missed is None and met is not None:
            why = "It is not limited by the server up to there." if resource != "client" else why
        nearby = [levels[one.number].littles_law for one in (met, missed) if one is not None]
        laws = [law for law in nearby if law is not None]
        found = CapacityResult(
            by=self.by,
            value=None if met is None else self._served(met),
            met=None if met is None else met.load,
            missed=None if missed is None else missed.load,
            levels=len(self.trials),
            limit=limit,
            resource=resource,
            why=why,
            littles_law=max(laws, key=lambda law: abs(law - 1), default=None),
        )
        if met is None or missed is None:
            return found
        value, half = estimate(self._near(met, missed), np.random.default_rng(seed))
        low, high = max(0.0, value - half), value + half
        if self.by == "concurrency":
            # A whole number: the highest one that met the SLO, or one between it and the miss that was not measured.
            value = min(max(math.floor(value), met.load), missed.load - 1)
            low, high = min(math.floor(low), value), max(math.ceil(high), value)
        return replace(found, value=value, low=low, high=high)

    def _served(self, trial: Trial) -> float:
        """The load of a trial; a late client sends less than the rate, so that what was completed counts."""
        if self.by == "concurrency" or trial.is_valid or trial.throughput is None:
            return trial.load
        return min(trial.load, trial.throughput)

    def _near(self, met: Trial, missed: Trial) -> list[Trial]:
        """The levels around the crossing: the two next to it, and others whose ratio is close to 1."""
        measured = [one for one in self._counted if not one.is_exploring and one.is_valid]
        near = [one for one in measured if 1 / NEAR <= one.ratio <= NEAR]
        chosen = list(dict.fromkeys([*near, met, missed]))
        return chosen if met in near and missed in near and len(near) > 2 else [met, missed]


def ratios_of(run: LoadRun, slo: SloSection) -> tuple[float, ...]:
    """The ratios of the requests of a level in its steady state."""
    counted = [record for record in run.records if not record.is_ramp]
    return tuple(ratio_of(record, slo) for record in counted[int(SETTLING * len(counted)) :])


def over_saturation(run: LoadRun, slo: SloSection, *, planned: int) -> str | None:
    """Why a level of `requests` requests is decided before its end, or None.

    Enough requests have exceeded a limit that the level's ratio will be above `NEAR` regardless of the rest:
    then it only matters that it missed the SLO, not by how much.
    """
    settled = int(SETTLING * planned)
    bad = sum(1 for one in run.records if not one.is_ramp and one.index >= settled and ratio_of(one, slo) > NEAR)
    allowed = (1 - slo.share) * (planned - settled)
    if bad <= allowed + 1:
        return None
    return f"{bad} requests took more than {NEAR:g} times a limit already, {allowed:.0f} of {planned - settled} may"


def ratio_of(record: RequestRecord, slo: SloSection) -> float:
    """The worst of a request's latencies over its limit; one that failed or did not end is as bad as can be."""
    if record.status != "ok":
        return MOST_RATIO
    return min(MOST_RATIO, max(_ratios(record, slo).values(), default=0.0))


def _ratios(record: RequestRecord, slo: SloSection) -> dict[str, float]:
    limits = {
        "TTFT": (record.ttft_s, slo.ttft_ms),
        "TPOT": (tpot_s(record), slo.tpot_ms),
        "E2EL": (record.latency_s, slo.e2el_ms),
    }
    return {name: 1e3 * (value or 0.0) / limit for name, (value, limit) in limits.items() if limit is not None}


def binding_limit(run: LoadRun, slo: SloSection) -> str | None:
    """The latency whose quantile at the share of the SLO comes nearest to its limit: that one decides the level."""
    counted = [record for record in run.records if not record.is_ramp]
    found = [_ratios(one, slo) for one in counted[int(SETTLING * len(counted)) :] if one.status == "ok"]
    names = found[0] if found else {}
    return max(names, key=lambda name: quantile([ratios[name] for ratios in found], slo.share), default=None)


def quantile(values: Sequence[float], share: float) -> float:
    return percentile(sorted(values), 100 * share) if values else MOST_RATIO


def crossing(met: Trial, missed: Trial) -> float:
    """Where the logarithm of the ratio is 0, on a line between the two."""
    return _crossing(met.load, met.ratio, missed.load, missed.ratio)


def _crossing(low: float, low_ratio: float, high: float, high_ratio: float) -> float:
    below, above = math.log(max(low_ratio, LEAST_RATIO)), math.log(max(high_ratio, LEAST_RATIO))
    if below >= 0:
        return low
    if above <= 0:
        return high
    return low + (high - low) * -below / (above - below)


def estimate(trials: Sequence[Trial], rng: np.random.Generator) -> tuple[float, float]:
    """The load at which the ratio is 1, and half of its 95 % confidence interval.

    A straight line through the logarithms of the ratios, so that the chance of one level does not decide. The interval
    holds the chance within the levels (blocks redrawn) and that between them (how far they are from the line).
    """
    loads = [one.load for one in trials]
    found, between = _fit(loads, [_log(one.ratio) for one in trials])
    redrawn = np.stack([_redrawn(one, rng) for one in trials], axis=1)
    # Further away than the levels themselves nothing was measured.
    draws = [min(max(_fit(loads, row)[0], min(loads)), max(loads)) for row in redrawn.tolist()]
    return min(max(found, min(loads)), max(loads)), Z_95 * math.hypot(stdev(draws), between)


def _redrawn(trial: Trial, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Logarithms of the ratio of redrawn levels: blocks of consecutive requests, which waited in the same queue."""
    values = np.array(trial.ratios or (MOST_RATIO,))
    size = max(1, len(values) // BLOCKS)
    starts = rng.integers(0, len(values) - size + 1, (DRAWS, math.ceil(len(values) / size)))
    places = (starts[:, :, None] + np.arange(size)).reshape(DRAWS, -1)
    quantiles: npt.NDArray[np.float64] = np.quantile(values[places], trial.share, axis=1)
    logs: npt.NDArray[np.float64] = np.log(np.maximum(quantiles, LEAST_RATIO))
    return logs


def _fit(loads: Sequence[float], logs: Sequence[float]) -> tuple[float, float]:
    """Where a line through the points is 0, and the standard error of that by the points' distances from the line."""
    mean_x, mean_y = fmean(loads), fmean(logs)
    spread = math.fsum((x - mean_x) ** 2 for x in loads)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(loads, logs, strict=True)) / spread
    if slope <= 0:
        # Chance is larger than the difference between these levels.
        return mean_x, max(loads) - min(loads)
    zero = mean_x - mean_y / slope
    if len(loads) < 3:
        return zero, 0.0
    residual = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(loads, logs, strict=True))
    error = math.sqrt(residual / (len(loads) - 2)) / slope
    return zero, error * math.sqrt(1 / len(loads) + (zero - mean_x) ** 2 / spread)


def _log(ratio: float) -> float:
    return math.log(max(ratio, LEAST_RATIO))


def _between(met: Trial, missed: Trial) -> float:
    width = missed.load - met.load
    found = crossing(met, missed)
    return min(max(found, met.load + MARGIN * width), missed.load - MARGIN * width)


def _is_narrow(met: Trial, missed: Trial) -> bool:
    return missed.load - met.load < NARROW * met.load


def _rate(value: float) -> LoadLevel | None:
    return LoadLevel(rate=float(f"{value:.4g}")) if value > 0 else None


def _load_of(level: LoadLevel) -> float:
    """Requests per second, or requests in flight; a level of a search has one of the two."""
    load = level.rate if level.rate is not None else level.concurrency
    if load is None:
        raise ValueError(f"{level.label}: neither a rate nor a concurrency, so nothing to search by")
    return float(load)


def limiting_resource(level: LevelResult, limit: str | None) -> tuple[Resource, str]:
    """What holds up a level that misses the SLO, from what the server and its GPU reported during it."""
    if level.invalid is not None:
        return "client", f"Limited by the client: {level.invalid}."
    counters = {one.name: one for one in level.counters}
    first = "" if limit is None else f"{limit} reaches its limit first"
    cache, preempted, waiting = (counters.get(name) for name in ("KV cache use", "preemptions", "waiting"))
    if (cache is not None and cache.most >= FULL_CACHE) or (preempted is not None and preempted.last > 0):
        used = "" if cache is None else f", use up to {100 * cache.most:.0f} %"
        lost = "" if preempted is None or not preempted.last else f", {preempted.last:g} preemptions"
        return "KV cache", f"Limited by the KV cache{used}{lost}."
    if waiting is not None and waiting.mean >= 1.0:
        return "queue", f"Limited by the queue: {digits(waiting.mean)} requests waited on average; {first}."
    busy = [row.utilisation_pct for row in level.gpus if row.utilisation_pct is not None]
    if busy and fmean(busy) >= BUSY_GPU_PCT:
        return "GPU", f"Limited by the GPU, busy {fmean(busy):.0f} % of the time; {first}."
    said = "" if counters else "; the server reports no counters that name the resource"
    return "unknown", f"{first}{said}." if first else ""
