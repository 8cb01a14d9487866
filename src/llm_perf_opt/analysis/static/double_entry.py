"""Closed form and operator count side by side, and the reason for every disagreement that is large enough to ask."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.analysis.static.architecture import Model, in_order
from llm_perf_opt.analysis.static.closed_form import Phase
from llm_perf_opt.analysis.static.dtypes import Dtypes
from llm_perf_opt.analysis.static.explanations import byte_explanations
from llm_perf_opt.analysis.static.operator_count import Count, Tally
from llm_perf_opt.analysis.static.work import Work

TOLERANCE = 0.01
NOT_COMPARED = ("norm",)
SMALL = f"less than {TOLERANCE:.0%} of the phase"
UNEXPLAINED = "unexplained: the closed form and the model that was built differ here; trust neither until it is found"
Quantity = Literal["flops", "bytes"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One quantity of one module group in one phase, from both books. `ratio` is counted over closed form."""

    phase: str
    group: str
    quantity: Quantity
    closed_form: float
    counted: float
    ratio: float | None
    agrees: bool
    explanation: str | None


def double_entry(model: Model, phases: Mapping[str, tuple[Phase, Count]], dtypes: Dtypes) -> tuple[Entry, ...]:
    """All groups of all phases. Bytes of norms are left out: they hold no product, and fusion decides about them."""
    entries = []
    for name, (phase, count) in phases.items():
        found = set(phase.groups) | set(count.groups)
        for group in in_order(found):
            entries.append(_entry(model, dtypes, name, group, "flops", (phase, count)))
            if group not in NOT_COMPARED:
                entries.append(_entry(model, dtypes, name, group, "bytes", (phase, count)))
    return tuple(entries)


def disagreements(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(e for e in entries if not e.agrees)


def _entry(
    model: Model, dtypes: Dtypes, name: str, group: str, quantity: Quantity, books: tuple[Phase, Count]
) -> Entry:
    phase, count = books
    work, tally = phase.groups.get(group, Work()), count.groups.get(group, Tally())
    closed, counted = (work.flops, tally.flops) if quantity == "flops" else (work.bytes, tally.bytes)
    agrees = _are_close(closed, counted)
    return Entry(
        phase=name,
        group=group,
        quantity=quantity,
        closed_form=closed,
        counted=counted,
        ratio=counted / closed if closed else None,
        agrees=agrees,
        explanation=None if agrees else _explain(model, dtypes, group, quantity, phase, count),
    )


def _are_close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))


def _explain(model: Model, dtypes: Dtypes, group: str, quantity: Quantity, phase: Phase, count: Count) -> str:
    """The rule that accounts for the whole difference, to the same tolerance; says so when none does."""
    tally = count.groups.get(group, Tally())
    if quantity == "bytes":
        for rule in byte_explanations(model, phase, group, dtypes):
            if _are_close(rule.counted, tally.bytes):
                return rule.text
    found, total = (tally.flops, count.total.flops) if quantity == "flops" else (tally.bytes, count.total.bytes)
    if group == "other" and found <= TOLERANCE * total:
        return f"small products outside the named parts (rotary tables, position interpolation): {SMALL}"
    return UNEXPLAINED
