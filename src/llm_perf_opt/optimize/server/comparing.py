"""Two configurations compared by starts that were made interleaved, with the statistics of `compare`.

Every value is one start of a server: what starts differ by is in the interval. The n-th start of one side is paired
with the n-th of the other, both made in the same round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.comparison.statistics import ChangeEstimate, Pass, Verdict, estimate, judge
from llm_perf_opt.optimize.experiment_plan import PAIR_LOOKS, look_share
from llm_perf_opt.optimize.server.server_document import MORE_IS_BETTER, VerifiedGain

# Rounds after which a verdict is requested.
ROUND_LOOKS = PAIR_LOOKS


@dataclass(frozen=True, kw_only=True)
class RoundComparison:
    """One configuration over another: the gain, and the verdict of this look at it."""

    gain: VerifiedGain
    verdict: Verdict

    @property
    def is_settled(self) -> bool:
        return self.verdict != "inconclusive"


def compare_rounds(
    before: Sequence[float], after: Sequence[float], objective: str, *, is_last: bool
) -> RoundComparison | None:
    """The second side over the first; None before the second round.

    `is_last`: no round follows, so this look may take all that earlier ones left of the chance to err.
    """
    rounds = min(len(before), len(after))
    if rounds < 2:
        return None
    found = estimate(_passes(before[:rounds]), _passes(after[:rounds]), paired=True)
    more = objective in MORE_IS_BETTER
    spent = look_share(rounds, is_last=is_last or rounds not in ROUND_LOOKS)
    verdict = judge(found, found.p_value, lower_is_better=not more, spent=spent)
    return RoundComparison(gain=_gain(found, rounds, more), verdict=verdict)


def _gain(found: ChangeEstimate, rounds: int, more: bool) -> VerifiedGain:
    interval = found.interval
    low, high = (None, None) if interval is None else interval if more else (1 / interval[1], 1 / interval[0])
    how = found.how.replace("pairs", "pairs of starts").replace("passes", "starts")
    return VerifiedGain(gain=found.ratio if more else 1 / found.ratio, low=low, high=high, rounds=rounds, how=how)


def _passes(values: Sequence[float]) -> list[Pass]:
    return [[RepeatedValue(sample_id="start", repeat=0, value=value)] for value in values]
