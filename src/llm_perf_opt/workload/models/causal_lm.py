"""Adapter of decoder-only `transformers` models, from a local snapshot or with random weights."""

from collections.abc import Mapping
from typing import Any

from llm_perf_opt.config.schema import InferSection, ModelSection
from llm_perf_opt.core.records import begin_step
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.families.known import read_text_model
from llm_perf_opt.model.hardware.work import PagePrompt, Shape
from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.workload.models.base import LoadedModel
from llm_perf_opt.workload.models.meta_run import text_decode, text_prefill
from llm_perf_opt.workload.models.module_groups import group_modules
from llm_perf_opt.workload.models.snapshot import (
    find_config_problems,
    find_size_problems,
    find_weight_problems,
    read_config,
    stored_dtype,
)

_EXAMPLE = "/models/Qwen3-8B"


class CausalLMAdapter:
    """Everything that needs torch is imported when a model is loaded or built."""

    @property
    def config_cls(self) -> type[ModelSection]:
        return ModelSection

    @property
    def infer_cls(self) -> type[InferSection]:
        return InferSection

    @property
    def data_kind(self) -> str:
        return "tokens"

    def check(self, model: ModelSection) -> tuple[str, ...]:
        if model.weights == "snapshot":
            return find_config_problems(model.path, example=_EXAMPLE) or (
                find_weight_problems(model.path) if model.path is not None else ()
            )
        if model.geometry is None:
            return find_config_problems(model.path, example=_EXAMPLE)
        if model.path is not None:
            text = "set model.weights=snapshot to load it, or model.geometry=null to take only its config.json"
            return (f"model.path: given together with model.geometry (got {str(model.path)!r}), {text}",)
        return _geometry_problems(model.geometry)

    def geometry(self, model: ModelSection) -> Mapping[str, Any]:
        reads_path = model.weights == "snapshot" or model.geometry is None
        if reads_path and not find_config_problems(model.path, example=_EXAMPLE) and model.path is not None:
            return read_config(model.path)
        if model.geometry is None:
            raise ConfigError(find_config_problems(model.path, example=_EXAMPLE))
        return model.geometry

    def load(self, model: ModelSection, infer: InferSection, *, device: str, seed: int) -> LoadedModel:
        problems = self.check(model)
        if problems:
            raise ConfigError(problems)
        begin_step("imports")
        from llm_perf_opt.workload.models.causal_lm_torch import load_random, load_snapshot

        begin_step("loading")
        if model.weights == "snapshot":
            return load_snapshot(model, infer, self.geometry(model), device=device)
        return load_random(model, infer, self.geometry(model), device=device, seed=seed)

    def build_meta(self, model: ModelSection) -> Any:
        begin_step("imports")
        from llm_perf_opt.workload.models.causal_lm_torch import build_on_meta

        begin_step("building")
        geometry = self.geometry(model)
        dtype = (stored_dtype(geometry) or "bfloat16") if model.dtype == "auto" else model.dtype
        # Experts as transformers runs them on a device (grouped GEMMs); dense models refuse a choice.
        return build_on_meta(geometry, dtype=dtype, attention=None, experts=None)

    def parts(self, geometry: Mapping[str, Any], *, where: str) -> Model:
        return read_text_model(geometry, where=where)

    def page_prompt(self, geometry: Mapping[str, Any], infer: InferSection, *, width: int, height: int) -> PagePrompt:
        raise ConfigError(f"dataset: a page of {width} × {height} pixels given to a model that reads text")

    def meta_groups(self, module: Any) -> Mapping[str, str]:
        return group_modules(module)

    def meta_prefill(self, module: Any, shape: Shape) -> Any:
        return text_prefill(module, shape)

    def meta_decode(self, module: Any, shape: Shape, state: Any) -> None:
        text_decode(module, shape, state)


def _geometry_problems(geometry: Mapping[str, Any]) -> tuple[str, ...]:
    kind = geometry.get("model_type")
    if isinstance(kind, str) and kind:
        return find_size_problems(geometry, where="model.geometry")
    return (f"model.geometry.model_type: missing (got {kind!r}), set it as in the model's config.json, e.g. llama",)


ADAPTER = CausalLMAdapter()
