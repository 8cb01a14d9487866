"""Findings: what to change, in the order of the time it could save."""

from dataclasses import dataclass

from llm_perf_opt.analysis.findings.facts import PER, RunFacts
from llm_perf_opt.analysis.findings.finding import (
    WHOLE_CAPTURE,
    Evidence,
    Finding,
    gain_in_request,
    saved_in_request_ms,
)
from llm_perf_opt.analysis.findings.rules import RULE_BY_ID
from llm_perf_opt.core.names import PHASES
from llm_perf_opt.core.units import format_factor, format_ms

NO_TIME = "no time at stake"


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """One finding as text. `gain` is the most that could speed up and what that is of, empty where not known."""

    rank: int
    rule: str
    title: str
    phase: str
    evidence: tuple[Evidence, ...]
    plain_words: str
    remedy: str
    saves: str
    gain: str
    confidence: str
    caveat: str | None


def findings_view(found: tuple[Finding, ...], facts: RunFacts) -> tuple[FindingView, ...]:
    return tuple(_view(rank, finding, facts) for rank, finding in enumerate(found, start=1))


def _view(rank: int, finding: Finding, facts: RunFacts) -> FindingView:
    rule = RULE_BY_ID.get(finding.rule)
    return FindingView(
        rank=rank,
        rule=finding.rule,
        title=finding.title,
        phase=finding.phase or "run",
        evidence=finding.evidence,
        plain_words=rule.plain_words if rule is not None else "",
        remedy=finding.remedy,
        saves=_saves(finding, facts),
        gain=gain_text(finding, facts),
        confidence=finding.confidence,
        caveat=finding.caveat,
    )


def gain_text(finding: Finding, facts: RunFacts) -> str:
    """A factor means nothing without what it is of: a whole request where that is known, a phase, or the capture."""
    if finding.gain is None:
        return ""
    factor = format_factor(finding.gain)
    if finding.share is not None or finding.phase == WHOLE_CAPTURE:
        return f"{factor} over the whole capture"
    if finding.phase not in PHASES:
        return f"{factor} over the run"
    request = gain_in_request(finding, facts)
    if request is None:
        return f"{factor} in {finding.phase}"
    return f"{format_factor(request)} over a request ({factor} in {finding.phase})"


def _saves(finding: Finding, facts: RunFacts) -> str:
    if finding.share is not None:
        return f"up to {finding.share:.0%} of the capture"
    if finding.saves_ms is None:
        return NO_TIME if finding.gain is None else "time not known"
    per = PER.get(finding.phase or "", "over the capture")
    text = f"up to {format_ms(finding.saves_ms)} {per}"
    request = saved_in_request_ms(finding, facts)
    if request is not None and finding.phase == "decode":
        text += f", {format_ms(request)} per request"
    return text
