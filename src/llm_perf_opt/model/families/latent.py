"""Decoders with latent attention, which keeps a narrow latent instead of keys and values: DeepSeek, GLM."""

from dataclasses import replace

from llm_perf_opt.errors import ParseError
from llm_perf_opt.model.static.config_json import Fields, NotInClosedForm, build_decoder, read_dense_mlp, read_heads
from llm_perf_opt.model.static.parts import (
    Attention,
    Decoder,
    FeedForward,
    GroupedAttention,
    LatentAttention,
    Layer,
    Moe,
)

# With an indexer that picks keys.
INDEXED = ("deepseek_v32", "glm_moe_dsa")


def read_deepseek(f: Fields, model_type: str) -> Decoder:
    """DeepSeek-V2 and V3: latent attention (plain where `use_mla` is false) and experts after the first layers.

    DeepSeek-V3.2 and GLM-5 also have an indexer that picks the keys a query sees; GLM-5.2 shares it between layers.
    """
    attention = _deepseek_attention(f)
    mlp_bias = f.boolean("mlp_bias", False)
    moe = replace(_experts(f, shared=f.count("n_shared_experts")), shared_bias=mlp_bias and model_type == "deepseek_v2")
    if f.integer("moe_layer_freq", 1) != 1:
        raise NotInClosedForm(
            f"{f.where}: moe_layer_freq: only 1 is known to the closed form",
            what=f"{model_type} with a moe_layer_freq other than 1",
        )
    first = f.count("first_k_dense_replace")
    dense = read_dense_mlp(f, bias=mlp_bias and model_type == "deepseek_v2")
    count = f.integer("num_hidden_layers")
    attentions = [attention] * count
    if model_type in INDEXED and isinstance(attention, LatentAttention):
        attentions = _indexed(f, attention, count)
    layers = [Layer(attention=attentions[i], feed_forward=dense if i < first else moe) for i in range(count)]
    return build_decoder(f, model_type, layers, tied=False)


def _indexed(f: Fields, attention: LatentAttention, count: int) -> list[Attention]:
    """Every layer picks keys; those of type `shared` by the indexer of an earlier one."""
    sparse = replace(attention, index_topk=f.integer("index_topk"))
    full = replace(sparse, index_heads=f.integer("index_n_heads"), index_dim=f.integer("index_head_dim"))
    types = f.texts("indexer_types")
    if types is not None and (len(types) != count or set(types) - {"full", "shared"}):
        raise ParseError(f"{f.where}: indexer_types: not {count} of full, shared (got {len(types)})")
    return [full if types is None or types[i] == "full" else sparse for i in range(count)]


def _deepseek_attention(f: Fields) -> Attention:
    bias = f.boolean("attention_bias", False)
    if not f.boolean("use_mla", True):
        heads, kv_heads, head_dim = read_heads(f, kv_follows=True)
        return GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias)
    return _latent_attention(f)


def _latent_attention(f: Fields) -> LatentAttention:
    return LatentAttention(
        heads=f.integer("num_attention_heads"),
        q_rank=f.nullable_integer("q_lora_rank"),
        kv_rank=f.integer("kv_lora_rank"),
        nope_dim=f.integer("qk_nope_head_dim"),
        rope_dim=f.integer("qk_rope_head_dim"),
        v_dim=f.integer("v_head_dim"),
        bias=f.boolean("attention_bias", False),
    )


def _experts(f: Fields, *, shared: int) -> Moe:
    width = f.integer("moe_intermediate_size")
    return Moe(
        experts=f.integer("n_routed_experts"),
        top_k=f.integer("num_experts_per_tok"),
        width=width,
        shared_width=shared * width,
        is_router_float32=True,
    )


def read_glm4_moe_lite(f: Fields, model_type: str) -> Decoder:
    """Latent attention; the first layer alone is dense unless the file lists which."""
    attention = _latent_attention(f)
    count = f.integer("num_hidden_layers")
    kinds = f.texts("mlp_layer_types") or ("dense", *("sparse",) * (count - 1))
    blocks: dict[str, FeedForward] = {
        "dense": read_dense_mlp(f),
        "sparse": _experts(f, shared=f.count("n_shared_experts", 1)),
    }
    odd = sorted(set(kinds) - set(blocks))
    if odd:
        raise NotInClosedForm(
            f"{f.where}: mlp_layer_types: {odd[0]!r} is not known to the closed form",
            what=f"{model_type} with {odd[0]}",
        )
    layers = [Layer(attention=attention, feed_forward=blocks[kind]) for kind in kinds[:count]]
    return build_decoder(f, model_type, layers, tied=False)
