"""Another process uses the GPU interleaved: kernels stretched, and queued work held, by one and the same length."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import CERTAIN_INSTANCES, COMPUTE, HELD_SYNC, LATE_STARTS, SYNC, Claim, Fact, fitted
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE = 0.03


def judge(scope: Scope, _: Program) -> Claim | None:
    found = scope.evidence.report.slices if scope.evidence is not None else None
    if found is None or found.lost_ns < MIN_SHARE * scope.wall_ns:
        return None
    # Held work is idle time; the rest of what is lost lies in the kernels that were stretched.
    idle = scope.ledger.by_id(HELD_SYNC, LATE_STARTS, SYNC)
    held = min(round(found.held * found.slice_ns), found.lost_ns, sum(idle.values()))
    stretched = min(found.lost_ns - held, scope.ledger.ns(COMPUTE))
    cells = {**fitted(idle, held), **fitted(scope.ledger.by_id(COMPUTE), stretched)}
    slices = {"stretched": found.stretched, "held": found.held, "slice": found.slice_ns}
    return Claim(
        values={"lost": held + stretched},
        cells={cell: ns for cell, ns in cells.items() if ns},
        floor_ns=0,
        floor="zero",
        evidence=(Fact(key="slices", values=slices), Fact(key="lost")),
        confidence="high" if found.stretched + found.held >= 2 * CERTAIN_INSTANCES else "medium",
    )
