"""Copies and sets inside a GPU, or from one GPU to another, with no kernel overlapped."""

from llm_perf_opt.diagnosis.causes.exposed_memcpy import kinds_of_copies
from llm_perf_opt.diagnosis.claim import Claim, Fact, confidence_of
from llm_perf_opt.diagnosis.ledger import COPY
from llm_perf_opt.diagnosis.program import Program
from llm_perf_opt.diagnosis.scope import Scope, copy_kind

KINDS, PEER = ("d2d", "set", "peer"), f"{COPY}.peer"


def judge(scope: Scope, program: Program) -> Claim | None:
    del program
    if scope.evidence is None:
        return None
    cells = {f"{COPY}.{kind}": ns for kind in KINDS if (ns := scope.ledger.ns(f"{COPY}.{kind}"))}
    rows = [row for row in scope.evidence.copies if copy_kind(row.kind) in KINDS]
    total = sum(cells.values())
    is_peer = 2 * cells.get(PEER, 0) > total
    return Claim(
        title="peer" if is_peer else "title",
        cells=cells,
        evidence=(Fact(key="time", values={"time": total}), *kinds_of_copies(rows)),
        traits=frozenset({"peer"} if is_peer else ()),
        confidence=confidence_of(sum(row.instances for row in rows), share=1.0),
    )
