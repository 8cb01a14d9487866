"""Findings: what to change, in the order of the time it could save."""

from dataclasses import dataclass

from llm_perf_opt.analysis.findings.facts import PER, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, saved_in_request_ms
from llm_perf_opt.analysis.findings.rules import RULE_BY_ID
from llm_perf_opt.core.units import format_factor, format_ms

NO_TIME = "no time at stake"


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """One finding as text. `gain` is the most its phase (or the capture) could speed up, empty where not known."""

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
        gain="" if finding.gain is None else format_factor(finding.gain),
        confidence=finding.confidence,
        caveat=finding.caveat,
    )


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
