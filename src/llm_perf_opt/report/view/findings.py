"""Findings: what to change, in the order of the time it could save."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.diagnosis.facts import PER, RunFacts
from llm_perf_opt.analysis.findings.finding import (
    REQUEST,
    WHOLE_CAPTURE,
    Evidence,
    Finding,
    amdahl,
    gain_in_request,
    gain_of_saving,
    order_of_twins,
    saved_in_request_ms,
)
from llm_perf_opt.analysis.findings.rules import RULE_BY_ID, profiler_overhead
from llm_perf_opt.core.names import PHASES, PREFILL
from llm_perf_opt.core.units import format_factor, format_ms

NO_TIME = "no time at stake"


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """One finding as text. `gain` is the most that could speed up and what that is of, empty where not known.

    `saves` is of a request where that is known, and `saves_each` then of a step of each phase.
    `also` are the titles of findings of the same rule and remedy in other phases; evidence and gains count them in.
    """

    rank: int
    rule: str
    title: str
    also: tuple[str, ...]
    phase: str
    evidence: tuple[Evidence, ...]
    plain_words: str
    remedy: str
    saves: str
    saves_each: str
    gain: str
    confidence: str
    caveat: str | None


def findings_view(found: tuple[Finding, ...], facts: RunFacts) -> tuple[FindingView, ...]:
    """One entry per rule and remedy; what is said of the profilers themselves stands in the provenance."""
    groups: list[list[Finding]] = []
    for finding in found:
        if finding.rule == profiler_overhead.RULE.id:
            continue
        group = next((g for g in groups if _are_twins(g[0], finding)), None)
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    # Twins save together more than each of them: the order is that of the sums.
    groups.sort(key=lambda group: order_of_twins(group, facts))
    return tuple(_view(rank, group, facts) for rank, group in enumerate(groups, start=1))


def twins(finding: Finding, found: Sequence[Finding]) -> list[Finding]:
    """A finding and those of the same rule and remedy in other phases, as they are listed together."""
    return [finding, *(other for other in found if _are_twins(finding, other))]


def _are_twins(one: Finding, other: Finding) -> bool:
    if one.rule != other.rule or one.remedy != other.remedy or one.phase == other.phase:
        return False
    return one.phase in PHASES and other.phase in PHASES


def _view(rank: int, group: Sequence[Finding], facts: RunFacts) -> FindingView:
    first = group[0]
    rule = RULE_BY_ID.get(first.rule)
    return FindingView(
        rank=rank,
        rule=first.rule,
        title=first.title,
        also=tuple(finding.title for finding in group[1:]),
        phase=" and ".join(finding.phase or "run" for finding in group),
        evidence=tuple(_evidence(group)),
        plain_words=rule.plain_words if rule is not None else "",
        remedy=first.remedy,
        saves=_saves(group, facts),
        saves_each=_saves_each(group, facts),
        gain=gain_of(group, facts),
        confidence=first.confidence,
        caveat=first.caveat,
    )


def _evidence(group: Sequence[Finding]) -> list[Evidence]:
    if len(group) == 1:
        return list(group[0].evidence)
    return [Evidence(text=f"{f.phase}: {e.text}", source=e.source) for f in group for e in f.evidence]


def gain_of(group: Sequence[Finding], facts: RunFacts) -> str:
    """Of a request, if all phases were changed, and of each phase by name."""
    if len(group) == 1:
        return gain_text(group[0], facts)
    saved = [saved_in_request_ms(finding, facts) for finding in group]
    known = [ms for ms in saved if ms is not None]
    request = gain_of_saving(sum(known), facts) if len(known) == len(saved) else None
    phases = ", ".join(f"{format_factor(f.gain)} in {f.phase}" for f in group if f.gain is not None)
    if request is None:
        shares = [finding.share for finding in group if finding.share is not None]
        whole = amdahl(1.0, sum(shares)) if len(shares) == len(group) else None
        return phases if whole is None else f"{format_factor(whole)} over the whole capture"
    return (
        f"{format_factor(request)} over a request ({phases})" if phases else f"{format_factor(request)} over a request"
    )


def gain_text(finding: Finding, facts: RunFacts) -> str:
    """A factor means nothing without what it is of: a whole request where that is known, a phase, or the capture."""
    if finding.gain is None:
        return ""
    factor = format_factor(finding.gain)
    if finding.share is not None or finding.phase == WHOLE_CAPTURE:
        return f"{factor} over the whole capture"
    if finding.phase == REQUEST:
        return f"{factor} over a request"
    if finding.phase not in PHASES:
        return f"{factor} over the run"
    request = gain_in_request(finding, facts)
    if request is None:
        return f"{factor} in {finding.phase}"
    return f"{format_factor(request)} over a request ({factor} in {finding.phase})"


def _saves(group: Sequence[Finding], facts: RunFacts) -> str:
    """The time of a request where it is known, else that of a step of each phase."""
    first = group[0]
    if first.share is not None:
        share = min(1.0, sum(finding.share or 0.0 for finding in group))
        return f"up to {100 * share:.0f} % of the capture{', paid once' if first.is_one_time else ''}"
    if first.saves_ms is None:
        return NO_TIME if first.gain is None else "time not known"
    whole = _in_requests(group, facts)
    return f"up to {_steps(group)}" if whole is None else f"up to {format_ms(whole)} per request"


def _saves_each(group: Sequence[Finding], facts: RunFacts) -> str:
    """Empty where there is only one time to say."""
    if group[0].share is not None or group[0].saves_ms is None or _in_requests(group, facts) is None:
        return ""
    return "" if [f.phase for f in group] in ([PREFILL], [REQUEST]) else _steps(group)


def _steps(group: Sequence[Finding]) -> str:
    told = [(f.saves_ms, PER.get(f.phase or "", "over the capture")) for f in group]
    return ", ".join(f"{format_ms(ms)} {per}" for ms, per in told if ms is not None)


def _in_requests(group: Sequence[Finding], facts: RunFacts) -> float | None:
    known = [saved_in_request_ms(finding, facts) for finding in group]
    return None if any(ms is None for ms in known) else sum(ms for ms in known if ms is not None)
