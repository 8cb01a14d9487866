"""Finds the text model inside a configuration that holds more, and refuses what is not a decoder, with a way on."""

from collections.abc import Mapping
from typing import Any

from llm_perf_opt.model.static.config_json import Fields, NotADecoder

# Types inside wrappers that are a known family under their own name.
ALIASES = {
    "kimi_k2": "deepseek_v3",
    "llama4": "llama4_text",
    # Qwen2 with layers that predict further tokens.
    "mimo": "qwen2",
    "minimax_m3": "minimax_m3_vl_text",
    "step3p7": "step3p5",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "hunyuan_vl_text": "hunyuan_v1_dense",
    "paddleocr_vl_text": "ernie4_5",
    "emu3_text_model": "llama",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
# Sizes that text parts leave out because they are transformers' defaults of that type.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
    },
    "glm4v_text": {"attention_bias": True},
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "mistral": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
# What configurations call the longest context a model was made for.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
_ENCODERS = (
    *("t5", "mt5", "umt5", "t5gemma", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper", "led", "prophetnet"),
    *("bert", "roberta", "xlm-roberta", "deberta", "deberta-v2", "electra", "distilbert", "modernbert", "albert"),
)


def text_fields(data: Mapping[str, Any], where: str) -> Fields:
    """The text model of a multimodal configuration with its type's defaults filled in; other data as they are."""
    for key in _TEXT_KEYS:
        inner = data.get(key)
        if not isinstance(inner, Mapping):
            continue
        defaults = _DEFAULTS.get(str(inner.get("model_type")), {})
        size = {"vocab_size": data["vocab_size"]} if "vocab_size" in data else {}
        # Whether the output matrix is the embedding is the whole model's to say.
        tied = (
            {"tie_word_embeddings": data["tie_word_embeddings"]} if data.get("tie_word_embeddings") is not None else {}
        )
        known = {k: v for k, v in inner.items() if v is not None}
        if "model_type" not in known and "model_type" in data:
            # Text parts that are of the wrapper's own family leave their type out.
            known["model_type"] = f"{data['model_type']}_text"
        return text_fields({**defaults, **size, **known, **tied}, where)
    return Fields(data, where)


def longest_context(fields: Fields) -> int | None:
    """The most positions a configuration names for its text model."""
    found = (fields.data.get(name) for name in _POSITIONS)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)


def is_wrapped(data: Mapping[str, Any]) -> bool:
    """Whether there is more than the text model, such as a vision part."""
    return any(isinstance(data.get(key), Mapping) for key in (*_TEXT_KEYS, "vision_config"))


def known_type(model_type: str) -> str:
    """The family whose rule reads this type."""
    return ALIASES.get(model_type, model_type)


def refuse_encoders(data: Mapping[str, Any], *, where: str) -> None:
    """A model that is not a decoder has no prefill and decode as they are reckoned here."""
    kind = str(data.get("model_type"))
    if data.get("is_encoder_decoder") is not True and kind not in _ENCODERS:
        return
    raise NotADecoder(
        f"{where}: model_type: {kind!r} is an encoder or an encoder-decoder, and only decoders are predicted; "
        "profile your own program that runs it (docs/your-own-program.md), or give the config.json of a decoder",
        what=f"the family {kind!r}, which is not a decoder",
    )
