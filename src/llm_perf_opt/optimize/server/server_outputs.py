"""Whether the answers of a configuration are those of the start: greedy tokens, and log probabilities where reported.

Tokens that are equal hold. Where they differ, the start's own log probabilities decide: a setting without loss may
differ by rounding alone, so up to the first difference the probabilities must be nearly the same, and there the start
must have found both tokens about as probable. A lossy setting has to keep a share of equal tokens; how far it is from
the start is stated. A server that answers the same prompts differently by itself widens what counts as rounding.

Without log probabilities rounding cannot be distinguished from a change: texts have to be equal, or to keep the share
of equal words that the user sets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from llm_perf_opt.optimize.experiment_verdict import EPSILON, MIN_TOP1, ROUNDING
from llm_perf_opt.optimize.server.server_document import ServedCheck

# In nats: eight machine epsilons of bfloat16, as for models, times logits whose root mean square is 4, as usual for
# trained models. HTTP does not give the logits themselves.
USUAL_LOGITS = 4.0
TOLERANCE = ROUNDING * EPSILON["bfloat16"] * USUAL_LOGITS
SILENT = "the server reports no log probabilities"
WITHIN = ("equal", "within rounding", "within limits")


@dataclass(frozen=True, kw_only=True)
class ServedToken:
    """A token with its log probability, and those of the most probable tokens at its place."""

    text: str
    logprob: float | None = None
    others: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ServedAnswer:
    """The answer to one prompt; `tokens` are empty where the server reports none."""

    text: str
    tokens: tuple[ServedToken, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServedReference:
    """The answers of the baseline, twice: the second shows how much the server differs from itself."""

    answers: tuple[ServedAnswer, ...]
    again: tuple[ServedAnswer, ...]


@dataclass(frozen=True, kw_only=True)
class _Difference:
    """Two answers to one prompt: how many tokens are equal before the first difference, and what happens there."""

    equal: int
    compared: int
    is_equal: bool
    in_words: bool
    changes: tuple[float, ...]
    flip_gap: float | None


def check_answers(
    reference: ServedReference, answers: Sequence[ServedAnswer], *, is_lossy: bool, min_top1: float | None = None
) -> ServedCheck:
    """One verdict over all prompts, with the numbers behind it. `min_top1` is what the user set, if anything."""
    own = [_difference(a, b) for a, b in zip(reference.answers, reference.again, strict=True)]
    found = [_difference(a, b) for a, b in zip(reference.answers, answers, strict=True)]
    differing = sum(not one.is_equal for one in found)
    compared = sum(one.compared for one in found)
    changes = [change for one in found for change in one.changes]
    top1 = sum(one.equal for one in found) / compared if compared else None
    mean = fmean(changes) if changes else None
    gap = max((math.inf if one.flip_gap is None else one.flip_gap for one in found if not one.is_equal), default=None)
    verdict, limits = _verdict(own, found, mean, gap, top1, is_lossy=is_lossy, min_top1=min_top1)
    return ServedCheck(
        verdict=verdict,  # type: ignore[arg-type]
        text=_text(found, differing, top1, mean, gap),
        limits=limits,
        prompts=len(found),
        tokens=compared,
        differing=differing,
        top1=top1,
        logprob_mean=mean,
        flip_gap=None if gap is None or math.isinf(gap) else gap,
    )


def _verdict(
    own: Sequence[_Difference],
    found: Sequence[_Difference],
    mean: float | None,
    gap: float | None,
    top1: float | None,
    *,
    is_lossy: bool,
    min_top1: float | None,
) -> tuple[str, str]:
    tolerance = max(TOLERANCE, *(2 * change for one in own for change in one.changes), 0.0)
    near = mean is None or mean <= tolerance
    said = (
        f"a mean change of log probabilities of at most {tolerance:.2g}, another token only where the baseline "
        f"finds both within {2 * tolerance:.2g}"
    )
    if all(one.is_equal for one in found):
        if near:
            return "equal", f"equal tokens, {said}"
        return ("within limits", "stated: lossy") if is_lossy else ("different", said)
    if is_lossy:
        return _kept(top1, MIN_TOP1 if min_top1 is None else min_top1, _unit(found))
    if mean is not None and gap is not None and near and gap <= 2 * tolerance:
        return "within rounding", said
    if any(not one.is_equal for one in own):
        return "not comparable", "the baseline itself answers the same prompts differently"
    # Texts that differ from their first token on have none to compare.
    if mean is not None or any(one.changes for one in own):
        return "different", said
    if min_top1 is not None:
        verdict, share = _kept(top1, min_top1, _unit(found))
        return verdict, f"{share}: {SILENT}"
    return "different", f"equal texts, or a share of equal words that --min-top1 sets: {SILENT}"


def _kept(top1: float | None, least: float, unit: str) -> tuple[str, str]:
    """Whether the share of equal tokens, or words, is kept, and the limit in words."""
    holds = top1 is None or top1 >= least
    return "within limits" if holds else "different", f"equal {unit} on ≥ {100 * least:g} %"


def _unit(found: Sequence[_Difference]) -> str:
    return "words" if any(one.in_words for one in found) else "tokens"


def _text(
    found: Sequence[_Difference], differing: int, top1: float | None, mean: float | None, gap: float | None
) -> str:
    what = f"{len(found) - differing} of {len(found)} answers equal"
    if top1 is not None and differing:
        compared = sum(one.compared for one in found)
        what += f", {100 * top1:.1f} % of {compared} {_unit(found)} up to the first differences"
    if mean is not None:
        what += f", log probabilities changed by {mean:.2g} on average"
    if gap is not None and not math.isinf(gap):
        what += f", other tokens at most {gap:.2g} less probable (nats)"
    return what


def _difference(one: ServedAnswer, other: ServedAnswer) -> _Difference:
    if not one.tokens or not other.tokens:
        return _difference_in_words(one.text, other.text)
    changes: list[float] = []
    equal = 0
    for first, second in zip_longest(one.tokens, other.tokens):
        if first is None or second is None or first.text != second.text:
            gap = None if first is None or second is None else _gap(first, second)
            return _Difference(
                equal=equal,
                compared=equal + 1,
                is_equal=False,
                in_words=False,
                changes=tuple(changes),
                flip_gap=gap,
            )
        equal += 1
        if first.logprob is not None and second.logprob is not None:
            changes.append(abs(first.logprob - second.logprob))
    return _Difference(equal=equal, compared=equal, is_equal=True, in_words=False, changes=tuple(changes), flip_gap=0.0)


def _difference_in_words(one: str, other: str) -> _Difference:
    """Texts alone: their words stand for tokens, which the server does not report."""
    pairs = list(zip_longest(one.split(), other.split()))
    equal = next((place for place, (first, second) in enumerate(pairs) if first != second), len(pairs))
    is_equal = one == other
    compared = max(1, equal if equal == len(pairs) else equal + 1)
    return _Difference(
        equal=compared if is_equal else equal,
        compared=compared,
        is_equal=is_equal,
        in_words=True,
        changes=(),
        flip_gap=None,
    )


def _gap(start: ServedToken, other: ServedToken) -> float | None:
    """How much less probable the start found the other token; None where it did not report it."""
    if start.logprob is None or start.others is None or other.text not in start.others:
        return None
    return max(0.0, start.logprob - start.others[other.text])
