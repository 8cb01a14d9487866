"""Applies every rule to a run's figures and orders what they find by the time it could save."""

from collections.abc import Callable, Sequence

from llm_perf_opt.analysis.findings.diagnosis import WHOLE_CAPTURE, Diagnosis, Evidence
from llm_perf_opt.analysis.findings.facts import PHASES, Known, RunFacts
from llm_perf_opt.analysis.findings.finding import Finding
from llm_perf_opt.analysis.findings.rules.above_bound import find_above_bound
from llm_perf_opt.analysis.findings.rules.dtype_miss import find_dtype_misses
from llm_perf_opt.analysis.findings.rules.framework_overhead import find_framework_overhead
from llm_perf_opt.analysis.findings.rules.host_gaps import find_host_gaps
from llm_perf_opt.analysis.findings.rules.host_waits import find_host_waits
from llm_perf_opt.analysis.findings.rules.kernel_gaps import find_kernel_gaps
from llm_perf_opt.analysis.findings.rules.kv_growth import find_kv_growth
from llm_perf_opt.analysis.findings.rules.low_occupancy import find_low_occupancy
from llm_perf_opt.analysis.findings.rules.memory_bound import find_memory_bound
from llm_perf_opt.analysis.findings.rules.needless_copies import find_needless_copies
from llm_perf_opt.analysis.findings.rules.profiler_overhead import find_profiler_overhead
from llm_perf_opt.analysis.findings.rules.small_gemm import find_small_gemms
from llm_perf_opt.analysis.findings.rules.throttling import find_throttling
from llm_perf_opt.analysis.findings.rules.unfused_elementwise import find_unfused_elementwise

RULES: tuple[Callable[[RunFacts], list[Diagnosis]], ...] = (
    find_host_gaps,
    find_host_waits,
    find_kernel_gaps,
    find_framework_overhead,
    find_above_bound,
    find_memory_bound,
    find_small_gemms,
    find_unfused_elementwise,
    find_needless_copies,
    find_low_occupancy,
    find_dtype_misses,
    find_kv_growth,
    find_throttling,
    find_profiler_overhead,
)
# A range of a capture that is a phase of the run: its clean time says more than the capture's.
PHASE_RANGES = (*PHASES, "decode_step")


def diagnose(facts: RunFacts, capture_findings: Sequence[Finding] = ()) -> tuple[Diagnosis, ...]:
    """All findings, the ones that could save most of a request first; those without a time per request come last."""
    found = [diagnosis for rule in RULES for diagnosis in rule(facts)]
    found += [_adopt(finding) for finding in capture_findings if not _is_covered(finding, facts)]
    return tuple(sorted(found, key=lambda d: _order(d, facts)))


def saved_in_request_ms(diagnosis: Diagnosis, facts: RunFacts) -> float | None:
    """The most a whole request could get shorter; None when the number of steps or the time is not known."""
    if diagnosis.saves_ms is None or diagnosis.phase is None:
        return None
    phase = facts.phases.get(diagnosis.phase)
    steps = phase.steps_per_request if phase is not None else None
    return None if steps is None else diagnosis.saves_ms * steps


def _order(diagnosis: Diagnosis, facts: RunFacts) -> tuple[int, float, float]:
    """By time of a request. Without one: times of a step, then gains, then times of the whole capture, then the rest.

    A capture may hold the loading of the model, so its times say nothing of a request and never outrank one.
    Where no phase has a clean time, what a capture says of whole ranges comes first: kernels are only a part of them.
    """
    gain = diagnosis.gain or 0.0
    request = saved_in_request_ms(diagnosis, facts)
    if request is not None:
        return (1, -request, -gain)
    if diagnosis.saves_ms is not None:
        return (4 if diagnosis.phase == WHOLE_CAPTURE else 2, -diagnosis.saves_ms, -gain)
    if diagnosis.gain is None:
        return (5, 0.0, 0.0)
    has_clean_time = any(isinstance(phase.wall, Known) for phase in facts.phases.values())
    return (0 if diagnosis.phase is None and not has_clean_time else 3, 0.0, -gain)


def _is_covered(finding: Finding, facts: RunFacts) -> bool:
    """Whether a phase with a clean time speaks for this finding's range."""
    name = finding.range_name
    if name is None or name not in PHASE_RANGES:
        return False
    phase = facts.phases.get("decode" if name == "decode_step" else name)
    return phase is not None and isinstance(phase.wall, Known)


def _adopt(finding: Finding) -> Diagnosis:
    """A finding of a capture as it is; its times are the profiler's, so it promises a factor and no milliseconds."""
    return Diagnosis(
        rule=finding.rule,
        title=finding.title,
        phase=None,
        evidence=tuple(Evidence(text=text, source=finding.source) for text in finding.evidence),
        remedy=finding.remedy,
        saves_ms=None,
        gain=finding.max_gain,
        confidence=finding.confidence,
        caveat="measured under the profiler, which slows the host: a clean pass would show less idle time",
    )
