"""A phase on a CPU that spends much of its time between operators, a little after each."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.facts import Known
from llm_perf_opt.diagnosis.ledger import OUTSIDE, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

# Starting an operator from Python takes some ten microseconds; under the profiler and on a slow machine ten times that.
MOST_DISPATCH_MS = 0.5


def judge(scope: Scope, _: Program) -> Claim | None:
    return None if does_something_else(scope) else claim_outside(scope, has_floor=True)


def does_something_else(scope: Scope) -> bool:
    phase = scope.phase
    between = phase.between_operators_ms if phase is not None else None
    return between is not None and between > MOST_DISPATCH_MS


def claim_outside(scope: Scope, *, has_floor: bool, also: tuple[Fact, ...] = ()) -> Claim | None:
    """All time outside operators."""
    phase = scope.phase
    if phase is None or not isinstance(phase.operators, Known) or not isinstance(phase.wall, Known):
        return None
    return Claim(
        cells={OUTSIDE: scope.ledger.ns(OUTSIDE)},
        floor_ns=0 if has_floor else None,
        floor="operators" if has_floor else None,
        evidence=(
            Fact(key="inside", values={"how": phase.operators.how}, source=phase.operators.source),
            Fact(key="wall", values={"how": phase.wall.how}, source=phase.wall.source),
            *also,
        ),
        caveat="approximate",
    )
