"""GEMM kernels for operands whose rows are not aligned to 16 bytes."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE, SHOWN = 0.1, 3


def judge(scope: Scope, _: Program) -> Claim | None:
    found = scope.evidence.misaligned if scope.evidence is not None else None
    if found is None or found.time_ns < MIN_SHARE * scope.kernel_ns:
        return None
    names = {row.short_name for row in found.kernels}
    kernels = {kernel.name: kernel.own_ns for kernel in scope.kernels if kernel.short_name in names}
    wanted = sum(kernels.values())
    floor = None if found.floor_ns is None else round(wanted * found.floor_ns / max(found.time_ns, 1))
    facts = [
        Fact(
            key="kernel",
            values={
                "kernel": row.short_name,
                "time": row.time_ns,
                "count": row.instances,
                "alignment": row.alignment,
                "precision": row.precision,
            },
        )
        for row in found.kernels[:SHOWN]
    ]
    if found.shapes:
        facts.append(Fact(key="shapes", values={"shapes": "; ".join(found.shapes[:SHOWN])}))
    return Claim(
        values={
            "alignment": found.kernels[0].alignment,
            "kernel_share": found.time_ns / scope.kernel_ns,
            "how": found.how,
        },
        kernels=kernels,
        floor_ns=floor,
        floor=None if floor is None else "peak",
        evidence=tuple(facts),
        confidence="high",
    )
