"""Device memory is freed and allocated again and again; frees, allocations and the launch gaps behind them are one."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import HELD_SYNC, LAUNCH, SYNC, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE = 0.02
# In this order the time is taken: what allocation itself takes, then the gaps that follow.
CELLS = ("idle.allocation", LAUNCH, "idle.host", SYNC, HELD_SYNC)


def judge(scope: Scope, _: Program) -> Claim | None:
    found = scope.evidence.report.flushes if scope.evidence is not None else None
    if found is None or found.gpu_idle_ns < MIN_SHARE * scope.wall_ns:
        return None
    left, wanted = found.gpu_idle_ns, {}
    for cell in CELLS:
        wanted[cell] = min(left, scope.ledger.ns(cell))
        left -= wanted[cell]
    calls = {"flushes": found.flushes, "frees": found.frees, "allocations": found.allocations, "calls": found.calls_ns}
    return Claim(
        cells={cell: ns for cell, ns in wanted.items() if ns},
        floor_ns=0,
        floor="zero",
        evidence=(Fact(key="flushes", values=calls), Fact(key="idle", values={"time": found.gpu_idle_ns})),
        confidence="high",
    )
