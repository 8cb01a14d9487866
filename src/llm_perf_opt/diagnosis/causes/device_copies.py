"""Copies and sets inside a GPU, or from one GPU to another, with no kernel overlapped."""

from llm_perf_opt.diagnosis.causes.exposed_memcpy import kinds_of_copies
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import COPY, Claim, Fact, confidence_of
from llm_perf_opt.diagnosis.scope import Scope

KINDS, PEER = ("d2d", "set", "peer"), f"{COPY}.peer"


def judge(scope: Scope, _: Program) -> Claim | None:
    if scope.evidence is None:
        return None
    cells = scope.ledger.by_id(*(f"{COPY}.{kind}" for kind in KINDS))
    rows = [row for row in scope.evidence.copies if row.way in KINDS]
    total = sum(cells.values())
    is_peer, is_alone = 2 * cells.get(PEER, 0) > total, not scope.evidence.kernel_count
    return Claim(
        title="alone" if is_alone else "peer" if is_peer else "title",
        cells=cells,
        evidence=(Fact(key="time", values={"time": total}), *kinds_of_copies(rows)),
        traits=frozenset({"alone"} if is_alone else {"peer"} if is_peer else ()),
        confidence="low" if is_alone else confidence_of(sum(row.instances for row in rows), share=1.0),
    )
