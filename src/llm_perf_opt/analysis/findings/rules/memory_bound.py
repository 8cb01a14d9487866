"""Rules memory_bound_near (move fewer bytes) and memory_bound_far (move them better): kernels that wait for memory."""

from collections.abc import Callable

from llm_perf_opt.diagnosis.facts import RunFacts
from llm_perf_opt.analysis.findings.finding import Confidence, Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import describe, slices, time_of
from llm_perf_opt.diagnosis.experiments import (
    FP8_WEIGHTS,
    INT8_WEIGHTS,
    LARGER_BATCH,
    LARGEST_BATCH,
    MAX_AUTOTUNE,
    REDUCE_OVERHEAD,
)

NEAR_PCT = 75.0
FAR_PCT = 50.0
MIN_SHARE = 0.05
SHOWN = 3
REMEDY_NEAR = (
    "these kernels already move bytes about as fast as the memory can: only fewer bytes help. Quantise weights or the "
    "KV cache (fp8, int8, int4), raise the batch so that one read of the weights serves more tokens, or fuse neighbours"
)
REMEDY_FAR = (
    "these kernels wait for memory without filling it: use wider loads and coalesced, contiguous layouts, give each "
    "launch more work (larger batch, fused kernels), or replace the kernel (a tuned GEMV, "
    "torch.compile(mode='max-autotune'))"
)


def find_near(facts: RunFacts) -> list[Finding]:
    """One finding per phase about memory-bound kernels near the roof."""
    return _find(facts, NEAR, "near", "high", lambda roof_pct: roof_pct >= NEAR_PCT)


def find_far(facts: RunFacts) -> list[Finding]:
    """One finding per phase about memory-bound kernels far from the roof."""
    return _find(facts, FAR, "far from", "medium", lambda roof_pct: roof_pct < FAR_PCT)


def _find(
    facts: RunFacts, rule: Rule, word: str, confidence: Confidence, is_meant: Callable[[float], bool]
) -> list[Finding]:
    found = []
    for part in slices(facts):
        measured = [(k, f.ncu) for k, f in part.rows if f is not None and f.ncu is not None and f.ncu.bound == "memory"]
        rows = [(k, n.memory_roof_pct) for k, n in measured if n.memory_roof_pct is not None]
        rows = [(k, roof_pct) for k, roof_pct in rows if is_meant(roof_pct)]
        spent = time_of((k, None) for k, _ in rows)
        if not rows or spent < MIN_SHARE * part.busy_ms:
            continue
        saved = sum(k.ms_per_step * max(0.0, 1 - roof_pct / 100) for k, roof_pct in rows)
        top = sorted(rows, key=lambda row: -row[0].ms_per_step)[:SHOWN]
        found.append(
            rule.finding(
                title=f"Memory-bound kernels {word} the roof take {100 * spent / part.busy_ms:.0f} % of {part.where}",
                phase=part.phase,
                evidence=tuple(
                    Evidence(text=describe(k, f", {roof_pct:.0f} % of the memory roof"), source=facts.ncu_source)
                    for k, roof_pct in top
                ),
                saves_ms=saved,
                gain=amdahl(part.wall_ms, saved),
                confidence=confidence,
                caveat=part.caveat,
            )
        )
    return found


NEAR = Rule(
    id="memory_bound_near",
    find=find_near,
    plain_words="The GPU moves data as fast as it can; only moving less data will help.",
    remedy=REMEDY_NEAR,
    hint="Fewer bytes (quantisation, batching)",
    experiments=(FP8_WEIGHTS, INT8_WEIGHTS, LARGER_BATCH, LARGEST_BATCH),
)
FAR = Rule(
    id="memory_bound_far",
    find=find_far,
    plain_words="Parts of the work wait for memory without using it well.",
    remedy=REMEDY_FAR,
    experiments=(MAX_AUTOTUNE, REDUCE_OVERHEAD, LARGER_BATCH),
)
