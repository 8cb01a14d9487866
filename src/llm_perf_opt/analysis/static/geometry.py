"""Reads a model's configuration, from `config.json` or a preset, into its parts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.static.architecture import ClipTower, Model, OcrModel, SamTower
from llm_perf_opt.analysis.static.families import FAMILIES, read_decoder
from llm_perf_opt.analysis.static.fields import Fields
from llm_perf_opt.errors import ParseError

OCR = "deepseek_ocr"
MODEL_TYPES = (*sorted(FAMILIES), OCR)


def read_geometry(data: Mapping[str, Any], *, where: str) -> Model:
    """The parts of the model that `data` describes; `where` is the file or key it came from."""
    fields = Fields(data, where)
    model_type = fields.text("model_type")
    if model_type == OCR:
        return _read_ocr(fields)
    if model_type not in FAMILIES:
        raise ParseError(
            f"{where}: model_type: {model_type!r} is not known to the closed form; known: {', '.join(MODEL_TYPES)}"
        )
    return read_decoder(fields)


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


def _read_ocr(fields: Fields) -> OcrModel:
    sam, clip, projector = fields.section("sam"), fields.section("clip"), fields.section("projector")
    return OcrModel(
        sam=SamTower(
            layers=sam.integer("layers"),
            width=sam.integer("width"),
            heads=sam.integer("heads"),
            mlp_width=sam.integer("mlp_width"),
            window=sam.integer("window"),
            global_layers=sam.integers("global_layers"),
            patch=sam.integer("patch"),
            image_size=sam.integer("image_size"),
            neck=sam.integer("neck"),
            downsample=sam.integers("downsample"),
        ),
        clip=ClipTower(
            layers=clip.integer("layers"),
            width=clip.integer("width"),
            heads=clip.integer("heads"),
            mlp_width=clip.integer("mlp_width"),
            patch=clip.integer("patch"),
            image_size=clip.integer("image_size"),
        ),
        projector_in=projector.integer("input"),
        projector_out=projector.integer("output"),
        decoder=read_decoder(fields.section("decoder")),
    )
