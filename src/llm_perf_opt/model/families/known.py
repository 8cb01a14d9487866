"""From a text model's `config.json` to its parts, one rule per `model_type`.

A field that is not in the file takes the value transformers' configuration class of that type gives it, never a guess
of ours; sizes have no default and must be there.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from llm_perf_opt.errors import ParseError
from llm_perf_opt.model.families.dense import (
    read_cohere,
    read_falcon,
    read_glm4,
    read_gpt2,
    read_olmo3,
    read_starcoder2,
)
from llm_perf_opt.model.families.hybrid import (
    read_bamba,
    read_falcon_h1,
    read_granite_hybrid,
    read_jamba,
    read_kimi_linear,
    read_lfm2,
    read_mamba,
    read_mamba2,
    read_nemotron_h,
    read_qwen3_next,
)
from llm_perf_opt.model.families.older import (
    read_bloom,
    read_gpt_bigcode,
    read_gpt_neox,
    read_gptj,
    read_mpt,
    read_olmo,
    read_opt,
    read_phi,
    read_stablelm,
)
from llm_perf_opt.model.families.routed import (
    read_gemma4,
    read_glm4_moe,
    read_llama4,
    read_mimo_v2,
    read_minimax_m2,
    read_minimax_m3,
    read_step3,
)
from llm_perf_opt.model.families.variants import (
    read_dbrx,
    read_dots1,
    read_ernie4_5,
    read_glm4_moe_lite,
    read_hunyuan,
    read_mixed,
    read_olmoe,
    read_plain_mlp,
    read_remote_llama,
    read_seed_oss,
    read_windowed,
)
from llm_perf_opt.model.families.wrapped import known_type, longest_context, refuse_encoders, text_fields
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
    Attention,
    Decoder,
    DenseMlp,
    FeedForward,
    GroupedAttention,
    LatentAttention,
    Layer,
    Model,
    Moe,
)


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
    """DeepSeek-V2 and V3: latent attention (plain where `use_mla` is false) and experts after the first layers.

    DeepSeek-V3.2 and GLM-5 also have an indexer that picks the keys a query sees; GLM-5.2 shares it between layers.
    """
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
    return LatentAttention(
        heads=f.integer("num_attention_heads"),
        q_rank=f.nullable_integer("q_lora_rank"),
        kv_rank=f.integer("kv_lora_rank"),
        nope_dim=f.integer("qk_nope_head_dim"),
        rope_dim=f.integer("qk_rope_head_dim"),
        v_dim=f.integer("v_head_dim"),
        bias=bias,
    )


# Latent attention with an indexer.
INDEXED = ("deepseek_v32", "glm_moe_dsa")
FAMILIES: dict[str, Callable[[Fields, str], Decoder]] = {
    "bamba": read_bamba,
    "cohere": read_cohere,
    "cohere2": read_cohere,
    "deepseek_v2": read_deepseek,
    "deepseek_v3": read_deepseek,
    "deepseek_v32": read_deepseek,
    "glm_moe_dsa": read_deepseek,
    "gemma": read_gemma,
    "gemma2": read_gemma,
    "gemma3_text": read_gemma,
    "gemma4_text": read_gemma4,
    "gpt_oss": read_gpt_oss,
    "granite": read_llama,
    "granitemoehybrid": read_granite_hybrid,
    "llama": read_llama,
    "mistral": read_mistral,
    "mixtral": read_mistral,
    "olmo2": read_olmo2,
    "phi3": read_phi3,
    "qwen2": read_qwen_dense,
    "qwen2_moe": read_qwen_moe,
    "qwen3": read_qwen_dense,
    "qwen3_moe": read_qwen_moe,
    "falcon": read_falcon,
    "falcon_h1": read_falcon_h1,
    "glm": read_glm4,
    "glm4": read_glm4,
    "glm4_moe": read_glm4_moe,
    "gpt2": read_gpt2,
    "llama4_text": read_llama4,
    "mamba2": read_mamba2,
    "mimo_v2_flash": read_mimo_v2,
    "minimax_m2": read_minimax_m2,
    "minimax_m3_vl_text": read_minimax_m3,
    "nemotron_h": read_nemotron_h,
    "olmo3": read_olmo3,
    "qwen3_next": read_qwen3_next,
    "starcoder2": read_starcoder2,
    "smollm3": read_smollm3,
    "arcee": read_plain_mlp,
    "bloom": read_bloom,
    "cwm": read_windowed,
    "dbrx": read_dbrx,
    "dots1": read_dots1,
    "ernie4_5": read_ernie4_5,
    "exaone4": read_windowed,
    "glm4_moe_lite": read_glm4_moe_lite,
    "gpt_bigcode": read_gpt_bigcode,
    "gpt_neox": read_gpt_neox,
    "gptj": read_gptj,
    "granitemoe": read_mixed,
    "granitemoeshared": read_mixed,
    "hunyuan_v1_dense": read_hunyuan,
    "jamba": read_jamba,
    "kimi_linear": read_kimi_linear,
    "lfm2": read_lfm2,
    "mamba": read_mamba,
    "ministral3": read_windowed,
    "mpt": read_mpt,
    "nemotron": read_plain_mlp,
    "olmo": read_olmo,
    "olmoe": read_olmoe,
    "opt": read_opt,
    "phi": read_phi,
    "phimoe": read_mixed,
    "qwen3_5_moe_text": read_qwen3_next,
    "qwen3_5_text": read_qwen3_next,
    "seed_oss": read_seed_oss,
    "stablelm": read_stablelm,
    "step3p5": read_step3,
}
# Their code lies alongside the weights, so transformers alone cannot build them and nothing here could be compared.
REMOTE_FAMILIES: dict[str, Callable[[Fields, str], Decoder]] = dict.fromkeys(
    ("baichuan", "internlm", "internlm2", "xverse", "Yi"), read_remote_llama
)


def read_decoder(fields: Fields) -> Decoder:
    """The decoder a configuration describes."""
    model_type = known_type(fields.text("model_type"))
    readers = {**FAMILIES, **REMOTE_FAMILIES}
    if model_type not in readers:
        raise NotInClosedForm(
            f"{fields.where}: model_type: {model_type!r} is not known to the closed form; "
            f"known: {', '.join(sorted(FAMILIES))}",
            what=f"the family {model_type!r}",
        )
    return readers[model_type](fields, model_type)


def read_text_model(data: Mapping[str, Any], *, where: str) -> Model:
    """The parts of the text model that `data` describes; `where` is the file or key it came from."""
    refuse_encoders(data, where=where)
    fields = text_fields(data, where)
    return Model(decoder=read_decoder(fields), longest=longest_context(fields))
