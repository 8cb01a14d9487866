"""Adapter of DeepSeek-OCR: pages in, text out; from a snapshot or with random weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Interval, MultipleOf
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from llm_perf_opt.config.schema import InferSection, ModelSection
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.models.base import LoadedModel
from llm_perf_opt.workload.models.deepseek_ocr_geometry import geometry_of_snapshot, parse_geometry
from llm_perf_opt.workload.models.deepseek_ocr_preprocess import IMAGE_MARK
from llm_perf_opt.workload.models.snapshot_files import (
    CONFIG_FILE,
    find_config_problems,
    find_weight_problems,
    read_config,
)

_EXAMPLE = "/models/DeepSeek-OCR"


def _one_image(prompt: str) -> str:
    if prompt.count(IMAGE_MARK) != 1:
        raise PydanticCustomError("one_image", "a text that holds <image> exactly once")
    return prompt


# A side that is no multiple of the patch would lose its last pixels.
PixelSide = Annotated[int, Interval(ge=64, le=4096), MultipleOf(16)]


@dataclass(frozen=True, kw_only=True)
class OcrModel(ModelSection):
    """`model.*` of DeepSeek-OCR. `implementation` says whose code runs a snapshot: its own or ours."""

    implementation: Literal["auto", "remote", "builtin"] = "auto"


@dataclass(frozen=True, kw_only=True)
class OcrInfer(InferSection):
    """`infer.*` of DeepSeek-OCR. The patch and the downsampling are the architecture's own and cannot be changed."""

    prompt: Annotated[str, AfterValidator(_one_image)] = "<image>\n<|grounding|>Convert the document to markdown."
    base_size: PixelSide = 1024
    image_size: PixelSide = 640
    crop_mode: bool = True
    patch_size: Literal[16] = 16
    downsample_ratio: Literal[4] = 4


class DeepseekOcrAdapter:
    """Everything that needs torch is imported when a model is loaded or built."""

    @property
    def config_cls(self) -> type[ModelSection]:
        return OcrModel

    @property
    def infer_cls(self) -> type[InferSection]:
        return OcrInfer

    @property
    def data_kind(self) -> str:
        return "pages"

    def check(self, model: OcrModel) -> tuple[str, ...]:
        problems: tuple[str, ...] = ()
        if model.weights == "snapshot" or model.geometry is None:
            problems = find_config_problems(model.path, example=_EXAMPLE)
        if not problems and model.weights == "snapshot" and model.path is not None:
            problems = find_weight_problems(model.path)
        if problems:
            return problems
        try:
            parse_geometry(self.geometry(model))
        except ConfigError as error:
            return error.problems
        return ()

    def geometry(self, model: OcrModel) -> Mapping[str, Any]:
        reads_path = model.weights == "snapshot" or model.geometry is None
        if reads_path and not find_config_problems(model.path, example=_EXAMPLE) and model.path is not None:
            return geometry_of_snapshot(read_config(model.path), where=str(model.path / CONFIG_FILE))
        if model.geometry is None:
            raise ConfigError(find_config_problems(model.path, example=_EXAMPLE))
        return model.geometry

    def load(self, model: OcrModel, infer: OcrInfer, *, device: str, seed: int) -> LoadedModel:
        problems = self.check(model)
        if problems:
            raise ConfigError(problems)
        from llm_perf_opt.workload.models.deepseek_ocr_load import load_random, load_snapshot

        geometry = parse_geometry(self.geometry(model))
        if model.weights == "snapshot":
            return load_snapshot(model, infer, geometry, device=device)
        return load_random(model, infer, geometry, device=device, seed=seed)

    def build_meta(self, model: OcrModel) -> Any:
        from llm_perf_opt.workload.models.deepseek_ocr_load import build_on_meta

        return build_on_meta(parse_geometry(self.geometry(model)), dtype=model.dtype)


ADAPTER = DeepseekOcrAdapter()
