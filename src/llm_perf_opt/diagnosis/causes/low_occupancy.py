"""Kernels that ncu found with few resident warps and far from both rooflines."""

from llm_perf_opt.capture.kernels.ncu_records import NcuKernel
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, kernel_fact
from llm_perf_opt.diagnosis.scope import Scope

LOW_PCT, GOOD_ROOF_PCT, MIN_SHARE, SHOWN = 30.0, 60.0, 0.05, 3
LIMITERS = ("registers", "shared memory", "blocks")


def judge(scope: Scope, _: Program) -> Claim | None:
    rows = [(k, scope.ncu[k.name]) for k in scope.kernels if k.name in scope.ncu and _is_low(scope.ncu[k.name])]
    spent = sum(kernel.time_ns for kernel, _ in rows)
    if not rows or spent < MIN_SHARE * scope.kernel_ns:
        return None
    limit = limiter(rows[0][1])
    return Claim(
        values={"kernel_share": spent / scope.kernel_ns, "low": LOW_PCT},
        kernels={kernel.name: kernel.own_ns for kernel, _ in rows},
        floor_ns=round(sum(kernel.own_ns * min(1.0, (_roof_pct(ncu) or 0.0) / 100) for kernel, ncu in rows)),
        floor="roof",
        evidence=tuple(
            kernel_fact(
                kernel, source=scope.ncu_source or None, occupancy=ncu.occupancy_pct or 0.0, limiter=limiter(ncu)
            )
            for kernel, ncu in rows[:SHOWN]
        ),
        traits=frozenset({name for name in (*LIMITERS, "small grid") if name in limit}),
        confidence="low",
        caveat="latency",
    )


def _is_low(ncu: NcuKernel) -> bool:
    """Full SMs are not needed by a kernel that reaches its roofline anyway."""
    roof = _roof_pct(ncu)
    is_far = roof is not None and roof < GOOD_ROOF_PCT
    return is_far and ncu.occupancy_pct is not None and ncu.occupancy_pct < LOW_PCT


def _roof_pct(ncu: NcuKernel) -> float | None:
    """How near the kernel is to the nearer of its two rooflines."""
    if ncu.compute_sol_pct is None or ncu.memory_sol_pct is None:
        return None
    return max(ncu.compute_sol_pct, ncu.memory_sol_pct)


def limiter(ncu: NcuKernel) -> str:
    """What keeps warps out: a small grid comes before any per-block limit."""
    if ncu.waves_per_sm is not None and ncu.waves_per_sm < 1:
        return "small grid"
    return ncu.occupancy_limiter or "unknown limiter"
