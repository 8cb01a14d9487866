"""Kernels that only copy: device-side copies, gathers and scatters."""

from llm_perf_opt.capture.kernels.copies import GATHER, PLAIN, SCATTER
from llm_perf_opt.diagnosis.causes.moving_data import claim_moves
from llm_perf_opt.diagnosis.claim import Claim
from llm_perf_opt.diagnosis.program import Program
from llm_perf_opt.diagnosis.scope import Scope


def judge(scope: Scope, program: Program) -> Claim | None:
    del program
    return claim_moves(
        scope,
        (
            GATHER,
            PLAIN,
            SCATTER,
        ),
    )
