"""Rules of the text models with routed experts: Qwen, GPT-OSS, DeepSeek."""

from llm_perf_opt.analysis.static.architecture import Attention, Decoder, GroupedAttention, LatentAttention, Layer, Moe
from llm_perf_opt.analysis.static.families_dense import read_qwen_window
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


def read_qwen_moe(f: Fields, model_type: str) -> Decoder:
    is_three = model_type == "qwen3_moe"
    heads, kv_heads, head_dim = read_heads(f)
    count = f.integer("num_hidden_layers")
    window = read_qwen_window(f)
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


def read_gpt_oss(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f, head_dim=64)
    bias = f.boolean("attention_bias", True)
    types = read_layer_types(f, lambda i: SLIDING if (i + 1) % 2 else FULL)
    moe = Moe(
        experts=f.integer("num_local_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=f.integer("intermediate_size"),
        router_bias=True,
        expert_bias=True,
    )
    layers = [
        Layer(
            attention=GroupedAttention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=seen,
                qkv_bias=bias,
                out_bias=bias,
                sinks=heads,
            ),
            feed_forward=moe,
        )
        for seen in windows_of(types, f.integer("sliding_window", 128))
    ]
    return build_decoder(f, model_type, layers, tied=False)


def read_deepseek(f: Fields, model_type: str) -> Decoder:
    """DeepSeek-V2 and V3: latent attention (plain where `use_mla` is false) and experts after the first layers."""
    attention = _deepseek_attention(f)
    mlp_bias = f.boolean("mlp_bias", False)
    shared = f.count("n_shared_experts")
    moe = Moe(
        experts=f.integer("n_routed_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=f.integer("moe_intermediate_size"),
        shared_width=shared * f.integer("moe_intermediate_size"),
        shared_bias=mlp_bias and model_type == "deepseek_v2",
        is_router_float32=True,
    )
    if f.integer("moe_layer_freq", 1) != 1:
        raise NotInClosedForm(
            f"{f.where}: moe_layer_freq: only 1 is known to the closed form",
            what=f"{model_type} with a moe_layer_freq other than 1",
        )
    first = f.count("first_k_dense_replace")
    dense = read_dense_mlp(f, bias=mlp_bias and model_type == "deepseek_v2")
    layers = [
        Layer(attention=attention, feed_forward=dense if i < first else moe)
        for i in range(f.integer("num_hidden_layers"))
    ]
    return build_decoder(f, model_type, layers, tied=False)


def _deepseek_attention(f: Fields) -> Attention:
    bias = f.boolean("attention_bias", False)
    if not f.boolean("use_mla", True):
        heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
        return GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias)
    return LatentAttention(
        heads=f.integer("num_attention_heads"),
        q_rank=f.nullable_integer("q_lora_rank"),
        kv_rank=f.integer("kv_lora_rank"),
        nope_dim=f.integer("qk_nope_head_dim"),
        rope_dim=f.integer("qk_rope_head_dim"),
        v_dim=f.integer("v_head_dim"),
        bias=bias,
    )
