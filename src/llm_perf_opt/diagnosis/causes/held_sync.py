"""The host waits for work that was launched and does not start."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import CERTAIN_INSTANCES, HELD_SYNC, Claim, Fact, Value
from llm_perf_opt.diagnosis.scope import Scope

SHOWN = 3
# Loading the code of one kernel takes milliseconds; what is held for longer waits for something else.
LONGEST_LOAD_NS = 100_000_000


def judge(scope: Scope, _: Program) -> Claim | None:
    time = scope.ledger.ns(HELD_SYNC)
    rows = scope.evidence.report.held if scope.evidence is not None else ()
    # Before the first kernel of its name, the driver loads its code.
    is_loading = bool(rows) and rows[0].first_kernels >= rows[0].count and rows[0].longest_ns <= LONGEST_LOAD_NS
    facts = [Fact(key="gaps", values={"time": time})]
    values: dict[str, Value]
    for row in rows[:SHOWN]:
        before = "" if row.ended_by is None else f", the longest before {row.ended_by}"
        values = {"call": row.call, "count": row.count, "time": row.held_ns, "before": before}
        facts.append(Fact(key="call", values=values))
    return Claim(
        title="loading" if is_loading else "named" if rows else "title",
        values={"call": rows[0].call} if rows else {},
        cells={HELD_SYNC: time},
        evidence=tuple(facts),
        traits=frozenset({"loading"} if is_loading else ()),
        # A single one may be the end of work that began before the recording.
        confidence="low" if sum(row.count for row in rows) < CERTAIN_INSTANCES else "medium",
        is_one_time=is_loading,
    )
