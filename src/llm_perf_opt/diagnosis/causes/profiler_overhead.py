"""A profiler slowed the run so much that its split of the time needs care."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

TOO_SLOW, UNTRUSTED = 1.5, 3.0


def judge(scope: Scope, _: Program) -> Claim | None:
    slowdowns = scope.run.slowdowns if scope.run is not None else {}
    slow = {name: known for name, known in slowdowns.items() if known.value >= TOO_SLOW}
    if not slow:
        return None
    name, worst = max(slow.items(), key=lambda item: item[1].value)
    return Claim(
        values={"name": name, "factor": worst.value},
        evidence=tuple(
            Fact(key="slowdown", values={"name": name, "factor": known.value}, source=known.source or "manifest.json")
            for name, known in slow.items()
        ),
        confidence="high" if worst.value >= UNTRUSTED else "medium",
        is_timeless=True,
    )
