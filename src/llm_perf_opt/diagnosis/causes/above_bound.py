"""A phase whose kernels, on a CPU operators, take much longer than the model's lower bound."""

from llm_perf_opt.core.units import format_ms
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.facts import Known
from llm_perf_opt.diagnosis.ledger import COMPUTE, OPERATORS, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_FACTOR, SHOWN = 1.5, 4


def judge(scope: Scope, _: Program) -> Claim | None:
    phase = scope.phase
    if phase is None:
        return None
    bound = phase.achievable if isinstance(phase.achievable, Known) else phase.datasheet
    if not isinstance(bound, Known) or bound.value <= 0:
        return None
    work, bound_ns = scope.ledger.ns(COMPUTE, OPERATORS), round(bound.value * 1e6)
    if work < MIN_FACTOR * bound_ns:
        return None
    source = bound.source or "static_analysis/static.json"
    facts = [Fact(key="bound", values={"how": bound.how}, source=source)]
    if phase.is_cpu and isinstance(phase.operators, Known):
        facts.append(Fact(key="operators", values={"how": phase.operators.how}, source=phase.operators.source))
    else:
        top = scope.ledger.below(COMPUTE)[:SHOWN]
        classes = ", ".join(f"{cell.id.split('.')[-1]} {format_ms(cell.time_ns / 1e6)}" for cell in top)
        facts.append(Fact(key="kernels", values={"time": work, "classes": f": {classes}" if classes else ""}))
    return Claim(
        title="cpu" if phase.is_cpu else "title",
        values={"factor": work / bound_ns, "bound": bound_ns},
        cells=scope.ledger.by_id(COMPUTE, OPERATORS),
        floor_ns=bound_ns,
        floor="bound",
        evidence=tuple(facts),
        confidence="low" if phase.is_cpu else "medium",
        caveat="small" if phase.is_cpu else None,
    )
