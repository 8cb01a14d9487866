"""The GPU is idle and nothing says why: that is an answer, with the command that records it."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import UNRECORDED_HOST, UNRECORDED_LAUNCH, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope


def judge(scope: Scope, _: Program) -> Claim | None:
    host, launches = scope.ledger.ns(UNRECORDED_HOST), scope.ledger.ns(UNRECORDED_LAUNCH)
    evidence = [Fact(key=key, values={"time": ns}) for key, ns in (("gaps", host), ("launches", launches)) if ns]
    return Claim(
        title="launches" if launches > host else "title",
        cells=scope.ledger.by_id(UNRECORDED_HOST, UNRECORDED_LAUNCH),
        evidence=tuple(evidence),
        traits=frozenset({"launches_missing"}) if launches > host else frozenset(),
        confidence="low",
    )
