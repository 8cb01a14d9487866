"""Reads a text model's configuration, from `config.json` or a preset, into its parts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.static.architecture import Model
from llm_perf_opt.analysis.static.families import read_decoder
from llm_perf_opt.analysis.static.fields import Fields
from llm_perf_opt.errors import ParseError


def read_text_model(data: Mapping[str, Any], *, where: str) -> Model:
    """The parts of the text model that `data` describes; `where` is the file or key it came from."""
    return Model(decoder=read_decoder(Fields(data, where)))


def read_config_json(path: Path) -> dict[str, Any]:
    """`config.json` of a model's folder, or the file itself."""
    file = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ParseError(f"{file}: not found; give the folder of a model that holds a config.json") from error
    except (OSError, ValueError) as error:
        raise ParseError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(data, dict):
        raise ParseError(f"{file}: not a JSON object")
    return data


def quantised_dtype(data: Mapping[str, Any], *, where: str) -> str | None:
    """The narrow format of a quantised checkpoint's matrices, or None. Scales and zero points are not counted."""
    quantisation = data.get("quantization_config")
    if not isinstance(quantisation, Mapping):
        return None
    method, bits = quantisation.get("quant_method"), quantisation.get("bits")
    if method == "fp8":
        return "fp8"
    if method in ("gptq", "awq") and bits in (4, 8):
        return f"int{bits}"
    if method == "bitsandbytes" and quantisation.get("load_in_4bit"):
        return "int4"
    if method == "bitsandbytes" and quantisation.get("load_in_8bit"):
        return "int8"
    raise ParseError(
        f"{where}: quantization_config: {method!r} with {bits!r} bits is not known to the closed form; "
        "say what the weights take with workload.weight_dtype=fp8, int8 or int4 (llm-perf predict)"
    )
