"""Typed model and inference sections composed from conf/, as a run would have them, for tests."""

from pathlib import Path
from typing import Any

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.workload.models.base import ModelAdapter
from llm_perf_opt.workload.models.registry import load_adapter


def compose_preset(*overrides: str) -> AppConfig:
    """The typed configuration of a run with these overrides."""
    return type_config(compose_config(list(overrides)), user_dir=Path.cwd())


def adapter_of(config: AppConfig) -> ModelAdapter:
    """The adapter the configuration names."""
    return load_adapter(config.model.adapter)


def load_preset(*overrides: str, seed: int = 0) -> Any:
    """A model on the CPU in float32 by default."""
    config = compose_preset(*overrides)
    return adapter_of(config).load(config.model, config.infer, device="cpu", seed=seed)
