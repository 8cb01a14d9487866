"""For tests of a stage, ours or a plug-in's: the context a stage runs in, without a pipeline around it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_perf_opt.config.schema import (
    AppConfig,
    ArtifactsSection,
    DatasetSection,
    HardwareSection,
    InferSection,
    ModelSection,
    RunSection,
    WorkloadSection,
)
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.process import allowed_environment
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.pipeline.console import PlainConsole
from llm_perf_opt.pipeline.context import Commands
from llm_perf_opt.profiling.artifacts import Artifacts


def plain_host(**changes: Any) -> Host:
    """A machine with two cores, torch, no GPU and no vendor tool; `changes` replace single facts of it."""
    host = Host(
        os="Linux",
        cpu="a CPU",
        cpu_cores=2,
        memory_bytes=8 << 30,
        python="3.11",
        packages={"torch": "2.13"},
        gpus=(),
        cuda_driver=None,
        tools={},
        counters_restricted=None,
        disk_free_bytes=1 << 40,
    )
    return replace(host, **changes)


def plain_config(folder: Path, **changes: Any) -> AppConfig:
    """The smallest configuration of a run that is written under `folder`; `changes` replace whole sections of it."""
    config = AppConfig(
        run=RunSection(),
        artifacts=ArtifactsSection(runs_dir=folder),
        workload=WorkloadSection(),
        dataset=DatasetSection(kind="synthetic"),
        model=ModelSection(name="none", adapter="none:NONE"),
        infer=InferSection(),
        hardware=HardwareSection(),
        stages={},
        resolved={},
        user_dir=folder,
    )
    return replace(config, **changes)


def scratch_context(
    stage: str,
    run_dir: Path,
    *,
    config: AppConfig | None = None,
    host: Host | None = None,
    env: Mapping[str, str] | None = None,
    earlier: Mapping[str, StageRecord] | None = None,
    said: list[str] | None = None,
) -> StageContext:
    """What a stage of this name may touch, under `run_dir`: its directories are made, its commands really run.

    Commands see `env` besides what they see in a run; what the stage says is appended to `said`.
    """
    artifacts = Artifacts.for_run(run_dir)
    console = _Listener([] if said is None else said)
    commands = Commands(
        stage=stage,
        out_dir=artifacts.out_dir(stage),
        tmp_dir=artifacts.tmp_dir(stage),
        environment={**allowed_environment(os.environ), **(env or {})},
        console=console,
        records=[],
    )
    return StageContext(
        config=config or plain_config(artifacts.root),
        host=host or plain_host(),
        run_dir=artifacts.root,
        out_dir=commands.out_dir,
        tmp_dir=commands.tmp_dir,
        workload_dir=artifacts.tmp_dir("workload"),
        run_command=commands,
        earlier=earlier or {},
        say=console.say,
    )


class _Listener(PlainConsole):
    """Keeps what is said instead of printing it."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def say(self, text: str) -> None:
        self._said.append(text)
