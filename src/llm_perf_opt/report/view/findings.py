"""Findings: what to change, in the order of the diagnosis, and what that could save of a request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.names import PHASES, PREFILL, PROGRAM
from llm_perf_opt.core.units import format_factor, format_ms, format_percent
from llm_perf_opt.diagnosis.diagnose import NOT_TRIED, WHOLE
from llm_perf_opt.diagnosis.facts import PER, Known, RunFacts
from llm_perf_opt.diagnosis.ledger import Evidence, Finding
from llm_perf_opt.diagnosis.run import REQUEST
from llm_perf_opt.report.view.cost import MillionTokens

NO_TIME = "no time saving"
# What is reported of the profilers themselves is in the provenance.
IN_PROVENANCE = "profiler_overhead"
# The identity of a finding: its cause and scope.
FindingKey = tuple[str, str]
NOT_KNOWN = MillionTokens()


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """One finding as text. `gain` is the most that could speed up and what that is of, empty where not known.

    `saves` is of a request where that is known, and `saves_each` then of a step of each phase.
    `also` are the titles of findings of the same cause in other phases; evidence and gains count them in.
    `floor` says how the lower bound behind the gain was computed, `measured` what `llm-perf optimize` gained.
    `per_million` is what a million tokens cost and use now, and how much of the cost could be saved.
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
    is_one_time: bool = False
    floor: str | None = None
    measured: str | None = None
    refutes: str = ""
    doc: str | None = None
    per_million: str = ""
    keys: tuple[FindingKey, ...] = ()


def key_of(finding: Finding) -> FindingKey:
    return finding.rule, finding.scope


def findings_view(
    found: Sequence[Finding],
    facts: RunFacts,
    measured_gains: Mapping[str, float] = NOT_TRIED,
    million: MillionTokens = NOT_KNOWN,
) -> tuple[FindingView, ...]:
    """One entry per cause; the same cause in prefill and decode is one."""
    groups: list[list[Finding]] = []
    for finding in found:
        if finding.rule == IN_PROVENANCE:
            continue
        group = next((g for g in groups if _are_twins(g[0], finding)), None)
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    return tuple(
        _view(rank, group, facts, measured_gains.get(group[0].rule), million)
        for rank, group in enumerate(groups, start=1)
    )


def twins(finding: Finding, found: Sequence[Finding]) -> list[Finding]:
    """A finding and those of the same cause and fix in other phases, as they are listed together."""
    return [finding, *(other for other in found if _are_twins(finding, other))]


def _are_twins(one: Finding, other: Finding) -> bool:
    if one.rule != other.rule or one.remedy != other.remedy or one.phase == other.phase:
        return False
    return one.phase in PHASES and other.phase in PHASES


def _view(
    rank: int, group: Sequence[Finding], facts: RunFacts, gained: float | None, million: MillionTokens
) -> FindingView:
    first = group[0]
    return FindingView(
        rank=rank,
        rule=first.rule,
        title=first.title,
        also=tuple(finding.title for finding in group[1:]),
        phase=" and ".join(finding.phase or WHOLE.get(finding.scope, "run") for finding in group),
        evidence=tuple(_evidence(group)),
        plain_words=first.plain_words,
        remedy=first.remedy,
        saves=_saves(group, facts),
        saves_each=_saves_each(group, facts),
        gain=gain_of(group, facts),
        confidence=first.confidence,
        caveat=first.caveat,
        is_one_time=first.is_one_time,
        floor=first.floor if first.max_gain is not None else None,
        measured=None if gained is None else format_factor(gained),
        refutes=first.refutes,
        doc=first.doc,
        keys=tuple(key_of(finding) for finding in group),
        per_million=million.saved(_share_of_request(group, facts)),
    )


def _share_of_request(group: Sequence[Finding], facts: RunFacts) -> float | None:
    """The affected part of a request; None where one of the two is not known, or it is a one-time cost."""
    saved = _in_requests(group, facts)
    if saved is None or not facts.request_ms or group[0].is_one_time:
        return None
    return min(1.0, saved / facts.request_ms)


def _evidence(group: Sequence[Finding]) -> list[Evidence]:
    if len(group) == 1:
        return list(group[0].cited)
    return [Evidence(text=f"{f.phase}: {e.text}", source=e.source) for f in group for e in f.cited]


def gain_of(group: Sequence[Finding], facts: RunFacts) -> str:
    """Of a request, if all phases were changed, and of each phase by name; empty without a lower bound."""
    known = [finding for finding in group if finding.max_gain is not None]
    if not known:
        return ""
    first = known[0]
    if first.phase == REQUEST or first.phase not in PHASES:
        whole = WHOLE.get(first.scope, "a request" if first.phase == REQUEST else "the run")
        return f"{format_factor(first.max_gain or 1.0)} over {whole}"
    phases = ", ".join(f"{format_factor(f.max_gain)} in {f.phase}" for f in known if f.max_gain is not None)
    saved = [saved_in_request_ms(finding, facts) for finding in known]
    times = [ms for ms in saved if ms is not None]
    request = gain_of_saving(sum(times), facts) if len(times) == len(saved) else None
    return phases if request is None else f"{format_factor(request)} over a request ({phases})"


def saved_in_request_ms(finding: Finding, facts: RunFacts) -> float | None:
    """The most a whole request could get shorter; None when the number of steps or the time is not known."""
    if finding.saves_ms is None or finding.phase is None:
        return None
    phase = facts.phases.get(finding.phase)
    steps = 1.0 if finding.phase == REQUEST else phase.steps_per_request if phase is not None else None
    return None if steps is None else finding.saves_ms * steps


def gain_of_saving(saved_ms: float, facts: RunFacts) -> float | None:
    """The speed-up of a whole request that gets so much shorter; None where the time of a phase is missing."""
    total = 0.0
    for phase in facts.phases.values():
        if not isinstance(phase.wall, Known) or phase.steps_per_request is None:
            return None
        total += phase.wall.value * phase.steps_per_request
    whole = max(total, facts.request_ms or 0.0)
    return whole / (whole - saved_ms) if saved_ms < whole else None


def _saves(group: Sequence[Finding], facts: RunFacts) -> str:
    """The time of a request where it is known, else that of a step of each phase, else the affected share."""
    first = group[0]
    whole = WHOLE.get(first.scope)
    if first.capture_share is not None and whole is not None:
        return f"affects {format_percent(first.capture_share)} of {whole}"
    if first.saves_ms is None:
        return NO_TIME
    if first.scope == PROGRAM and first.floor_ns is None:
        once = ", a one-time cost" if first.is_one_time else ""
        return f"affects {format_ms(first.saves_ms)}{once}"
    request = _in_requests(group, facts)
    return f"up to {_steps(group)}" if request is None else f"up to {format_ms(request)} per request"


def _saves_each(group: Sequence[Finding], facts: RunFacts) -> str:
    """Empty where there is only one time to say."""
    if group[0].capture_share is not None or group[0].saves_ms is None or _in_requests(group, facts) is None:
        return ""
    return "" if [f.phase for f in group] in ([PREFILL], [REQUEST]) else _steps(group)


def _steps(group: Sequence[Finding]) -> str:
    times = [(f.saves_ms, PER.get(f.phase or "", "over the run")) for f in group]
    return ", ".join(f"{format_ms(ms)} {per}" for ms, per in times if ms is not None)


def _in_requests(group: Sequence[Finding], facts: RunFacts) -> float | None:
    known = [saved_in_request_ms(finding, facts) for finding in group]
    return None if any(ms is None for ms in known) else sum(ms for ms in known if ms is not None)
