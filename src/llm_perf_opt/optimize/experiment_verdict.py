"""Judges one experiment: is the gain significant, do outputs match, are the limits kept, did the bound hold?

Outputs. Tokens that are equal to those of the start hold. Where they differ, the logits decide, taken while both read
the start's tokens. A fix that loses nothing may differ by rounding alone: ROUNDING machine epsilons of the number
format, relative to the size of the logits (their root mean square). That allows a mean KL divergence of half the square
of it, and another first choice only where the baseline's own logits were closer than twice it. A lossy fix has to keep
a mean KL divergence and a top-1 agreement that the user sets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.comparison.gate import Condition
from llm_perf_opt.comparison.statistics import THRESHOLD, ChangeEstimate, Pass, Verdict, estimate, judge
from llm_perf_opt.core.units import count_of, digits, format_factor
from llm_perf_opt.optimize.optimize_document import (
    HIGHER_IS_BETTER,
    UNITS,
    Agreement,
    ExperimentRow,
    ExperimentStatus,
    Held,
    MetricChange,
    OutputCheck,
    RuleCalibration,
)

ROUNDING = 8.0
EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
# Sums in another order differ by more than an epsilon of float32, which no user can notice.
LEAST_ROUNDING = 1e-3
MAX_KL, MIN_TOP1 = 0.05, 0.9
# Of an interval with as much above it as below.
HOPELESS = 0.6


@dataclass(frozen=True, kw_only=True)
class LossLimits:
    """What outputs of a lossy fix have to keep: mean KL divergence in nats, and the top-1 agreement."""

    max_kl: float = MAX_KL
    min_top1: float = MIN_TOP1


def rounding_of(agreement: Agreement) -> float:
    """By how much logits may differ, in logits."""
    relative = max(ROUNDING * EPSILON.get(agreement.dtype, EPSILON["bfloat16"]), LEAST_ROUNDING)
    return relative * agreement.logit_rms


def check_outputs(agreement: Agreement | None, *, is_lossy: bool, limits: LossLimits) -> OutputCheck:
    """Whether outputs hold, with the numbers behind it."""
    if agreement is None:
        return OutputCheck(verdict="not checked", text="outputs were not compared", limits="", agreement=None)
    where = f"{agreement.positions} tokens of {count_of(agreement.samples, 'prompt')}"
    if agreement.tokens_equal:
        text = f"greedy tokens equal on {where}; mean KL {agreement.kl_mean:.1e}"
        return OutputCheck(verdict="equal", text=text, limits="equal tokens", agreement=agreement)
    numbers = (
        f"tokens differ from {agreement.first_difference}; on the baseline's tokens mean KL {agreement.kl_mean:.1e}, "
        f"top-1 agreement {100 * agreement.top1:.1f} % of {where}, others at most {agreement.flip_gap:.2g} "
        "logits below"
    )
    if is_lossy:
        holds = agreement.kl_mean <= limits.max_kl and agreement.top1 >= limits.min_top1
        said = f"mean KL ≤ {limits.max_kl:g}, top-1 agreement ≥ {100 * limits.min_top1:g} %"
        return OutputCheck(
            verdict="within limits" if holds else "different", text=numbers, limits=said, agreement=agreement
        )
    rounding = rounding_of(agreement)
    most_kl = rounding**2 / 2
    holds = agreement.kl_mean <= most_kl and agreement.flip_gap <= 2 * rounding
    said = (
        f"rounding of {agreement.dtype}: mean KL ≤ {most_kl:.1e}, another top-1 token only where the baseline's logits "
        f"are within {2 * rounding:.2g}"
    )
    return OutputCheck(
        verdict="within rounding" if holds else "different", text=numbers, limits=said, agreement=agreement
    )


@dataclass(frozen=True, kw_only=True)
class MeasuredMetric:
    """One metric of an experiment alongside what it is compared with."""

    change: MetricChange
    estimate: ChangeEstimate
    verdict: Verdict


def compare_passes(
    before: Sequence[Mapping[str, Pass]],
    after: Sequence[Mapping[str, Pass]],
    metrics: Sequence[str],
    *,
    paired: bool,
    spent: float = 1.0,
) -> dict[str, MeasuredMetric]:
    """Every metric both sides have; passes in the order they were made, the n-th alongside the n-th where `paired`.

    `spent` is the part of the chance to err that this look at the passes may take, where there are several.
    """
    found = {}
    for metric in metrics:
        sides = [[one[metric] for one in side if one.get(metric)] for side in (before, after)]
        if not all(sides) or any(item.value <= 0 for side in sides for one in side for item in one):
            continue
        one = estimate(sides[0], sides[1], paired=paired)
        higher = metric in HIGHER_IS_BETTER
        interval = one.interval
        low, high = (None, None) if interval is None else interval if higher else (1 / interval[1], 1 / interval[0])
        change = MetricChange(
            metric=metric,
            unit=UNITS.get(metric, ""),
            before=one.base.median,
            after=one.candidate.median,
            gain=one.ratio if higher else 1 / one.ratio,
            low=low,
            high=high,
        )
        verdict = judge(one, one.p_value, lower_is_better=not higher, spent=spent)
        found[metric] = MeasuredMetric(change=change, estimate=one, verdict=verdict)
    return found


def is_settled(found: MeasuredMetric | None) -> bool:
    """Whether more pairs would not change the verdict."""
    return found is not None and found.verdict != "inconclusive"


def is_hopeless(found: MeasuredMetric | None) -> bool:
    """Whether more pairs would hardly show a gain worth having: four chances of five that there is none."""
    interval = None if found is None else found.estimate.interval_at(HOPELESS)
    if found is None or interval is None:
        return False
    most = interval[1] if found.change.metric in HIGHER_IS_BETTER else 1 / interval[0]
    return most < 1 + THRESHOLD


def judge_experiment(
    found: MeasuredMetric | None, check: OutputCheck, broken: Sequence[str], *, objective: str
) -> tuple[ExperimentStatus, str]:
    """One word and its reason. Outputs come before speed, limits before gains."""
    if found is None:
        return "failed", f"{objective} was not measured on both sides"
    change = found.change
    interval = "" if change.low is None or change.high is None else f", 95 %: {change.low:.2f} to {change.high:.2f}×"
    said = f"{format_factor(change.gain)} in {objective}{interval}"
    if check.verdict == "different":
        return "wrong", f"{said}, but {check.text} (allowed: {check.limits})"
    if broken:
        return "over a limit", f"{said}, but {'; '.join(broken)}"
    if found.verdict == "better":
        return "helped", said
    if found.verdict == "worse":
        return "slower", said
    if found.verdict == "same":
        return "no gain", f"{said}: the same within {100 * THRESHOLD:g} %"
    if change.high is not None and change.high < 1:
        # Of several looks each may err less than the interval says; not to recommend it needs no more than this.
        return "slower", said
    if change.low is not None and change.low > 1:
        return "no gain", f"{said}: too small or too uncertain, given several interim tests, to count as a gain"
    return "no gain", f"{said}: not statistically significant ({count_of(found.estimate.units, 'pair')})"


def broken_constraints(
    conditions: Sequence[Condition], values: Mapping[str, float | None], start: Mapping[str, float | None]
) -> list[str]:
    """The limits an experiment does not keep; one whose number is not known is not kept either."""
    broken = []
    for condition in conditions:
        value, base = values.get(condition.metric), start.get(condition.metric)
        if value is None or (condition.is_relative and not base):
            broken.append(f"{condition.metric} is not known, so {condition.text} cannot be verified")
            continue
        measured = value / base if condition.is_relative and base else value
        if measured > condition.limit if condition.at_most else measured < condition.limit:
            broken.append(f"{condition.metric} is {digits(value, 4)}, the limit is {condition.text}")
    return broken


def bound_held(gain: float, low: float | None, bound: float | None) -> Held | None:
    """Whether a promise of at most `bound` was kept. Above it by less than the noise is not a proof against it."""
    if bound is None:
        return None
    if gain <= bound:
        return "held"
    return "exceeded" if low is not None and low > bound else "exceeded within the noise"


def break_even_tokens(compile_s: float | None, before_ms: float | None, after_ms: float | None) -> float | None:
    """After how many tokens of one sequence preparing has paid for itself."""
    if not compile_s or before_ms is None or after_ms is None or after_ms >= before_ms:
        return None
    return math.ceil(1e3 * compile_s / (before_ms - after_ms))


# Outputs held, and no limit was passed.
SAYS_A_GAIN = ("helped", "no gain", "slower")


def gains_of_causes(rows: Sequence[ExperimentRow], objective: str) -> dict[str, float]:
    """The most that was measured for each cause, by the experiments that were made for it alone and whose outputs hold.

    Below 1 it was slower. What was wrong, failed or was combined with another says nothing of a single cause.
    """
    found: dict[str, float] = {}
    for row in rows:
        change = row.change(objective)
        if change is None or row.bound is None or row.is_combined or row.status not in SAYS_A_GAIN:
            continue
        for rule in row.bound.rules:
            found[rule] = max(found.get(rule, 0.0), change.gain)
    return found


def calibrate_rules(rows: Sequence[ExperimentRow], objective: str) -> tuple[RuleCalibration, ...]:
    """How often the bounds of each rule held, over all experiments that were measured."""
    found = []
    for rule in dict.fromkeys(rule for row in rows if row.bound is not None for rule in row.bound.rules):
        mine = [r for r in rows if r.bound is not None and rule in r.bound.rules and r.bound_held is not None]
        if not mine:
            continue
        over = [r for r in mine if r.bound_held != "held"]
        worst = max(over, key=lambda r: (r.total_gain or 0.0) / ((r.bound and r.bound.gain) or 1.0), default=None)
        found.append(
            RuleCalibration(
                rule=rule,
                experiments=len(mine),
                held=sum(r.bound_held == "held" for r in mine),
                exceeded=sum(r.bound_held == "exceeded" for r in mine),
                within_noise=sum(r.bound_held == "exceeded within the noise" for r in mine),
                worst=None if worst is None else worst.name,
            )
        )
    return tuple(found)
