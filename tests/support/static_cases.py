"""Geometries the tests of the static analysis share."""

from typing import Any

import yaml

from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.workload.models.registry import load_adapter
from tests.support.fixtures_dir import REPO

ARCH = REPO / "conf" / "model"

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
_INDEXED = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8, "n_group": 1, "topk_group": 1}
# One case per known model type, with the features that make it differ from Llama switched on.
_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 32, "mamba_n_groups": 2}
FAMILY_CASES: dict[str, dict[str, Any]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "cohere": {},
    "cohere2": {"sliding_window": 16},
    "deepseek_v2": {**_ROUTED, **_LATENT, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "deepseek_v3": {
        **_ROUTED,
        **_LATENT,
        "n_shared_experts": 1,
        "first_k_dense_replace": 2,
        "n_group": 2,
        "topk_group": 1,
    },
    "deepseek_v32": {**_ROUTED, **_LATENT, **_INDEXED, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "glm_moe_dsa": {
        **_ROUTED,
        **_LATENT,
        **_INDEXED,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "indexer_types": ["full", "full", "shared", "shared"],
    },
    "gemma": {"num_key_value_heads": 1},
    "gemma2": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 16},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16},
    "granite": {"tie_word_embeddings": True},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 16},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "olmo2": {},
    "phi3": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    "qwen2_moe": {**_ROUTED, "num_experts": 8, "shared_expert_intermediate_size": 40, "decoder_sparse_step": 2},
    "qwen3": {},
    "qwen3_moe": {**_ROUTED, "num_experts": 8, "mlp_only_layers": [1]},
    "smollm3": {},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_rms_norm": True},
    "granitemoehybrid": {
        **_MAMBA,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 40,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    },
    "nemotron_h": {
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 12,
        "ssm_state_size": 32,
        "n_groups": 2,
        "layers_block_type": ["mamba", "moe", "attention", "mlp"],
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "moe_shared_expert_intermediate_size": 40,
    },
    "mimo_v2_flash": {
        **_ROUTED,
        "n_routed_experts": 8,
        "head_dim": 24,
        "v_head_dim": 16,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 24,
        "swa_v_head_dim": 16,
        "sliding_window": 16,
        "hybrid_layer_pattern": [0, 1, 1, 1],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "n_group": 1,
        "topk_group": 1,
    },
    "gemma4_text": {
        **_ROUTED,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    "glm": {"head_dim": 16, "attention_bias": True},
    "glm4": {"head_dim": 16, "attention_bias": True},
    "glm4_moe": {
        **_ROUTED,
        "head_dim": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "attention_bias": True,
    },
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 128},
    "llama4_text": {
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 80,
        "interleave_moe_layer_step": 2,
        "head_dim": 16,
        "attention_chunk_size": 16,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 32, "n_groups": 2, "num_hidden_layers": 4},
    "kimi_linear": {
        **_ROUTED,
        **{key: value for key, value in _LATENT.items() if key not in ("n_routed_experts", "q_lora_rank")},
        "num_local_experts": 8,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "n_group": 1,
        "topk_group": 1,
    },
    "minimax_m3_vl_text": {
        **_ROUTED,
        "num_local_experts": 8,
        "head_dim": 16,
        "intermediate_size": 48,
        "dense_intermediate_size": 96,
        "shared_intermediate_size": 40,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_block_size": 4,
        "index_topk_blocks": 2,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    },
    "minimax_m2": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16},
    "olmo3": {"sliding_window": 16},
    "qwen3_next": {
        **_ROUTED,
        "num_experts": 8,
        "head_dim": 16,
        "shared_expert_intermediate_size": 40,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "starcoder2": {"sliding_window": 16},
    "step3p5": {
        "num_attention_groups": 2,
        "head_dim": 16,
        "sliding_window": 16,
        "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
        "num_nextn_predict_layers": 1,
        "moe_layers_enum": "1,2,3",
        "moe_num_experts": 8,
        "moe_top_k": 2,
        "moe_intermediate_size": 48,
        "share_expert_dim": 40,
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 6},
    },
    "arcee": {"attention_bias": True, "mlp_bias": True},
    "bloom": {"n_head": 4, "n_layer": 4},
    "cwm": {"head_dim": 16, "sliding_window": 16},
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 4,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    },
    "dots1": {
        **_ROUTED,
        "head_dim": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "sliding_window": 16,
        "max_window_layers": 2,
    },
    "ernie4_5": {"use_bias": True, "head_dim": 24},
    "exaone4": {"head_dim": 16, "sliding_window": 16},
    "glm4_moe_lite": {**_ROUTED, **_LATENT, "n_shared_experts": 1},
    "gpt_bigcode": {"n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 128},
    "gpt_neox": {},
    "gptj": {"n_embd": 64, "n_head": 4, "n_layer": 4, "rotary_dim": 8},
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "granitemoeshared": {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 40},
    "hunyuan_v1_dense": {"head_dim": 16, "attention_bias": True},
    "jamba": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "use_mamba_kernels": False,
    },
    "lfm2": {"full_attn_idxs": [1, 3], "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "mamba": {"state_size": 8, "time_step_rank": 6, "intermediate_size": 128},
    "ministral3": {"head_dim": 16, "sliding_window": 16},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 4},
    "nemotron": {"head_dim": 16, "mlp_bias": True},
    "olmo": {},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64, "max_position_embeddings": 128},
    "phi": {"qk_layernorm": True},
    "phimoe": {"num_local_experts": 8, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True},
    "qwen3_5_moe_text": {
        **_ROUTED,
        "num_experts": 8,
        "head_dim": 16,
        "shared_expert_intermediate_size": 40,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "qwen3_5_text": {
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "seed_oss": {"head_dim": 16, "attention_out_bias": True, "mlp_bias": True},
    "stablelm": {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True},
}


def preset_geometry(name: str) -> dict[str, Any]:
    """`model.geometry` of a shipped preset, such as causal_lm/arch/llama3_8b."""
    geometry: dict[str, Any] = _preset(name)["geometry"]
    return geometry


def preset_model(name: str) -> Model:
    """The parts of a preset's model, as its adapter gives them."""
    adapter = load_adapter(str(_preset(name)["adapter"]))
    return adapter.parts(preset_geometry(name), where=name)


def _preset(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((ARCH / f"{name}.yaml").read_text(encoding="utf-8"))
    return data
