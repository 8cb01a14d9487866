"""Closed form and operator count side by side, and the reason for every disagreement that is large enough to ask."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.analysis.static.architecture import (
    GROUPS,
    Decoder,
    GroupedAttention,
    LatentAttention,
    Model,
    Moe,
    decoder_of,
)
from llm_perf_opt.analysis.static.closed_form import Phase
from llm_perf_opt.analysis.static.dtypes import Dtypes
from llm_perf_opt.analysis.static.operator_count import Count, Tally

TOLERANCE = 0.01
NOT_COMPARED = ("norm",)
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
        for group in (g for g in GROUPS if g in found):
            work = phase.groups.get(group)
            tally = count.groups.get(group, Tally())
            flops = (work.flops, tally.flops) if work else (0.0, tally.flops)
            entries.append(_entry(model, dtypes, name, group, "flops", *flops))
            if group not in NOT_COMPARED:
                moved = (work.bytes, tally.bytes) if work else (0.0, tally.bytes)
                entries.append(_entry(model, dtypes, name, group, "bytes", *moved))
    return tuple(entries)


def disagreements(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(e for e in entries if not e.agrees)


def _entry(
    model: Model, dtypes: Dtypes, phase: str, group: str, quantity: Quantity, closed: float, counted: float
) -> Entry:
    ratio = counted / closed if closed else None
    agrees = abs(counted - closed) <= TOLERANCE * max(abs(closed), abs(counted))
    why = None if agrees else _explain(decoder_of(model), dtypes, phase, group, quantity, closed, counted)
    return Entry(
        phase=phase,
        group=group,
        quantity=quantity,
        closed_form=closed,
        counted=counted,
        ratio=ratio,
        agrees=agrees,
        explanation=why,
    )


def _explain(
    decoder: Decoder, dtypes: Dtypes, phase: str, group: str, quantity: Quantity, closed: float, counted: float
) -> str:
    """The rule that makes the difference, found from the model's parts; says so when none does."""
    if quantity == "bytes" and (dtypes.weight, dtypes.kv) != (dtypes.compute, dtypes.compute):
        return (
            f"the count builds the model in {dtypes.compute}; the closed form reads weights in {dtypes.weight} "
            f"and the KV cache in {dtypes.kv}"
        )
    if quantity == "bytes" and group == "attention" and counted > closed and _shares_keys(decoder):
        return "keys and values are copied to all query heads before the product, as transformers does with a mask"
    if quantity == "bytes" and group == "attention" and _has_latent(decoder) and counted < closed:
        return "the rotary part of the cache is copied, not multiplied, so no matrix operator reads it"
    if quantity == "bytes" and group == "experts" and phase == "decode" and counted > closed and _moe(decoder):
        return (
            "the count takes every routed row to hit an expert of its own (it has no data to route); "
            "the closed form expects n·(1 − (1 − k/n)^T) distinct experts"
        )
    if group == "other":
        return "small products outside the named parts (rotary tables, position interpolation)"
    return "unexplained: the closed form and the model that was built differ here; trust neither until it is found"


def _shares_keys(decoder: Decoder) -> bool:
    attentions = [layer.attention for layer, _ in decoder.blocks]
    return any(isinstance(a, GroupedAttention) and a.kv_heads < a.heads for a in attentions)


def _has_latent(decoder: Decoder) -> bool:
    return any(isinstance(layer.attention, LatentAttention) for layer, _ in decoder.blocks)


def _moe(decoder: Decoder) -> bool:
    return any(isinstance(layer.feed_forward, Moe) for layer, _ in decoder.blocks)
