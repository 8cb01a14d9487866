"""Attention as matmul, softmax and matmul, where one kernel would never write the scores to memory."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import COMPUTE, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_PIECES, MIN_SHARE = 3, 0.1


def judge(scope: Scope, _: Program) -> Claim | None:
    if scope.evidence is None:
        return None
    found, total = scope.evidence.attention, scope.kernel_ns
    if found.count < MIN_PIECES or found.time_ns < MIN_SHARE * total:
        return None
    # Elementwise work first: a chain of attention's has few plain copies.
    elementwise = min(found.between_ns, scope.kernel_class_ns("elementwise"))
    wanted = {
        "GEMM": found.product_ns,
        "reduction": found.softmax_ns,
        "elementwise": elementwise,
        "copy": found.between_ns - elementwise,
    }
    cells = {f"{COMPUTE}.{key}": min(ns, scope.kernel_class_ns(key)) for key, ns in wanted.items()}
    times = {
        "matmul": found.product_ns,
        "softmax": found.softmax_ns,
        "between": found.between_ns,
        "remains": found.floor_ns,
    }
    return Claim(
        values={"kernel_share": found.time_ns / total, **times},
        cells={cell: ns for cell, ns in cells.items() if ns},
        floor_ns=min(found.floor_ns, cells[f"{COMPUTE}.GEMM"]),
        floor="matmul",
        evidence=(
            Fact(key="count", values={"count": found.count, "time": found.time_ns, "kernel_time": total}),
            Fact(key="parts", values=times),
        ),
    )
