"""Closed form and operator count side by side, and the reason for every disagreement that is large enough to ask.

The reasons are rules found from the model's parts that say by how much the count differs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.model.hardware.work import Dtypes, Step, Work
from llm_perf_opt.model.static.closed_form import Phase, decode_phase, prefill_phase
from llm_perf_opt.model.static.forms import expected_experts, keys_seen
from llm_perf_opt.model.static.operator_count import Count, Tally
from llm_perf_opt.model.static.parts import (
    Decoder,
    GroupedAttention,
    LatentAttention,
    Model,
    Moe,
    in_order,
)

COPIED = "keys and values are copied to all query heads before the matmul, as transformers does with a mask"
SCORES = "attention is not fused: scores are written by one product and read by the next"
ROTARY = "the rotary part of the cache is copied, not multiplied, so no matrix operator reads it"
ROUTED = (
    "the count takes every routed row to hit its own expert (it has no data to route); "
    "the closed form expects n·(1 − (1 − k/n)^T) distinct experts"
)
BIASES = "biases of routed experts are added outside the matmuls"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What would be counted if the rule were the whole reason."""

    counted: float
    text: str


def byte_explanations(model: Model, phase: Phase, group: str, dtypes: Dtypes) -> Iterator[Explanation]:
    """Every rule that applies to a group's bytes, the simplest first."""
    work = phase.groups.get(group)
    if work is None:
        return
    base, said = work.bytes, ""
    if (dtypes.weight, dtypes.kv) != (dtypes.compute, dtypes.compute):
        # The image side is not part of what is worked out again: it is in the compute format already.
        base = _in_one_format(model, phase, dtypes.compute).groups.get(group, work).bytes
        said = (
            f"the count builds the model in {dtypes.compute}; the closed form reads weights in {dtypes.weight} "
            f"and the KV cache in {dtypes.kv}"
        )
        yield Explanation(counted=base, text=said)
    decoder, step, size = model.decoder, phase.step, dtypes.compute_bytes
    for difference, text in _differences(decoder, step, size, group):
        if difference:
            yield Explanation(counted=base + difference, text="; ".join(filter(None, (said, text))))


def _in_one_format(model: Model, phase: Phase, compute: str) -> Phase:
    step, dtypes, text = phase.step, Dtypes.uniform(compute), Model(decoder=model.decoder)
    if step.past:
        return decode_phase(text, batch=step.batch, context=step.past, dtypes=dtypes)
    return prefill_phase(text, batch=step.batch, prompt=step.new, dtypes=dtypes)


def _differences(decoder: Decoder, step: Step, size: float, group: str) -> Iterator[tuple[float, str]]:
    if group == "attention":
        scores = _sum_grouped(decoder, lambda a: 2 * step.batch * a.heads * step.new * keys_seen(step, a.window) * size)
        masked = _sum_grouped(decoder, lambda a: _copied(a, step, size) if a.window is not None else 0.0)
        every = _sum_grouped(decoder, lambda a: _copied(a, step, size))
        yield masked, COPIED
        yield every, COPIED
        yield scores, SCORES
        yield (every + scores if every else 0.0), f"{COPIED}; {SCORES}"
        yield -_rotary(decoder, step, size), ROTARY
    if group == "experts":
        routed, biases = _routed(decoder, step, size)
        yield routed, ROUTED
        yield -biases, BIASES
        yield (routed - biases if routed and biases else 0.0), f"{ROUTED}; {BIASES}"


def _sum_grouped(decoder: Decoder, of: Callable[[GroupedAttention], float]) -> float:
    attentions = [(layer.attention, count) for layer, count in decoder.blocks]
    return sum(count * of(a) for a, count in attentions if isinstance(a, GroupedAttention))


def _copied(a: GroupedAttention, step: Step, size: float) -> float:
    """Bytes of keys and values that the matmul reads for the heads that share them."""
    return step.batch * keys_seen(step, a.window) * (a.heads - a.kv_heads) * (a.head_dim + a.value_dim) * size


def _rotary(decoder: Decoder, step: Step, size: float) -> float:
    attentions = [(layer.attention, count) for layer, count in decoder.blocks]
    rows = step.batch * (step.past + step.new)
    return sum(count * rows * a.rope_dim * size for a, count in attentions if isinstance(a, LatentAttention))


def _routed(decoder: Decoder, step: Step, size: float) -> tuple[float, float]:
    """Weights of the experts the count reads beyond the expected ones, and the biases of those that are expected."""
    more = biases = 0.0
    for layer, count in decoder.blocks:
        moe = layer.feed_forward
        if not isinstance(moe, Moe):
            continue
        expected = expected_experts(moe.experts, moe.top_k, step.rows)
        beyond = min(moe.experts, step.rows * moe.top_k) - expected
        hidden = moe.routed_hidden(decoder.hidden)
        more += count * beyond * moe.matrices * hidden * moe.width * size
        biases += count * expected * ((moe.matrices - 1) * moe.width + hidden) * size if moe.expert_bias else 0.0
    return more, biases


TOLERANCE = 0.01
NOT_COMPARED = ("norm",)
SMALL = f"less than {100 * TOLERANCE:.0f} % of the phase"
UNEXPLAINED = "unexplained: the closed form and the model that was built differ here; trust neither until it is found"
Quantity = Literal["flops", "bytes"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One quantity of one module group in one phase, from both counts. `ratio` is counted over closed form."""

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
        return f"small matmuls outside the named parts (rotary tables, position interpolation): {SMALL}"
    return UNEXPLAINED
