"""The thread that launches waits for the lock of the Python interpreter, which another thread holds."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import LAUNCH, Claim, Fact, confidence_of
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE = 0.02
# Long gaps first; what is left lies in gaps no longer than a launch takes.
CELLS = ("idle.blocked.gil", "idle.host", LAUNCH)


def judge(scope: Scope, _: Program) -> Claim | None:
    found = scope.evidence.report.gil if scope.evidence is not None else None
    if found is None or found.gpu_idle_ns < MIN_SHARE * scope.wall_ns:
        return None
    left, wanted = found.gpu_idle_ns, {}
    for cell in CELLS:
        wanted[cell] = min(left, scope.ledger.ns(cell))
        left -= wanted[cell]
    waits = {"count": found.count, "total": found.wait_ns, "idle": found.gpu_idle_ns}
    return Claim(
        cells={cell: ns for cell, ns in wanted.items() if ns},
        floor_ns=0,
        floor="zero",
        evidence=(
            Fact(key="waits", values=waits),
            *((Fact(key="holder", values={"holder": found.holder, "held": found.held_ns}),) if found.held_ns else ()),
        ),
        confidence=confidence_of(found.count, share=1.0),
    )
