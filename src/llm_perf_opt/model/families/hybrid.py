"""Decoders that keep a state of fixed size instead of a growing cache, in all layers or in some.

Mamba in all; Bamba, Granite 4, Jamba, LFM2 and Nemotron-H attention in a few; Falcon-H1 both side by side; Qwen3-Next
and Qwen3.5 have a gated delta rule in three layers of four, Kimi Linear one with a decay for each channel.
"""

from llm_perf_opt.errors import ParseError
from llm_perf_opt.model.static.config_json import (
    FULL,
    Fields,
    NotInClosedForm,
    build_decoder,
    read_dense_mlp,
    read_heads,
)
from llm_perf_opt.model.static.parts import (
    Decoder,
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    Layer,
    Moe,
    StateMixer,
)

LINEAR = "linear_attention"
# A block without attention and without a state.
NO_MIXER = StateMixer(in_width=0, out_width=0, conv_channels=0, conv_kernel=0, state_elements=0)
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe", LINEAR: "mamba", FULL: "attention"}


def read_mamba2(f: Fields, model_type: str) -> Decoder:
    """Layers of one mixer and nothing else."""
    hidden = f.integer("hidden_size")
    inner = f.integer("expand", 2) * hidden
    heads, head_dim = f.integer("num_heads"), f.integer("head_dim")
    if heads * head_dim != inner:
        raise NotInClosedForm(
            f"{f.where}: num_heads: {heads} heads of {head_dim} are not expand · hidden_size",
            what=f"{model_type} whose heads do not fill its width",
        )
    mixer = _ssd_mixer(
        f,
        heads=heads,
        head_dim=head_dim,
        state=f.integer("state_size"),
        groups=f.integer("n_groups", 8),
        kernel=f.integer("conv_kernel", 4),
        bias=f.boolean("use_bias", False),
        conv_bias=f.boolean("use_conv_bias", True),
    )
    layer = Layer(attention=mixer, feed_forward=DenseMlp(width=0), norms=1)
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False)


def _ssd_mixer(
    f: Fields,
    *,
    heads: int,
    head_dim: int,
    state: int,
    groups: int,
    kernel: int,
    bias: bool,
    conv_bias: bool,
    has_norm: bool = True,
) -> StateMixer:
    """Mamba 2's mixer: one projection in, a short convolution, a state of `state` for each channel, a gated norm."""
    inner = heads * head_dim
    if inner % groups:
        raise ParseError(f"{f.where}: {groups} groups do not divide the mixer's width of {inner}")
    channels = inner + 2 * groups * state
    return StateMixer(
        in_width=inner + channels + heads,
        out_width=inner,
        bias=bias,
        conv_channels=channels,
        conv_kernel=kernel,
        conv_bias=conv_bias,
        state_elements=inner * state,
        # The gated norm, and for each head a decay, a step and a skip.
        other_params=(inner if has_norm else 0) + 3 * heads,
    )


def _mamba_fields(f: Fields, *, inner: int, has_norm: bool = True) -> StateMixer:
    """The mixer of Bamba and its relatives, whose fields begin with `mamba_`; `mamba_d_head` may be `auto`."""
    heads = f.integer("mamba_n_heads", 128)
    return _ssd_mixer(
        f,
        heads=heads,
        head_dim=inner // heads,
        state=f.integer("mamba_d_state", 256),
        groups=f.integer("mamba_n_groups", 1),
        kernel=f.integer("mamba_d_conv", 4),
        bias=f.boolean("mamba_proj_bias", False),
        conv_bias=f.boolean("mamba_conv_bias", True),
        has_norm=has_norm,
    )


def _plain_attention(f: Fields) -> GroupedAttention:
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    bias = f.boolean("attention_bias", False)
    return GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias)


def read_bamba(f: Fields, model_type: str) -> Decoder:
    """Mamba 2 in all layers but those listed, a gated block behind each."""
    mixer = _mamba_fields(f, inner=f.integer("mamba_expand", 2) * f.integer("hidden_size"))
    attention = _plain_attention(f)
    full = set(f.integers("attn_layer_indices")) if f.has("attn_layer_indices") else set()
    mlp = read_dense_mlp(f, bias=f.boolean("mlp_bias", False))
    layers = [
        Layer(attention=attention if i in full else mixer, feed_forward=mlp)
        for i in range(f.integer("num_hidden_layers"))
    ]
    return build_decoder(f, model_type, layers, tied=False)


def read_granite_hybrid(f: Fields, model_type: str) -> Decoder:
    """Granite 4: Mamba 2 in most layers, a shared block in all, routed experts where there are any."""
    mixer = _mamba_fields(f, inner=f.integer("mamba_expand", 2) * f.integer("hidden_size"))
    attention = _plain_attention(f)
    shared = f.integer("shared_intermediate_size", 1024)
    experts = f.count("num_local_experts", 8)
    block = (
        Moe(
            experts=experts,
            top_k=f.integer("num_experts_per_tok", 2),
            width=f.integer("intermediate_size"),
            shared_width=shared,
        )
        if experts
        else DenseMlp(width=shared, is_fused_gate=True)
    )
    count = f.integer("num_hidden_layers")
    types = f.texts("layer_types") or f.texts("layers_block_type") or (LINEAR,) * count
    layers = [
        Layer(attention=attention if "mamba" not in kind and kind != LINEAR else mixer, feed_forward=block)
        for kind in types[:count]
    ]
    return build_decoder(f, model_type, layers, tied=False)


def read_falcon_h1(f: Fields, model_type: str) -> Decoder:
    """Attention and Mamba 2 side by side in every layer: counted as two, of which the second has block and norms."""
    if f.boolean("projectors_bias", False) != f.boolean("mamba_proj_bias", False):
        raise NotInClosedForm(
            f"{f.where}: projectors_bias: other than mamba_proj_bias is not known to the closed form",
            what=f"{model_type} with projectors_bias",
        )
    inner = f.integer("mamba_d_ssm", None) or f.integer("mamba_expand", 2) * f.integer("hidden_size")
    mixer = _mamba_fields(f, inner=inner, has_norm=f.boolean("mamba_rms_norm", False))
    beside = Layer(attention=mixer, feed_forward=DenseMlp(width=0), norms=0)
    layer = Layer(
        attention=_plain_attention(f), feed_forward=read_dense_mlp(f, bias=f.boolean("mlp_bias", False)), norms=2
    )
    return build_decoder(f, model_type, [beside, layer] * f.integer("num_hidden_layers"), tied=False)


def read_nemotron_h(f: Fields, model_type: str) -> Decoder:
    """Blocks of one kind each behind a norm: Mamba 2, attention, or a plain block of two matrices."""
    heads, kv_heads, head_dim = read_heads(f, head_dim=f.integer("attention_head_dim", 128))
    bias = f.boolean("use_bias", False)
    mixer = _ssd_mixer(
        f,
        heads=f.integer("mamba_num_heads", 128),
        head_dim=f.integer("mamba_head_dim", 64),
        state=f.integer("ssm_state_size", 128),
        groups=f.integer("n_groups", 8),
        kernel=f.integer("conv_kernel", 4),
        bias=bias,
        conv_bias=f.boolean("use_conv_bias", True),
    )
    width = f.integer("intermediate_size")
    blocks = {
        "mamba": Layer(attention=mixer, feed_forward=DenseMlp(width=0), norms=1),
        "attention": Layer(
            attention=GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim),
            feed_forward=DenseMlp(width=0),
            norms=1,
        ),
        "mlp": Layer(
            attention=NO_MIXER,
            feed_forward=DenseMlp(width=width, is_gated=False, bias=f.boolean("mlp_bias", False)),
            norms=1,
        ),
    }
    if f.has("n_routed_experts"):
        blocks["moe"] = Layer(attention=NO_MIXER, feed_forward=_nemotron_experts(f), norms=1)
    named = f.texts("layers_block_type") or tuple(f.text("hybrid_override_pattern"))
    kinds = [_PATTERN.get(name, name) for name in named]
    odd = sorted(set(kinds) - set(blocks))
    if odd:
        raise NotInClosedForm(
            f"{f.where}: layers_block_type: {odd[0]!r} is not known to the closed form",
            what=f"{model_type} with {odd[0]}",
        )
    return build_decoder(f, model_type, [blocks[kind] for kind in kinds], tied=False)


def _nemotron_experts(f: Fields) -> Moe:
    """Plain blocks of two matrices, in the larger models on a latent, and one for every token."""
    shared = f.count("n_shared_experts", 1)
    return Moe(
        experts=f.integer("n_routed_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=f.integer("moe_intermediate_size"),
        shared_width=f.integer("moe_shared_expert_intermediate_size") if shared else 0,
        is_router_float32=True,
        is_gated=False,
        latent=f.integer("moe_latent_size", None),
    )


def read_nemotron_nas(f: Fields, model_type: str) -> Decoder:
    """Llama's layers with a width and a number of key heads each, some of them without attention or without a block."""
    heads, hidden = f.integer("num_attention_heads"), f.integer("hidden_size")
    bias = f.boolean("attention_bias", False)
    layers = []
    for block in f.sections("block_configs"):
        attention, feed = block.section("attention"), block.section("ffn")
        if attention.boolean("replace_with_linear", False) or feed.boolean("replace_with_linear", False):
            raise NotInClosedForm(
                f"{block.where}: replace_with_linear: not known to the closed form",
                what=f"{model_type} with replace_with_linear",
            )
        has_attention, has_block = not attention.boolean("no_op", False), not feed.boolean("no_op", False)
        layers.append(
            Layer(
                attention=GroupedAttention(
                    heads=heads,
                    kv_heads=heads // attention.integer("n_heads_in_group"),
                    head_dim=hidden // heads,
                    window=attention.nullable_integer("window_length", None),
                    qkv_bias=bias,
                    out_bias=bias,
                )
                if has_attention
                else NO_MIXER,
                feed_forward=DenseMlp(
                    # As wide as Llama's of that multiple, in steps of 256.
                    width=-(-int(2 * feed.number("ffn_mult", 1.0) * hidden / 3) // 256) * 256 if has_block else 0,
                    bias=f.boolean("mlp_bias", False),
                ),
                norms=int(has_attention) + int(has_block),
            )
        )
    return build_decoder(f, model_type, layers, tied=False)


def read_qwen3_next(f: Fields, model_type: str) -> Decoder:
    """Gated delta rule in three layers of four, gated attention in the fourth, experts or a block (Qwen3.5) behind."""
    heads, kv_heads, head_dim = read_heads(f, head_dim=256)
    attention = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=f.boolean("attention_bias", False),
        out_bias=f.boolean("attention_bias", False),
        norm_elements=2 * head_dim,
        has_gate=True,
    )
    k_heads, v_heads = f.integer("linear_num_key_heads", 16), f.integer("linear_num_value_heads", 32)
    k_dim, v_dim = f.integer("linear_key_head_dim", 128), f.integer("linear_value_head_dim", 128)
    mixer = StateMixer(
        in_width=2 * k_heads * k_dim + 2 * v_heads * v_dim + 2 * v_heads,
        out_width=v_heads * v_dim,
        conv_channels=2 * k_heads * k_dim + v_heads * v_dim,
        conv_kernel=f.integer("linear_conv_kernel_dim", 4),
        state_elements=v_heads * k_dim * v_dim,
        # A norm of one head's width, and for each head a decay and a step.
        other_params=v_dim + 2 * v_heads,
    )
    block = read_dense_mlp(f) if model_type == "qwen3_5_text" else _qwen_experts(f)
    count = f.integer("num_hidden_layers")
    every = f.integer("full_attention_interval", 4)
    types = f.texts("layer_types") or tuple(LINEAR if (i + 1) % every else FULL for i in range(count))
    step = f.integer("decoder_sparse_step", 1)
    dense = f.integers("mlp_only_layers") if f.has("mlp_only_layers") else ()
    layers = [
        Layer(
            attention=mixer if types[i] == LINEAR else attention,
            feed_forward=block if i not in dense and (i + 1) % step == 0 else read_dense_mlp(f),
        )
        for i in range(count)
    ]
    return build_decoder(f, model_type, layers, tied=False)


def read_kimi_linear(f: Fields, model_type: str) -> Decoder:
    """Delta rule with a decay for each channel in most layers, latent attention in the others, DeepSeek's experts."""
    count = f.integer("num_hidden_layers")
    sizes = f.section("linear_attn_config") if f.has("linear_attn_config") else None
    head_dim, heads, kernel = (
        (f.integer("linear_head_dim", 128), f.integer("linear_num_heads", 32), f.integer("linear_conv_kernel_dim", 4))
        if sizes is None
        else (sizes.integer("head_dim"), sizes.integer("num_heads"), sizes.integer("short_conv_kernel_size", 4))
    )
    width = heads * head_dim
    # Kimi-K3 gates by a whole matrix, Kimi-Linear by one of lower rank.
    is_whole = sizes is not None and sizes.boolean("use_full_rank_gate", False)
    mixer = StateMixer(
        # Queries, keys, values; a step for each head; the lower ranks of decay and gate.
        in_width=3 * width + heads + head_dim + (width if is_whole else head_dim),
        out_width=width,
        conv_channels=3 * width,
        conv_kernel=kernel,
        state_elements=width * head_dim,
        inner_elements=(1 if is_whole else 2) * head_dim * width,
        # A norm of one head's width, the decay's bias for each channel, a decay for each head.
        other_params=head_dim + width + heads,
    )
    attention = LatentAttention(
        heads=f.integer("num_attention_heads"),
        q_rank=f.nullable_integer("q_lora_rank", None),
        kv_rank=f.integer("kv_lora_rank"),
        nope_dim=f.integer("qk_nope_head_dim"),
        rope_dim=f.integer("qk_rope_head_dim"),
        v_dim=f.integer("v_head_dim"),
        bias=f.boolean("attention_bias", False),
        has_gate=f.boolean("mla_use_output_gate", False),
    )
    moe_width = f.integer("moe_intermediate_size")
    latent = f.nullable_integer("routed_expert_hidden_size", None)
    moe = Moe(
        experts=_first_integer(f, "num_experts", "num_local_experts"),
        top_k=_first_integer(f, "num_experts_per_token", "num_experts_per_tok"),
        width=moe_width,
        shared_width=_first_integer(f, "num_shared_experts", "n_shared_experts") * moe_width,
        is_router_float32=True,
        latent=latent,
        # The norm of what the experts give.
        router_extra=latent or 0,
    )
    first = f.count("first_k_dense_replace", 1)
    kinds = f.texts("mlp_layer_types") or tuple("dense" if i < first else "sparse" for i in range(count))
    dense = read_dense_mlp(f)
    full = _full_layers(f, sizes, count)
    layers = [
        Layer(attention=attention if i in full else mixer, feed_forward=dense if kinds[i] == "dense" else moe)
        for i in range(count)
    ]
    return build_decoder(f, model_type, layers, tied=False)


def _full_layers(f: Fields, sizes: Fields | None, count: int) -> set[int]:
    """Layers with attention; the file counts them from 1."""
    types = f.texts("layer_types")
    if types is not None:
        return {i for i, kind in enumerate(types) if kind == FULL}
    if sizes is not None and sizes.has("full_attn_layers"):
        return {layer - 1 for layer in sizes.integers("full_attn_layers")}
    return {i for i in range(1, count) if i % 4 == 0}


def _first_integer(f: Fields, *names: str) -> int:
    """Files and transformers call a field by different names."""
    return f.integer(next((name for name in names if f.has(name)), names[0]))


def _qwen_experts(f: Fields) -> Moe:
    return Moe(
        experts=f.integer("num_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=f.integer("moe_intermediate_size"),
        shared_width=f.integer("shared_expert_intermediate_size"),
        has_shared_gate=True,
    )


def _selective_mixer(
    *, hidden: int, inner: int, state: int, kernel: int, rank: int, bias: bool, conv_bias: bool, norms: int = 0
) -> StateMixer:
    """Mamba 1: step, input and output of the state are projected from what the convolution yields."""
    return StateMixer(
        in_width=2 * inner,
        out_width=inner,
        bias=bias,
        conv_channels=inner,
        conv_kernel=kernel,
        conv_bias=conv_bias,
        state_elements=inner * state,
        inner_elements=inner * (rank + 2 * state) + rank * inner,
        # The step's bias, a decay for each channel and state, a skip.
        other_params=inner + inner * state + inner + norms,
    )


def _step_rank(f: Fields, key: str, hidden: int) -> int:
    """The rank of the step's projection; missing or `auto`: a sixteenth of the hidden width."""
    return -(-hidden // 16) if f.is_text(key) else f.integer(key, -(-hidden // 16))


def read_mamba(f: Fields, model_type: str) -> Decoder:
    hidden = f.integer("hidden_size")
    mixer = _selective_mixer(
        hidden=hidden,
        inner=f.integer("intermediate_size", f.integer("expand", 2) * hidden),
        state=f.integer("state_size"),
        kernel=f.integer("conv_kernel", 4),
        rank=_step_rank(f, "time_step_rank", hidden),
        bias=f.boolean("use_bias", False),
        conv_bias=f.boolean("use_conv_bias", True),
    )
    layer = Layer(attention=mixer, feed_forward=DenseMlp(width=0), norms=1)
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=True)


def read_jamba(f: Fields, model_type: str) -> Decoder:
    """Attention in one layer of eight, Mamba 1 in the others; experts in every second."""
    hidden, state = f.integer("hidden_size"), f.integer("mamba_d_state", 16)
    rank = _step_rank(f, "mamba_dt_rank", hidden)
    mixer = _selective_mixer(
        hidden=hidden,
        inner=f.integer("mamba_expand", 2) * hidden,
        state=state,
        kernel=f.integer("mamba_d_conv", 4),
        rank=rank,
        bias=f.boolean("mamba_proj_bias", False),
        conv_bias=f.boolean("mamba_conv_bias", True),
        norms=rank + 2 * state,
    )
    heads, kv_heads, head_dim = read_heads(f)
    attention = GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    dense = read_dense_mlp(f)
    experts = f.integer("num_experts", 16)
    moe = Moe(experts=experts, top_k=f.integer("num_experts_per_tok", 2), width=f.integer("intermediate_size"))
    every, at = f.integer("attn_layer_period", 8), f.count("attn_layer_offset", 4)
    routed, first = f.integer("expert_layer_period", 2), f.count("expert_layer_offset", 1)
    layers = [
        Layer(
            attention=attention if i % every == at else mixer,
            feed_forward=moe if i % routed == first and experts > 1 else dense,
        )
        for i in range(f.integer("num_hidden_layers"))
    ]
    return build_decoder(f, model_type, layers, tied=False)


def read_lfm2(f: Fields, model_type: str) -> Decoder:
    """Short gated convolutions in most layers, attention with norms on queries and keys in the others."""
    hidden = f.integer("hidden_size")
    heads, kv_heads, head_dim = read_heads(f)
    attention = GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, norm_elements=2 * head_dim)
    bias = f.boolean("conv_bias", False)
    mixer = StateMixer(
        in_width=3 * hidden,
        out_width=hidden,
        bias=bias,
        conv_channels=hidden,
        conv_kernel=f.integer("conv_L_cache", 3),
        conv_bias=bias,
        state_elements=0,
    )
    count = f.integer("num_hidden_layers")
    full = set(f.integers("full_attn_idxs")) if f.has("full_attn_idxs") else set(range(count))
    types = f.texts("layer_types") or tuple(FULL if i in full else "conv" for i in range(count))
    mlp = DenseMlp(width=_lfm2_width(f))
    layers = [Layer(attention=attention if kind == FULL else mixer, feed_forward=mlp) for kind in types[:count]]
    return build_decoder(f, model_type, layers, tied=f.boolean("tie_embedding", True))


def _lfm2_width(f: Fields) -> int:
    """Two thirds of the width given, rounded up to whole blocks, unless the file says to take it as it is."""
    width = f.integer("block_ff_dim") if f.has("block_ff_dim") else f.integer("intermediate_size")
    if not f.boolean("block_auto_adjust_ff_dim", True):
        return width
    whole = f.integer("block_multiple_of", 256)
    scaled = int(f.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    return whole * -(-scaled // whole)
