"""An optimizer made of foreach kernels: several passes over all parameters."""

import re

from llm_perf_opt.capture.floors import optimizer_passes
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact, kernel_fact
from llm_perf_opt.diagnosis.scope import Scope

STEP_RANGE = re.compile(r"Optimizer\.step#(\w+)\.step")
# Clipping is one operation, averages of weights are a few more: without such a range only many are an optimizer.
SOME_PASSES, MANY_PASSES, MIN_SHARE, SHOWN = 2, 4, 0.1, 4
WITH_FUSED_FORM = ("Adam", "AdamW", "SGD", "Adagrad")


def judge(scope: Scope, _: Program) -> Claim | None:
    if scope.evidence is None:
        return None
    steps = [(row, named) for row in scope.evidence.ranges if (named := STEP_RANGE.search(row.name)) is not None]
    step, named = max(steps, key=lambda pair: pair[0].gpu_busy_ns or 0, default=(None, None))
    here = {kernel.name for kernel in scope.kernels}
    rows_here = [row for row in scope.evidence.kernels if row.name in here]
    passes = optimizer_passes(rows_here, None if named is None else named[1])
    if passes is None or passes.kinds < (MANY_PASSES if step is None else SOME_PASSES):
        return None
    rows = [kernel for kernel in scope.kernels if kernel.name in set(passes.names)]
    spent = sum(row.own_ns for row in rows)
    part = 1.0
    if step is not None and step.gpu_busy_ns is not None and spent:
        part = min(1.0, step.gpu_busy_ns / spent)
    if spent * part < MIN_SHARE * scope.kernel_ns:
        return None
    name = passes.optimizer or "foreach"
    wanted = {row.name: round(row.own_ns * part) for row in rows}
    return Claim(
        values={"optimizer": name, "kernel_share": spent * part / scope.kernel_ns},
        kernels=wanted,
        floor_ns=round(sum(wanted.values()) * passes.least_moved / passes.moved),
        floor="bytes",
        evidence=(
            Fact(
                key="passes",
                values={"kinds": passes.kinds, "time": round(spent * part), "kernel_time": scope.kernel_ns},
            ),
            Fact(key="least", values={"how": passes.how}),
            *(kernel_fact(row) for row in rows[:SHOWN]),
        ),
        traits=frozenset({"has_fused_form"}) if name in WITH_FUSED_FORM else frozenset(),
    )
