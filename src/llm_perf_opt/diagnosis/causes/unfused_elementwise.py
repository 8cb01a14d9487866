"""Chains of elementwise, norm, reduction and copy kernels that one fused kernel would replace."""

from collections.abc import Sequence

from llm_perf_opt.capture.exclusive import KernelTime
from llm_perf_opt.capture.kernels.names import is_fusible
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact, kernel_fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE, MIN_LAUNCHES, SHOWN = 0.15, 50, 4


def judge(scope: Scope, _: Program) -> Claim | None:
    rows = [kernel for kernel in scope.kernels if is_fusible(kernel.name)]
    own = sum(kernel.own_ns for kernel in rows)
    total = sum(kernel.time_ns for kernel in scope.kernels)
    if scope.evidence is None:
        launches, time = sum(kernel.count for kernel in rows), sum(kernel.time_ns for kernel in rows)
        if launches < MIN_LAUNCHES or time < MIN_SHARE * total:
            return None
        fact = Fact(key="launches", values={"count": launches, "time": time, "kernel_time": total})
        return Claim(
            values={"kernel_share": time / total},
            kernels={kernel.name: kernel.own_ns for kernel in rows},
            evidence=(fact, *_shown(rows)),
        )
    found = scope.evidence.chains
    if found.kernel_count < MIN_LAUNCHES or not total or found.time_ns < MIN_SHARE * total:
        return None
    part = min(1.0, found.time_ns / max(sum(kernel.time_ns for kernel in rows), 1))
    floor = round(own * part * found.floor_ns / max(found.time_ns, 1))
    return Claim(
        values={"kernel_share": found.time_ns / total},
        kernels={kernel.name: round(kernel.own_ns * part) for kernel in rows},
        floor_ns=floor,
        floor="chains",
        evidence=(
            Fact(
                key="chains",
                values={
                    "chains": found.count,
                    "each_chain": found.kernel_count / found.count,
                    "time": found.time_ns,
                    "kernel_time": total,
                },
            ),
            Fact(key="floor", values={"floor": floor}),
            *_shown(rows),
        ),
    )


def _shown(rows: Sequence[KernelTime]) -> tuple[Fact, ...]:
    return tuple(
        kernel_fact(row, kernel_class=row.kernel_class) for row in sorted(rows, key=lambda row: -row.time_ns)[:SHOWN]
    )
