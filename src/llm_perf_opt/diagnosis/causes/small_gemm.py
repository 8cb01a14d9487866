"""GEMMs that do not fill the GPU: by ncu less than one wave of blocks, else shorter than a few launches take."""

from llm_perf_opt.capture.exclusive import KernelTime
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, kernel_fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE, SHORT_NS, SHOWN = 0.1, 10_000, 3
# What is as near to its roofline is not a smaller than it should be.
NEAR_PCT = 75.0


def judge(scope: Scope, _: Program) -> Claim | None:
    rows = [kernel for kernel in scope.kernels if kernel.kernel_class == "GEMM" and _is_small(kernel, scope)]
    spent = sum(kernel.time_ns for kernel in rows)
    if not rows or spent < MIN_SHARE * scope.kernel_ns:
        return None
    roofs = {k.name: n.roof_pct for k in rows if (n := scope.ncu.get(k.name)) is not None and n.roof_pct is not None}
    # What remains is known only of what ncu measured.
    is_known = len(roofs) == len(rows)
    floor = round(sum(k.own_ns * min(1.0, roofs[k.name] / 100) for k in rows)) if is_known else None
    return Claim(
        values={"kernel_share": spent / scope.kernel_ns},
        kernels={kernel.name: kernel.own_ns for kernel in rows},
        floor_ns=floor,
        floor="roof" if is_known else None,
        evidence=tuple(
            kernel_fact(
                kernel,
                source=scope.ncu_source or None if kernel.name in scope.ncu else None,
                mean=kernel.time_ns / max(kernel.count, 1),
                waves=_waves(kernel, scope),
            )
            for kernel in rows[:SHOWN]
        ),
        confidence="medium" if roofs else "low",
    )


def _is_small(kernel: KernelTime, scope: Scope) -> bool:
    measured = scope.ncu.get(kernel.name)
    if measured is not None and measured.waves_per_sm is not None:
        # One whose roofline was not measured may be near it.
        return measured.waves_per_sm < 1.0 and measured.roof_pct is not None and measured.roof_pct < NEAR_PCT
    # Of a capture alone, short is not a proof of small.
    return scope.evidence is None and kernel.count > 0 and kernel.time_ns < SHORT_NS * kernel.count


def _waves(kernel: KernelTime, scope: Scope) -> str:
    measured = scope.ncu.get(kernel.name)
    return "" if measured is None or measured.waves_per_sm is None else f", {measured.waves_per_sm:.2f} waves of blocks"
