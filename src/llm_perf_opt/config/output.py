"""`pipeline.<stage>.output.*`: what a stage that runs the model writes besides its measurements."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from llm_perf_opt.config.schema import FORBID_UNKNOWN


@dataclass(frozen=True, kw_only=True)
class PredictionOutput:
    """`prediction.*`: predictions.jsonl."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    enable: bool = False
    save_dir: str | None = "pred"


@dataclass(frozen=True, kw_only=True)
class VisualizationOutput:
    """`visualization.*`: the gallery."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    enable: bool = True
    save_dir: str | None = "viz"


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """`extra.<family>` holds options of one family of models, checked by `workload.output_options`."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    prediction: PredictionOutput = field(default_factory=PredictionOutput)
    visualization: VisualizationOutput = field(default_factory=VisualizationOutput)
    extra: Mapping[str, Any] = field(default_factory=dict)
