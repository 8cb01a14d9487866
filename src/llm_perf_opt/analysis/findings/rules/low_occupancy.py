"""Rule low_occupancy: kernels that leave most warps of an SM empty, or most SMs, and what keeps them out."""

from dataclasses import replace

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts
from llm_perf_opt.analysis.findings.facts import PhaseKernel, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import (
    HIDDEN_IN_CAPTURE,
    LAUNCH_BOUND_IDLE,
    Slice,
    describe,
    slices,
    time_of,
)
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
# Of a capture alone: kernels of few blocks, from this part of the kernel time on, if that much of the GPU stays empty.
MIN_FEW_BLOCKS_SHARE, MOSTLY_EMPTY = 0.15, 0.5
SPREAD = (
    "spread the work over the GPU: more blocks of less work each (split the longest dimension, a parallel scan or "
    "reduction in place of a loop, split-K for products), more independent pieces in one launch (a larger batch), or "
    "other work beside it on another stream; of a library's kernel, another algorithm or a newer version"
)
SPREAD_KEYS = (
    "spread attention over the GPU: few queries of few heads give few blocks, so split the keys and values over blocks "
    "as well (flash-decoding: flash_attn_with_kvcache, FlashInfer, an inference engine's decode kernels), or decode "
    "more sequences at once"
)
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


def find_few_blocks(facts: CaptureFacts) -> list[Finding]:
    """One finding when long kernels that leave most SMs without a block take a good part of the kernel time alone."""
    found, total = facts.few_blocks, sum(row.total_ns for row in facts.kernels)
    if found is None or found.alone_ns < MIN_FEW_BLOCKS_SHARE * total:
        return []
    saved = found.alone_ns - found.floor_ns
    # Several of them side by side may fill it.
    if saved < MOSTLY_EMPTY * found.alone_ns:
        return []
    finding = RULE.finding_of_capture(
        facts,
        title=f"Kernels of too few blocks for the GPU take {found.alone_ns / total:.0%} of the capture's kernel time",
        evidence=tuple(
            f"`{row.short_name}`: {row.total_ns / 1e6:.3f} ms in {row.instances:,} launch(es) of {row.blocks} block(s) "
            f"with {row.threads:,} threads each; the GPU has {found.sm_count} SMs"
            for row in found.rows[:SHOWN]
        ),
        saved_ns=0,
        confidence="medium",
        remedy=SPREAD_KEYS if found.rows[0].kernel_class == "attention" else SPREAD,
        hint="Filling the GPU",
    )
    idles = facts.busy_ns < (1 - LAUNCH_BOUND_IDLE) * facts.span_ns
    caveat = HIDDEN_IN_CAPTURE if idles else "an upper bound: work that all SMs can share evenly"
    return [replace(finding, share=saved / facts.span_ns, gain=amdahl(facts.span_ns, saved), caveat=caveat)]


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
    find_in_capture=find_few_blocks,
    plain_words="Parts of the work use only a fraction of the GPU at a time.",
    remedy=REMEDY,
)
