"""For tests of a stage, ours or a plug-in's: the context a stage runs in, and what the pipeline relies on.

The only module that imports pytest; nothing else of the package imports this one.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_perf_opt.config.schema import (
    AppConfig,
    ArtifactsSection,
    DatasetSection,
    HardwareSection,
    InferSection,
    ModelSection,
    RunSection,
    StageConfig,
    WorkloadSection,
)
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import RunManifest, read_manifest, write_manifest
from llm_perf_opt.core.records import StageOutput, StageRecord, StageTraits
from llm_perf_opt.core.stage import CommandRunner, Obstacle, Stage, StageContext, traits_of
from llm_perf_opt.errors import ProfilingError, StageSkipped
from llm_perf_opt.pipeline.console import PlainConsole
from llm_perf_opt.profiling.artifacts import Artifacts
from llm_perf_opt.system.process import allowed_environment

# In the environment of all that a case starts.
MARK = "LLM_PERF_CONTRACT"


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
    commands = CommandRunner(
        stage=stage,
        out_dir=artifacts.made(stage),
        tmp_dir=artifacts.made(f"tmp/{stage}"),
        environment={**allowed_environment(os.environ), **(env or {})},
        on_tick=console.tick,
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
    """Keeps what is reported instead of printing it."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self._said = said

    def say(self, text: str) -> None:
        self._said.append(text)


@dataclass(frozen=True, kw_only=True)
class StageCase:
    """One run of a stage: its own settings, and what it finds around it. What is left out is plain.

    `written_by_others` are files and folders that programs of the case write, a stand-in's record of its calls say.
    """

    settings: StageConfig
    config: AppConfig | None = None
    host: Host | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    earlier: Mapping[str, StageRecord] = field(default_factory=dict)
    written_by_others: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a stage ended: with an output or an error, what it changed elsewhere, and how many processes it left."""

    context: StageContext
    output: StageOutput | None
    error: ProfilingError | None
    changed_elsewhere: tuple[str, ...]
    left_running: int


def run_case(stage: Stage, make: Callable[[Path], StageCase | None], folder: Path) -> Ending:
    """Run one case of a stage in an empty folder and see how it ended; a stage without such a case skips the test."""
    for name in ("case", "cwd"):
        (folder / name).mkdir()
    case = make(folder / "case")
    if case is None:
        pytest.skip(f"{stage.name} has no such case")
    context = scratch_context(
        stage.name,
        folder / "run",
        config=case.config,
        host=case.host,
        env={"XDG_CACHE_HOME": str(folder / "cache"), **case.env, MARK: str(folder)},
        earlier=case.earlier,
    )
    own = (context.out_dir, context.tmp_dir, context.workload_dir, folder / "cache", *case.written_by_others)
    before = _stamps(folder, own)
    output, error = None, None
    with chdir(folder / "cwd"), pytest.MonkeyPatch.context() as patch:
        # Also for what the stage starts without `run_command`.
        patch.setenv(MARK, str(folder))
        try:
            output = stage.run(case.settings, context)
        except ProfilingError as raised:
            error = raised
    after = _stamps(folder, own)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return Ending(
        context=context,
        output=output,
        error=error,
        changed_elsewhere=tuple(changed),
        left_running=_running_of(folder),
    )


def _stamps(folder: Path, without: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """Size and time of every file under a folder but those in the directories left out."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not any(path.is_relative_to(place) for place in without):
            status = path.stat()
            found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
    return found


def _running_of(folder: Path) -> int:
    """How many processes the run in this folder has left, whoever their parent is by now."""
    found = 0
    for process in psutil.process_iter():
        try:
            found += process.pid != os.getpid() and process.environ().get(MARK) == str(folder)
        except psutil.Error:
            continue
    return found


class StageContract:
    """What the pipeline relies on in every stage.

    Subclass it as `Test...`, set `stage`, and return a case from each of the four methods below. Where a stage has no
    such case (it starts no program, so nothing can time out), return None: the test is skipped.
    """

    # A `Stage`; a plug-in may leave out traits that are False.
    stage: Any

    def success(self, folder: Path) -> StageCase:
        """The stage does its work. `folder` is empty, outside the run, and the case's to fill."""
        raise NotImplementedError

    def failure(self, folder: Path) -> StageCase | None:
        """Something the stage needs goes wrong."""
        raise NotImplementedError

    def skip(self, folder: Path) -> StageCase | None:
        """There is nothing to do."""
        raise NotImplementedError

    def timeout(self, folder: Path) -> StageCase | None:
        """What the stage starts takes longer than `settings.timeout_s`; a few tenths of a second are enough."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def done(cls, tmp_path_factory: pytest.TempPathFactory) -> Ending:
        """The successful run, made once for all tests that look at it."""
        return run_case(cls.stage, cls().success, tmp_path_factory.mktemp("done"))

    def test_it_declares_what_the_pipeline_asks(self) -> None:
        stage = self.stage
        assert stage.name.isidentifier(), f"{stage.name!r} becomes a directory and a configuration key"
        assert isinstance(stage.after, tuple) and stage.name not in stage.after
        assert isinstance(stage.tools, tuple) and all(isinstance(tool, str) for tool in stage.tools)
        assert traits_of(stage) == StageTraits(**{t.name: getattr(stage, t.name, False) for t in fields(StageTraits)})

    def test_its_settings_are_frozen_off_by_default_and_have_a_light_form(self) -> None:
        settings = self.stage.config_cls()
        assert isinstance(settings, StageConfig) and is_dataclass(settings)
        with pytest.raises(FrozenInstanceError):
            setattr(settings, fields(settings)[0].name, True)
        assert settings.enable is False, "a stage runs when it is requested"
        assert type(settings.light()) is type(settings)

    def test_the_settings_of_a_success_break_no_rule(self, tmp_path: Path) -> None:
        assert self.success(tmp_path).settings.problems() == ()

    def test_preflight_names_each_obstacle_and_its_remedy(self, tmp_path: Path) -> None:
        case = self.success(tmp_path)
        bare = plain_host(packages={})
        for host in (case.host or plain_host(), bare):
            obstacles = self.stage.preflight(case.settings, host)
            assert all(isinstance(o, Obstacle) and o.what and o.remedy for o in obstacles), list(obstacles)
        blocking = [o for o in self.stage.preflight(case.settings, case.host or plain_host()) if o.blocking]
        assert blocking == [], "the machine of the success is fit for it"

    def test_a_success_claims_no_status(self, done: Ending) -> None:
        assert done.error is None, f"failed: {done.error}"
        assert type(done.output) is StageOutput, "the pipeline alone says how a stage ended and how long it took"

    def test_a_success_reports_files_that_are_there_and_its_own(self, done: Ending) -> None:
        files = [] if done.output is None else [f.path for f in done.output.files]
        places = (done.context.out_dir, done.context.workload_dir)
        assert [p for p in files if not any(p.is_relative_to(place) for place in places)] == []
        assert [p for p in files if not p.exists()] == []

    def test_every_figure_names_a_file_it_can_be_checked_against(self, done: Ending) -> None:
        metrics = {} if done.output is None else done.output.metrics
        sources = {name: metric.source for name, metric in metrics.items() if metric.source is not None}
        assert {n: s for n, s in sources.items() if not (done.context.run_dir / s).exists()} == {}
        assert [n for n, m in metrics.items() if not m.how] == [], "how says how the number was obtained"

    def test_a_success_survives_the_manifest(self, done: Ending, tmp_path: Path) -> None:
        assert done.output is not None
        shared = {f.name for f in fields(StageOutput)} & {f.name for f in fields(StageRecord)}
        record = StageRecord(name=self.stage.name, status="ok", **{n: getattr(done.output, n) for n in shared})
        manifest = RunManifest(
            run_id="contract", created_at="", status="ok", config={}, environment={}, stages=(record,)
        )
        write_manifest(done.context.run_dir, manifest)
        read = read_manifest(done.context.run_dir).stages[0]
        (done.context.run_dir / "manifest.json").unlink()
        assert read == record

    def test_a_success_writes_only_in_its_own_directories(self, done: Ending) -> None:
        assert done.changed_elsewhere == ()

    def test_a_success_leaves_no_process_behind(self, done: Ending) -> None:
        assert done.left_running == 0

    def test_a_failure_is_an_error_in_words(self, tmp_path: Path) -> None:
        self._assert_failed(run_case(self.stage, self.failure, tmp_path))

    def test_a_skip_says_why(self, tmp_path: Path) -> None:
        ending = run_case(self.stage, self.skip, tmp_path)
        assert ending.output is None and isinstance(ending.error, StageSkipped) and str(ending.error)
        assert (ending.changed_elsewhere, ending.left_running) == ((), 0)

    def test_a_timeout_ends_all_that_was_started_and_names_its_key(self, tmp_path: Path) -> None:
        ending = run_case(self.stage, self.timeout, tmp_path)
        self._assert_failed(ending)
        assert f"pipeline.{self.stage.name}.timeout_s" in str(ending.error)

    def _assert_failed(self, ending: Ending) -> None:
        assert ending.output is None, "a stage that failed raises; a returned value counts as a success"
        assert ending.error is not None and not isinstance(ending.error, StageSkipped) and str(ending.error)
        assert (ending.changed_elsewhere, ending.left_running) == ((), 0)
