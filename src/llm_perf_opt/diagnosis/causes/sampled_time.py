"""Causes of a program's wall time whose evidence is samples of its stacks: the time in their cells, by owner.

Samples say how long something took, not how long it must take: no lower bound is known, so no factor is promised.
"""

from typing import TYPE_CHECKING

from llm_perf_opt.diagnosis.cause import cut
from llm_perf_opt.diagnosis.host_scope import WAITS_FOR_OTHERS
from llm_perf_opt.diagnosis.ledger import Cell, Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

if TYPE_CHECKING:
    from llm_perf_opt.diagnosis.cause import Cause

SHOWN = 4
# An owner of this part of the time is where all of it is, in one sentence.
MOSTLY = 0.8
# Fewer samples than the first make no finding, fewer than the second a guess; from the third on a share is known to a
# few per cent.
LEAST, FEW, MANY = 5, 20, 200


def judge_cells(scope: Scope, cause: "Cause") -> Claim | None:
    """All time of the cells; the owner with the most of it is in the title.

    What the owner's function does besides counts for the order: a function that does a little of everything is one
    thing to change.
    """
    cells = [cell for prefix in cause.cells for cell in scope.ledger.below(prefix)]
    total = sum(cell.time_ns for cell in cells)
    samples = sum(cell.count for cell in cells)
    if not total or samples < LEAST:
        return None
    named = sorted((cell for cell in cells if cell.owner), key=lambda cell: -cell.time_ns)
    first = named[0] if named else None
    is_spread = first is not None and first.time_ns < MOSTLY * total and "spread" in cause.titles
    own_ns = total if first is None or not cause.is_by_owner else first.time_ns
    function_ns = 0 if first is None else scope.function_ns.get((first.id, first.owner[0]), 0)
    return Claim(
        title="title" if first is None else "spread" if is_spread else "named",
        order_ns=max(own_ns, function_ns),
        values={
            "owner": "" if first is None else _place(first),
            "owner_share": named[0].time_ns / scope.wall_ns if named else 0.0,
            "time": total,
            "samples": samples,
        },
        cells=scope.ledger.by_id(*cause.cells),
        evidence=(
            Fact(key="time"),
            *(
                Fact(key="owner", values={"owner": " ← ".join(cut(text) for text in cell.owner), "time": cell.time_ns})
                for cell in named[:SHOWN]
            ),
        ),
        traits=frozenset(f"cell:{cell.id}" for cell in named[:1]),
        confidence="low" if samples < FEW else "high" if samples >= MANY else "medium",
        is_one_time=cause.is_one_time,
    )


def _place(cell: Cell) -> str:
    """The function and line; of a wait, what it waits for too."""
    return "; ".join(cut(text) for text in (cell.owner if cell.id in WAITS_FOR_OTHERS else cell.owner[:1]))
