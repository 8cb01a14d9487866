"""Memory-bound kernels by how near ncu found them to the memory roofline."""

from typing import TYPE_CHECKING

from llm_perf_opt.diagnosis.ledger import Claim, kernel_fact
from llm_perf_opt.diagnosis.scope import Scope

if TYPE_CHECKING:
    from llm_perf_opt.diagnosis.cause import Cause

SHOWN = 3


def judge_cells(scope: Scope, cause: "Cause") -> Claim | None:
    """The memory-bound kernels in the cause's range of the roofline."""
    low, high = cause.roof_pct
    measured = [(kernel, scope.ncu[kernel.name]) for kernel in scope.kernels if kernel.name in scope.ncu]
    roofs = [(k, ncu.memory_roof_pct) for k, ncu in measured if ncu.bound == "memory"]
    rows = [(kernel, roof) for kernel, roof in roofs if roof is not None and low <= roof < high]
    spent = sum(kernel.time_ns for kernel, _ in rows)
    if not rows or spent < cause.min_kernel_share * scope.kernel_ns:
        return None
    return Claim(
        values={"kernel_share": spent / scope.kernel_ns},
        kernels={kernel.name: kernel.own_ns for kernel, _ in rows},
        floor_ns=round(sum(kernel.own_ns * min(1.0, roof / 100) for kernel, roof in rows)),
        floor="roof",
        evidence=tuple(
            kernel_fact(kernel, source=scope.ncu_source or None, roof=roof) for kernel, roof in rows[:SHOWN]
        ),
        confidence=cause.confidence,
    )
