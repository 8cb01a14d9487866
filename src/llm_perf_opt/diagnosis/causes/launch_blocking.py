"""Every launch call returns only when its kernel has ended."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import LAUNCH, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope


def judge(scope: Scope, _: Program) -> Claim | None:
    found = scope.evidence.report.launch_blocking if scope.evidence is not None else None
    if found is None:
        return None
    time = scope.ledger.ns(LAUNCH)
    calls = {"covering": found.covering, "launches": found.launches, "call": found.call_ns, "kernel": found.kernel_ns}
    return Claim(
        values={"idle": scope.ledger.idle_ns / scope.wall_ns},
        # How much of it is left without the variable only a run without it says.
        cells={LAUNCH: time},
        evidence=(Fact(key="calls", values=calls), Fact(key="gaps", values={"time": time})),
        confidence="high",
    )
