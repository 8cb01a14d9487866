"""The models a prediction is of: presets and files, their configuration, and their parts or what has to be counted."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from llm_perf_opt.config.load import load_config
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.families.wrapped import is_wrapped, longest_context, text_fields
from llm_perf_opt.model.static.config_json import Fields, NotADecoder, NotInClosedForm, read_config_json
from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.planning.counted_rows import MetaModel
from llm_perf_opt.planning.predict_request import Request
from llm_perf_opt.planning.source import fetch_config, find_config
from llm_perf_opt.planning.vision_params import Beside, count_beside
from llm_perf_opt.workload.dataset import PAGES
from llm_perf_opt.workload.models.base import ModelAdapter
from llm_perf_opt.workload.models.registry import load_adapter


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model to predict: its configuration, where that was read, and its parts or what has to be counted."""

    label: str
    config: AppConfig
    adapter: ModelAdapter
    geometry: Any
    where: str
    model: Model | MetaModel
    beside: Beside

    @property
    def text(self) -> Fields:
        """The fields of the text model, which a wrapper has inside."""
        return text_fields(self.geometry, self.where)

    @property
    def longest(self) -> int | None:
        return longest_context(self.text)


def subjects(request: Request) -> Iterator[Subject]:
    """The presets asked for, and the model in each path: read by the preset named, or by the one that knows it."""
    paths = [find_config(path) or fetch_config(path, os.environ) for path in request.paths]
    if not paths:
        for name in request.models or ("deepseek_ocr",):
            yield _subject(name, None, request)
    for path in paths:
        data = read_config_json(path)
        has_towers = {"language_config", "vision_config"} <= set(data)
        for name in request.models or (("deepseek_ocr",) if has_towers else ("causal_lm",)):
            yield _subject(name, path, request)


def _subject(name: str, path: Path | None, request: Request) -> Subject:
    plain = tuple(o for o in request.overrides if o not in request.hardware_overrides)
    folder = () if path is None else (f"model.path={json.dumps(str(path.parent))}",)
    config = compose_without_stages([f"model={name}", *folder, *plain])
    geometry, where = _geometry(config, path)
    adapter = load_adapter(config.model.adapter)
    model: Model | MetaModel
    try:
        model = adapter.parts(geometry, where=where)
    except NotADecoder:
        raise
    except NotInClosedForm as error:
        model = MetaModel(adapter, config.model, text_fields(geometry, where).data, error.what)
    is_text = adapter.data_kind != PAGES
    beside = count_beside(geometry, where=where) if is_text and is_wrapped(geometry) else Beside()
    if isinstance(model, Model):
        model = replace(model, beside=tuple(beside.params.items()))
    label = config.model.name
    if path is not None:
        label = path.parent.name if path.name == "config.json" else path.stem
    return Subject(
        label=label, config=config, adapter=adapter, geometry=geometry, where=where, model=model, beside=beside
    )


def compose_without_stages(overrides: Sequence[str]) -> AppConfig:
    """The typed configuration without the stages: predict runs none."""
    from llm_perf_opt.pipeline.compose import COMPOSITION_ERRORS, compose_config, explain_composition_error

    try:
        composed = compose_config(overrides)
    except COMPOSITION_ERRORS as error:
        raise explain_composition_error(error, overrides, user_dir=Path.cwd()) from error
    plain = OmegaConf.masked_copy(composed, [str(k) for k in composed if k not in ("hydra", "pipeline")])
    adapter = load_adapter(str(composed.model.adapter))
    return load_config(
        plain,
        user_dir=Path.cwd(),
        stage_classes={},
        known_stages=(),
        model_cls=adapter.config_cls,
        infer_cls=adapter.infer_cls,
    )


def _geometry(config: AppConfig, path: Path | None) -> tuple[Any, str]:
    """The model's configuration and where it was read: its file if it is there, else the preset."""
    model = config.model
    if path is not None and path.name != "config.json":
        return read_config_json(path), str(path)
    if model.path is not None and (path is not None or (model.path / "config.json").is_file()):
        data = read_config_json(model.path)
        adapter = load_adapter(model.adapter)
        found = adapter.geometry(replace(model, weights="snapshot"))
        if "quantization_config" in data and isinstance(found, Mapping):
            # It may be in its own file alongside config.json.
            found = {**found, "quantization_config": data["quantization_config"]}
        return found, str(model.path / "config.json")
    if model.geometry is None:
        raise ConfigError(
            "model.path: missing, give the folder of a Hugging Face model, or a preset as model=llama3_8b"
        )
    return model.geometry, "model.geometry"
