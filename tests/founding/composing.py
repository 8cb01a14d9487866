"""What a command line composes to, without starting a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.config.arguments import parse_arguments
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.pipeline.compose import ConfigEntry, Given, compose_config, translate_files, type_config

TINY = ("model=deepseek_ocr_tiny", "dataset=synthetic")
HOME = Path("/home/me")


def typed(*argv: str, implied: Sequence[str] = (), config_dir: Path | None = None) -> AppConfig:
    """The configuration of this command line, as the orchestrator reads it."""
    arguments = parse_arguments(argv, implied=implied)
    entry = ConfigEntry(name=arguments.config_name or "config", extra_dir=config_dir)
    composed = compose_config([*arguments.implied, *arguments.overrides], entry)
    given = Given(overrides=arguments.overrides, implied=arguments.implied)
    return type_config(translate_files(composed, given)[0], user_dir=HOME)


def stage(config: AppConfig, name: str) -> Any:
    return config.stages[name]


def write(folder: Path, name: str, text: str) -> Path:
    """A YAML file below a config directory of the user's own; returns that directory."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return folder
