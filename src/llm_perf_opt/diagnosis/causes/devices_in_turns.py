"""A process with several GPUs that mostly uses one at a time."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import COMPUTE, Claim, Fact, fitted
from llm_perf_opt.diagnosis.scope import Scope

# A GPU with less than this part of the busiest one's work is not one that the work was spread over.
MIN_DEVICE_SHARE, MIN_SHARE = 0.1, 0.1


def judge(scope: Scope, _: Program) -> Claim | None:
    ranks = scope.evidence.ranks if scope.evidence is not None else None
    if ranks is None or len({(row.source, row.process) for row in ranks.devices}) == len(ranks.devices):
        return None
    saved, facts, counts = 0.0, [], []
    for row in ranks.rows:
        own = [d.time for d in ranks.devices if (d.source, d.process) == (row.source, row.process)]
        most = max((time.busy_ns for time in own), default=0)
        busy = [time.busy_ns for time in own if time.busy_ns >= MIN_DEVICE_SHARE * most]
        left = row.time.busy_ns - sum(busy) / max(len(busy), 1)
        if len(busy) < 2 or left < MIN_SHARE * row.time.span_ns:
            continue
        saved += left
        counts.append(len(busy))
        values = {
            "count": len(busy),
            "each_busy": sum(busy) / len(busy),
            "span": row.time.span_ns,
            "busy": row.time.busy_ns,
        }
        facts.append(Fact(key="devices", values=values))
    if saved < MIN_SHARE * scope.wall_ns:
        return None
    return Claim(
        values={"count": max(counts)},
        cells=fitted(scope.ledger.by_id(COMPUTE), min(round(saved), scope.ledger.ns(COMPUTE))),
        floor_ns=0,
        floor="spread",
        evidence=tuple(facts),
        caveat="dependent",
    )
