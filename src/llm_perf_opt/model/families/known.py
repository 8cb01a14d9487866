"""From a text model's `config.json` to its parts, by its `model_type`: a row of `families.toml`, or a rule of its own.

A field that is not in the file takes the value transformers' configuration class of that type gives it, never a guess
of ours; sizes have no default and must be there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from llm_perf_opt.model.families.dense import read_falcon, read_opt
from llm_perf_opt.model.families.family_table import families
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
    read_nemotron_nas,
    read_qwen3_next,
)
from llm_perf_opt.model.families.latent import read_deepseek, read_glm4_moe_lite
from llm_perf_opt.model.families.routed import (
    read_dbrx,
    read_gemma4,
    read_llama4,
    read_mimo_v2,
    read_minimax_m3,
    read_qwen_moe,
    read_step3,
)
from llm_perf_opt.model.families.wrapped import known_type, longest_context, refuse_encoders, text_fields
from llm_perf_opt.model.static.config_json import Fields, NotInClosedForm
from llm_perf_opt.model.static.parts import Decoder, Model

# Of families that are not on the pattern of the table.
RULES: dict[str, Callable[[Fields, str], Decoder]] = {
    "bamba": read_bamba,
    "dbrx": read_dbrx,
    "deepseek_v2": read_deepseek,
    "deepseek_v3": read_deepseek,
    "deepseek_v32": read_deepseek,
    "falcon": read_falcon,
    "falcon_h1": read_falcon_h1,
    "gemma4_text": read_gemma4,
    "glm4_moe_lite": read_glm4_moe_lite,
    "glm_moe_dsa": read_deepseek,
    "granitemoehybrid": read_granite_hybrid,
    "jamba": read_jamba,
    "kimi_linear": read_kimi_linear,
    "lfm2": read_lfm2,
    "llama4_text": read_llama4,
    "mamba": read_mamba,
    "mamba2": read_mamba2,
    "mimo_v2_flash": read_mimo_v2,
    "minimax_m3_vl_text": read_minimax_m3,
    "nemotron-nas": read_nemotron_nas,
    "nemotron_h": read_nemotron_h,
    "opt": read_opt,
    "qwen2_moe": read_qwen_moe,
    "qwen3_5_moe_text": read_qwen3_next,
    "qwen3_5_text": read_qwen3_next,
    "qwen3_moe": read_qwen_moe,
    "qwen3_next": read_qwen3_next,
    "step3p5": read_step3,
}
# Built by code in the checkpoint's own repository alone.
_REMOTE = frozenset(("nemotron-nas",))


def known_types() -> list[str]:
    """Every `model_type` with a closed form that transformers can build too."""
    return sorted([*(RULES.keys() - _REMOTE), *(name for name, row in families().items() if not row.is_remote)])


def read_decoder(fields: Fields) -> Decoder:
    """The decoder a configuration describes."""
    model_type = known_type(fields.text("model_type"))
    if model_type in RULES:
        return RULES[model_type](fields, model_type)
    if model_type not in families():
        raise NotInClosedForm(
            f"{fields.where}: model_type: {model_type!r} is not known to the closed form; "
            f"known: {', '.join(known_types())}",
            what=f"the family {model_type!r}",
        )
    return families()[model_type].read(fields, model_type)


def read_text_model(data: Mapping[str, Any], *, where: str) -> Model:
    """The parts of the text model that `data` describes; `where` is the file or key it came from."""
    refuse_encoders(data, where=where)
    fields = text_fields(data, where)
    return Model(decoder=read_decoder(fields), longest=longest_context(fields))
