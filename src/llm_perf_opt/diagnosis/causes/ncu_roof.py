"""Memory-bound kernels by how near ncu found them to the memory roofline."""

from collections.abc import Callable

from llm_perf_opt.diagnosis.claim import Claim, Confidence, Fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE, SHOWN = 0.05, 3
NEAR_PCT, FAR_PCT = 75.0, 50.0


def claim_memory_bound(scope: Scope, is_meant: Callable[[float], bool], confidence: Confidence) -> Claim | None:
    measured = [(kernel, scope.ncu[kernel.name]) for kernel in scope.kernels if kernel.name in scope.ncu]
    roofs = [(k, ncu.memory_roof_pct) for k, ncu in measured if ncu.bound == "memory"]
    rows = [(kernel, roof) for kernel, roof in roofs if roof is not None and is_meant(roof)]
    spent = sum(kernel.time_ns for kernel, _ in rows)
    if not rows or spent < MIN_SHARE * scope.kernel_ns:
        return None
    return Claim(
        values={"kernel_share": spent / scope.kernel_ns},
        kernels={kernel.name: kernel.own_ns for kernel, _ in rows},
        floor_ns=round(sum(kernel.own_ns * min(1.0, roof / 100) for kernel, roof in rows)),
        floor="roof",
        evidence=tuple(
            Fact(
                key="kernel",
                values={
                    "kernel": kernel.short_name,
                    "time": kernel.time_ns,
                    "count": kernel.count,
                    "roof": roof,
                },
                source=scope.ncu_source or None,
            )
            for kernel, roof in rows[:SHOWN]
        ),
        confidence=confidence,
    )
