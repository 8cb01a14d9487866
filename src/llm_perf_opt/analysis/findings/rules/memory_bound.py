"""Rule memory_bound: kernels that wait for memory, near its roof (move fewer bytes) or far from it (move better)."""

from llm_perf_opt.analysis.findings.diagnosis import Diagnosis, Evidence, amdahl
from llm_perf_opt.analysis.findings.facts import PhaseKernel, RunFacts
from llm_perf_opt.analysis.findings.phase_kernels import Slice, describe, slices, time_of
from llm_perf_opt.analysis.ncu_rows import NcuKernel

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


def find_memory_bound(facts: RunFacts) -> list[Diagnosis]:
    """Up to two findings per phase: memory-bound kernels near the roof, and far from it."""
    found = []
    for part in slices(facts):
        rows = [(k, f.ncu) for k, f in part.rows if f is not None and f.ncu is not None]
        rows = [(k, n) for k, n in rows if n.bound == "memory" and n.memory_roof_pct is not None]
        near = [(k, n) for k, n in rows if (n.memory_roof_pct or 0.0) >= NEAR_PCT]
        far = [(k, n) for k, n in rows if (n.memory_roof_pct or 0.0) < FAR_PCT]
        found += _finding(part, near, facts.ncu_source, is_near=True) + _finding(
            part, far, facts.ncu_source, is_near=False
        )
    return found


def _finding(part: Slice, rows: list[tuple[PhaseKernel, NcuKernel]], source: str, *, is_near: bool) -> list[Diagnosis]:
    spent = time_of((k, None) for k, _ in rows)
    if not rows or spent < MIN_SHARE * part.busy_ms:
        return []
    saved = sum(k.ms_per_step * max(0.0, 1 - (n.memory_roof_pct or 0.0) / 100) for k, n in rows)
    word = "near" if is_near else "far from"
    top = sorted(rows, key=lambda row: -row[0].ms_per_step)[:SHOWN]
    return [
        Diagnosis(
            rule=f"memory_bound_{'near' if is_near else 'far'}",
            title=f"Memory-bound kernels {word} the roof take {100 * spent / part.busy_ms:.0f} % of {part.where}",
            phase=part.phase,
            evidence=tuple(
                Evidence(text=describe(k, f", {n.memory_roof_pct:.0f} % of the memory roof"), source=source)
                for k, n in top
            ),
            remedy=REMEDY_NEAR if is_near else REMEDY_FAR,
            saves_ms=saved,
            gain=amdahl(part.wall_ms, saved),
            confidence="high" if is_near else "medium",
            caveat=part.caveat,
        )
    ]
