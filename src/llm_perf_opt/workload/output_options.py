"""`output.extra.<model>.*`: options of predictions and gallery that belong to a model, checked before a run starts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from llm_perf_opt.config.load import validate
from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import FORBID_UNKNOWN, PositiveInt, Problem
from llm_perf_opt.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PredictionOptions:
    """`prediction.*`: whether `text_clean` goes without the model's special tokens."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    strip_special_tokens: bool = False


@dataclass(frozen=True, kw_only=True)
class VisualizationOptions:
    """`visualization.*`: how many pages the gallery shows, and how wide."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    max_images: PositiveInt = 16
    thumbnail_width: PositiveInt = 480


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """One model's options."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    prediction: PredictionOptions = field(default_factory=PredictionOptions)
    visualization: VisualizationOptions = field(default_factory=VisualizationOptions)


def output_problems(output: OutputConfig) -> tuple[Problem, ...]:
    """What is wrong below `output.extra`, by keys relative to the stage's section."""
    known = sorted(path.name for path in (conf_dir() / "model").iterdir() if path.is_dir())
    found: list[Problem] = []
    for name, data in output.extra.items():
        key = f"output.extra.{name}"
        if name not in known:
            text = f"unknown key (got {json.dumps(data)}), allowed: a model family ({', '.join(known)})"
            found.append(Problem(key=key, text=text, is_unknown=True))
            continue
        found += validate(OutputOptions, data, key)[1]
    return tuple(found)


def options_for(extra: Mapping[str, Any], adapter: str) -> OutputOptions:
    """The options of the model whose adapter this is (`package.module:NAME`, called by its module's name)."""
    name = adapter.partition(":")[0].rpartition(".")[2]
    if name not in extra:
        return OutputOptions()
    options, problems = validate(OutputOptions, extra[name], f"output.extra.{name}")
    if options is None:
        raise ConfigError([str(problem) for problem in problems])
    return options
