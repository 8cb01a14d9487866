"""Rule framework_overhead: on a CPU, much of a phase passes outside operators, in Python and the framework."""

from llm_perf_opt.analysis.findings.facts import COMPILED, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, Suggestion, advise, amdahl
from llm_perf_opt.analysis.findings.remedies import COMPILE, JOINED_PROJECTIONS, LARGER_BATCH, ONE_THREAD

MIN_SHARE = 0.15
START = "start fewer operators from Python: "
FEWER = (
    Suggestion(text="torch.compile (on a CPU it fuses chains and drops dispatch)", done=COMPILED),
    "a larger batch",
    "or an exported model in a runtime without Python",
)
REMEDY = advise(START, FEWER)


def find_framework_overhead(facts: RunFacts) -> list[Finding]:
    """One finding per phase on a CPU that spends a seventh or more of its time outside operators."""
    found = []
    for phase in facts.phases.values():
        if phase.is_cpu and isinstance(phase.wall, Known) and isinstance(phase.operators, Known):
            found += _check(phase, phase.wall, phase.operators, facts.already(phase.name))
    return found


def _check(phase: PhaseFacts, wall: Known, operators: Known, already: frozenset[str]) -> list[Finding]:
    outside = wall.value - operators.value
    if outside < MIN_SHARE * wall.value:
        return []
    measured = f"clean wall time {wall.value:.4g} ms ({wall.how})"
    return [
        RULE.finding(
            title=f"{phase.name.capitalize()} spends {100 * outside / wall.value:.0f} % outside operators",
            phase=phase.name,
            evidence=(
                Evidence(text=operators.how, source=operators.source or "manifest.json"),
                Evidence(text=measured, source=wall.source or "manifest.json"),
            ),
            saves_ms=outside,
            gain=amdahl(wall.value, outside),
            confidence="medium",
            remedy=advise(START, FEWER, already),
            caveat="the profiler costs time at every operator, so the split is approximate",
        )
    ]


RULE = Rule(
    id="framework_overhead",
    find=find_framework_overhead,
    plain_words="Much of the time goes into directing the work, not into the work itself.",
    remedy=REMEDY,
    hint="torch.compile",
    experiments=(COMPILE, ONE_THREAD, JOINED_PROJECTIONS, LARGER_BATCH),
    is_idle=True,
)
