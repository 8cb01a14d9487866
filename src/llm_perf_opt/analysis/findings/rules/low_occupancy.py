"""Rule low_occupancy: kernels that leave most warps of an SM empty, and what keeps them out."""

from llm_perf_opt.analysis.findings.facts import PhaseKernel, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import Slice, describe, slices, time_of
from llm_perf_opt.analysis.kernels.ncu_records import NcuKernel

LOW_PCT = 30.0
GOOD_ROOF_PCT = 60.0
MIN_SHARE = 0.05
SHOWN = 3
LIMITER_REMEDY = {
    "registers": "cut registers per thread (`__launch_bounds__`, `-maxrregcount`, a smaller tile, fewer Triton stages)",
    "shared memory": "use a smaller tile or fewer pipeline stages so that more blocks fit into shared memory",
    "warps": "use smaller blocks, or more work per thread",
    "blocks": "use larger blocks: the number of resident blocks is the limit",
    "barriers": "use fewer barriers per block",
}
REMEDY = "keep more warps on each SM: fewer registers and less shared memory per block, and grids that fill the GPU"
FILL = "launch more blocks: larger batch, split-K, or fuse neighbouring kernels; the grid does not fill the GPU"


def find_low_occupancy(facts: RunFacts) -> list[Finding]:
    """One finding per phase: kernels of low occupancy that are also far from both roofs."""
    found = []
    for part in slices(facts):
        rows = [(k, f.ncu) for k, f in part.rows if f is not None and f.ncu is not None and _is_low(f.ncu)]
        spent = time_of((k, None) for k, _ in rows)
        if rows and spent >= MIN_SHARE * part.busy_ms:
            found.append(_finding(part, rows, spent, facts.ncu_source))
    return found


def _is_low(ncu: NcuKernel) -> bool:
    """Full SMs are not needed by a kernel that reaches its roof anyway; without both speeds of light nobody knows."""
    roof = _roof_pct(ncu)
    is_far = roof is not None and roof < GOOD_ROOF_PCT
    return is_far and ncu.occupancy_pct is not None and ncu.occupancy_pct < LOW_PCT


def _roof_pct(ncu: NcuKernel) -> float | None:
    """How near the kernel is to the nearer of its two roofs."""
    if ncu.compute_sol_pct is None or ncu.memory_sol_pct is None:
        return None
    return max(ncu.compute_sol_pct, ncu.memory_sol_pct)


def limiter(ncu: NcuKernel) -> str:
    """What keeps warps out: a small grid comes before any per-block limit."""
    if ncu.waves_per_sm is not None and ncu.waves_per_sm < 1:
        return "small grid"
    return ncu.occupancy_limiter or "unknown limiter"


def _finding(part: Slice, rows: list[tuple[PhaseKernel, NcuKernel]], spent: float, source: str) -> Finding:
    rows = sorted(rows, key=lambda row: -row[0].ms_per_step)
    roofs = [(k, _roof_pct(n)) for k, n in rows]
    saved = sum(k.ms_per_step * (1 - roof / 100) for k, roof in roofs if roof is not None)
    remedies = dict.fromkeys(_remedy(limiter(n)) for _, n in rows[:SHOWN])
    return RULE.finding(
        title=f"Kernels with less than {LOW_PCT:g} % occupancy take {100 * spent / part.busy_ms:.0f} % of {part.where}",
        phase=part.phase,
        evidence=tuple(
            Evidence(text=describe(k, f", occupancy {n.occupancy_pct:.0f} %, limited by {limiter(n)}"), source=source)
            for k, n in rows[:SHOWN]
        ),
        remedy="; ".join(remedies),
        saves_ms=saved,
        gain=amdahl(part.wall_ms, saved),
        confidence="low",
        caveat=part.caveat or "more warps help only while latency is what the kernel waits for",
    )


def _remedy(cause: str) -> str:
    return next((text for name, text in LIMITER_REMEDY.items() if name in cause), FILL)


RULE = Rule(
    id="low_occupancy",
    find=find_low_occupancy,
    plain_words="Parts of the work use only a fraction of the GPU at a time.",
    remedy=REMEDY,
)
