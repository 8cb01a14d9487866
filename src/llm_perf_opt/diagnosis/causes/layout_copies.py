"""Kernels that change the layout of data: contiguous, transpose, channels first to last."""

from llm_perf_opt.capture.kernels.copies import LAYOUT
from llm_perf_opt.diagnosis.causes.moving_data import claim_moves
from llm_perf_opt.diagnosis.claim import Claim
from llm_perf_opt.diagnosis.program import Program
from llm_perf_opt.diagnosis.scope import Scope


def judge(scope: Scope, program: Program) -> Claim | None:
    del program
    return claim_moves(scope, (LAYOUT,))
