"""Decoders on Llama's pattern with a feature or two of their own, dense and routed."""

from dataclasses import replace

from llm_perf_opt.model.static.config_json import (
    FULL,
    SLIDING,
    Fields,
    NotInClosedForm,
    build_decoder,
    read_dense_mlp,
    read_heads,
    read_layer_types,
    windows_of,
)
from llm_perf_opt.model.static.parts import (
    Decoder,
    DenseMlp,
    FeedForward,
    GroupedAttention,
    LatentAttention,
    Layer,
    Moe,
)


def _repeated(f: Fields, model_type: str, layer: Layer, *, tied: bool = False, norm_has_bias: bool = False) -> Decoder:
    layers = [layer] * f.integer("num_hidden_layers")
    return build_decoder(f, model_type, layers, tied=tied, norm_has_bias=norm_has_bias)


def read_plain_mlp(f: Fields, model_type: str) -> Decoder:
    """Nemotron and Arcee: a feed-forward block of two matrices; Nemotron's norms have biases."""
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    bias = f.boolean("attention_bias", False)
    layer = Layer(
        attention=GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias),
        feed_forward=DenseMlp(width=f.integer("intermediate_size"), is_gated=False, bias=f.boolean("mlp_bias", False)),
    )
    return _repeated(f, model_type, layer, norm_has_bias=model_type == "nemotron")


def read_seed_oss(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f, head_dim=128)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=f.boolean("attention_bias", True),
            out_bias=f.boolean("attention_out_bias", False),
        ),
        feed_forward=read_dense_mlp(f, bias=f.boolean("mlp_bias", False)),
    )
    return _repeated(f, model_type, layer)


def read_ernie4_5(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f, head_dim=128)
    bias = f.boolean("use_bias", False)
    layer = Layer(
        attention=GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias),
        feed_forward=read_dense_mlp(f, bias=bias),
    )
    return _repeated(f, model_type, layer, tied=True)


def read_hunyuan(f: Fields, model_type: str) -> Decoder:
    """Norms on queries and keys."""
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    bias = f.boolean("attention_bias", False)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=bias,
            out_bias=bias,
            norm_elements=2 * head_dim,
        ),
        feed_forward=read_dense_mlp(f),
    )
    return _repeated(f, model_type, layer)


def read_windowed(f: Fields, model_type: str) -> Decoder:
    """EXAONE 4 (norms on queries and keys), CWM and Ministral: windows in some layers."""
    heads, kv_heads, head_dim = read_heads(f, kv_follows=model_type == "exaone4")
    has_norms = model_type == "exaone4"
    window = f.nullable_integer("sliding_window", {"exaone4": 4096, "cwm": 8192}.get(model_type))
    types = read_layer_types(f, lambda i: _default_type(f, model_type, i, window))
    layers = [
        Layer(
            attention=GroupedAttention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=seen,
                norm_elements=2 * head_dim if has_norms else 0,
            ),
            feed_forward=read_dense_mlp(f),
        )
        for seen in windows_of(types, window)
    ]
    return build_decoder(f, model_type, layers, tied=False)


def _default_type(f: Fields, model_type: str, index: int, window: int | None) -> str:
    if window is None:
        return FULL
    if model_type == "cwm":
        return SLIDING if index % 4 else FULL
    if model_type == "exaone4":
        pattern = f.integer("sliding_window_pattern", 4)
        is_last = index == f.integer("num_hidden_layers") - 1
        return FULL if (index + 1) % pattern == 0 or is_last else SLIDING
    return SLIDING


def read_olmoe(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    bias = f.boolean("attention_bias", False)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=bias,
            out_bias=bias,
            norm_elements=(heads + kv_heads) * head_dim,
        ),
        feed_forward=Moe(
            experts=f.integer("num_experts"),
            top_k=f.integer("num_experts_per_tok"),
            width=f.integer("intermediate_size"),
        ),
    )
    return _repeated(f, model_type, layer)


def read_mixed(f: Fields, model_type: str) -> Decoder:
    """Mixtral's experts in Phi-3.5-MoE (norms with biases) and Granite's MoE (a shared block where asked for)."""
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    is_phi = model_type == "phimoe"
    bias = f.boolean("attention_bias", False)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=f.nullable_integer("sliding_window", None) if is_phi else None,
            qkv_bias=bias,
            out_bias=bias,
        ),
        feed_forward=Moe(
            experts=f.integer("num_local_experts"),
            top_k=f.integer("num_experts_per_tok"),
            width=f.integer("intermediate_size"),
            shared_width=f.count("shared_intermediate_size", 0) if model_type == "granitemoeshared" else 0,
        ),
    )
    found = _repeated(f, model_type, layer, norm_has_bias=is_phi)
    return replace(found, head_bias=is_phi and f.boolean("lm_head_bias", False))


def read_dots1(f: Fields, model_type: str) -> Decoder:
    """Qwen3's attention with DeepSeek's experts."""
    heads, kv_heads, head_dim = read_heads(f)
    bias = f.boolean("attention_bias", False)
    most = f.count("max_window_layers", 62)
    window = f.nullable_integer("sliding_window", 4096)
    types = read_layer_types(f, lambda i: SLIDING if window is not None and i >= most else FULL)
    moe = _deepseek_experts(f)
    dense = read_dense_mlp(f)
    first = f.count("first_k_dense_replace", 0)
    layers = [
        Layer(
            attention=GroupedAttention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=seen,
                qkv_bias=bias,
                out_bias=bias,
                norm_elements=2 * head_dim,
            ),
            feed_forward=dense if i < first else moe,
        )
        for i, seen in enumerate(windows_of(types, window))
    ]
    return build_decoder(f, model_type, layers, tied=False)


def _deepseek_experts(f: Fields) -> Moe:
    width = f.integer("moe_intermediate_size")
    return Moe(
        experts=f.integer("n_routed_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=width,
        shared_width=f.count("n_shared_experts", 1) * width,
        is_router_float32=True,
    )


def read_glm4_moe_lite(f: Fields, model_type: str) -> Decoder:
    """Latent attention; the first layer alone is dense unless the file lists which."""
    attention = LatentAttention(
        heads=f.integer("num_attention_heads"),
        q_rank=f.nullable_integer("q_lora_rank"),
        kv_rank=f.integer("kv_lora_rank"),
        nope_dim=f.integer("qk_nope_head_dim"),
        rope_dim=f.integer("qk_rope_head_dim"),
        v_dim=f.integer("v_head_dim"),
        bias=f.boolean("attention_bias", False),
    )
    count = f.integer("num_hidden_layers")
    kinds = f.texts("mlp_layer_types") or ("dense", *("sparse",) * (count - 1))
    blocks: dict[str, FeedForward] = {"dense": read_dense_mlp(f), "sparse": _deepseek_experts(f)}
    odd = sorted(set(kinds) - set(blocks))
    if odd:
        raise NotInClosedForm(
            f"{f.where}: mlp_layer_types: {odd[0]!r} is not known to the closed form",
            what=f"{model_type} with {odd[0]}",
        )
    layers = [Layer(attention=attention, feed_forward=blocks[kind]) for kind in kinds[:count]]
    return build_decoder(f, model_type, layers, tied=False)


def read_remote_llama(f: Fields, model_type: str) -> Decoder:
    """InternLM 2, Baichuan and others whose code lies alongside their weights: Llama under other names of fields."""
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    bias = f.boolean("bias", False)
    layer = Layer(
        attention=GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias),
        feed_forward=read_dense_mlp(f),
    )
    return _repeated(f, model_type, layer)


def read_dbrx(f: Fields, model_type: str) -> Decoder:
    """Sizes in sections of their own; one fused projection, gated experts in every layer."""
    hidden, heads = f.integer("d_model"), f.integer("n_heads")
    experts = f.section("ffn_config")
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=f.section("attn_config").integer("kv_n_heads", 1),
            head_dim=hidden // heads,
            is_fused_qkv=True,
        ),
        feed_forward=Moe(
            experts=experts.integer("moe_num_experts", 4),
            top_k=experts.integer("moe_top_k", 1),
            width=experts.integer("ffn_hidden_size", 3584),
        ),
    )
    return Decoder(
        model_type=model_type,
        hidden=hidden,
        vocab=f.integer("vocab_size"),
        is_tied=f.boolean("tie_word_embeddings", False),
        blocks=((layer, f.integer("n_layers")),),
    )
