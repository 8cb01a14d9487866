"""Rule small_gemm: matrix products too small or too thin to fill the GPU."""

from llm_perf_opt.diagnosis.facts import KernelFacts, PhaseKernel, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import Slice, describe, slices, time_of
from llm_perf_opt.diagnosis.experiments import (
    JOINED_PROJECTIONS,
    LARGER_BATCH,
    LARGEST_BATCH,
    MAX_AUTOTUNE,
    REDUCE_OVERHEAD,
)
from llm_perf_opt.analysis.findings.rules.memory_bound import NEAR_PCT

MIN_SHARE = 0.1
SHORT_US = 10.0
SHOWN = 3
REMEDY = (
    "make the products larger: decode more sequences at once, join q, k and v, and gate and up projections, into one "
    "product each, or fuse the split-K reduction; for batch 1 use GEMV kernels or torch.compile(mode='max-autotune')"
)
Row = tuple[PhaseKernel, KernelFacts | None]


def find_small_gemms(facts: RunFacts) -> list[Finding]:
    """One finding per phase in which small products take a tenth of the kernel time.

    Of a capture alone only where ncu measured them: short is no proof of small, and they have to be computed anyway.
    """
    found = []
    for part in slices(facts):
        rows = sorted((row for row in part.rows if _is_small(row, facts)), key=lambda row: -row[0].ms_per_step)
        spent = time_of(rows)
        if spent > 0 and spent >= MIN_SHARE * part.busy_ms:
            found.append(_finding(part, rows, spent, facts))
    return found


def _is_small(row: Row, facts: RunFacts) -> bool:
    """By ncu: less than one wave of blocks, and not near the roof. Without ncu: shorter than a few launches take."""
    kernel, known = row
    if kernel.kernel_class != "GEMM" or kernel.per_step <= 0:
        return False
    measured = known.ncu if known is not None else None
    if measured is not None and measured.waves_per_sm is not None:
        return measured.waves_per_sm < 1.0 and (measured.roof_pct or 0.0) < NEAR_PCT
    return facts.capture_ms is None and 1e3 * kernel.ms_per_step / kernel.per_step < SHORT_US


def _why(row: Row) -> str:
    kernel, known = row
    each = f", {1e3 * kernel.ms_per_step / kernel.per_step:.1f} µs each"
    if known is not None and known.ncu is not None and known.ncu.waves_per_sm is not None:
        return f"{each}, {known.ncu.waves_per_sm:.2f} waves of blocks"
    return each


def _finding(part: Slice, rows: list[Row], spent: float, facts: RunFacts) -> Finding:
    roof_known = [(k, f.ncu.roof_pct) for k, f in rows if f and f.ncu and f.ncu.roof_pct is not None]
    saved = sum(k.ms_per_step * max(0.0, 1 - pct / 100) for k, pct in roof_known)
    rest = spent - sum(k.ms_per_step for k, _ in roof_known)
    return RULE.finding(
        title=f"Small matrix products take {100 * spent / part.busy_ms:.0f} % of {part.where}",
        phase=part.phase,
        evidence=tuple(
            Evidence(
                text=describe(row[0], _why(row)),
                source=facts.ncu_source if row[1] and row[1].ncu else facts.kernel_source,
            )
            for row in rows[:SHOWN]
        ),
        saves_ms=saved + rest,
        gain=amdahl(part.wall_ms, saved + rest),
        confidence="medium" if roof_known else "low",
        caveat=part.caveat,
    )


RULE = Rule(
    id="small_gemm",
    find=find_small_gemms,
    plain_words="The calculations are too small to keep the whole GPU busy.",
    remedy=REMEDY,
    experiments=(MAX_AUTOTUNE, REDUCE_OVERHEAD, JOINED_PROJECTIONS, LARGER_BATCH, LARGEST_BATCH),
)
