"""Noisy binary search over points 0 (good) to n (bad): which point to compare next, and when to stop.

A comparison is a number of interleaved pairs of one point with point 0; a pair gives the logarithm of the ratio of the
two, positive where the point is worse. The model: the ratios of points before the culprit vary around 0, those from it
on around one common change, both with the same spread. Bayes' rule gives the probability of each culprit, with the
unknown change integrated out; the next comparison is at the point that splits this probability in halves.

1. The control compares point 0 with itself: the spread, and the smallest change that the pairs allowed can show.
2. The ends are compared at a growing number of pairs, with an error of `ENDS_ERROR` over all looks: no regression, no
   search.
3. The search stops when one culprit has the probability asked for. Points that cannot be measured are skipped; culprits
   that no measurable point separates are reported together.

The same measurements always lead to the same requests, so a search is resumed by replaying them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Literal

from llm_perf_opt.comparison.student import t_quantile, two_sided_p

# Probability that equal ends are called a regression.
ENDS_ERROR = 0.001
# The probability of the culprit at which the search stops.
CONFIDENCE = 0.97
# Error of the answer of one comparison, which decides how many pairs it takes.
COMPARISON_ERROR = 0.02
CONTROL_PAIRS = 12
FIRST_LOOK = 4
MOST_PAIRS = 400
MOST_COMPARISONS = 30
# Spread of a point around its group: commits that change nothing on purpose still move code and memory a little. It is
# a quarter of the limit at most, so that a change of that size is still found.
HARMLESS, HARMLESS_OF_LIMIT = 0.005, 0.25
# Pairs of a comparison before it may end: a spread of fewer says little.
FEWEST_PAIRS = 4
# Huber's constant: residuals beyond this many deviations count as this large, since disturbed pairs must not decide. On
# two cores with a load of 4, ratios of pairs had a standard deviation of 25 % and this estimator one of 15 %.
CLIPPED = 1.5
# The median absolute deviation of a normal distribution by its standard deviation.
MAD = 0.6745
# Power of the ends' comparison at the smallest change that is called detectable.
POWER_Z = 1.2816
# A comparison is given up at this many times the pairs it should take; the next one may be elsewhere.
PATIENCE = 3.0
# A comparison is inspected this many times on its way.
BATCHES = 8
# With a larger smallest detectable change, ends without a significant difference show nothing.
MOST_DETECTABLE = 0.25
# Measured points this many standard errors from what the model expects of them.
MISFIT = 4.5

Phase = Literal["control", "ends", "search", "done"]
Outcome = Literal["regression", "no regression", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class PairsRequest:
    """Measure this many more pairs of this point with point 0."""

    phase: Phase
    point: int
    pairs: int


@dataclass(frozen=True, kw_only=True)
class Control:
    """The good point against itself. `spread` is the standard deviation of the logarithm of one pair's ratio.

    `detectable` is the smallest change, as a share, that the ends' comparison finds in nine of ten searches. `bias` is
    set where the two equal sides differ significantly: then the order of runs matters more than the program.
    """

    pairs: int
    spread: float
    detectable: float
    bias: float | None


@dataclass(frozen=True, kw_only=True)
class BisectAnswer:
    """What a search found. `culprits` are the points that may have made it worse, several only where those between
    could not be measured; `probability` is that of all of them. `change` and its 95 % interval are shares. `excluded`:
    without a regression, a change above this share is excluded with 99.9 %.
    """

    outcome: Outcome
    culprits: tuple[int, ...] = ()
    probability: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    excluded: float | None = None
    misfits: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PointMean:
    """The change of a point against the good end with its 95 % interval, as shares."""

    change: float
    low: float
    high: float
    pairs: int


@dataclass(kw_only=True)
class BisectSearch:
    """The state of one search. `limit` is the change, as a share, from which on it matters."""

    last: int
    limit: float = 0.02
    confidence: float = CONFIDENCE
    most_pairs: int = MOST_PAIRS
    phase: Phase = "control"
    comparisons: int = 0
    control: Control | None = None
    answer: BisectAnswer | None = None
    values: dict[int, list[float]] = field(default_factory=dict)
    own: list[float] = field(default_factory=list)
    skipped: set[int] = field(default_factory=set)
    # Of the comparison that is continuing: its point, and its pairs so far.
    _point: int | None = None
    _new: list[float] = field(default_factory=list)
    _spread: float = 0.0
    _means: dict[int, float] = field(default_factory=dict)

    def next_request(self) -> PairsRequest | None:
        """What to measure next; None when the answer is known."""
        if self.phase == "done":
            return None
        if self.phase == "control":
            return PairsRequest(phase="control", point=0, pairs=CONTROL_PAIRS - len(self.own))
        if self.phase == "ends":
            done = len(self.values.get(self.last, ()))
            look = next(one for one in self._looks() if one > done)
            return PairsRequest(phase="ends", point=self.last, pairs=look - done)
        assert self._point is not None
        return PairsRequest(phase="search", point=self._point, pairs=self._batch())

    def add(self, point: int, log_ratios: Sequence[float]) -> None:
        """The pairs that `next_request` asked for."""
        if self.phase == "control":
            self.own += log_ratios
            self._measure_spread()
            if len(self.own) >= CONTROL_PAIRS:
                self._end_control()
        elif self.phase == "ends":
            self.values.setdefault(point, []).extend(log_ratios)
            self._measure_spread()
            self._look_at_ends()
        elif self.phase == "search":
            self.values.setdefault(point, []).extend(log_ratios)
            self._new += log_ratios
            self._measure_spread()
            self._look_at_comparison()

    def skip(self, point: int) -> None:
        """A point that cannot be measured. Without its ends there is no search."""
        self.skipped.add(point)
        if point in (0, self.last):
            name = "good" if point == 0 else "bad"
            self._finish(BisectAnswer(outcome="inconclusive", reason=f"the {name} end cannot be measured"))
        elif self.phase == "search":
            self._new = []
            self._choose()

    @property
    def spread(self) -> float:
        """The standard deviation of one pair, over all points, each around its own middle."""
        return self._spread

    @property
    def freedom(self) -> int:
        """How well the spread is known."""
        groups = (self.own, *self.values.values())
        return max(1, sum(len(values) - 1 for values in groups if values))

    def _measure_spread(self) -> None:
        """Spread and means again, by one step of Huber's estimator from the median of each point."""
        groups = [(values, median(values)) for values in (self.own, *self.values.values()) if values]
        residuals = [value - middle for values, middle in groups for value in values]
        bound = CLIPPED * median([abs(one) for one in residuals]) / MAD
        clipped = [_between(one, bound) for one in residuals]
        inside = max(0.5, sum(abs(one) <= bound for one in residuals) / len(residuals))
        # The standard deviation that makes the error of a mean of this many pairs right.
        self._spread = math.sqrt(sum(one**2 for one in clipped) / self.freedom) / inside
        self._means = {}
        for point, values in self.values.items():
            middle = median(values)
            self._means[point] = middle + fmean(_between(value - middle, bound) for value in values) / inside

    def _mean(self, point: int) -> float:
        return self._means[point]

    def _end_control(self) -> None:
        spread = self.spread
        error = spread / math.sqrt(len(self.own))
        mean = fmean(self.own)
        differs = error > 0 and two_sided_p(mean / error, len(self.own) - 1) < ENDS_ERROR
        self.control = Control(
            pairs=len(self.own),
            spread=spread,
            detectable=self._detectable(),
            bias=math.expm1(mean) if differs else None,
        )
        self.comparisons += 1
        self.phase = "ends"

    def _detectable(self) -> float:
        """The smallest change that the ends' comparison finds in nine of ten searches, by the spread known so far."""
        z = t_quantile(1 - ENDS_ERROR / 2, 500) + POWER_Z
        return math.expm1(z * self.spread / math.sqrt(self.most_pairs))

    def _looks(self) -> list[int]:
        looks = [FIRST_LOOK]
        while looks[-1] < self.most_pairs:
            looks.append(min(2 * looks[-1], self.most_pairs))
        # One more, for ends that are unsettled by then.
        return [*looks, 2 * self.most_pairs]

    def _look_at_ends(self) -> None:
        count = len(self.values[self.last])
        looks = self._looks()
        if count not in looks:
            return
        allowed = ENDS_ERROR * count / sum(looks)
        mean, error = self._mean(self.last), self.spread / math.sqrt(count)
        freedom = count + len(self.own) - 2
        p = two_sided_p(mean / error, freedom) if error > 0 else (1.0 if mean == 0 else 0.0)
        limit = math.log1p(self.limit)
        upper = mean + t_quantile(1 - ENDS_ERROR / 2, freedom) * error
        if p < allowed and mean > limit:
            self.comparisons += 1
            self.phase = "search"
            self._choose()
            return
        answer = self._no_regression(mean, error, freedom, upper)
        if upper <= limit or count == looks[-1] or (count == looks[-2] and answer.outcome == "no regression"):
            self.comparisons += 1
            self._finish(answer)

    def _no_regression(self, mean: float, error: float, freedom: int, upper: float) -> BisectAnswer:
        width = t_quantile(0.975, freedom) * error
        faster = mean + width < 0
        # The spread of the control's 12 pairs may be half of the true one, so that of all pairs counts here.
        detectable = self._detectable()
        if detectable > MOST_DETECTABLE and not faster:
            return BisectAnswer(
                outcome="inconclusive",
                change=math.expm1(mean),
                low=math.expm1(mean - width),
                high=math.expm1(mean + width),
                reason=(
                    f"the machine is too noisy: equal runs differ by {100 * self.spread:.0f} %, so changes "
                    f"below {100 * detectable:.0f} % are not found; measure longer runs, or on a quiet machine"
                ),
            )
        if mean + width > math.log1p(max(self.limit, detectable)):
            return BisectAnswer(
                outcome="inconclusive",
                change=math.expm1(mean),
                low=math.expm1(mean - width),
                high=math.expm1(mean + width),
                reason=f"{len(self.values[self.last])} pairs are not enough to decide whether the ends differ",
            )
        reason = "the bad end is better than the good end; to find what improved it, exchange the two" if faster else ""
        return BisectAnswer(
            outcome="no regression",
            change=math.expm1(mean),
            low=math.expm1(mean - width),
            high=math.expm1(mean + width),
            reason=reason,
            excluded=None if faster else math.expm1(upper),
        )

    def probabilities(self) -> list[float]:
        """The probability of each culprit, from point 1 to the last."""
        points = {point: self._weighted(point) for point in self.values}
        whole = sum(weight * mean**2 for weight, mean in points.values())
        scores = []
        for culprit in range(1, self.last + 1):
            inside = [points[point] for point in points if point >= culprit]
            weight = sum(w for w, _ in inside)
            total = sum(w * mean for w, mean in inside)
            # How far the points are from 0 before the culprit and from the best change for the worse after it. The
            # spread is estimated from the same pairs, so the likelihood is Student's; the prior of the change is flat.
            misfit = max(0.0, whole - total * max(total, 0.0) / weight)
            scores.append(-(self.freedom + 1) / 2 * math.log1p(misfit / self.freedom) - math.log(weight) / 2)
        top = max(scores)
        shares = [math.exp(score - top) for score in scores]
        return [share / sum(shares) for share in shares]

    def _weighted(self, point: int) -> tuple[float, float]:
        """The weight and the mean of a measured point."""
        return 1 / self._variance(len(self.values[point])), self._mean(point)

    def _variance(self, pairs: int) -> float:
        harmless = min(HARMLESS, HARMLESS_OF_LIMIT * self.limit)
        return float(self.spread**2 / pairs + max(harmless, 1e-6) ** 2)

    def _change(self, culprit: int) -> tuple[float, float]:
        """The common change from this culprit on, and its standard error."""
        inside = [self._weighted(point) for point in self.values if point >= culprit]
        weight = sum(w for w, _ in inside)
        return sum(w * mean for w, mean in inside) / weight, 1 / math.sqrt(weight)

    def _choose(self) -> None:
        """The next point, or the end."""
        shares = self.probabilities()
        group, probability = self._likeliest(shares)
        if probability >= self.confidence:
            self._finish(self._found(group, probability))
            return
        measurable = [point for point in range(1, self.last) if point not in self.skipped]
        slow = {point: sum(shares[:point]) for point in measurable}
        if not slow or self.comparisons >= MOST_COMPARISONS:
            reason = f"after {self.comparisons} comparisons no point has a probability of {100 * self.confidence:.0f} %"
            self._finish(self._found(group, probability, outcome="inconclusive", reason=reason))
            return
        self._point = min(slow, key=lambda point: (abs(slow[point] - 0.5), point))
        self._new = []

    def _likeliest(self, shares: Sequence[float]) -> tuple[tuple[int, ...], float]:
        """The group of culprits that measurable points do not separate with the highest probability."""
        groups: list[list[int]] = [[]]
        for point in range(1, self.last + 1):
            groups[-1].append(point)
            if point not in self.skipped and point != self.last:
                groups.append([])
        best = max(groups, key=lambda group: sum(shares[point - 1] for point in group))
        return tuple(best), sum(shares[point - 1] for point in best)

    def _expected(self) -> int:
        """The pairs after which a comparison should have its answer."""
        change, _ = self._change(self._likeliest(self.probabilities())[0][0])
        evidence = math.log((1 - COMPARISON_ERROR) / COMPARISON_ERROR)
        pairs = 2 * evidence * (self.spread / max(change, 1e-6)) ** 2
        return min(self.most_pairs, max(FEWEST_PAIRS, math.ceil(pairs)))

    def _batch(self) -> int:
        return max(FEWEST_PAIRS, math.ceil(self._expected() / BATCHES))

    def _look_at_comparison(self) -> None:
        change, _ = self._change(self._likeliest(self.probabilities())[0][0])
        mean, variance, freedom = fmean(self._new), self._variance(len(self._new)), self.freedom
        as_good, as_bad = mean**2 / variance, (mean - change) ** 2 / variance
        evidence = (freedom + 1) / 2 * (math.log1p(as_good / freedom) - math.log1p(as_bad / freedom))
        enough = math.log((1 - COMPARISON_ERROR) / COMPARISON_ERROR)
        if abs(evidence) >= enough or len(self._new) >= min(PATIENCE * self._expected(), self.most_pairs):
            self.comparisons += 1
            self._choose()

    def _found(
        self, group: tuple[int, ...], probability: float, *, outcome: Outcome = "regression", reason: str = ""
    ) -> BisectAnswer:
        change, error = self._change(group[0])
        return BisectAnswer(
            outcome=outcome,
            culprits=group,
            probability=probability,
            change=math.expm1(change),
            low=math.expm1(change - 1.96 * error),
            high=math.expm1(change + 1.96 * error),
            reason=reason,
            misfits=self._misfits(group, change),
        )

    def _misfits(self, group: Sequence[int], change: float) -> tuple[int, ...]:
        """Measured points that are neither as the good nor as the bad end: more than one change on the line."""
        found = []
        for point in sorted(self.values):
            weight, mean = self._weighted(point)
            expected = change if point >= group[-1] else 0.0
            if abs(mean - expected) * math.sqrt(weight) > MISFIT:
                found.append(point)
        return tuple(found)

    def _finish(self, answer: BisectAnswer) -> None:
        self.answer = answer
        self.phase = "done"

    def means(self) -> Mapping[int, PointMean]:
        """What is known of each measured point."""
        found = {}
        for point, values in sorted(self.values.items()):
            mean = self._mean(point)
            width = t_quantile(0.975, self.freedom) * self.spread / math.sqrt(len(values))
            found[point] = PointMean(
                change=math.expm1(mean),
                low=math.expm1(mean - width),
                high=math.expm1(mean + width),
                pairs=len(values),
            )
        return found


def _between(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)
