"""Conditions for continuous integration: `tpot_ms<=+5%` against the base, `ttft_ms<=50` on its own.

A condition holds when the whole confidence interval does, is broken when none of it does, else it is inconclusive,
which is not a pass.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llm_perf_opt.comparison.stability import CONFIDENCE
from llm_perf_opt.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from llm_perf_opt.comparison.statistics import ChangeEstimate, Pass, StartVariation

GateStatus = Literal["passed", "failed", "inconclusive"]
EXIT_PASSED, EXIT_REGRESSION, EXIT_INCONCLUSIVE = 0, 1, 3
_CONDITION = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w #.:/-]*?)\s*(?P<sign><=|>=)\s*(?P<limit>[+-]?\d+(?:\.\d+)?)\s*(?P<percent>%)?\s*"
)
_ALLOWED = "allowed: such as 'tpot_ms<=+5%' (against the base) or 'ttft_ms<=50' (on its own)"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """`limit` is a ratio to the base where `is_relative`, else in the unit of the metric."""

    text: str
    metric: str
    at_most: bool
    limit: float
    is_relative: bool


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """How a condition came out; `low` and `high` bound what was measured, as `limit` is given."""

    condition: str
    status: GateStatus
    measured: float | None
    low: float | None
    high: float | None
    limit: float
    reason: str


def parse_condition(text: str, option: str = "--gate") -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConfigError(f"{option}: not a condition (got {text!r}), {_ALLOWED}")
    limit = float(match["limit"])
    relative = match["percent"] is not None
    if relative and limit <= -100:
        raise ConfigError(f"{option}: nothing can fall by 100 % or more (got {text!r}), {_ALLOWED}")
    return Condition(
        text=text.strip(),
        metric=match["metric"],
        at_most=match["sign"] == "<=",
        limit=1 + limit / 100 if relative else limit,
        is_relative=relative,
    )


ONE_START = (
    "one start: how much one start differs from the next is unknown; use --interleave, several passes or "
    "--start-variation"
)


def gate_metrics(conditions: Sequence[Condition], *, known: Sequence[str], option: str = "--gate") -> None:
    """Refuse conditions on metrics that are unknown."""
    problems = [
        f"{option}: unknown metric {one.metric!r}{did_you_mean(one.metric, known) or f', allowed: {_listed(known)}'}"
        for one in conditions
        if one.metric not in known
    ]
    if problems:
        raise ConfigError(problems)


def _listed(known: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(known))


def check_condition(
    condition: Condition,
    found: "ChangeEstimate | None",
    candidate: "Sequence[Pass]",
    *,
    spent: float = 1.0,
    repeats_start: bool = False,
    variation: "StartVariation | None" = None,
    is_exact: bool = False,
) -> GateResult:
    """Whether a condition holds. `found` is None where the metric is not on both sides; `spent` as in a verdict.

    One start whose variation is not known decides nothing, unless the metric is exact.
    """
    confidence = 1 - spent * (1 - CONFIDENCE)
    if condition.is_relative:
        if found is None:
            return _without(condition, f"{condition.metric} was not measured on both sides")
        bounds, measured = found.interval_at(confidence), found.ratio
        if bounds is not None and not found.knows_starts and not is_exact:
            return _result(condition, "inconclusive", measured, bounds, ONE_START)
    else:
        if not any(candidate):
            return _without(condition, f"{condition.metric} was not measured in the candidate")
        # numpy is behind it, and a condition is parsed before anything is computed.
        from llm_perf_opt.comparison.statistics import level_interval, level_of

        measured = level_of(candidate).median
        bounds = level_interval(candidate, confidence=confidence, repeats_start=repeats_start, variation=variation)
        if bounds is None and is_exact:
            bounds = measured, measured
        if bounds is None:
            return _result(condition, "inconclusive", measured, None, ONE_START)
    if bounds is None:
        return _result(condition, "inconclusive", measured, None, "nothing was repeated, so the spread is unknown")
    inside = [value <= condition.limit if condition.at_most else value >= condition.limit for value in bounds]
    status: GateStatus = "passed" if all(inside) else "inconclusive" if any(inside) else "failed"
    part = {"passed": "all", "failed": "none", "inconclusive": "only a part"}[status]
    return _result(
        condition, status, measured, bounds, f"{part} of the {100 * confidence:.3g} % interval is within the limit"
    )


def failed_run(condition: Condition, reason: str, *, is_candidate: bool) -> GateResult:
    """A candidate that failed has regressed; without a base nothing can be reported."""
    return GateResult(
        condition=condition.text,
        status="failed" if is_candidate else "inconclusive",
        measured=None,
        low=None,
        high=None,
        limit=condition.limit,
        reason=reason,
    )


def exit_code(results: Sequence[GateResult]) -> int:
    """0 all passed, 1 one failed, 3 one inconclusive and none failed."""
    if any(result.status == "failed" for result in results):
        return EXIT_REGRESSION
    return EXIT_INCONCLUSIVE if any(result.status == "inconclusive" for result in results) else EXIT_PASSED


def _without(condition: Condition, reason: str) -> GateResult:
    return _result(condition, "inconclusive", None, None, reason)


def _result(
    condition: Condition,
    status: GateStatus,
    measured: float | None,
    bounds: tuple[float, float] | None,
    reason: str,
) -> GateResult:
    return GateResult(
        condition=condition.text,
        status=status,
        measured=measured,
        low=None if bounds is None else bounds[0],
        high=None if bounds is None else bounds[1],
        limit=condition.limit,
        reason=reason,
    )
