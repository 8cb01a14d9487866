"""Checks the workload's files before any stage starts: a bad path is bad input, not a failed run."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.dataset import TOKENS, list_samples, vocabulary_of
from llm_perf_opt.workload.models.registry import load_adapter

# The stages that run the model. Static analysis needs its geometry alone, and says itself when that is missing.
RUN_THE_MODEL = frozenset({"torch_profiler", "direct_inference", "nsys", "ncu"})


def workload_problems(config: AppConfig) -> tuple[str, ...]:
    """What is wrong with the model's files and the data set, if a stage of this run will need them."""
    if not RUN_THE_MODEL & set(config.stages):
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
