"""Ranks that wait for each other in collectives, by the captures of several ranks."""

from llm_perf_opt.capture.ranks.rank_analysis import RankRow
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import CERTAIN_INSTANCES, COMMUNICATION, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

SHOWN = 8


def judge(scope: Scope, _: Program) -> Claim | None:
    ranks = scope.evidence.ranks if scope.evidence is not None else None
    rows = [row for row in ranks.rows if row.arrivals is not None] if ranks is not None else []
    if ranks is None or len(rows) < 2:
        return None
    waited = sum(row.arrivals.waited_ns for row in rows if row.arrivals is not None)
    exposed = scope.ledger.ns(COMMUNICATION)
    total = min(waited, exposed)
    if total <= 0:
        return None
    kernels = [kernel for kernel in scope.kernels if kernel.kernel_class == "communication"]
    matched = min(row.arrivals.matched for row in rows if row.arrivals is not None)
    # The one the others wait for first.
    rows.sort(key=lambda row: (0, 0) if row.arrivals is None else (-row.arrivals.held_up_ns, -row.arrivals.waited_ns))
    return Claim(
        title="title" if ranks.straggler is None else "straggler",
        values={"rank": -1 if ranks.straggler is None else ranks.straggler},
        kernels={kernel.name: round(kernel.own_ns * total / exposed) for kernel in kernels},
        floor_ns=0,
        floor="zero",
        evidence=tuple(_arrived(row) for row in rows[:SHOWN]),
        confidence="medium" if matched >= CERTAIN_INSTANCES else "low",
    )


def _arrived(row: RankRow) -> Fact:
    came = row.arrivals
    assert came is not None
    who = f"rank {row.rank}" if row.rank is not None else row.process or row.source
    return Fact(
        key="rank",
        values={
            "who": who,
            "waited": came.waited_ns,
            "matched": came.matched,
            "last": came.came_last,
            "held": came.held_up_ns,
        },
    )
