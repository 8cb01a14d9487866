"""Decoders with routed experts off the table: Qwen MoE, DBRX, Llama 4, MiniMax-M3, MiMo-V2, Step-3.5 and Gemma 4."""

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
    KeyIndexer,
    Layer,
    Moe,
)

# A layer whose queries see what an indexer picks.
SPARSE = "minimax_m3_sparse"


def read_llama4(f: Fields, model_type: str) -> Decoder:
    """Every second layer (Maverick) or every layer (Scout) routed, with a shared expert; chunks seen in three of four.

    Chunked attention sees at most its chunk, so it is reckoned as a window of that length.
    """
    heads, kv_heads, head_dim = read_heads(f, head_dim=128)
    count = f.integer("num_hidden_layers")
    width = f.integer("intermediate_size")
    moe = Moe(
        experts=f.integer("num_local_experts"),
        top_k=f.integer("num_experts_per_tok", 1),
        width=width,
        shared_width=width,
    )
    step = f.integer("interleave_moe_layer_step", 1)
    routed = set(f.integers("moe_layers") if f.has("moe_layers") else range(step - 1, count, step))
    dense = DenseMlp(width=f.integer("intermediate_size_mlp", 16384))
    bias = f.boolean("attention_bias", False)
    full = _full_layers(f, count)
    layers = [
        Layer(
            attention=GroupedAttention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=None if i in full else f.integer("attention_chunk_size", 8192),
                qkv_bias=bias,
                out_bias=bias,
            ),
            feed_forward=moe if i in routed else dense,
        )
        for i in range(count)
    ]
    return build_decoder(f, model_type, layers, tied=False)


def _full_layers(f: Fields, count: int) -> set[int]:
    """Layers that see everything: those without rotary positions, every fourth by default."""
    types = f.texts("layer_types")
    if types is not None:
        return {i for i, kind in enumerate(types) if kind == "full_attention"}
    rotary = f.integers("no_rope_layers") if f.has("no_rope_layers") else ()
    if rotary:
        return {i for i, kind in enumerate(rotary) if not kind}
    step = f.integer("no_rope_layer_interval", 4)
    return {i for i in range(count) if (i + 1) % step == 0}


def read_minimax_m3(f: Fields, model_type: str) -> Decoder:
    """Layers whose queries see the blocks of keys that an indexer picks, and full ones; a shared expert."""
    count = f.integer("num_hidden_layers")
    heads, kv_heads, head_dim = read_heads(f)
    full = GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, norm_elements=2 * head_dim)
    sizes = f.section("sparse_attention_config") if f.has("sparse_attention_config") else None

    def size(flat: str, nested: str, default: int) -> int:
        return f.integer(flat, default) if sizes is None else sizes.integer(nested, default)

    sparse = replace(
        full,
        indexer=KeyIndexer(
            heads=size("index_n_heads", "sparse_num_index_heads", 4),
            dim=size("index_head_dim", "sparse_index_dim", 128),
            most_keys=size("index_topk_blocks", "sparse_topk_blocks", 16)
            * size("index_block_size", "sparse_block_size", 128),
        ),
    )
    moe = Moe(
        experts=f.integer("num_local_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=f.integer("intermediate_size"),
        shared_width=f.integer("shared_intermediate_size"),
    )
    dense = DenseMlp(width=f.integer("dense_intermediate_size"))
    attends = f.texts("layer_types")
    if attends is None and sizes is not None and sizes.has("sparse_attention_freq"):
        attends = tuple(SPARSE if picks else FULL for picks in sizes.integers("sparse_attention_freq"))
    routed = f.texts("mlp_layer_types")
    if routed is None and f.has("moe_layer_freq"):
        routed = tuple("sparse" if has_experts else "dense" for has_experts in f.integers("moe_layer_freq"))
    layers = [
        Layer(
            attention=sparse if attends is not None and attends[i] == SPARSE else full,
            feed_forward=dense if routed is not None and routed[i] == "dense" else moe,
        )
        for i in range(count)
    ]
    return build_decoder(f, model_type, layers, tied=False)


def read_step3(f: Fields, model_type: str) -> Decoder:
    """Step-3.5 and 3.7: windows with more heads in most layers, a gate for each head, experts after the first layers.

    The file's lists may continue for layers that predict further tokens, which are not counted.
    """
    count = f.integer("num_hidden_layers")
    heads, head_dim = f.integer("num_attention_heads"), f.integer("head_dim", 128)
    kv_heads = f.integer("num_attention_groups" if f.has("num_attention_groups") else "num_key_value_heads")
    bias = f.boolean("attention_bias", False)
    other = f.section("attention_other_setting") if f.has("attention_other_setting") else None
    near_heads = f.integer(
        "num_sliding_attention_heads", heads if other is None else other.integer("num_attention_heads")
    )

    def attention(count: int, window: int | None) -> GroupedAttention:
        return GroupedAttention(
            heads=count,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=window,
            qkv_bias=bias,
            out_bias=bias,
            norm_elements=2 * head_dim,
            gate_width=count,
        )

    near, full = attention(near_heads, f.nullable_integer("sliding_window", None)), attention(heads, None)
    moe = Moe(
        experts=f.integer(
            next((name for name in ("moe_num_experts", "n_routed_experts") if f.has(name)), "num_experts")
        ),
        top_k=f.integer("moe_top_k" if f.has("moe_top_k") else "num_experts_per_tok"),
        width=f.integer("moe_intermediate_size"),
        shared_width=f.integer("share_expert_dim"),
    )
    dense = read_dense_mlp(f, bias=f.boolean("mlp_bias", False))
    types = f.texts("layer_types") or (FULL,) * count
    routed = _step_layers(f, count)
    layers = [
        Layer(attention=near if types[i] == SLIDING else full, feed_forward=moe if i in routed else dense)
        for i in range(count)
    ]
    return build_decoder(f, model_type, layers, tied=False)


def _step_layers(f: Fields, count: int) -> set[int]:
    """Layers with experts: listed by kind, by number (as text or as numbers), or all but the first ones."""
    kinds = f.texts("mlp_layer_types")
    if kinds is not None:
        return {i for i, kind in enumerate(kinds) if kind == "sparse"}
    if not f.has("moe_layers_enum"):
        return set(range(f.count("first_k_dense_replace", 3), count))
    if f.is_text("moe_layers_enum"):
        return {int(part) for part in f.text("moe_layers_enum").split(",") if part.strip().isdecimal()}
    return set(f.integers("moe_layers_enum"))


def read_mimo_v2(f: Fields, model_type: str) -> Decoder:
    """Windows with sinks and key heads of their own in most layers; values narrower than keys; experts but at first."""
    count = f.integer("num_hidden_layers")
    # By default the first layer and every sixth see everything, and all but the first have experts.
    types = f.texts("layer_types") or tuple(SLIDING if i and (i + 1) % 6 else FULL for i in range(count))
    blocks = f.texts("mlp_layer_types") or tuple("sparse" if i else "dense" for i in range(count))
    windows = (
        f.integers("hybrid_layer_pattern")
        if f.has("hybrid_layer_pattern")
        else tuple(int(kind == SLIDING) for kind in types)
    )
    routed = (
        f.integers("moe_layer_freq") if f.has("moe_layer_freq") else tuple(int(kind == "sparse") for kind in blocks)
    )
    if f.has("n_shared_experts"):
        raise NotInClosedForm(
            f"{f.where}: n_shared_experts: not known to the closed form for {model_type}",
            what=f"{model_type} with shared experts",
        )
    moe = Moe(
        experts=f.integer("n_routed_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=f.integer("moe_intermediate_size"),
        is_router_float32=True,
    )
    heads, kv_heads, head_dim = read_heads(f)
    full = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_dim=f.integer("v_head_dim"),
        sinks=heads if f.boolean("add_full_attention_sink_bias", False) else 0,
    )
    near_heads = f.integer("swa_num_attention_heads", heads)
    near = GroupedAttention(
        heads=near_heads,
        # transformers' form of the file has one number for all layers.
        kv_heads=f.integer("swa_num_key_value_heads", kv_heads),
        head_dim=f.integer("swa_head_dim", head_dim),
        v_dim=f.integer("swa_v_head_dim", f.integer("v_head_dim")),
        window=f.integer("sliding_window"),
        sinks=near_heads if f.boolean("add_swa_attention_sink_bias", False) else 0,
    )
    dense = read_dense_mlp(f)
    layers = [
        Layer(attention=near if windows[i] else full, feed_forward=moe if routed[i] else dense) for i in range(count)
    ]
    return build_decoder(f, model_type, layers, tied=False)


def read_gemma4(f: Fields, model_type: str) -> Decoder:
    """Windows and full layers with heads of another width and number; values of full layers can be derived from keys.

    Experts run alongside the dense block of a layer, which is treated as their shared one.
    """
    for key, text in (
        ("hidden_size_per_layer_input", "inputs of each layer"),
        ("num_kv_shared_layers", "shared caches"),
    ):
        if f.count(key, 0):
            raise NotInClosedForm(
                f"{f.where}: {key}: {text} are not known to the closed form for {model_type}",
                what=f"{model_type} with {key}",
            )
    heads, kv_heads, head_dim = read_heads(f, head_dim=256)
    bias = f.boolean("attention_bias", False)
    near = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=f.integer("sliding_window"),
        qkv_bias=bias,
        out_bias=bias,
        norm_elements=2 * head_dim,
    )
    wide = f.integer("global_head_dim", head_dim)
    is_shared = f.boolean("attention_k_eq_v", False)
    full = GroupedAttention(
        heads=heads,
        kv_heads=f.integer("num_global_key_value_heads", kv_heads) if is_shared else kv_heads,
        head_dim=wide,
        qkv_bias=bias,
        out_bias=bias,
        norm_elements=2 * wide,
        has_values=not is_shared,
    )
    block: FeedForward = read_dense_mlp(f)
    has_experts = f.boolean("enable_moe_block", False)
    if has_experts:
        block = Moe(
            experts=f.integer("num_experts"),
            top_k=f.integer("top_k_experts"),
            width=f.integer("moe_intermediate_size"),
            shared_width=f.integer("intermediate_size"),
            router_extra=f.integer("hidden_size") + f.integer("num_experts"),
        )
    types = read_layer_types(f, lambda i: FULL if (i + 1) % 6 == 0 else SLIDING)
    layers = [
        Layer(attention=near if kind == SLIDING else full, feed_forward=block, norms=7 if has_experts else 4)
        for kind in types
    ]
    return build_decoder(f, model_type, layers, tied=True)


def read_qwen_moe(f: Fields, model_type: str) -> Decoder:
    is_three = model_type == "qwen3_moe"
    heads, kv_heads, head_dim = read_heads(f)
    count = f.integer("num_hidden_layers")
    window = f.integer("sliding_window") if f.boolean("use_sliding_window", False) else None
    if is_three:
        windows = [window] * count
        bias = f.boolean("attention_bias", False)
    else:
        most = f.count("max_window_layers", 28)
        types = read_layer_types(f, lambda i: SLIDING if window and (i + 1) % 2 and i < most else FULL)
        windows = windows_of(types, window)
        bias = f.boolean("qkv_bias", True)
    experts = f.integer("num_local_experts") if f.has("num_local_experts") else f.integer("num_experts")
    moe = Moe(
        experts=experts,
        top_k=f.integer("num_experts_per_tok"),
        width=f.integer("moe_intermediate_size"),
        shared_width=0 if is_three else f.integer("shared_expert_intermediate_size"),
        has_shared_gate=not is_three,
    )
    step = f.integer("decoder_sparse_step", 1)
    dense_layers = f.integers("mlp_only_layers") if f.has("mlp_only_layers") else ()
    layers = [
        Layer(
            attention=GroupedAttention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=windows[i],
                qkv_bias=bias,
                out_bias=bias and is_three,
                norm_elements=2 * head_dim if is_three else 0,
            ),
            feed_forward=moe if i not in dense_layers and (i + 1) % step == 0 else read_dense_mlp(f),
        )
        for i in range(count)
    ]
    return build_decoder(f, model_type, layers, tied=False)


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
