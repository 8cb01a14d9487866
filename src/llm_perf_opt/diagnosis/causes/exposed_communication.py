"""Communication between GPUs with no computation overlapped."""

from llm_perf_opt.capture.ranks.collectives import SEND_RECEIVE, kind_of_collective
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import COMMUNICATION, COMPUTE, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

# Where computation could hide less than this part of it, overlap is not the answer.
MOSTLY_HIDDEN = 0.5
# One call that takes this part of the communication is named in the title.
DOMINATES = 0.5


def judge(scope: Scope, _: Program) -> Claim | None:
    exposed, compute = scope.ledger.ns(COMMUNICATION), scope.ledger.ns(COMPUTE)
    rows = [kernel for kernel in scope.kernels if kernel.kernel_class == "communication"]
    total = sum(row.time_ns for row in rows)
    # A program that only communicates measures its links.
    if scope.evidence is None or not compute:
        return None
    overlapped = max(0, total - exposed)
    hide = min(exposed, max(0, compute - overlapped))
    is_hidable = hide >= MOSTLY_HIDDEN * exposed
    pairs = sum(row.time_ns for row in rows if kind_of_collective(row.name) == SEND_RECEIVE)
    traits = {"little_compute"} if not is_hidable else {"pairs"} if pairs > total / 2 else set()
    values: dict[str, str | int | float] = {}
    facts = [
        Fact(key="time", values={"time": exposed, "total": total}),
        Fact(key="hide", values={"hide": hide, "compute": compute}),
    ]
    ranks = scope.evidence.ranks
    longest = None if ranks is None else ranks.longest
    if longest is not None:
        where = (
            f", launched in {longest.range_name or longest.operator}" if longest.range_name or longest.operator else ""
        )
        size = "" if longest.message_bytes is None else f", {format_bytes(longest.message_bytes)}"
        values = {"collective": longest.collective, "longest": longest.length_ns}
        more: dict[str, str | int | float] = {"size": size, "median": longest.median_ns, "where": where}
        facts.append(Fact(key="longest", values={**values, **more}))
    dominates = longest is not None and longest.exposed_ns >= DOMINATES * exposed
    return Claim(
        title="longest" if dominates else "title",
        values=values,
        kernels={row.name: row.own_ns for row in rows},
        floor_ns=exposed - hide if is_hidable else None,
        floor="overlap" if is_hidable else None,
        evidence=tuple(facts),
        traits=frozenset(traits),
    )
