"""Unified memory: pages migrate because CPU and GPU touch them in turn."""

import numpy as np

from llm_perf_opt.capture.intervals import union
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.evidence import CaptureEvidence
from llm_perf_opt.diagnosis.ledger import COPY, Claim, Fact, confidence_of
from llm_perf_opt.diagnosis.scope import Scope

CELL = f"{COPY}.page_migration"
SHOWN = 3
# The CPU works on a page and faults on the next: in two captures of a T4 99 % of the migrations follow the one before
# within 3 and 6 ms. What is nearer than this is one stretch; the time between is inferred, and makes no claim certain.
NEAR_NS = 10_000_000
# Where that stretch lies in the ledger: what the host did between two faults is not recorded.
AROUND = ("idle.unrecorded_host", "idle.launch", "idle.sync", "idle.startup.first_use", "idle.unrecorded_launch")


def judge(scope: Scope, _: Program) -> Claim | None:
    if scope.evidence is None:
        return None
    rows = [row for row in scope.evidence.copies if row.way == "page_migration"]
    if not rows:
        return None
    recorded = scope.ledger.ns(CELL)
    cells = {CELL: recorded}
    left = max(0, _stretches_ns(scope.evidence) - recorded)
    for cell in AROUND:
        cells[cell] = min(left, scope.ledger.ns(cell))
        left -= cells[cell]
    total = sum(cells.values())
    count = sum(row.instances for row in rows)
    between = {"time": total - recorded, "near": NEAR_NS}
    return Claim(
        cells={cell: ns for cell, ns in cells.items() if ns},
        evidence=(
            Fact(key="time", values={"time": total}),
            *((Fact(key="between", values=between),) if total > recorded else ()),
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
        confidence=confidence_of(count, share=recorded / max(total, 1)),
    )


def _stretches_ns(evidence: CaptureEvidence) -> int:
    """The time of migrations that follow each other closely, from first to last, in which no kernel ran."""
    total = 0
    for measured in evidence.measured:
        copies = measured.timeline.copies
        if copies.by_driver is None:
            continue
        mine = np.flatnonzero(copies.by_driver)
        near = union(copies.start_ns[mine], copies.end_ns[mine] + NEAR_NS)
        start, end = near.start, near.end - NEAR_NS
        busy = [one.busy for one in measured.idle.values()]
        covered = sum(int((one.covered_before(end) - one.covered_before(start)).sum()) for one in busy)
        total += max(0, int((end - start).sum()) - covered)
    return total
