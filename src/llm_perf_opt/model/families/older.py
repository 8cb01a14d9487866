"""Decoders from before Llama set the pattern: OPT, BLOOM, GPT-NeoX, GPT-J, GPTBigCode, MPT, Phi, StableLM, OLMo."""

from dataclasses import replace

from llm_perf_opt.model.static.config_json import (
    Fields,
    NotInClosedForm,
    build_decoder,
    read_dense_mlp,
    read_heads,
)
from llm_perf_opt.model.static.parts import Decoder, DenseMlp, GroupedAttention, Layer


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
        attention=_every_head(hidden, heads, bias=bias),
        feed_forward=DenseMlp(width=f.integer("ffn_dim"), is_gated=False, bias=bias),
    )
    found = build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=True, norm_has_bias=True)
    outer = 0 if f.boolean("_remove_final_layer_norm", False) else 1
    return replace(found, positions=f.integer("max_position_embeddings", 2048) + 2, outer_norms=outer)


def _every_head(hidden: int, heads: int, *, bias: bool, is_fused: bool = False) -> GroupedAttention:
    return GroupedAttention(
        heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=bias, out_bias=bias, is_fused_qkv=is_fused
    )


def read_bloom(f: Fields, model_type: str) -> Decoder:
    """A norm behind the embedding; one fused projection."""
    hidden = f.integer("hidden_size" if f.has("hidden_size") else "n_embed")
    heads = f.integer("n_head" if f.has("n_head") else "num_attention_heads")
    layer = Layer(
        attention=_every_head(hidden, heads, bias=True, is_fused=True),
        feed_forward=DenseMlp(width=4 * hidden, is_gated=False, bias=True),
    )
    return Decoder(
        model_type=model_type,
        hidden=hidden,
        vocab=f.integer("vocab_size"),
        is_tied=f.boolean("tie_word_embeddings", True),
        blocks=((layer, f.integer("n_layer" if f.has("n_layer") else "num_hidden_layers")),),
        norm_has_bias=True,
        outer_norms=2,
    )


def read_gpt_neox(f: Fields, model_type: str) -> Decoder:
    hidden, heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    layer = Layer(
        attention=_every_head(hidden, heads, bias=f.boolean("attention_bias", True), is_fused=True),
        feed_forward=DenseMlp(width=f.integer("intermediate_size"), is_gated=False, bias=True),
    )
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False, norm_has_bias=True)


def read_gptj(f: Fields, model_type: str) -> Decoder:
    """Attention and feed-forward side by side behind one norm; the output matrix has a bias."""
    hidden, heads = f.integer("n_embd"), f.integer("n_head")
    layer = Layer(
        attention=_every_head(hidden, heads, bias=False),
        feed_forward=DenseMlp(width=f.integer("n_inner", 4 * hidden), is_gated=False, bias=True),
        norms=1,
    )
    return Decoder(
        model_type=model_type,
        hidden=hidden,
        vocab=f.integer("vocab_size"),
        is_tied=f.boolean("tie_word_embeddings", False),
        blocks=((layer, f.integer("n_layer")),),
        norm_has_bias=True,
        head_bias=True,
    )


def read_gpt_bigcode(f: Fields, model_type: str) -> Decoder:
    """GPT-2 with one key head for all queries."""
    hidden, heads = f.integer("n_embd"), f.integer("n_head")
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=1 if f.boolean("multi_query", True) else heads,
            head_dim=hidden // heads,
            qkv_bias=True,
            out_bias=True,
            is_fused_qkv=True,
        ),
        feed_forward=DenseMlp(width=f.integer("n_inner", 4 * hidden), is_gated=False, bias=True),
    )
    return Decoder(
        model_type=model_type,
        hidden=hidden,
        vocab=f.integer("vocab_size"),
        is_tied=f.boolean("tie_word_embeddings", True),
        blocks=((layer, f.integer("n_layer")),),
        norm_has_bias=True,
        positions=f.integer("n_positions", 1024),
    )


def read_mpt(f: Fields, model_type: str) -> Decoder:
    """No biases anywhere, no positions to look up."""
    hidden, heads = f.integer("d_model"), f.integer("n_heads")
    layer = Layer(
        attention=_every_head(hidden, heads, bias=False, is_fused=True),
        feed_forward=DenseMlp(width=f.integer("expansion_ratio", 4) * hidden, is_gated=False),
    )
    return Decoder(
        model_type=model_type,
        hidden=hidden,
        vocab=f.integer("vocab_size"),
        is_tied=f.boolean("tie_word_embeddings", True),
        blocks=((layer, f.integer("n_layers")),),
    )


def read_phi(f: Fields, model_type: str) -> Decoder:
    """Phi 1 to 2: attention and feed-forward side by side behind one norm, biases everywhere."""
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=True,
            out_bias=True,
            norm_elements=4 * head_dim if f.boolean("qk_layernorm", False) else 0,
        ),
        feed_forward=DenseMlp(width=f.integer("intermediate_size"), is_gated=False, bias=True),
        norms=1,
    )
    found = build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False, norm_has_bias=True)
    return replace(found, head_bias=True)


def read_stablelm(f: Fields, model_type: str) -> Decoder:
    heads, kv_heads, head_dim = read_heads(f)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=f.boolean("use_qkv_bias", False),
            norm_elements=(heads + kv_heads) * head_dim if f.boolean("qk_layernorm", False) else 0,
        ),
        feed_forward=read_dense_mlp(f),
        norms=1 if f.boolean("use_parallel_residual", False) else 2,
    )
    return build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False, norm_has_bias=True)


def read_olmo(f: Fields, model_type: str) -> Decoder:
    """Norms without weights."""
    heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
    bias = f.boolean("attention_bias", False)
    layer = Layer(
        attention=GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias),
        feed_forward=read_dense_mlp(f),
    )
    found = build_decoder(f, model_type, [layer] * f.integer("num_hidden_layers"), tied=False)
    return replace(found, norm_is_bare=True)
