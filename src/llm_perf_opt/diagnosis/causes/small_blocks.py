"""Kernels in blocks smaller than a warp, and kernels of a single block."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE, SHOWN = 0.1, 3


def judge(scope: Scope, _: Program) -> Claim | None:
    rows = scope.evidence.small_launches if scope.evidence is not None else ()
    rows = tuple(row for row in rows if row.time_ns >= MIN_SHARE * scope.kernel_ns)
    if not rows:
        return None
    first, names = rows[0], {row.name for row in rows}
    kernels = {kernel.name: kernel.own_ns for kernel in scope.kernels if kernel.name in names}
    is_single = all(size == 1 for size in first.grid)
    threads = 1
    for size in first.block:
        threads *= size
    spent = sum(row.time_ns for row in rows)
    is_known = all(row.floor_ns is not None for row in rows)
    floor = sum(kernels.values()) * sum(row.floor_ns or 0 for row in rows) / max(spent, 1)
    return Claim(
        title="single" if is_single else "title",
        values={
            "kernel": first.short_name,
            "threads": threads,
            "kernel_share": spent / scope.kernel_ns,
            "how": first.how,
        },
        kernels=kernels,
        floor_ns=round(floor) if is_known else None,
        floor="spread" if is_known else None,
        evidence=tuple(
            Fact(
                key="kernel",
                values={
                    "kernel": row.short_name,
                    "time": row.time_ns,
                    "count": row.instances,
                    "grid": "×".join(map(str, row.grid)),
                    "block": "×".join(map(str, row.block)),
                },
            )
            for row in rows[:SHOWN]
        ),
        traits=frozenset({"single"} if is_single else ()),
        confidence="high",
    )
