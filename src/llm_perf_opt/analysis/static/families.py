"""From a text model's `config.json` to its parts, one rule per `model_type`.

A field that is not in the file takes the value transformers' configuration class of that type gives it, never a guess
of ours; sizes have no default and must be there.
"""

from collections.abc import Callable

from llm_perf_opt.analysis.static.architecture import Decoder
from llm_perf_opt.analysis.static.families_dense import (
    read_gemma,
    read_llama,
    read_mistral,
    read_olmo2,
    read_phi3,
    read_qwen_dense,
    read_smollm3,
)
from llm_perf_opt.analysis.static.families_moe import read_deepseek, read_gpt_oss, read_qwen_moe
from llm_perf_opt.analysis.static.fields import Fields, NotInClosedForm

FAMILIES: dict[str, Callable[[Fields, str], Decoder]] = {
    "deepseek_v2": read_deepseek,
    "deepseek_v3": read_deepseek,
    "gemma": read_gemma,
    "gemma2": read_gemma,
    "gemma3_text": read_gemma,
    "gpt_oss": read_gpt_oss,
    "granite": read_llama,
    "llama": read_llama,
    "mistral": read_mistral,
    "mixtral": read_mistral,
    "olmo2": read_olmo2,
    "phi3": read_phi3,
    "qwen2": read_qwen_dense,
    "qwen2_moe": read_qwen_moe,
    "qwen3": read_qwen_dense,
    "qwen3_moe": read_qwen_moe,
    "smollm3": read_smollm3,
}


def read_decoder(fields: Fields) -> Decoder:
    """The decoder a configuration describes."""
    model_type = fields.text("model_type")
    if model_type not in FAMILIES:
        raise NotInClosedForm(
            f"{fields.where}: model_type: {model_type!r} is not known to the closed form; "
            f"known: {', '.join(sorted(FAMILIES))}",
            what=f"the family {model_type!r}",
        )
    return FAMILIES[model_type](fields, model_type)
