"""Hydra's own sweeper, with a record: what is to be done is written down first, and done jobs are left alone.

To be imported after Hydra has looked for its plug-ins: it loads the module of the class extended here again.
"""

import os
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from llm_perf_opt.pipeline.jobs.launchers import PLUGINS, REPLACED, waiting_launcher
from llm_perf_opt.pipeline.jobs.record import (
    ASKED,
    ERROR_FILE,
    Asked,
    JobEntry,
    JobsDocument,
    now,
    read_jobs,
    write_jobs,
)
from llm_perf_opt.pipeline.jobs.states import job_states
from llm_perf_opt.system.redact import Redactor

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


class JobSweeper(BasicSweeper):
    """Every combination is one job with a number, which is the name of its directory."""

    __module__ = PLUGINS

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None and self.hydra_context is not None and self.launcher is not None
        asked = ASKED.get()
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        ((*batch,),) = self.split_arguments(overrides, None)
        # Every job must compose before one of them starts: what is misspelt is reported now, not by job 17.
        self.validate_batch_is_legal(batch)
        sweep_dir = Path(str(self.config.hydra.sweep.dir))
        sweep_dir.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, sweep_dir / "multirun.yaml")
        asked.begun.append(sweep_dir)
        document = self._document(sweep_dir, batch, asked)
        only = asked.only
        todo = [job for job in document.jobs if only is None or job.number in only]
        size = self.max_batch_size or len(todo)
        done = [
            self._launch(sweep_dir, todo[start : start + size], batch, is_retry=False)
            for start in range(0, len(todo), size)
        ]
        return [result for results in done for result in results]

    def _launch(self, sweep_dir: Path, jobs: list[JobEntry], batch: list[list[str]], *, is_retry: bool) -> list[Any]:
        assert self.launcher is not None
        _mark_submitted(sweep_dir, jobs)
        given = [[*batch[job.number], f"hydra.sweep.subdir={job.folder}"] for job in jobs]
        try:
            return list(self.launcher.launch(given, initial_job_idx=jobs[0].number))
        except BrokenExecutor as error:
            # One worker of the pool died and took the others with it; what they had not finished is done once more.
            left = [] if is_retry else _unfinished(sweep_dir, jobs)
            print(f"a worker died ({' '.join(str(error).split())[:200]}); jobs done once more: {len(left)}")
            return self._launch(sweep_dir, left, batch, is_retry=True) if left else []

    def _document(self, sweep_dir: Path, batch: list[list[str]], asked: Asked) -> JobsDocument:
        assert self.config is not None
        before = read_jobs(sweep_dir)
        if before is not None:
            return before
        redactor = Redactor.of(os.environ)
        document = JobsDocument(
            created_at=now(),
            launcher=str(self.config.hydra.runtime.choices["hydra/launcher"]),
            arguments=redactor.words(asked.arguments),
            user_dir=str(self.config.hydra.runtime.cwd),
            jobs=tuple(
                JobEntry(number=number, folder=str(number), overrides=redactor.words(overrides))
                for number, overrides in enumerate(batch)
            ),
        )
        write_jobs(sweep_dir, document)
        return document


def _mark_submitted(sweep_dir: Path, jobs: list[JobEntry]) -> None:
    document = read_jobs(sweep_dir)
    assert document is not None
    for job in jobs:
        (sweep_dir / job.folder / ERROR_FILE).unlink(missing_ok=True)
    moment = now()
    write_jobs(
        sweep_dir,
        document.with_jobs([replace(job, submitted_at=moment, scheduler_id=None) for job in jobs]),
    )


def _unfinished(sweep_dir: Path, jobs: list[JobEntry]) -> list[JobEntry]:
    """Those of the jobs whose run did not come to its own end."""
    document = read_jobs(sweep_dir)
    assert document is not None
    mine = {job.number for job in jobs}
    ended = {s.number for s in job_states(sweep_dir, document) if s.state == "ok" or (s.state == "failed" and s.is_own)}
    return [job for job in document.jobs if job.number in mine - ended]


def use_our_jobs(config: DictConfig, set_value: Any) -> None:
    """Put our sweeper and launchers in the place of those they extend; others stay as they are."""
    Plugins.instance().register(JobSweeper)
    if config.hydra.sweeper._target_ == BASIC:
        set_value(config, "hydra.sweeper._target_", f"{PLUGINS}.{JobSweeper.__name__}")
    name = REPLACED.get(config.hydra.launcher._target_)
    if name is not None:
        set_value(config, "hydra.launcher._target_", f"{PLUGINS}.{waiting_launcher(name).__name__}")
