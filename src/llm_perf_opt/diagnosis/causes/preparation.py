"""What passes before the model gets its input."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.facts import Known
from llm_perf_opt.diagnosis.ledger import CERTAIN_INSTANCES, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

CELL = "host.prepare"


def judge(scope: Scope, program: Program) -> Claim | None:
    prepare = scope.run.prepare if scope.run is not None else None
    if not isinstance(prepare, Known):
        return None
    time = scope.ledger.ns(CELL)
    facts = [Fact(key="time", values={"time": time, "how": prepare.how}, source=prepare.source)]
    if "cpu" not in program.traits:
        facts.append(Fact(key="ahead", values={"ahead": scope.wall_ns / max(time, scope.wall_ns - time)}))
    repeats = prepare.spread.n if prepare.spread is not None else 1
    return Claim(
        cells={CELL: time},
        evidence=tuple(facts),
        confidence="high" if repeats >= CERTAIN_INSTANCES else "medium",
        # On a CPU the cores that would prepare ahead are those that compute.
        caveat=None if "cpu" in program.traits else "throughput",
    )
