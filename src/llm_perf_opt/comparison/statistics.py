"""Two sides of measured passes: how much they differ, how sure that is, and a verdict.

A side is one pass or several; a pass holds the values of its samples in each repeat. The difference is that of the
logarithms, so that +5 % and -5 % weigh the same. Its uncertainty comes from a bootstrap in two levels: passes are drawn
with replacement, and inside each the repeats, all samples of a repeat together: they share what the machine did.
Pairs of passes that were measured one alongside the other are drawn as pairs, and the difference is the Hodges-Lehmann
estimate of theirs: drift that hits both halves of a pair cancels, and one disturbed pair does not decide. What differs
inside a pass shows in the differences between pairs, so it is not drawn a second time. Two or three pairs say little of
how pairs differ. There the passes of each side are queried as well, which are twice as many, and the narrower of the
two answers counts, corrected for having asked twice; it is never narrower than what differs inside a pass.

The interval is Student's with as many degrees of freedom as there are passes (or repeats, or samples) to draw from:
percentiles of a bootstrap over five passes would be too narrow by a third.

Two starts of one program differ by more than the repeats inside them show. With one start on a side this variation is
taken from where it is known (`StartVariation`: the passes of the other side, earlier runs, or the user); where it is
not, `judge` says at most that a difference was observed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, stdev
from typing import Any, Literal

import numpy as np

from llm_perf_opt.comparison.stability import CONFIDENCE, RepeatedValue
from llm_perf_opt.comparison.student import t_quantile, two_sided_p

# Differences below this are of no practical use.
THRESHOLD = 0.02
DRAWS = 2000
# Values drawn in one go; larger passes get fewer draws.
LARGEST_DRAW = 4_000_000
FEWEST_DRAWS = 200
# Where the interval has to become very narrow, the answer is "many", not an absurd number.
MOST_REPEATS = 1000
# Fewer pairs than this are also judged by how the passes of each side differ.
FEWEST_PAIRS = 4
# The median of n values of a normal distribution varies this much more than their mean, and its middle half spans this
# many standard deviations.
MEDIAN_BY_MEAN, MIDDLE_HALF = math.sqrt(math.pi / 2), 1.349
# What rounding alone gives.
NO_NOISE = 1e-12

# Verdicts of one start each: what the two starts show, without a claim about the next two.
Verdict = Literal["better", "worse", "same", "inconclusive", "difference observed", "no difference observed"]
OBSERVED: Verdict = "difference observed"
NOT_OBSERVED: Verdict = "no difference observed"
Pass = Sequence[RepeatedValue]


@dataclass(frozen=True, kw_only=True)
class Level:
    """What one side measured: the median of all values, and where eight of ten lie where that is known."""

    median: float
    p10: float | None
    p90: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class StartVariation:
    """How much the median of a run varies from one start to the next: a standard deviation, as a share of the median.

    `freedom` is how well it is known; `source` says from what.
    """

    share: float
    freedom: int
    source: str


# The degrees of freedom of a variation that the user states: as good as known.
GIVEN = 500


@dataclass(frozen=True, kw_only=True)
class ChangeEstimate:
    """The difference of two sides as the logarithm of candidate by base, and its standard error.

    `base` and `candidate` are the levels as measured. `error` is None where nothing was repeated. `units` is how many
    things (`unit`) were drawn from on each side, `ways` in how many ways the uncertainty was computed before the
    narrowest was taken. `knows_starts`: the error contains what one start differs from the next.
    """

    base: Level
    candidate: Level
    log_ratio: float
    error: float | None
    freedom: int
    units: int
    how: str
    ways: int = 1
    knows_starts: bool = True
    unit: str = "repeats"

    def half_width(self, confidence: float = CONFIDENCE) -> float | None:
        if self.error is None or self.freedom < 1:
            return None
        return t_quantile(1 - (1 - confidence) / 2 / self.ways, self.freedom) * self.error

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    @property
    def typical(self) -> tuple[float, float]:
        """Base and candidate by this estimator: their quotient is `ratio`, their geometric mean that of the medians.

        They are the measured medians wherever the estimate is the ratio of these.
        """
        middle = math.sqrt(self.base.median * self.candidate.median)
        half = math.exp(self.log_ratio / 2)
        return middle / half, middle * half

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the ratio."""
        return self.interval_at(CONFIDENCE)

    def interval_at(self, confidence: float) -> tuple[float, float] | None:
        width = self.half_width(confidence)
        return None if width is None else (math.exp(self.log_ratio - width), math.exp(self.log_ratio + width))

    @property
    def p_value(self) -> float | None:
        """How often equal sides would differ this much."""
        if self.error is None or self.freedom < 1:
            return None
        if self.error < NO_NOISE:
            return 1.0 if abs(self.log_ratio) < NO_NOISE else 0.0
        return min(1.0, self.ways * two_sided_p(self.log_ratio / self.error, self.freedom))

    def p_beyond(self, threshold: float) -> float | None:
        """The p-value of "the change is within the threshold": below 5 % the 95 % interval lies beyond it."""
        if self.error is None or self.freedom < 1:
            return None
        beyond = abs(self.log_ratio) - math.log1p(threshold)
        if beyond <= NO_NOISE:
            return 1.0
        if self.error < NO_NOISE:
            return 0.0
        return min(1.0, self.ways * two_sided_p(beyond / self.error, self.freedom))


def level_of(passes: Sequence[Pass]) -> Level:
    """All values of a side together, as headline numbers are."""
    values = np.array([item.value for one in passes for item in one])
    p10, p50, p90 = (float(v) for v in np.percentile(values, (10, 50, 90)))
    return Level(median=p50, p10=p10, p90=p90, n=len(values))


def estimate(
    base: Sequence[Pass],
    candidate: Sequence[Pass],
    *,
    paired: bool = False,
    seed: int = 0,
    repeats_start: bool = False,
    variation: StartVariation | None = None,
) -> ChangeEstimate:
    """Compare two sides that both hold positive values.

    `repeats_start`: each repeat of a pass is its own start. `variation` is used where a side has one start.
    """
    found = _measured(base, candidate, paired=paired, seed=seed)
    starts = [_starts(side, repeats_start=repeats_start) for side in (base, candidate)]
    if min(starts) > 1:
        return found
    known = _from_passes(base, candidate) if max(starts) > 1 and not repeats_start else None
    return _with_starts(found, starts, known or variation)


def _starts(side: Sequence[Pass], *, repeats_start: bool) -> int:
    return sum(_repeats(one) for one in side) if repeats_start else len(side)


def start_variation(medians: Sequence[float], *, source: str) -> StartVariation | None:
    """From the medians of several starts of the same work; None of fewer than two."""
    if len(medians) < 2:
        return None
    logs = [math.log(value) for value in medians]
    return StartVariation(share=stdev(logs), freedom=len(logs) - 1, source=source)


def _from_passes(base: Sequence[Pass], candidate: Sequence[Pass]) -> StartVariation | None:
    """The variation of the side that was started several times; the other, started once, is taken to vary alike."""
    many = base if len(base) > len(candidate) else candidate
    return start_variation([level_of([one]).median for one in many], source=f"the {len(many)} passes of the other side")


def _with_starts(found: ChangeEstimate, starts: Sequence[int], variation: StartVariation | None) -> ChangeEstimate:
    """The estimate with what one start differs from the next; marked where that is not known."""
    if variation is None:
        return replace(found, knows_starts=False)
    inside = found.error or 0.0
    between = variation.share * math.sqrt(sum(1 / count for count in starts))
    # Medians of starts already contain what differs inside them; a stated deviation may not, so both are added.
    error = math.hypot(inside, between) if variation.freedom >= GIVEN else max(inside, between)
    return replace(
        found,
        error=error,
        freedom=variation.freedom,
        units=min(starts),
        unit="starts",
        how=f"{found.how}; start-to-start variation {100 * variation.share:.2g} % from {variation.source}",
    )


def _measured(base: Sequence[Pass], candidate: Sequence[Pass], *, paired: bool, seed: int) -> ChangeEstimate:
    random = np.random.default_rng(seed)
    levels = level_of(base), level_of(candidate)
    base, candidate = _by_sample(base, candidate)
    if paired and len(base) == len(candidate) and len(base) > 1:
        return _paired(base, candidate, levels, random)
    ratio = math.log(level_of(candidate).median / level_of(base).median)
    if len(base) == len(candidate) == 1 and min(_repeats(base[0]), _repeats(candidate[0])) == 1:
        return _same_samples(base[0], candidate[0], levels, ratio, random)
    units = [len(side) if len(side) > 1 else _repeats(side[0]) for side in (base, candidate)]
    what = "passes" if max(len(base), len(candidate)) > 1 else "repeats of one pass each"
    how = f"medians of {units[0]} and {units[1]} {what}"
    if min(units) < 2:
        return ChangeEstimate(
            base=levels[0], candidate=levels[1], log_ratio=ratio, error=None, freedom=0, units=min(units), how=how
        )
    draws = [np.log(np.median(_drawn(_cube(side), random), axis=1)) for side in (base, candidate)]
    error = math.sqrt(sum(float(np.var(d)) * n / (n - 1) for d, n in zip(draws, units, strict=True)))
    return ChangeEstimate(
        base=levels[0],
        candidate=levels[1],
        log_ratio=ratio,
        error=error,
        freedom=sum(units) - 2,
        units=min(units),
        how=how,
        unit=what.partition(" ")[0],
    )


def level_interval(
    side: Sequence[Pass],
    *,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    repeats_start: bool = False,
    variation: StartVariation | None = None,
) -> tuple[float, float] | None:
    """The confidence interval of the median of one side; None where it is not known how starts or repeats vary."""
    units = len(side) if len(side) > 1 else _repeats(side[0])
    error, freedom = 0.0, units - 1
    if units > 1:
        draws = np.log(np.median(_drawn(_cube(side), np.random.default_rng(seed)), axis=1))
        error = float(np.std(draws)) * math.sqrt(units / (units - 1))
    if _starts(side, repeats_start=repeats_start) < 2:
        if variation is None:
            return None
        error, freedom = math.hypot(error, variation.share), variation.freedom
    width = t_quantile(0.5 + confidence / 2, freedom) * error
    middle = level_of(side).median
    return middle * math.exp(-width), middle * math.exp(width)


def _paired(
    base: Sequence[Pass], candidate: Sequence[Pass], levels: tuple[Level, Level], random: np.random.Generator
) -> ChangeEstimate:
    """The n-th pass of one side with the n-th of the other."""
    cubes = [_cube(side).values.reshape(len(side), -1) for side in (base, candidate)]
    point = [np.log(np.nanmedian(values, axis=1)) for values in cubes]
    count = len(base)
    change = point[1] - point[0]
    if count < FEWEST_PAIRS:
        floor = sum(_median_variance(values) for values in cubes)
        by_pairs = ChangeEstimate(
            base=levels[0],
            candidate=levels[1],
            log_ratio=float(change.mean()),
            error=math.sqrt(max(float(np.var(change, ddof=1)), floor) / count),
            freedom=count - 1,
            units=count,
            how=f"{count} interleaved pairs, mean of their ratios",
            ways=2,
            unit="pairs",
        )
        by_sides = replace(
            by_pairs,
            error=math.sqrt(max(sum(float(np.var(logs, ddof=1)) for logs in point), floor) / count),
            freedom=2 * count - 2,
            how=f"{count} passes of each side, mean of their ratios",
        )
        return min(by_pairs, by_sides, key=lambda one: one.half_width() or 0.0)
    draws = _hodges_lehmann(change[random.integers(0, count, (DRAWS, count))])
    return ChangeEstimate(
        base=levels[0],
        candidate=levels[1],
        log_ratio=float(_hodges_lehmann(change[None, :])[0]),
        error=float(np.std(draws)) * math.sqrt(count / (count - 1)),
        freedom=count - 1,
        units=count,
        how=f"{count} interleaved pairs, median of the pairwise means of their ratios",
        unit="pairs",
    )


def _median_variance(passes: "np.ndarray[Any, np.dtype[np.float64]]") -> float:
    """How much the logarithm of a typical pass's median varies by what differs inside the pass."""
    low, middle, high = np.nanpercentile(passes, (25, 50, 75), axis=1)
    values = np.count_nonzero(~np.isnan(passes), axis=1)
    deviation = MEDIAN_BY_MEAN * (high - low) / MIDDLE_HALF / middle
    return float(np.median(deviation**2 / values))


def _same_samples(
    base: Pass, candidate: Pass, levels: tuple[Level, Level], ratio: float, random: np.random.Generator
) -> ChangeEstimate:
    """Without repeats, samples that both sides ran are pairs."""
    of_base = {item.sample_id: item.value for item in base}
    both = [(of_base[i.sample_id], i.value) for i in candidate if i.sample_id in of_base]
    count = len(both)
    if count < 2:
        return ChangeEstimate(
            base=levels[0],
            candidate=levels[1],
            log_ratio=ratio,
            error=None,
            freedom=0,
            units=1,
            how="one value on each side, nothing was repeated",
        )
    logs = np.log(np.array([c / b for b, c in both]))
    draws = _hodges_lehmann(logs[random.integers(0, count, (DRAWS, count))])
    return ChangeEstimate(
        base=levels[0],
        candidate=levels[1],
        log_ratio=float(_hodges_lehmann(logs[None, :])[0]),
        error=float(np.std(draws)) * math.sqrt(count / (count - 1)),
        freedom=count - 1,
        units=count,
        how=f"{count} samples that both ran once, as pairs",
        unit="samples",
    )


def _by_sample(base: Sequence[Pass], candidate: Sequence[Pass]) -> tuple[Sequence[Pass], Sequence[Pass]]:
    """Where both sides ran the same samples, each value by the typical one of its sample.

    A median over short and long samples would hang on the few values between the two.
    """
    values: list[dict[str, list[float]]] = [{}, {}]
    for side, found in zip((base, candidate), values, strict=True):
        for item in (item for one in side for item in one):
            found.setdefault(item.sample_id, []).append(item.value)
    if values[0].keys() != values[1].keys():
        return base, candidate
    typical = {name: median(values[0][name] + values[1][name]) for name in values[0]}
    scaled = [
        [[replace(item, value=item.value / typical[item.sample_id]) for item in one] for one in side]
        for side in (base, candidate)
    ]
    return scaled[0], scaled[1]


def _repeats(one: Pass) -> int:
    return len({item.repeat for item in one})


@dataclass(frozen=True, kw_only=True)
class _Cube:
    """Passes by repeats by samples; NaN where a pass has fewer. `repeats` counts those of each pass."""

    values: "np.ndarray[Any, np.dtype[np.float64]]"
    repeats: "np.ndarray[Any, np.dtype[np.int64]]"


def _cube(side: Sequence[Pass]) -> _Cube:
    rows = []
    for one in side:
        of_repeat: dict[int, list[float]] = {}
        for item in one:
            of_repeat.setdefault(item.repeat, []).append(item.value)
        rows.append([values for _, values in sorted(of_repeat.items())])
    deep, wide = max(len(row) for row in rows), max(len(values) for row in rows for values in row)
    cube = np.full((len(rows), deep, wide), np.nan)
    for number, row in enumerate(rows):
        for repeat, values in enumerate(row):
            cube[number, repeat, : len(values)] = values
    return _Cube(values=cube, repeats=np.array([len(row) for row in rows], np.int64))


def _drawn(cube: _Cube, random: np.random.Generator) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Sides drawn again: passes, and repeats inside them; one row each."""
    count, deep, _ = cube.values.shape
    draws = max(FEWEST_DRAWS, min(DRAWS, LARGEST_DRAW // cube.values.size))
    chosen = random.integers(0, count, (draws, count)) if count > 1 else np.zeros((draws, 1), np.int64)
    repeat = (random.random((draws, count, deep)) * cube.repeats[chosen][:, :, None]).astype(np.int64)
    values = cube.values[chosen[:, :, None], repeat].reshape(draws, -1)
    return _filled(values)


def _filled(values: "np.ndarray[Any, np.dtype[np.float64]]") -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Missing values replaced by the median of their row, which leaves it where it is."""
    holes = np.isnan(values)
    return np.where(holes, np.nanmedian(values, axis=1, keepdims=True), values) if holes.any() else values


def _hodges_lehmann(
    rows: "np.ndarray[Any, np.dtype[np.float64]]",
) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Of each row the median of the means of all pairs of its values."""
    first, second = np.triu_indices(rows.shape[1])
    return np.asarray(np.median((rows[:, first] + rows[:, second]) / 2, axis=1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for the number of questions asked: the chance of one false alarm among all of them (Holm)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return adjusted


def shared_among(looks: Sequence[int]) -> tuple[float, ...]:
    """What each of several looks at growing data may spend of the chance to err, in proportion to the data it has.

    Whoever asks after 3, 6, 12 and 24 pairs, and stops at the first answer, errs as often in all as who asks once.
    """
    return tuple(look / sum(looks) for look in looks)


def judge(
    found: ChangeEstimate,
    p_adjusted: float | None,
    *,
    lower_is_better: bool,
    threshold: float = THRESHOLD,
    spent: float = 1.0,
) -> Verdict:
    """Better or worse: the whole interval lies beyond the threshold. Same: the whole interval lies within it.

    `p_adjusted` is the corrected p-value of the change. `spent` is the part of the chance to err that this look may
    take, where there are several. Of one start each, whose variation is not known, a difference is at most observed.
    """
    chance = spent * (1 - CONFIDENCE)
    width = found.half_width(1 - chance)
    limit, moved = math.log1p(threshold), abs(found.log_ratio)
    if width is None or p_adjusted is None:
        return "inconclusive"
    if p_adjusted < chance and moved - width > limit:
        if not found.knows_starts:
            return OBSERVED
        return "better" if (found.log_ratio < 0) == lower_is_better else "worse"
    if moved + width <= limit:
        return "same" if found.knows_starts else NOT_OBSERVED
    return "inconclusive"


def repeats_needed(found: ChangeEstimate, *, threshold: float = THRESHOLD) -> int | None:
    """How many of `unit` as noisy as these would be conclusive; None where the noise is not known."""
    width = found.half_width()
    if width is None:
        return None
    limit = math.log1p(threshold)
    wanted = max(0.9 * abs(limit - abs(found.log_ratio)), limit / 10)
    return min(MOST_REPEATS, max(found.units + 1, math.ceil(found.units * (width / wanted) ** 2)))
