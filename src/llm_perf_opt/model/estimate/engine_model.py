"""What one forward takes under a way of running: each operator on its curve, and what the host or the graph adds.

`eager`: stock transformers, eager mode: norms out of many operators, the cache copied every step, every operator
launched by the host. `graph`: a program in plain torch with fused projections, captured as a CUDA graph.
`server`: a serving engine: norms, rotary embedding and gates fused, the cache split over the whole GPU, and the work of
its scheduler and its HTTP front end. No such engine was measured here: its operators are the measured ones, the host's
share was fitted to 97 published loads of vLLM 0.30 on an H100 (tests/data/published_serving.csv).
"""

from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.model.estimate.efficiency import (
    ATTENTION,
    GROUPED,
    GROUPED_SERVED,
    NARROW_HEAD,
    OUTSIDE_US,
    PRODUCT,
    PROMPT_KEY_US,
    QUANTISE_SHARE,
    QUANTISE_US,
    Curve,
    Rates,
)
from llm_perf_opt.model.estimate.parallel import Layout, Wire
from llm_perf_opt.model.hardware.work import BYTES, Dtypes, Step, Work, linear
from llm_perf_opt.model.static.forms import (
    MlaMode,
    attention_work,
    cache_copies,
    dense_work,
    experts_work,
    keys_seen,
    router_work,
)
from llm_perf_opt.model.static.parts import (
    Decoder,
    GroupedAttention,
    LatentAttention,
    Layer,
    Moe,
    StateMixer,
)

EngineName = Literal["eager", "graph", "server"]


@dataclass(frozen=True, kw_only=True)
class HostShare:
    """What the host of a serving engine adds: to each step, to each sequence in it, and to each request.

    `arrival_ms` and `prompt_token_us` delay the first token of a request and keep no GPU waiting (HTTP, tokenisation);
    `request_us` does (scheduling, sampling parameters, the new sequence's tables).
    """

    step_us: float = 0.0
    sequence_us: float = 0.0
    request_us: float = 0.0
    arrival_ms: float = 0.0
    prompt_token_us: float = 0.0


NO_HOST = HostShare()


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How a way of running differs from bare operators.

    `small` counts the small kernels of a layer, which take `small_us` (of one row) to `small_rows_us` each and move
    `passes_*` times a tensor of that width at `small_share` of the bandwidth; the routed ones come on top. `key_us`:
    the cache is read block after block. `node_us`: between two kernels of a graph.
    """

    products: int
    small: int
    small_us: float
    small_rows_us: float
    small_share: float
    passes_hidden: float
    passes_rotary: float
    passes_query: float
    passes_head_norm: float
    passes_inner: float
    norm_us_per_width: float
    routed_us: float
    routed_small: int
    routed_passes: float
    routed_share: float
    copies_cache: bool
    key_us: float
    narrow_cache: bool
    node_us: float
    mla_decode: MlaMode
    grouped: Curve
    quantise_us: float = QUANTISE_US
    host: HostShare = NO_HOST


ENGINES: dict[str, Engine] = {
    "eager": Engine(
        products=7,
        small=32,
        small_us=1.45,
        small_rows_us=1.9,
        small_share=0.56,
        passes_hidden=42,
        passes_rotary=11.2,
        passes_query=4,
        passes_head_norm=18,
        passes_inner=5,
        norm_us_per_width=0.0,
        routed_us=75.0,
        routed_small=47,
        routed_passes=10.5,
        routed_share=0.3,
        copies_cache=True,
        key_us=0.0,
        narrow_cache=False,
        node_us=0.0,
        mla_decode="latent-expand",
        grouped=GROUPED,
    ),
    "graph": Engine(
        products=4,
        small=23,
        small_us=1.4,
        small_rows_us=1.65,
        small_share=0.48,
        passes_hidden=10,
        passes_rotary=9,
        passes_query=4,
        passes_head_norm=0,
        passes_inner=5,
        norm_us_per_width=0.0014,
        routed_us=42.0,
        routed_small=21,
        routed_passes=8,
        routed_share=0.3,
        copies_cache=False,
        key_us=0.0125,
        narrow_cache=True,
        node_us=0.45,
        mla_decode="absorbed",
        grouped=GROUPED,
    ),
    "server": Engine(
        products=4,
        small=5,
        small_us=2.0,
        small_rows_us=2.2,
        small_share=0.7,
        passes_hidden=8,
        passes_rotary=2,
        passes_query=0,
        passes_head_norm=2,
        passes_inner=3,
        norm_us_per_width=0.0,
        routed_us=12.0,
        routed_small=5,
        routed_passes=4,
        routed_share=0.6,
        copies_cache=False,
        key_us=0.0,
        narrow_cache=False,
        node_us=0.45,
        mla_decode="absorbed",
        grouped=GROUPED_SERVED,
        quantise_us=2.0,
        host=HostShare(step_us=300.0, sequence_us=5.0, request_us=700.0, arrival_ms=7.0, prompt_token_us=3.5),
    ),
}


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Milliseconds of one forward: the GPU's busy time, and what communication, nodes of a graph and the host add."""

    gpu_ms: float
    link_ms: float
    nodes_ms: float
    host_ms: float

    @property
    def device_ms(self) -> float:
        return self.gpu_ms + self.link_ms + self.nodes_ms + self.host_ms


def step_time(
    decoder: Decoder,
    step: Step,
    dtypes: Dtypes,
    rates: Rates,
    engine: Engine,
    layout: Layout,
    link: Wire,
    mla_mode: MlaMode | None = None,
    touched: float | None = None,
) -> StepTime:
    """One forward of one replica. Layers of all pipeline stages follow one another, so they add up.

    `mla_mode`: how latent attention is run in decode, where it is not left to the engine. `touched`: how many experts
    of a layer are hit, where they are not picked evenly.
    """
    clock = _Clock(
        dtypes=dtypes, rates=rates, engine=engine, layout=layout, step=step, mla_mode=mla_mode, touched=touched
    )
    gpu = nodes = wire = 0.0
    for layer, count in decoder.blocks:
        gpu += count * clock.layer_us(layer, decoder.hidden)
        nodes += count * clock.kernels(layer)
        wire += count * link.layer_us(layer, step.rows, decoder.hidden, dtypes.compute_bytes, layout)
    head = linear(step.batch, decoder.hidden, decoder.vocab, dtypes, is_quantised=False)
    gpu += clock.operator_us(head, PRODUCT, layout.tp) + OUTSIDE_US
    wire += (layout.pp - 1) * link.send_us(step.rows * decoder.hidden * dtypes.compute_bytes)
    # Every stage of a pipeline schedules for itself.
    host = layout.pp * (engine.host.step_us + engine.host.sequence_us * step.batch)
    return StepTime(gpu_ms=gpu / 1e3, link_ms=wire / 1e3, nodes_ms=nodes * engine.node_us / 1e3, host_ms=host / 1e3)


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """Times of the operators of one forward on one device of a layout."""

    dtypes: Dtypes
    rates: Rates
    engine: Engine
    layout: Layout
    step: Step
    mla_mode: MlaMode | None
    touched: float | None

    def operator_us(
        self, work: Work, curve: Curve, split: float, *, operators: int = 1, moved_split: float | None = None
    ) -> float:
        """`split`: over how many devices the work is spread; `operators`: how many kernels share it.

        `moved_split`: over how many devices the bytes are, where that differs.
        """
        ceilings, dtypes = self.rates.ceilings, self.dtypes
        plain = work.flops_needed - work.flops_quantised - work.flops_scores_needed
        rates, product = ceilings.flops_per_s, dtypes.engine_product(ceilings.flops_per_s)
        # Attention is multiplied in the compute format, regardless of the cache's format.
        seconds = work.flops_quantised / rates[product] + (plain + work.flops_scores_needed) / rates[dtypes.compute]
        each = curve.time_us(
            compute_us=1e6 * seconds / split / operators,
            memory_us=1e6 * work.bytes / ceilings.bytes_per_s / (moved_split or split) / operators,
        )
        if work.flops_quantised and product != dtypes.compute:
            each += self.engine.quantise_us
        return operators * each

    def layer_us(self, layer: Layer, hidden: int) -> float:
        found = self._mixing_us(layer, hidden) + self._forward_us(layer, hidden) + self._small_us(layer, hidden)
        return found + self._quantise_us(layer, hidden)

    def kernels(self, layer: Layer) -> int:
        routed = self.engine.routed_small if isinstance(layer.feed_forward, Moe) else 0
        return self.engine.products + self.engine.small + routed + 2

    def _mixing_us(self, layer: Layer, hidden: int) -> float:
        """Projections around attention, and attention itself."""
        a, engine, step = layer.attention, self.engine, self.step
        mode = (self.mla_mode or engine.mla_decode) if step.new == 1 else "cached"
        work = attention_work(a, hidden, step, self.dtypes, mode)
        core = Work(
            flops=work.flops_scores,
            flops_masked=work.flops_masked,
            flops_scores=work.flops_scores,
            kv_read_bytes=work.kv_read_bytes,
        )
        around = replace_work(work, core)
        count = engine.products // 2 + (3 if isinstance(a, LatentAttention) else 0)
        us = self.operator_us(around, PRODUCT, self.layout.tp, operators=count)
        if not isinstance(a, GroupedAttention):
            return us + self.operator_us(
                core, ATTENTION, self.layout.tp, moved_split=self.layout.tp / cache_copies(a, mode, self.layout.tp)
            )
        return us + self._attention_us(a, core)

    def _attention_us(self, a: GroupedAttention, core: Work) -> float:
        engine, step = self.engine, self.step
        narrow = min(1.0, float((a.head_dim / 128) ** NARROW_HEAD))
        curve = Curve(
            fixed_us=ATTENTION.fixed_us,
            compute=ATTENTION.compute * narrow,
            memory=narrow if engine.narrow_cache else 1.0,
        )
        split = min(self.layout.tp, a.kv_heads) if step.new == 1 else self.layout.tp
        keys = keys_seen(step, a.window)
        us = self.operator_us(core, curve, split)
        if step.new > 1:
            us += PROMPT_KEY_US * narrow * keys
        else:
            us = max(us, curve.fixed_us + engine.key_us * narrow * keys)
        if engine.copies_cache and step.new == 1:
            us += 2e6 * core.kv_read_bytes / self.layout.tp / self.rates.ceilings.bytes_per_s / 0.9
        return us

    def _forward_us(self, layer: Layer, hidden: int) -> float:
        block, rows = layer.feed_forward, self.step.rows
        if not isinstance(block, Moe):
            count = self.engine.products - self.engine.products // 2
            work = dense_work(block, hidden, rows, self.dtypes)
            return self.operator_us(work, PRODUCT, self.layout.tp, operators=count) if block.width else 0.0
        # Replicas that share experts bring the rows of all of them.
        meeting = rows * self.layout.sharing
        routed = experts_work(without_shared(block), hidden, meeting, self.dtypes, touched=self.touched)
        shared = Work()
        if block.shared_width:
            own = experts_work(without_shared(block), hidden, rows, self.dtypes)
            shared = replace_work(experts_work(block, hidden, rows, self.dtypes), own)
        us = self.operator_us(routed, self.engine.grouped, self.layout.experts_split, operators=2)
        us += self.operator_us(shared, PRODUCT, self.layout.tp, operators=2) if block.shared_width else 0.0
        return us + self.operator_us(router_work(block, hidden, rows, self.dtypes), PRODUCT, 1)

    def _small_us(self, layer: Layer, hidden: int) -> float:
        """Norms, rotary embedding, gates, copies: a fixed time each, and their traffic."""
        engine, rows, size = self.engine, self.step.rows, self.dtypes.compute_bytes
        fixed = engine.small * (engine.small_us if rows == 1 else engine.small_rows_us)
        fixed += layer.norms * engine.norm_us_per_width * hidden
        a, block, tp = layer.attention, layer.feed_forward, self.layout.tp
        widths = engine.passes_hidden * hidden * layer.norms / 2
        if isinstance(a, GroupedAttention):
            query, key = a.heads * a.head_dim / tp, a.kv_heads * a.head_dim / tp
            widths += engine.passes_rotary * (query + key) + engine.passes_query * (query + key)
            widths += engine.passes_head_norm * (query + key) if a.norm_elements else 0
        else:
            widths += engine.passes_rotary * hidden / tp
        bytes_per_s = self.rates.ceilings.bytes_per_s
        if isinstance(block, Moe):
            each = engine.routed_passes * block.routed_hidden(hidden) + 5 * block.width
            moved = rows * self.layout.sharing * block.top_k * each * size
            fixed += engine.routed_us + 1e6 * moved / self.layout.experts_split / (bytes_per_s * engine.routed_share)
        else:
            widths += engine.passes_inner * block.width / tp
        return fixed + 1e6 * rows * size * widths / (bytes_per_s * engine.small_share)

    def _quantise_us(self, layer: Layer, hidden: int) -> float:
        """One pass that brings the inputs of a layer's matrices into the format they are multiplied in."""
        product = self.dtypes.engine_product(self.rates.ceilings.flops_per_s)
        if product == self.dtypes.compute or self.dtypes.weight == self.dtypes.compute:
            return 0.0
        a, block, tp = layer.attention, layer.feed_forward, self.layout.tp
        out = a.out_width if isinstance(a, StateMixer) else a.heads * _value_width(a)
        widths = 2 * hidden + out / tp
        if isinstance(block, Moe):
            rows = self.layout.sharing * block.top_k / self.layout.experts_split
            widths += rows * block.width + block.shared_width / tp
        else:
            widths += block.width / tp
        size = self.dtypes.compute_bytes + BYTES[product]
        return 1e6 * self.step.rows * widths * size / (self.rates.ceilings.bytes_per_s * QUANTISE_SHARE)


def _value_width(a: GroupedAttention | LatentAttention) -> int:
    return a.value_dim if isinstance(a, GroupedAttention) else a.v_dim


def replace_work(whole: Work, part: Work) -> Work:
    """What is left of `whole` without `part`."""
    return whole + part.times(-1)


def without_shared(moe: Moe) -> Moe:
    return Moe(
        experts=moe.experts,
        top_k=moe.top_k,
        width=moe.width,
        router_bias=moe.router_bias,
        expert_bias=moe.expert_bias,
        is_router_float32=moe.is_router_float32,
        is_gated=moe.is_gated,
        router_extra=moe.router_extra,
        latent=moe.latent,
    )
