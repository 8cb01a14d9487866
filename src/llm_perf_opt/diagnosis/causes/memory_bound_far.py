"""Memory-bound kernels far from the memory roofline."""

from llm_perf_opt.diagnosis.causes.ncu_roof import FAR_PCT, claim_memory_bound
from llm_perf_opt.diagnosis.claim import Claim
from llm_perf_opt.diagnosis.program import Program
from llm_perf_opt.diagnosis.scope import Scope


def judge(scope: Scope, program: Program) -> Claim | None:
    del program
    return claim_memory_bound(scope, lambda roof_pct: roof_pct < FAR_PCT, "medium")
