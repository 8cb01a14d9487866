"""Parameters, FLOPs and bytes of a whole model from its parts, per module group: the closed form."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_perf_opt.model.hardware.work import Dtypes, Step, View, Work, linear
from llm_perf_opt.model.static.forms import (
    MlaMode,
    attention_matrix_elements,
    attention_params,
    attention_work,
    cache_copies,
    cached_tokens,
    dense_params,
    dense_work,
    expert_params,
    experts_work,
    kv_elements,
    matrix_elements,
    router_params,
    router_work,
    shared_params,
    state_elements,
)
from llm_perf_opt.model.static.parts import Decoder, Layer, Model, Moe

ID_BYTES = 8
DEFAULT_MLA_MODE: MlaMode = "latent-expand"


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """`activated`: all but the routed experts that one token does not pick; embeddings count in full.

    `activated_inside` leaves embedding and output matrix out, as some vendors do. `beside`: the groups that a token of
    text does not use, such as a vision part whose work is not reckoned.
    """

    groups: Mapping[str, int]
    activated: int
    beside: Mapping[str, int] = field(default_factory=dict)

    @property
    def activated_inside(self) -> int:
        return self.activated - self.groups["embedding"] - self.groups["lm_head"]

    @property
    def total(self) -> int:
        return sum(self.groups.values())


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One forward pass, per module group."""

    step: Step
    groups: Mapping[str, Work]

    @property
    def total(self) -> Work:
        return sum(self.groups.values(), Work())


def count_parameters(model: Model) -> Parameters:
    decoder = model.decoder
    groups = _decoder_params(decoder)
    idle = sum(count * _idle_params(layer, decoder.hidden) for layer, count in decoder.blocks)
    if model.images is not None:
        groups |= model.images.params()
    beside = dict(model.beside)
    return Parameters(groups={**groups, **beside}, activated=sum(groups.values()) - idle, beside=beside)


def prefill_phase(
    model: Model,
    *,
    batch: int,
    prompt: int,
    dtypes: Dtypes,
    mla_mode: MlaMode = DEFAULT_MLA_MODE,
    views: tuple[View, ...] = (),
) -> Phase:
    """A prompt into an empty cache; logits of the last position only. `views` are the images of all sequences."""
    step = Step(batch=batch, new=prompt, past=0)
    groups = _decoder_work(model, step, dtypes, mla_mode)
    if model.images is not None:
        groups |= model.images.work(views, dtypes)
    return Phase(step=step, groups=groups)


def decode_phase(
    model: Model, *, batch: int, context: int, dtypes: Dtypes, mla_mode: MlaMode = DEFAULT_MLA_MODE
) -> Phase:
    """One more token for each sequence, with `context` tokens in the cache before it."""
    step = Step(batch=batch, new=1, past=context)
    return Phase(step=step, groups=_decoder_work(model, step, dtypes, mla_mode))


def forward_phase(model: Model, step: Step, dtypes: Dtypes, mla_mode: MlaMode = DEFAULT_MLA_MODE) -> Phase:
    """Any forward of text: a piece of a prompt behind what the cache holds, or a token for each sequence."""
    return Phase(step=step, groups=_decoder_work(model, step, dtypes, mla_mode))


def kv_bytes_per_token(model: Model, dtypes: Dtypes, mla_mode: MlaMode = DEFAULT_MLA_MODE) -> float:
    """What one more token adds to the cache of one sequence, before any sliding window is full."""
    blocks = model.decoder.blocks
    return sum(count * kv_elements(layer.attention, mla_mode) for layer, count in blocks) * dtypes.kv_bytes


def kv_bytes(model: Model, context: int, dtypes: Dtypes, mla_mode: MlaMode = DEFAULT_MLA_MODE, *, tp: int = 1) -> float:
    """The cache of one sequence of this length on all `tp` devices that share it, states of fixed size included."""
    return dtypes.kv_bytes * sum(
        count
        * (
            kv_elements(layer.attention, mla_mode)
            * cached_tokens(layer.attention, context)
            * cache_copies(layer.attention, mla_mode, tp)
            + state_elements(layer.attention)
        )
        for layer, count in model.decoder.blocks
    )


def weight_bytes(model: Model, dtypes: Dtypes, *, sharing: int = 1) -> float:
    """All weights in memory: the matrices of decoder layers in the weights' format, the rest in the compute format.

    `sharing` replicas hold the routed experts together: the part of one is given.
    """
    if model.stored is not None:
        return model.stored.total_bytes - (1 - 1 / sharing) * model.stored.experts_bytes
    decoder = model.decoder
    around = sum(count * attention_matrix_elements(layer.attention, decoder.hidden) for layer, count in decoder.blocks)
    inside = sum(count * matrix_elements(layer.feed_forward, decoder.hidden) for layer, count in decoder.blocks)
    rest = count_parameters(model).total - around - inside
    narrow = around * dtypes.around_attention.weight_bytes + inside * dtypes.weight_bytes
    elsewhere = (1 - 1 / sharing) * routed_elements(decoder) * dtypes.weight_bytes
    return narrow + rest * dtypes.compute_bytes - elsewhere


def routed_elements(decoder: Decoder) -> int:
    """Elements of the routed experts' matrices."""
    return sum(
        count * block.matrices * block.routed_hidden(decoder.hidden) * block.experts * block.width
        for layer, count in decoder.blocks
        if isinstance(block := layer.feed_forward, Moe)
    )


def _decoder_params(decoder: Decoder) -> dict[str, int]:
    hidden = decoder.hidden
    norm = decoder.norm_elements
    groups = {"embedding": (decoder.vocab + decoder.positions) * hidden, "norm": decoder.outer_norms * norm}
    for layer, count in decoder.blocks:
        parts = {"attention": attention_params(layer.attention, hidden), "norm": layer.norms * norm}
        block = layer.feed_forward
        if isinstance(block, Moe):
            parts["experts"] = block.experts * expert_params(block, hidden) + shared_params(block, hidden)
            parts["router"] = router_params(block, hidden)
        else:
            parts["mlp"] = dense_params(block, hidden)
        for name, value in parts.items():
            groups[name] = groups.get(name, 0) + count * value
    groups["lm_head"] = (0 if decoder.is_tied else decoder.vocab * hidden) + (decoder.vocab if decoder.head_bias else 0)
    return groups


def _idle_params(layer: Layer, hidden: int) -> int:
    """Parameters of the experts a token does not pick."""
    block = layer.feed_forward
    return (block.experts - block.top_k) * expert_params(block, hidden) if isinstance(block, Moe) else 0


def _decoder_work(model: Model, step: Step, dtypes: Dtypes, mla_mode: MlaMode) -> dict[str, Work]:
    decoder, is_head_quantised = model.decoder, model.stored is not None and model.stored.is_head_quantised
    hidden, rows = decoder.hidden, step.rows
    size = dtypes.compute_bytes
    norm = Work(weight_bytes=decoder.norm_elements * size, activation_bytes=2 * rows * hidden * size)
    looked_up = 2 if decoder.positions else 1
    ids = Work(weight_bytes=looked_up * rows * hidden * size, activation_bytes=rows * (hidden * size + ID_BYTES))
    groups = {"embedding": ids, "norm": norm.times(decoder.outer_norms)}
    for layer, count in decoder.blocks:
        parts = {"attention": attention_work(layer.attention, hidden, step, dtypes, mla_mode)}
        parts["norm"] = norm.times(layer.norms)
        block = layer.feed_forward
        if isinstance(block, Moe):
            parts["experts"] = experts_work(block, hidden, rows, dtypes)
            parts["router"] = router_work(block, hidden, rows, dtypes)
        else:
            parts["mlp"] = dense_work(block, hidden, rows, dtypes)
        for name, work in parts.items():
            groups[name] = groups.get(name, Work()) + work.times(count)
    groups["lm_head"] = linear(
        step.batch, hidden, decoder.vocab, dtypes, bias=decoder.head_bias, is_quantised=is_head_quantised
    )
    return groups
