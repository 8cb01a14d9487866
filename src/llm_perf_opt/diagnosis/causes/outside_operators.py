"""A phase on a CPU that spends much of its time outside of torch, a long time after each operator."""

from llm_perf_opt.diagnosis.causes.framework_overhead import claim_outside, does_something_else
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope


def judge(scope: Scope, _: Program) -> Claim | None:
    between = scope.phase.between_operators_ms if scope.phase is not None else None
    if between is None or not does_something_else(scope):
        return None
    return claim_outside(scope, has_floor=False, also=(Fact(key="between", values={"between": between}),))
