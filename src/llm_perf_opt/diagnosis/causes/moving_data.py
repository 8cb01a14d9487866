"""Kernels that only move data, by what they do: shared by the causes of each kind."""

from typing import TYPE_CHECKING

from llm_perf_opt.capture.kernels.copies import copy_kind
from llm_perf_opt.diagnosis.ledger import Claim, Fact, Value
from llm_perf_opt.diagnosis.scope import Scope

if TYPE_CHECKING:
    from llm_perf_opt.diagnosis.cause import Cause

SHOWN = 3


def judge_cells(scope: Scope, cause: "Cause") -> Claim | None:
    """The kernels of some kinds, where they take a part of the kernel time; by operator where a trace names them."""
    kinds = cause.moves
    kernels, spent, floor, operators, how = _of_capture(scope, kinds) if scope.evidence else _by_name(scope, kinds)
    if not spent or spent < cause.min_kernel_share * scope.kernel_ns:
        return None
    wanted = sum(kernels.values())
    shown = sorted((k for k in scope.kernels if k.name in kernels), key=lambda k: -kernels[k.name])[:SHOWN]
    facts = [
        Fact(
            key="kernel",
            values={"kernel": kernel.short_name, "time": kernels[kernel.name], "count": kernel.count},
        )
        for kernel in shown
    ]
    if operators:
        facts.append(Fact(key="operators", values={"operators": ", ".join(operators)}))
    values: dict[str, Value] = {
        "kernel_share": spent / scope.kernel_ns,
        "kernel": shown[0].short_name if shown else "",
        "how": how,
        "most": f" in {operators[0]}" if operators else "",
    }
    return Claim(
        values=values,
        kernels=kernels,
        floor_ns=None if floor is None else round(wanted * floor / spent),
        floor=None if floor is None else "known",
        evidence=tuple(facts),
        confidence=cause.confidence,
    )


_Moves = tuple[dict[str, int], int, int | None, tuple[str, ...], str]


def _of_capture(scope: Scope, kinds: tuple[str, ...]) -> _Moves:
    """Own times of the kernels of these kinds; of one with several kinds the part each kind has."""
    assert scope.evidence is not None
    rows = [row for row in scope.evidence.copy_kernels if row.kind in kinds]
    found: dict[str, int] = {}
    for row in rows:
        left = row.time_ns
        for kernel in scope.kernels:
            if kernel.short_name in row.kernels and left > 0:
                part = min(left, kernel.own_ns - found.get(kernel.name, 0))
                found[kernel.name] = found.get(kernel.name, 0) + max(part, 0)
                left -= part
    floors = [row.floor_ns for row in rows]
    floor = None if any(one is None for one in floors) else sum(one or 0 for one in floors)
    operators = tuple(dict.fromkeys(name for row in rows for name in row.operators))
    return found, sum(row.time_ns for row in rows), floor, operators[:SHOWN], rows[0].how if rows else ""


def _by_name(scope: Scope, kinds: tuple[str, ...]) -> _Moves:
    rows = [kernel for kernel in scope.kernels if copy_kind(kernel.name) in kinds]
    return {kernel.name: kernel.own_ns for kernel in rows}, sum(kernel.time_ns for kernel in rows), None, (), ""
