"""A phase on a CPU that spends much of its time outside of torch, a long time after each operator."""

from dataclasses import replace

from llm_perf_opt.diagnosis.causes.framework_overhead import claim_outside, does_something_else
from llm_perf_opt.diagnosis.claim import Claim, Fact
from llm_perf_opt.diagnosis.program import Program
from llm_perf_opt.diagnosis.scope import Scope


def judge(scope: Scope, _: Program) -> Claim | None:
    claim = claim_outside(scope, has_floor=False) if does_something_else(scope) else None
    if claim is None or scope.phase is None or scope.phase.between_operators_ms is None:
        return None
    between = Fact(key="between", values={"between": scope.phase.between_operators_ms})
    return replace(claim, evidence=(*claim.evidence, between))
