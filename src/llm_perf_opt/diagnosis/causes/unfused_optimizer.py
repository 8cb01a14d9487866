"""An optimizer made of foreach kernels: several passes over all parameters."""

import re

from llm_perf_opt.diagnosis.claim import Claim, Fact
from llm_perf_opt.diagnosis.program import Program
from llm_perf_opt.diagnosis.scope import Scope

# Torch's foreach functions do one operation on many tensors; fused optimizers, torch's and those of Apex and Megatron,
# are recognized by their own functor.
FOREACH = re.compile(r"multi_tensor_apply_kernel<.*\b(Unary|Binary|Pointwise|Ternary)Op\w*Functor<")
FUSED = re.compile(r"multi_tensor_apply_kernel<.*\b(Fused\w+|(Adam|SGD|LAMB|Novograd)\w*)Functor", re.I)
STEP_RANGE = re.compile(r"Optimizer\.step#(\w+)\.step")
# Clipping is one operation, averages of weights are a few more: without such a range only many are an optimizer.
SOME_PASSES, MANY_PASSES, MIN_SHARE, SHOWN = 2, 4, 0.1, 4
# Adam in one pass reads and writes 7 numbers for each parameter, where its eight passes move about 20.
LEAST_LEFT = 0.35
WITH_FUSED_FORM = ("Adam", "AdamW", "SGD", "Adagrad")


def judge(scope: Scope, program: Program) -> Claim | None:
    del program
    rows = [kernel for kernel in scope.kernels if FOREACH.search(kernel.name)]
    if scope.evidence is None or len(rows) < SOME_PASSES:
        return None
    steps = [(row, named) for row in scope.evidence.ranges if (named := STEP_RANGE.search(row.name)) is not None]
    step, named = max(steps, key=lambda pair: pair[0].gpu_busy_ns or 0, default=(None, None))
    spent, total = sum(row.own_ns for row in rows), scope.kernel_ns
    part = 1.0
    if step is not None and step.gpu_busy_ns is not None and spent:
        part = min(1.0, step.gpu_busy_ns / spent)
    least = MANY_PASSES if step is None else SOME_PASSES
    if len(rows) < least or any(FUSED.search(k.name) for k in scope.kernels) or spent * part < MIN_SHARE * total:
        return None
    name = "foreach" if named is None else named[1]
    wanted = {row.name: round(row.own_ns * part) for row in rows}
    return Claim(
        values={"optimizer": name, "kernel_share": spent * part / total},
        kernels=wanted,
        floor_ns=round(sum(wanted.values()) * LEAST_LEFT),
        floor="bytes",
        evidence=(
            Fact(key="passes", values={"kinds": len(rows), "time": round(spent * part), "kernel_time": total}),
            *(
                Fact(key="kernel", values={"kernel": row.short_name, "time": row.time_ns, "count": row.count})
                for row in rows[:SHOWN]
            ),
        ),
        traits=frozenset({"has_fused_form"}) if name in WITH_FUSED_FORM else frozenset(),
    )
