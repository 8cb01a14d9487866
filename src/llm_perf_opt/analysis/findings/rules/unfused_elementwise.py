"""Rule unfused_elementwise: chains of small elementwise, norm and copy kernels that a compiler would fuse."""

from llm_perf_opt.analysis.findings.facts import KernelFacts, PhaseKernel, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import Slice, describe, slices, time_of

CLASSES = ("elementwise", "norm", "reduction", "copy")
MIN_SHARE = 0.15
MIN_LAUNCHES = 50
SHOWN = 4
REMEDY = (
    "fuse them: torch.compile (inductor makes one kernel of a chain), or fused kernels for RMSNorm, rotary embedding "
    "and SwiGLU (Liger, Apex, vLLM or flash-attn's layers)"
)
Row = tuple[PhaseKernel, KernelFacts | None]


def find_unfused_elementwise(facts: RunFacts) -> list[Finding]:
    """One finding per phase in which many small kernels without a product take a good part of the kernel time."""
    found = []
    for part in slices(facts):
        rows = [row for row in part.rows if row[0].kernel_class in CLASSES]
        spent, launches = time_of(rows), sum(k.per_step for k, _ in rows)
        if launches >= MIN_LAUNCHES and spent >= MIN_SHARE * part.busy_ms:
            found.append(_finding(part, rows, spent, launches, facts.kernel_source))
    return found


def _finding(part: Slice, rows: list[Row], spent: float, launches: float, source: str) -> Finding:
    every = sum(k.per_step for k, _ in part.rows)
    top = sorted(rows, key=lambda row: -row[0].ms_per_step)[:SHOWN]
    total = Evidence(
        text=f"{launches:.0f} of {every:.0f} launches, {spent:.4g} of {part.busy_ms:.4g} ms kernel time, are "
        "elementwise, norm, reduction or copy kernels",
        source=source,
    )
    return RULE.finding(
        title=f"Unfused elementwise work takes {100 * spent / part.busy_ms:.0f} % of {part.where}",
        phase=part.phase,
        evidence=(total, *(Evidence(text=describe(k, f" ({k.kernel_class})"), source=source) for k, _ in top)),
        saves_ms=spent,
        gain=amdahl(part.wall_ms, spent),
        confidence="medium",
        caveat=part.caveat or "an upper bound: some of these bytes have to be moved once even when fused",
    )


RULE = Rule(
    id="unfused_elementwise",
    find=find_unfused_elementwise,
    plain_words="Many small steps could be done in one.",
    remedy=REMEDY,
    hint="Fusing elementwise work",
)
