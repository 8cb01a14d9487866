"""Further dense decoders: GPT-2, Falcon, StarCoder2, Cohere 2, GLM-4 and OLMo 3."""

from collections import Counter
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
from llm_perf_opt.model.static.parts import Decoder, DenseMlp, GroupedAttention, Layer


def read_gpt2(f: Fields, model_type: str) -> Decoder:
    """Learned positions, biases everywhere, one fused projection; sizes by GPT-2's own names or by the usual ones."""
    hidden = f.integer("n_embd" if f.has("n_embd") else "hidden_size")
    heads = f.integer("n_head" if f.has("n_head") else "num_attention_heads")
    layer = Layer(
        attention=GroupedAttention(
            heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=True, out_bias=True, is_fused_qkv=True
        ),
        feed_forward=DenseMlp(width=f.integer("n_inner", 4 * hidden), is_gated=False, bias=True),
    )
    return Decoder(
        model_type=model_type,
        hidden=hidden,
        vocab=f.integer("vocab_size"),
        is_tied=f.boolean("tie_word_embeddings", True),
        blocks=((layer, f.integer("n_layer" if f.has("n_layer") else "num_hidden_layers")),),
        norm_has_bias=True,
        positions=f.integer("n_positions", 1024),
    )


def read_falcon(f: Fields, model_type: str) -> Decoder:
    """One key head for all (7B), or groups of them with a norm each for attention and feed-forward (40B, 180B)."""
    hidden, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    is_new = f.boolean("new_decoder_architecture", False)
    shared = 1 if f.boolean("multi_query", True) else heads
    kv_heads = f.integer("num_kv_heads", heads) if is_new else shared
    bias = f.boolean("bias", False)
    norms = 2 if is_new or not f.boolean("parallel_attn", True) else 1
    if is_new and f.integer("num_ln_in_parallel_attn", 2) == 1:
        norms = 1
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=hidden // heads,
            qkv_bias=bias,
            out_bias=bias,
            is_fused_qkv=True,
        ),
        feed_forward=DenseMlp(width=f.integer("ffn_hidden_size", 4 * hidden), is_gated=False, bias=bias),
        norms=norms,
    )
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=True, norm_has_bias=True)


def read_starcoder2(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f)
    bias = f.boolean("use_bias", True)
    attention = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=f.nullable_integer("sliding_window", None),
        qkv_bias=bias,
        out_bias=bias,
    )
    layer = Layer(
        attention=attention, feed_forward=DenseMlp(width=f.integer("intermediate_size"), is_gated=False, bias=bias)
    )
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=True, norm_has_bias=True)


def read_cohere(f: Fields, model_type: str) -> Decoder:
    """Attention and feed-forward side by side behind one norm; Cohere 2 sees a window in three layers of four."""
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    if f.boolean("use_qk_norm", False):
        raise NotInClosedForm(
            f"{f.where}: use_qk_norm: true is not known to the closed form for {model_type}",
            what=f"{model_type} with use_qk_norm",
        )
    bias = f.boolean("attention_bias", False)
    windows: list[int | None] = [None] * f.integer("num_hidden_layers")
    if model_type == "cohere2":
        pattern = f.integer("sliding_window_pattern", 4)
        types = read_layer_types(f, lambda i: SLIDING if (i + 1) % pattern else FULL)
        windows = windows_of(types, f.integer("sliding_window", 4096))
    layers = [
        Layer(
            attention=GroupedAttention(
                heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=seen, qkv_bias=bias, out_bias=bias
            ),
            feed_forward=read_dense_mlp(f),
            norms=1,
        )
        for seen in windows
    ]
    return build_decoder(f, model_type, layers, tied=True)


def read_glm4(f: Fields, model_type: str) -> Decoder:
    """Norms before and behind each block (GLM-4-0414; the older `glm` has those before alone), a fused gate."""
    heads, kv_heads, head_dim = read_heads(f, head_dim=128)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=f.boolean("attention_bias", False)
        ),
        feed_forward=DenseMlp(width=f.integer("intermediate_size"), is_fused_gate=True),
        norms=2 if model_type == "glm" else 4,
    )
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False)


def read_olmo3(f: Fields, model_type: str) -> Decoder:
    """OLMo 2 with a window in three layers of four."""
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    bias = f.boolean("attention_bias", False)
    plain = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=bias,
        out_bias=bias,
        norm_elements=(heads + kv_heads) * head_dim,
    )
    types = read_layer_types(f, lambda i: SLIDING if (i + 1) % 4 else FULL)
    mlp = read_dense_mlp(f)
    found = Counter(
        Layer(attention=replace(plain, window=seen), feed_forward=mlp)
        for seen in windows_of(types, f.integer("sliding_window", 4096))
    )
    return build_decoder(f, model_type, found.elements(), tied=False)
