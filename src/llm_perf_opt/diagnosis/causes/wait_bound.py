"""The host waits in a synchronization, and the GPU has nothing to do meanwhile."""

import re

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import SYNC, Claim, Fact, confidence_of
from llm_perf_opt.diagnosis.scope import Scope

MIN_PHASE_SHARE = 0.1
SHOWN = 3
COPIES = re.compile("memcpy", re.IGNORECASE)


def judge(scope: Scope, _: Program) -> Claim | None:
    waiting = scope.ledger.ns(SYNC)
    if scope.evidence is None and waiting < MIN_PHASE_SHARE * scope.wall_ns:
        return None
    rows = [] if scope.evidence is None else sorted(scope.evidence.report.waits, key=lambda row: -row.gpu_idle_ns)
    shown = rows[:SHOWN]
    # What a copy must take is known of recorded ones alone.
    is_copying = bool(shown) and COPIES.search(shown[0].call) is not None and not _has_copies(scope)
    return Claim(
        title="copies" if is_copying else "named" if shown else "title",
        values={"call": shown[0].call} if shown else {},
        cells={SYNC: waiting},
        floor_ns=None if is_copying else 0,
        floor=None if is_copying else "zero",
        evidence=(
            Fact(key="time", values={"time": waiting}),
            *((Fact(key="unrecorded"),) if is_copying else ()),
            *(
                Fact(
                    key="call",
                    values={
                        "call": row.call,
                        "count": row.count,
                        "total": row.total_ns,
                        "idle": row.gpu_idle_ns,
                        "where": f", in {', '.join(row.places)}" if row.places else "",
                    },
                )
                for row in shown
            ),
        ),
        traits=frozenset({"unrecorded_copies"} if is_copying else ()),
        confidence=confidence_of(sum(row.count for row in shown), share=1.0) if shown else "medium",
    )


def _has_copies(scope: Scope) -> bool:
    return scope.evidence is None or any(len(timeline.copies) for timeline in scope.evidence.timelines)
