"""Long kernels whose grids leave most SMs without a block."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

# Of the kernel time, if that much of the GPU stays empty: several kernels side by side may fill it.
MIN_SHARE, MOSTLY_EMPTY, SHOWN = 0.15, 0.5, 3


def judge(scope: Scope, _: Program) -> Claim | None:
    found, total = scope.evidence.few_blocks if scope.evidence is not None else None, scope.kernel_ns
    if found is None or found.alone_ns < MIN_SHARE * total:
        return None
    if found.alone_ns - found.floor_ns < MOSTLY_EMPTY * found.alone_ns:
        return None
    names = {row.short_name: row.total_ns for row in found.rows}
    part = min(1.0, found.alone_ns / max(sum(names.values()), 1))
    kernels = {
        kernel.name: round(min(kernel.own_ns, names[kernel.short_name] * part))
        for kernel in scope.kernels
        if kernel.short_name in names
    }
    wanted = sum(kernels.values())
    return Claim(
        values={"kernel_share": found.alone_ns / total, "kernel": found.rows[0].short_name, "how": found.how},
        kernels=kernels,
        floor_ns=round(wanted * found.floor_ns / max(found.alone_ns, 1)),
        floor="spread",
        evidence=tuple(
            Fact(
                key="kernel",
                values={
                    "kernel": row.short_name,
                    "time": row.total_ns,
                    "count": row.instances,
                    "blocks": row.blocks,
                    "threads": row.threads,
                    "sms": found.sm_count,
                },
            )
            for row in found.rows[:SHOWN]
        ),
        traits=frozenset({"attention_kernel"} if found.rows[0].kernel_class == "attention" else ()),
        caveat="even",
    )
