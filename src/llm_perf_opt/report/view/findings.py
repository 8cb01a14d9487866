"""Findings: what to change, in the order of the time it could save."""

from dataclasses import dataclass

from llm_perf_opt.analysis.findings.diagnose import saved_in_request_ms
from llm_perf_opt.analysis.findings.diagnosis import Diagnosis, Evidence
from llm_perf_opt.analysis.findings.facts import PER, RunFacts
from llm_perf_opt.report.units import format_factor, format_ms

NO_TIME = "no time at stake"


@dataclass(frozen=True, kw_only=True)
class FindingView:
    rank: int
    rule: str
    title: str
    phase: str
    evidence: tuple[Evidence, ...]
    remedy: str
    saves: str
    gain: str
    confidence: str
    caveat: str | None


def findings_view(found: tuple[Diagnosis, ...], facts: RunFacts) -> tuple[FindingView, ...]:
    return tuple(_view(rank, diagnosis, facts) for rank, diagnosis in enumerate(found, start=1))


def _view(rank: int, diagnosis: Diagnosis, facts: RunFacts) -> FindingView:
    return FindingView(
        rank=rank,
        rule=diagnosis.rule,
        title=diagnosis.title,
        phase=diagnosis.phase or "run",
        evidence=diagnosis.evidence,
        remedy=diagnosis.remedy,
        saves=_saves(diagnosis, facts),
        gain="" if diagnosis.gain is None else f"up to {format_factor(diagnosis.gain)}",
        confidence=diagnosis.confidence,
        caveat=diagnosis.caveat,
    )


def _saves(diagnosis: Diagnosis, facts: RunFacts) -> str:
    if diagnosis.saves_ms is None:
        return NO_TIME if diagnosis.gain is None else "time not known"
    per = PER.get(diagnosis.phase or "", "over the capture")
    text = f"up to {format_ms(diagnosis.saves_ms)} {per}"
    request = saved_in_request_ms(diagnosis, facts)
    if request is not None and diagnosis.phase == "decode":
        text += f", {format_ms(request)} per request"
    return text
