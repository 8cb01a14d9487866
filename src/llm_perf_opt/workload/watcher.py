"""A watcher: code of a stage inside the process that runs our model, notified of what happens there.

A stage names its watcher in `run_workload(watcher="package.module:Class")`; the child imports it here. Without one the
workload has a watcher that does nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.models.base import LoadedModel
from llm_perf_opt.workload.nvtx import RangeEmitter

WATCHER = "LLM_PERF_WATCHER"
WATCHER_SETTINGS = "LLM_PERF_WATCHER_SETTINGS"
WATCHER_DIR = "LLM_PERF_WATCHER_DIR"


class WorkloadWatcher:
    """Base of all watchers: every method does nothing. `folder` is the stage's own, `settings` what it passed.

    The workload runs inside it as a context manager, which passes it the error that ended the workload, and then closes
    it.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self.settings = settings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                self.failed(error)
        finally:
            self.close()

    def before_load(self, device: str) -> None:
        """The model is about to be loaded on this torch device; torch is imported."""

    def loaded(self, model: LoadedModel) -> LoadedModel:
        """The model is in memory. What is returned is run: the model itself, or something around it."""
        return model

    def began(self, name: str) -> None:
        """A range opens: `warmup`, `prefill`, `decode`, `decode_step`, or a part of the model's own."""

    def ended(self, name: str) -> None:
        """A range has closed."""

    def failed(self, error: BaseException) -> None:
        """Loading failed, or a sample; nothing has been given back yet. The run may continue with other samples."""

    def close(self) -> None:
        """The workload is done, well or not. Called once, last."""


def open_watcher(environ: Mapping[str, str]) -> WorkloadWatcher | None:
    """The watcher a stage asked for, or None."""
    place = environ.get(WATCHER)
    if not place:
        return None
    module, _, name = place.partition(":")
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{WATCHER}: {place!r} cannot be imported ({error}), allowed: package.module:Class"
        ) from error
    watcher = kind(Path(environ[WATCHER_DIR]), json.loads(environ.get(WATCHER_SETTINGS, "{}")))
    if not isinstance(watcher, WorkloadWatcher):
        raise ConfigError(f"{WATCHER}: {place!r} is not a WorkloadWatcher")
    return watcher


def watched(ranges: RangeEmitter, watcher: WorkloadWatcher) -> RangeEmitter:
    """The same ranges, with a notification of the watcher for each."""
    opened: list[str] = []

    def push(name: str) -> None:
        watcher.began(name)
        opened.append(name)
        ranges.push(name)

    def pop() -> None:
        ranges.pop()
        watcher.ended(opened.pop())

    return replace(ranges, push=push, pop=pop)
