"""What a model needs in memory, and the largest batch and context that fit.

Peak = weights + KV cache + the activations alive at the widest point of a prefill, in the decoder's layers or in the
image side. A decoder's attention scores are not counted: fused attention never holds them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from llm_perf_opt.model.hardware.work import ONE_DEVICE, DeviceShare, Dtypes, View
from llm_perf_opt.model.static.closed_form import kv_bytes, weight_bytes
from llm_perf_opt.model.static.forms import MlaMode
from llm_perf_opt.model.static.parts import (
    DenseMlp,
    GroupedAttention,
    Layer,
    Model,
    Moe,
    StateMixer,
)

# Left free for the framework's own context and workspaces: runs have been published that filled 96 % of a card.
RESERVE = 0.03
LONGEST = 1 << 30


@dataclass(frozen=True, kw_only=True)
class InMemory:
    """What memory holds at once beyond one batch's forward: requests in flight and a draft model.

    `context` is the length of each sequence's cache. `draft_share`: weights and cache of a draft model, as a share of
    the model's own. `reserve`: the share of the capacity that an engine leaves alone.
    """

    sequences: int
    context: int
    draft_share: float = 0.0
    reserve: float = RESERVE


def held_context(prompt: int, output: int, sequences: int) -> int:
    """The cache of a request in flight: one alone must fit at its end, many are three quarters through their answers.

    Half-way would be the mean of requests that come evenly; those that started together end together. An H100 with
    vLLM 0.30 stopped gaining throughput between the two (tests/data/published_serving.csv).
    """
    return prompt + (output if sequences == 1 else 3 * output // 4)


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Bytes at one batch and context."""

    weights_bytes: float
    kv_cache_bytes: float
    activations_bytes: float

    @property
    def peak_bytes(self) -> float:
        return self.weights_bytes + self.kv_cache_bytes + self.activations_bytes


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What fits into a capacity, less the reserve. 0: not even one. `largest_context` None: memory sets no limit."""

    capacity_bytes: float
    usable_bytes: float
    largest_batch: int
    largest_context: int | None


def memory_need(
    model: Model,
    *,
    batch: int,
    prompt: int,
    context: int,
    dtypes: Dtypes,
    mla_mode: MlaMode,
    views: tuple[View, ...] = (),
    chunk: int | None = None,
    spread: DeviceShare = ONE_DEVICE,
    held: InMemory | None = None,
) -> MemoryNeed:
    """`views` are those of all sequences of the batch, as the image side gets them.

    `chunk`: the prompt goes in chunks of this many tokens, all sequences together; only one is alive at a time.
    The sum over one replica's devices: they keep keys and values by heads, what has no heads once each, and of experts
    that replicas share their part.
    """
    images = model.images.peak_bytes(views, dtypes) if model.images is not None else 0.0
    alive = batch * prompt if chunk is None else min(batch * prompt, chunk)
    held = held or InMemory(sequences=batch, context=max(context, prompt))
    drafted = 1 + held.draft_share
    return MemoryNeed(
        weights_bytes=drafted * weight_bytes(model, dtypes, sharing=spread.sharing),
        kv_cache_bytes=drafted * held.sequences * kv_bytes(model, held.context, dtypes, mla_mode, tp=spread.tp),
        activations_bytes=max(alive * _widest_row(model) * dtypes.compute_bytes, images),
    )


def memory_fit(
    model: Model,
    capacity_bytes: float,
    *,
    batch: int,
    prompt: int,
    context: int,
    dtypes: Dtypes,
    mla_mode: MlaMode,
    views: tuple[View, ...] = (),
    chunk: int | None = None,
    spread: DeviceShare = ONE_DEVICE,
    held: InMemory | None = None,
) -> Fit:
    """The largest batch at this context, and the largest context at this batch: of requests in flight, if `held`."""
    usable = capacity_bytes * (1 - (held.reserve if held else RESERVE))
    drafted = 1 + (held.draft_share if held else 0.0)

    def need(sequences: int) -> MemoryNeed:
        own = tuple(replace(view, count=view.count // batch * sequences) for view in views)
        return memory_need(
            model,
            batch=sequences,
            prompt=prompt,
            context=context,
            dtypes=dtypes,
            mla_mode=mla_mode,
            views=own,
            chunk=chunk,
            spread=spread,
            held=None if held is None else replace(held, sequences=sequences),
        )

    asked = need(batch)
    room = usable - asked.weights_bytes - asked.activations_bytes
    sequences = held.sequences if held else batch
    return Fit(
        capacity_bytes=capacity_bytes,
        usable_bytes=usable,
        largest_batch=largest(lambda sequences: need(sequences).peak_bytes <= usable),
        largest_context=_largest_context(model, room / sequences / drafted, dtypes, mla_mode, spread.tp),
    )


def largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, 0 if not even one does; what fits grows no smaller with it."""
    if not fits(1):
        return 0
    high = 2
    while high < LONGEST and fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _largest_context(model: Model, room: float, dtypes: Dtypes, mla_mode: MlaMode, tp: int) -> int | None:
    """No more than the model's positions. None: sliding windows are full before the memory is."""
    if kv_bytes(model, 1, dtypes, mla_mode, tp=tp) > room:
        return 0
    if kv_bytes(model, model.longest or LONGEST, dtypes, mla_mode, tp=tp) <= room:
        return model.longest
    return largest(lambda context: kv_bytes(model, context, dtypes, mla_mode, tp=tp) <= room)


def _widest_row(model: Model) -> int:
    """Elements alive per token at the widest point of a layer: residual, norm's output, and the block's own tensors."""
    decoder = model.decoder
    hidden = decoder.hidden
    return max(2 * hidden + max(_attention_row(layer), _feed_forward_row(layer, hidden)) for layer, _ in decoder.blocks)


def _attention_row(layer: Layer) -> int:
    a = layer.attention
    if isinstance(a, GroupedAttention):
        return (a.heads + a.kv_heads) * (a.head_dim + a.value_dim)
    if isinstance(a, StateMixer):
        return a.in_width + a.conv_channels + a.out_width
    return a.heads * (2 * a.qk_dim + 2 * a.v_dim) + a.latent


def _feed_forward_row(layer: Layer, hidden: int) -> int:
    block = layer.feed_forward
    if isinstance(block, DenseMlp):
        return (3 if block.is_gated else 2) * block.width
    routed = _routed_row(block, hidden)
    return max(routed, 3 * block.shared_width + hidden)


def _routed_row(moe: Moe, hidden: int) -> int:
    """Every token is copied once per expert it goes to."""
    return moe.top_k * (moe.routed_hidden(hidden) + moe.matrices * moe.width)
