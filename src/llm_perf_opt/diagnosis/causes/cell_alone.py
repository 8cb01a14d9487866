"""Causes whose cells are all the evidence: the time in them, and what the host was in."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_perf_opt.diagnosis.ledger import CERTAIN_INSTANCES, ONE_TIME, Cell, Claim, Confidence, Fact, confidence_of
from llm_perf_opt.diagnosis.scope import Scope

if TYPE_CHECKING:
    from llm_perf_opt.diagnosis.cause import Cause

SHOWN = 4
# Operators of frameworks, which launch kernels; this many gaps in one are what every call of it costs.
OPERATOR, RECURS = re.compile(r"^(aten|npu|torchvision|vllm|flash_attn|_C\w*)::"), 10
# No operator takes so long to launch its kernels: what does computes on the CPU.
COMPUTES_NS = 3_000_000


def judge_cells(scope: Scope, cause: "Cause") -> Claim | None:
    """All time of the cells, with their owners, the costliest first."""
    cells = [cell for prefix in cause.cells for cell in scope.ledger.below(prefix)]
    total = sum(cell.time_ns for cell in cells)
    if not total:
        return None
    named = named_cells(cells)
    title = _title(cause, named, total, scope.place)
    is_needless = "zero" in cause.floors
    gaps = sum(cell.count for cell in cells)
    return Claim(
        title=title,
        values={"owner": joined_owner(named), "gaps": gaps, "time": total},
        cells=scope.ledger.by_id(*cause.cells),
        floor_ns=0 if is_needless else None,
        floor="zero" if is_needless else None,
        evidence=(
            *((Fact(key="gaps", values={"time": total}),) if gaps and "gaps" in cause.evidence else ()),
            *owner_facts(named),
            *(_earlier(scope) if "earlier" in cause.evidence else ()),
        ),
        # Many gaps with a reason each are not one reason that recurs.
        confidence=confidence_of_owners(cells, named),
        traits=frozenset({title, *(f"owner:{c.owner[0]}" for c in named[:1])}),
        is_one_time=cause.is_one_time,
    )


def _title(cause: "Cause", named: Sequence[Cell], total_ns: int, place: str) -> str:
    """By what most of the time lies in: operators that launch kernels, operators that compute, or any other owner."""
    operators = [cell for cell in named if cell.count >= RECURS and OPERATOR.match(cell.owner[0])]
    slow = sum(cell.time_ns for cell in operators if cell.time_ns >= COMPUTES_NS * cell.count)
    if "operators" in cause.titles and 2 * sum(cell.time_ns for cell in operators) >= total_ns:
        return "on_cpu" if 2 * slow >= total_ns else "operators"
    if "unknown" in cause.titles and 2 * sum(cell.time_ns for cell in named if cell.owner != (place,)) < total_ns:
        return "unknown"
    return "named" if named and "named" in cause.titles else "title"


def _earlier(scope: Scope) -> tuple[Fact, ...]:
    """Start-up before the first GPU work: no part of the scope, though it may take longer than all of it."""
    rows = scope.evidence.report.startup if scope.evidence is not None else ()
    before = [row for row in rows if row.last_ns <= 0 and not row.recurs]
    return tuple(
        Fact(key="earlier", values={"owner": row.name, "time": row.total_ns, "count": row.count})
        for row in before[:1]
        if row.total_ns >= scope.ledger.ns(*ONE_TIME)
    )


def named_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Those of which it is known what the host was in, the largest first."""
    return sorted((cell for cell in cells if cell.owner), key=lambda cell: -cell.time_ns)


def joined_owner(named: Sequence[Cell]) -> str:
    """What the host was in for most of the time."""
    return " ← ".join(named[0].owner) if named else ""


def owner_facts(named: Sequence[Cell]) -> tuple[Fact, ...]:
    """What the host was in, with its time."""
    return tuple(
        Fact(key="owner", values={"owner": " ← ".join(cell.owner), "time": cell.time_ns, "count": cell.count})
        for cell in named[:SHOWN]
    )


def confidence_of_owners(cells: Sequence[Cell], named: Sequence[Cell]) -> Confidence:
    """Time without a name that comes again and again is certain, though not what it is spent in."""
    gaps = max(cell.count for cell in named or cells)
    if not named:
        return "medium" if gaps >= CERTAIN_INSTANCES else "low"
    return confidence_of(gaps, share=sum(cell.time_ns for cell in named) / sum(cell.time_ns for cell in cells))
