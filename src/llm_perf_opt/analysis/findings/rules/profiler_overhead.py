"""Rule profiler_overhead: a profiler slowed the run so much that its split of the time needs care."""

from llm_perf_opt.diagnosis.facts import RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule

TOO_SLOW = 1.5
UNTRUSTED = 3.0
REMEDY = (
    "latencies here come from the clean pass and are not touched; to get a truer split, trace less: "
    "pipeline.nsys.trace=cuda,nvtx, profiling/torch@pipeline.torch_profiler=torch-profiler.min, fewer samples"
)


def find_profiler_overhead(facts: RunFacts) -> list[Finding]:
    """One finding that names every profiler that slowed a phase by half or more."""
    slow = {name: known for name, known in facts.slowdowns.items() if known.value >= TOO_SLOW}
    if not slow:
        return []
    worst_name, worst = max(slow.items(), key=lambda item: item[1].value)
    return [
        RULE.finding(
            title=f"Profiling slowed the run up to {worst.value:.1f}× ({worst_name}): read host-time shares with care",
            phase=None,
            evidence=tuple(
                Evidence(text=f"{name}: {known.value:.2f}× the clean time", source=known.source or "manifest.json")
                for name, known in slow.items()
            ),
            saves_ms=None,
            gain=None,
            confidence="high" if worst.value >= UNTRUSTED else "medium",
        )
    ]


RULE = Rule(
    id="profiler_overhead",
    find=find_profiler_overhead,
    plain_words="Measuring in detail slowed the program; the speeds quoted here are from an undisturbed run.",
    remedy=REMEDY,
)
