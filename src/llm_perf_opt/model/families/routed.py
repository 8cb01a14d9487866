"""Further decoders with routed experts: Llama 4, GLM-4 MoE, MiniMax-M2, MiMo-V2 and Gemma 4."""

from llm_perf_opt.model.static.config_json import (
    FULL,
    SLIDING,
    Fields,
    NotInClosedForm,
    build_decoder,
    read_dense_mlp,
    read_heads,
    read_layer_types,
)
from llm_perf_opt.model.static.parts import Decoder, DenseMlp, FeedForward, GroupedAttention, Layer, Moe


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


def read_glm4_moe(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f)
    attention = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=f.boolean("attention_bias", False),
        norm_elements=2 * head_dim if f.boolean("use_qk_norm", False) else 0,
    )
    width = f.integer("moe_intermediate_size")
    moe = Moe(
        experts=f.integer("n_routed_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=width,
        shared_width=f.count("n_shared_experts", 1) * width,
        is_router_float32=True,
    )
    first = f.count("first_k_dense_replace", 1)
    dense = read_dense_mlp(f)
    layers = [
        Layer(attention=attention, feed_forward=dense if i < first else moe)
        for i in range(f.integer("num_hidden_layers"))
    ]
    return build_decoder(f, model_type, layers, tied=False)


def read_minimax_m2(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads, kv_heads=kv_heads, head_dim=head_dim, norm_elements=(heads + kv_heads) * head_dim
        ),
        feed_forward=Moe(
            experts=f.integer("num_local_experts"),
            top_k=f.integer("num_experts_per_tok"),
            width=f.integer("intermediate_size"),
        ),
    )
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False)


def read_mimo_v2(f: Fields, model_type: str) -> Decoder:
    """Windows with sinks and key heads of their own in most layers; values narrower than keys; experts but at first."""
    count = f.integer("num_hidden_layers")
    windows = f.integers("hybrid_layer_pattern")
    routed = f.integers("moe_layer_freq")
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
        kv_heads=f.integer("swa_num_key_value_heads"),
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
    """Windows and full layers with heads of another width and number; values of full layers may be made of keys.

    Experts stand beside the dense block of a layer, which is taken for their shared one.
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
