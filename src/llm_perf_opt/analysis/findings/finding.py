"""A finding: what should change, with its evidence, its remedy and the most it could bring; and the rule behind it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts
from llm_perf_opt.diagnosis.facts import GpuFacts, Known, RunFacts
from llm_perf_opt.diagnosis.experiments import Remedy
from llm_perf_opt.core.names import DECODE, DECODE_STEP, MODULE_PREFIX, PHASES

Confidence = Literal["high", "medium", "low"]
WHOLE_CAPTURE = "capture"
# In place of a phase: something that happens once in a request.
REQUEST = "request"
# A range of a capture that is a phase of the run: its clean time says more than the capture's.
PHASE_RANGES = (*PHASES, DECODE_STEP)
# A finding of a capture that could save less of it than this is not worth a line, or not the headline.
MIN_LISTED, MIN_HEADLINE = 0.01, 0.05
# A cost paid once counts this much against one paid in every step: a longer run pays it once all the same.
ONE_TIME_WEIGHT = 0.25
# What many instances that hardly differ show in most of their time is beyond doubt.
CERTAIN_INSTANCES, CERTAIN_SPREAD, CERTAIN_SHARE = 3, 0.5, 0.7
# Where nobody wrote what to try.
ANY_HINT = "Removing it"
# Of several ranges in one finding: how many are named, with how much of what is known of each.
TWINS_NAMED, TWIN_EVIDENCE = 3, 2
REST = "the rest of the capture"
UNDER_PROFILER = "measured under the profiler, which slows the host: a clean pass would show less idle time"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One observation with its numbers, and the file they come from."""

    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to change.

    `saves_ms` is the most one step of `phase` could get shorter, None where no time is at stake or none is known;
    `gain` is the speed-up if all of it were saved (Amdahl). `caveat` says when the promise does not hold. A finding of
    a capture alone speaks of one range, `range_name`, or of all of it: its times are the profiler's, so it promises a
    factor and no milliseconds, over the whole capture, of which `share` is the most that could be saved. `is_one_time`:
    a longer run would not pay more of it. `hint` is what to try, where it is not what the rule says. `also_ranges` are
    others of which the same is true, with the same remedy: they are counted in.
    """

    rule: str
    title: str
    phase: str | None
    evidence: tuple[Evidence, ...]
    remedy: str
    saves_ms: float | None
    gain: float | None
    confidence: Confidence
    caveat: str | None = None
    range_name: str | None = None
    share: float | None = None
    is_one_time: bool = False
    hint: str | None = None
    also_ranges: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """One thing to do; where the run does `done` already (`RunFacts.already`), `instead` is said, or nothing."""

    text: str
    done: str
    instead: str = ""


def advise(start: str, pieces: Sequence[Suggestion | str], already: frozenset[str] = frozenset()) -> str:
    """A remedy of several pieces, without those that are followed already."""
    told = [
        piece if isinstance(piece, str) else piece.instead if piece.done in already else piece.text for piece in pieces
    ]
    return start + ", ".join(piece for piece in told if piece)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One kind of finding: how it is found, what it means to somebody who has never seen a kernel, and what to do.

    `find` looks at a run's figures, `find_in_capture` at a capture alone.
    `remedy` holds wherever a finding has no better one of its own; `hint` is what to try, in a few words.
    `experiments` are the remedies that `llm-perf optimize` can try by itself; `is_idle`: what it finds is time in which
    nothing is computed.
    """

    id: str
    find: Callable[[RunFacts], list[Finding]]
    plain_words: str
    remedy: str
    hint: str = ANY_HINT
    find_in_capture: Callable[[CaptureFacts], list[Finding]] | None = None
    experiments: tuple[Remedy, ...] = ()
    is_idle: bool = False

    def finding(
        self,
        *,
        title: str,
        phase: str | None,
        evidence: tuple[Evidence, ...],
        saves_ms: float | None,
        gain: float | None,
        confidence: Confidence,
        remedy: str | None = None,
        caveat: str | None = None,
        hint: str | None = None,
    ) -> Finding:
        return Finding(
            rule=self.id,
            title=title,
            phase=phase,
            evidence=evidence,
            remedy=self.remedy if remedy is None else remedy,
            saves_ms=saves_ms,
            gain=gain,
            confidence=confidence,
            caveat=caveat,
            hint=hint,
        )

    def finding_of_capture(
        self,
        facts: CaptureFacts,
        *,
        title: str,
        evidence: Sequence[str],
        saved_ns: float,
        confidence: Confidence,
        range_name: str | None = None,
        remedy: str | None = None,
        hint: str | None = None,
        is_one_time: bool = False,
    ) -> Finding:
        """What a capture alone says, of all of it or of one range. The GPU's own work is never saved."""
        saved = max(0.0, min(saved_ns, facts.idle_ns))
        return Finding(
            rule=self.id,
            title=title,
            phase=None,
            evidence=tuple(Evidence(text=text, source=facts.source) for text in evidence),
            remedy=self.remedy if remedy is None else remedy,
            saves_ms=None,
            gain=amdahl(facts.span_ns, saved),
            confidence=confidence,
            caveat=UNDER_PROFILER,
            range_name=range_name,
            share=saved / facts.span_ns if facts.span_ns else 0.0,
            is_one_time=is_one_time,
            hint=hint,
        )


@dataclass(frozen=True, kw_only=True)
class FindingRecord:
    """A finding of a capture in `analysis.json`: all its evidence comes from one file.

    `caveat` is said where it is another than that of every finding made under a profiler.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    remedy: str
    max_gain: float | None
    confidence: Confidence
    source: str
    range_name: str | None = None
    capture_share: float | None = None
    is_one_time: bool = False
    hint: str | None = None
    caveat: str | None = None
    also_ranges: tuple[str, ...] = ()

    @classmethod
    def of(cls, finding: Finding) -> "FindingRecord":
        return cls(
            rule=finding.rule,
            title=finding.title,
            evidence=tuple(evidence.text for evidence in finding.evidence),
            remedy=finding.remedy,
            max_gain=finding.gain,
            confidence=finding.confidence,
            source=finding.evidence[0].source,
            range_name=finding.range_name,
            capture_share=finding.share,
            is_one_time=finding.is_one_time,
            hint=finding.hint,
            caveat=None if finding.caveat == UNDER_PROFILER else finding.caveat,
            also_ranges=finding.also_ranges,
        )

    def finding(self) -> Finding:
        return Finding(
            rule=self.rule,
            title=self.title,
            phase=None,
            evidence=tuple(Evidence(text=text, source=self.source) for text in self.evidence),
            remedy=self.remedy,
            saves_ms=None,
            gain=self.max_gain,
            confidence=self.confidence,
            caveat=self.caveat or UNDER_PROFILER,
            range_name=self.range_name,
            share=self.capture_share,
            is_one_time=self.is_one_time,
            hint=self.hint,
            also_ranges=self.also_ranges,
        )


def paid_once(findings: Iterable[FindingRecord]) -> float:
    """The part of a capture that is known to be paid once; where nothing was recorded, that is a guess."""
    return sum(f.capture_share or 0.0 for f in findings if f.is_one_time and f.confidence != "low")


def amdahl(wall_ms: float | None, saved_ms: float) -> float | None:
    """The speed-up of a phase when a part of it vanishes; None when the whole is unknown or the part is all of it."""
    if wall_ms is None or saved_ms >= wall_ms:
        return None
    return wall_ms / (wall_ms - saved_ms)


def confidence_of(instances: int, *, share: float, spread: float = 0.0) -> Confidence:
    """From how often it was seen, how much that differs, and how much of the time the evidence explains."""
    if instances >= CERTAIN_INSTANCES and spread <= CERTAIN_SPREAD and share >= CERTAIN_SHARE:
        return "high"
    return "low" if instances < CERTAIN_INSTANCES and share < CERTAIN_SHARE else "medium"


def may_be_headline(finding: Finding) -> bool:
    """Whether this is what everybody should read first: no guess, and no trifle."""
    return finding.gain is not None and finding.confidence != "low" and (finding.share or 1.0) >= MIN_HEADLINE


def rank_of_capture(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """What could save most of a capture first; what could save next to nothing is left out."""
    listed = [finding for finding in findings if (finding.share or 0.0) >= MIN_LISTED]
    return tuple(sorted(listed, key=lambda finding: (-_weighted_share(finding), finding.title)))


def merge_twins(findings: Sequence[Finding], *, idle_share: float) -> list[Finding]:
    """Findings of a capture, those of one rule and remedy in several ranges as one; together they save no more than
    the GPU idles. A range in which next to nothing is lost stays by itself.
    """
    groups: list[list[Finding]] = []
    for finding in sorted(findings, key=lambda finding: -(finding.share or 0.0)):
        group = next((group for group in groups if _are_twins(group[0], finding)), None)
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    return [_merged(group, idle_share) for group in groups]


def _are_twins(one: Finding, other: Finding) -> bool:
    is_same = one.rule == other.rule and one.remedy == other.remedy
    named = one.range_name is not None or other.range_name is not None
    return is_same and named and min(one.share or 0.0, other.share or 0.0) >= MIN_LISTED


def _merged(group: Sequence[Finding], idle_share: float) -> Finding:
    first, *others = group
    if not others:
        return first
    names = [finding.range_name or REST for finding in others]
    more = f" and {len(names) - TWINS_NAMED} more" if len(names) > TWINS_NAMED else ""
    said = {evidence.text for evidence in first.evidence}
    evidence = [
        replace(item, text=f"{name}: {item.text}")
        for name, finding in zip(names[:TWINS_NAMED], others, strict=False)
        for item in finding.evidence[:TWIN_EVIDENCE]
        if item.text not in said
    ]
    share = min(sum(finding.share or 0.0 for finding in group), max(idle_share, first.share or 0.0))
    return replace(
        first,
        title=f"{first.title}; likewise {', '.join(names[:TWINS_NAMED])}{more}",
        evidence=(*first.evidence, *evidence),
        share=share,
        gain=None if first.gain is None else amdahl(1.0, share),
        also_ranges=tuple(finding.range_name for finding in others if finding.range_name is not None),
    )


def of_thinned_capture(finding: Finding, kept_share: float) -> Finding:
    """A finding of a capture from which events were taken out: what is missing may have run, so nothing is promised."""
    caveat = f"the capture holds {kept_share:.1%} of what ran, and the rest may have run in these times"
    return replace(finding, gain=None, confidence="low", caveat=caveat)


def _weighted_share(finding: Finding) -> float:
    return (finding.share or 0.0) * (ONE_TIME_WEIGHT if finding.is_one_time else 1.0)


def of_capture_alone(finding: Finding, facts: RunFacts) -> Finding | None:
    """A finding as a part of the capture, where that is all there is; None where the part is not worth a line."""
    if facts.capture_ms is None or finding.share is not None or finding.saves_ms is None:
        return finding
    phase = facts.phases.get(finding.phase or "")
    times = phase.gpu.instances if phase is not None and isinstance(phase.gpu, GpuFacts) else 1
    saved = finding.saves_ms * times
    share = min(1.0, saved / facts.capture_ms)
    return None if share < MIN_LISTED else replace(finding, share=share, gain=amdahl(facts.capture_ms, saved))


def worth_listing(findings: Sequence[Finding], facts: RunFacts) -> list[Finding]:
    """Those whose rule could save a hundredth of a request in all phases, and those nobody can say that of."""
    saved_ms: dict[str, float] = {}
    for finding in findings:
        saved_ms[finding.rule] = saved_ms.get(finding.rule, 0.0) + (saved_in_request_ms(finding, facts) or 0.0)
    least = amdahl(1.0, MIN_LISTED) or 1.0

    def is_small(finding: Finding) -> bool:
        gain = gain_of_saving(saved_ms[finding.rule], facts)
        return saved_in_request_ms(finding, facts) is not None and gain is not None and gain < least

    return [finding for finding in findings if not is_small(finding)]


def rank(findings: Iterable[Finding], facts: RunFacts) -> tuple[Finding, ...]:
    """The ones that could save most of a request first; those without a time per request come last."""
    return tuple(sorted(findings, key=lambda finding: _order(finding, facts)))


def saved_in_request_ms(finding: Finding, facts: RunFacts) -> float | None:
    """The most a whole request could get shorter; None when the number of steps or the time is not known."""
    if finding.saves_ms is None or finding.phase is None:
        return None
    phase = facts.phases.get(finding.phase)
    steps = 1.0 if finding.phase == REQUEST else phase.steps_per_request if phase is not None else None
    return None if steps is None else finding.saves_ms * steps


def gain_in_request(finding: Finding, facts: RunFacts) -> float | None:
    """The speed-up of a whole request, prefill and all steps, if all of it were saved; None where a time is missing."""
    saved = saved_in_request_ms(finding, facts)
    return None if saved is None or finding.gain is None else gain_of_saving(saved, facts)


def gain_of_saving(saved_ms: float, facts: RunFacts) -> float | None:
    """The speed-up of a whole request that gets so much shorter; None where the time of a phase is missing."""
    total = 0.0
    for phase in facts.phases.values():
        if not isinstance(phase.wall, Known) or phase.steps_per_request is None:
            return None
        total += phase.wall.value * phase.steps_per_request
    return amdahl(max(total, facts.request_ms or 0.0), saved_ms)


def is_covered(finding: Finding, facts: RunFacts) -> bool:
    """Whether a phase with a clean time speaks for this finding's range.

    For a whole capture any such phase does whose GPU work is known: one that is only timed has no rule to speak for it.
    """
    if finding.range_name is None:
        phases = facts.phases.values()
        return any(isinstance(p.wall, Known) and isinstance(p.gpu, GpuFacts) for p in phases)
    return all(_is_timed(name, facts) for name in (finding.range_name, *finding.also_ranges))


def _is_timed(name: str, facts: RunFacts) -> bool:
    if name.startswith(MODULE_PREFIX):
        # Modules of our own loop run inside its phases.
        return any(isinstance(phase.wall, Known) for phase in facts.phases.values())
    if name not in PHASE_RANGES:
        return False
    phase = facts.phases.get(DECODE if name == DECODE_STEP else name)
    return phase is not None and isinstance(phase.wall, Known)


def order_of_twins(group: Sequence[Finding], facts: RunFacts) -> tuple[int, float, float]:
    """Where findings that are shown as one stand: by what they save together."""
    orders = [_order(finding, facts) for finding in group]
    kind, _, gain = min(orders)
    return (kind, sum(saved for of, saved, _ in orders if of == kind), gain)


def _order(finding: Finding, facts: RunFacts) -> tuple[int, float, float]:
    """By time of a request. Without one: times of a step, then gains, then times of the whole capture, then the rest.

    A capture may hold the loading of the model, so its times say nothing of a request and never outrank one.
    Where no phase has a clean time, what a capture says of whole ranges comes first: kernels are only a part of them.
    """
    gain = finding.gain or 0.0
    if facts.capture_ms is not None and finding.share is not None:
        return (0, -_weighted_share(finding), -gain)
    request = saved_in_request_ms(finding, facts)
    if request is not None:
        return (1, -request, -gain)
    if finding.saves_ms is not None:
        return (4 if finding.phase == WHOLE_CAPTURE else 2, -finding.saves_ms, -gain)
    if finding.gain is None:
        return (5, 0.0, 0.0)
    has_clean_time = any(isinstance(phase.wall, Known) for phase in facts.phases.values())
    return (0 if finding.phase is None and not has_clean_time else 3, -_weighted_share(finding), -gain)
