"""Rules of the text models whose layers all have one feed-forward block (and of Mixtral, Mistral with experts)."""

from dataclasses import replace

from llm_perf_opt.analysis.static.architecture import Decoder, DenseMlp, FeedForward, GroupedAttention, Layer, Moe
from llm_perf_opt.analysis.static.family_fields import (
    FULL,
    SLIDING,
    build_decoder,
    read_dense_mlp,
    read_heads,
    read_layer_types,
    windows_of,
)
from llm_perf_opt.analysis.static.fields import Fields, NotInClosedForm


def read_llama(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f, kv_follows=model_type in ("llama", "granite"))
    bias = f.boolean("attention_bias", False)
    layer = Layer(
        attention=GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias),
        feed_forward=read_dense_mlp(f, bias=f.boolean("mlp_bias", False)),
    )
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False)


def read_smollm3(f: Fields, model_type: str) -> Decoder:
    if f.boolean("use_sliding_window", False):
        raise NotInClosedForm(
            f"{f.where}: use_sliding_window: true is not known to the closed form for {model_type}",
            what=f"{model_type} with use_sliding_window",
        )
    return replace(read_llama(f, model_type), is_tied=f.boolean("tie_word_embeddings", True))


def read_mistral(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f)
    window = f.nullable_integer("sliding_window", 4096 if model_type == "mistral" else None)
    attention = GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
    feed_forward: FeedForward = read_dense_mlp(f)
    if model_type == "mixtral":
        feed_forward = Moe(
            experts=f.integer("num_local_experts"),
            top_k=f.integer("num_experts_per_tok"),
            width=f.integer("intermediate_size"),
        )
    layer = Layer(attention=attention, feed_forward=feed_forward)
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False)


def read_phi3(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    attention = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=f.integer("sliding_window", None),
        is_fused_qkv=True,
    )
    layer = Layer(attention=attention, feed_forward=DenseMlp(width=f.integer("intermediate_size"), is_fused_gate=True))
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False)


def read_qwen_window(f: Fields) -> int | None:
    return f.integer("sliding_window") if f.boolean("use_sliding_window", False) else None


def read_qwen_dense(f: Fields, model_type: str) -> Decoder:
    """Qwen2 has biases on q, k and v, Qwen3 norms on q and k instead."""
    is_three = model_type == "qwen3"
    heads, kv_heads, head_dim = read_heads(f, head_dim=128 if is_three else None)
    window = read_qwen_window(f)
    first = f.count("max_window_layers", 28)
    types = read_layer_types(f, lambda i: SLIDING if window is not None and i >= first else FULL)
    bias = f.boolean("attention_bias", False) if is_three else False
    layers = [
        Layer(
            attention=GroupedAttention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=seen,
                qkv_bias=bias or not is_three,
                out_bias=bias,
                norm_elements=2 * head_dim if is_three else 0,
            ),
            feed_forward=read_dense_mlp(f),
        )
        for seen in windows_of(types, window)
    ]
    return build_decoder(f, model_type, layers, tied=False)


def read_gemma(f: Fields, model_type: str) -> Decoder:
    """Gemma 1 to 3: tied, a head width of its own; the later ones with four norms a layer and sliding windows."""
    heads, kv_heads, head_dim = read_heads(f, head_dim=256)
    bias = f.boolean("attention_bias", False)
    windows: list[int | None] = [None] * f.integer("num_hidden_layers")
    if model_type != "gemma":
        pattern = 2 if model_type == "gemma2" else f.integer("sliding_window_pattern", 6)
        types = read_layer_types(f, lambda i: SLIDING if (i + 1) % pattern else FULL)
        windows = windows_of(types, f.integer("sliding_window", 4096))
    layers = [
        Layer(
            attention=GroupedAttention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=seen,
                qkv_bias=bias,
                out_bias=bias,
                norm_elements=2 * head_dim if model_type == "gemma3_text" else 0,
            ),
            feed_forward=read_dense_mlp(f),
            norms=2 if model_type == "gemma" else 4,
        )
        for seen in windows
    ]
    return build_decoder(f, model_type, layers, tied=True)


def read_olmo2(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    bias = f.boolean("attention_bias", False)
    attention = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=bias,
        out_bias=bias,
        norm_elements=(heads + kv_heads) * head_dim,
    )
    layer = Layer(attention=attention, feed_forward=read_dense_mlp(f))
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False)
