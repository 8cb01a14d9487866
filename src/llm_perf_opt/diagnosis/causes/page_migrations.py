"""Unified memory: pages migrate because CPU and GPU touch them in turn."""

from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.diagnosis.claim import Claim, Fact, confidence_of
from llm_perf_opt.diagnosis.ledger import COPY, UNRECORDED_LAUNCH
from llm_perf_opt.diagnosis.program import Program
from llm_perf_opt.diagnosis.scope import Scope, copy_kind

MIGRATION = "page_migration"
SHOWN = 3


def judge(scope: Scope, program: Program) -> Claim | None:
    del program
    if scope.evidence is None:
        return None
    rows = [row for row in scope.evidence.copies if copy_kind(row.kind) == MIGRATION]
    if not rows:
        return None
    cells = {f"{COPY}.{MIGRATION}": scope.ledger.ns(f"{COPY}.{MIGRATION}")}
    # The driver starts migrations by itself: what lies before them has no launch.
    cells[UNRECORDED_LAUNCH] = scope.ledger.ns(UNRECORDED_LAUNCH)
    count = sum(row.instances for row in rows)
    return Claim(
        cells=cells,
        evidence=(
            Fact(key="time", values={"time": sum(cells.values())}),
            *(
                Fact(
                    key="kind",
                    values={
                        "kind": row.kind,
                        "count": row.instances,
                        "total": row.total_ns,
                        "size": "" if row.size_bytes is None else f", {format_bytes(row.size_bytes)}",
                    },
                )
                for row in rows[:SHOWN]
            ),
        ),
        confidence=confidence_of(count, share=1.0),
    )
