"""Where the time of a program goes that did no work on a GPU."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import HOST_LOADING, OPERATORS, OUTSIDE, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

SHOWN = 3


def judge(scope: Scope, _: Program) -> Claim | None:
    if scope.evidence is None or scope.evidence.has_gpu_work:
        return None
    inside, outside = scope.ledger.ns(OPERATORS), scope.ledger.ns(OUTSIDE)
    named = [cell for cell in scope.ledger.below(OUTSIDE) if cell.owner]
    # Operators that prepare data are not among those of this time.
    is_rest = scope.ledger.ns(HOST_LOADING) > 0
    top = () if is_rest else scope.evidence.top_operators[:SHOWN]
    facts = [
        Fact(key="operators", values={"time": inside}),
        *(Fact(key="operator", values={"owner": name, "time": ns, "count": count}) for name, ns, count in top),
        *((Fact(key="outside", values={"time": outside}),) if outside else ()),
        *(Fact(key="owner", values={"owner": cell.owner[0], "time": cell.time_ns}) for cell in named[:SHOWN]),
    ]
    if inside >= outside:
        owner = top[0][0] if top else "operators"
        return Claim(
            title="rest" if is_rest else "title",
            values={"owner": owner},
            cells={OPERATORS: inside},
            evidence=tuple(facts),
            confidence="medium",
        )
    is_named = bool(named) and 2 * named[0].time_ns >= outside
    return Claim(
        title="named" if is_named else "outside",
        values={"owner": named[0].owner[0] if named else ""},
        cells=scope.ledger.by_id(OUTSIDE),
        evidence=tuple(facts),
        traits=frozenset({"outside", *(("outside_named",) if is_named else ())}),
        confidence="medium",
    )
