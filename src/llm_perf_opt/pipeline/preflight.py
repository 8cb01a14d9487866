"""Checks the workload's files before any stage starts: a bad path is bad input, not a failed run."""

import shutil
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.stage import Stage, traits_of
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.dataset import TOKENS, list_samples, vocabulary_of
from llm_perf_opt.workload.models.registry import load_adapter


def workload_problems(config: AppConfig, stages: Collection[Stage]) -> tuple[str, ...]:
    """What is wrong with the model's files and the data set, if one of the stages will run the model.

    Static analysis needs the model's geometry alone, and says itself when that is missing.
    """
    if not any(traits_of(stage).runs_model for stage in stages):
        return ()
    if config.workload.command is not None:
        return _program_problems(config.workload.command[0], config.user_dir)
    problems = load_adapter(config.model.adapter).check(config.model)
    return problems or _dataset_problems(config)


def _program_problems(program: str, user_dir: Path) -> tuple[str, ...]:
    """A name is looked for on PATH, a path from where the user stood."""
    found = shutil.which(program if "/" not in program else str(user_dir / program))
    if found is not None:
        return ()
    return (
        f"workload.command.0: no program of this name can be run (got {program!r}), allowed: a program or its path",
    )


def _dataset_problems(config: AppConfig) -> tuple[str, ...]:
    """Listing the samples finds a missing folder, file or entry; made-up ones go to a scratch folder."""
    adapter = load_adapter(config.model.adapter)
    vocabulary = vocabulary_of(adapter.geometry(config.model)) if adapter.data_kind == TOKENS else None
    with TemporaryDirectory(prefix="llm-perf-") as scratch:
        try:
            list_samples(config.dataset, data_kind=adapter.data_kind, vocabulary=vocabulary, scratch_dir=Path(scratch))
        except ConfigError as error:
            return error.problems
    return ()
