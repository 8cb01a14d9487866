"""Dense decoders off the table: Falcon and OPT."""

from dataclasses import replace

from llm_perf_opt.model.static.config_json import Fields, NotInClosedForm, build_decoder
from llm_perf_opt.model.static.parts import Decoder, DenseMlp, GroupedAttention, Layer


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


def read_opt(f: Fields, model_type: str) -> Decoder:
    """Learned positions, of which two are never used; biases in all matrices unless `enable_bias` is false."""
    hidden, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    is_plain = f.boolean("do_layer_norm_before", True) and f.integer("word_embed_proj_dim", hidden) == hidden
    if not is_plain or not f.boolean("layer_norm_elementwise_affine", True):
        raise NotInClosedForm(
            f"{f.where}: word_embed_proj_dim: an OPT with norms behind its blocks is not known to the closed form",
            what="opt with projected embeddings",
        )
    bias = f.boolean("enable_bias", True)
    layer = Layer(
        attention=GroupedAttention(heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=bias, out_bias=bias),
        feed_forward=DenseMlp(width=f.integer("ffn_dim"), is_gated=False, bias=bias),
    )
    found = build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=True, norm_has_bias=True)
    outer = 0 if f.boolean("_remove_final_layer_norm", False) else 1
    return replace(found, positions=f.integer("max_position_embeddings", 2048) + 2, outer_norms=outer)
