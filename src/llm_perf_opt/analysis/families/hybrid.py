"""Decoders that keep a state of fixed size instead of a growing cache: Mamba 2 in all layers, Qwen3-Next in most."""

from llm_perf_opt.analysis.static.config_json import (
    FULL,
    Fields,
    NotInClosedForm,
    build_decoder,
    read_dense_mlp,
    read_heads,
)
from llm_perf_opt.analysis.static.parts import Decoder, DenseMlp, GroupedAttention, Layer, Moe, StateMixer

LINEAR = "linear_attention"


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
    state, groups, kernel = f.integer("state_size"), f.integer("n_groups", 8), f.integer("conv_kernel", 4)
    channels = inner + 2 * groups * state
    has_bias = f.boolean("use_bias", False)
    mixer = StateMixer(
        in_width=2 * inner + 2 * groups * state + heads,
        out_width=inner,
        bias=has_bias,
        conv_channels=channels,
        conv_kernel=kernel,
        conv_bias=f.boolean("use_conv_bias", True),
        state_elements=heads * head_dim * state,
        # The gated norm, and for each head a decay, a step and a skip.
        other_params=inner + 3 * heads,
    )
    layer = Layer(attention=mixer, feed_forward=DenseMlp(width=0), norms=1)
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False)


def read_qwen3_next(f: Fields, model_type: str) -> Decoder:
    """Gated delta rule in three layers of four, gated attention in the fourth, routed experts behind both."""
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
    moe = Moe(
        experts=f.integer("num_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=f.integer("moe_intermediate_size"),
        shared_width=f.integer("shared_expert_intermediate_size"),
        has_shared_gate=True,
    )
    count = f.integer("num_hidden_layers")
    every = f.integer("full_attention_interval", 4)
    types = f.texts("layer_types") or tuple(LINEAR if (i + 1) % every else FULL for i in range(count))
    step = f.integer("decoder_sparse_step", 1)
    dense = f.integers("mlp_only_layers") if f.has("mlp_only_layers") else ()
    layers = [
        Layer(
            attention=mixer if types[i] == LINEAR else attention,
            feed_forward=moe if i not in dense and (i + 1) % step == 0 else read_dense_mlp(f),
        )
        for i in range(count)
    ]
    return build_decoder(f, model_type, layers, tied=False)
