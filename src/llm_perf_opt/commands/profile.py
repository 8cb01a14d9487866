"""Hydra entry of a run: load the configuration, plan, run, report, exit code."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import wrap
from types import FrameType
from typing import TYPE_CHECKING, Any

from llm_perf_opt.commands.entry import LastResort
from llm_perf_opt.commands.report import PAGE, show_page
from llm_perf_opt.commands.run import declares_model
from llm_perf_opt.config.arguments import Arguments, parse_arguments
from llm_perf_opt.core.names import BUILT_IN, MANIFEST_FILE, PLAN_FILE, STAGE_GROUP
from llm_perf_opt.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, ConfigError, ProfilingError, print_error
from llm_perf_opt.system.json_output import (
    JSON,
    asks_for_json,
    print_error_document,
    print_failure,
    print_interrupted,
    print_json,
    text_to_stderr,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from llm_perf_opt.config.schema import AppConfig
    from llm_perf_opt.pipeline.compose import Given

# Flags of Hydra that print text and run nothing.
HYDRA_TEXTS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--shell-completion", "--version")
INFER_OVERRIDES = (
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "pipeline.direct_inference.enable=true",
    "pipeline.direct_inference.output.prediction.enable=true",
)
HELP = """\
llm-perf profile [OVERRIDE ...] [--open] [HYDRA FLAG ...]

Profile a model through the enabled stages: one run directory, one report.

examples:
  llm-perf profile experiment=demo
  llm-perf profile model=llama3_8b dataset=synthetic run.dry_run=true
  llm-perf profile experiment=demo pipeline.nsys.enable=true
  llm-perf profile run.resume=tmp/runs/demo
  llm-perf profile -m model=llama_tiny,qwen3_moe_tiny dataset=synthetic
  llm-perf profile --cfg job experiment=demo

  run.dry_run=true     prints the plan and preflight issues, runs nothing
  run.resume=RUN_DIR   runs only stages that are missing, failed or changed
  model.weights=random real geometry, random weights, no download
  --open               opens the report after the run
  --json               prints the result (docs/schemas/run_result.schema.json)
  -m, --multirun       runs every combination of comma-separated lists;
                       launcher=slurm_h200 or ray sends the jobs there
  --cfg job            prints every key with its value

{stages}
        switch one with pipeline.STAGE.enable=true|false
Groups: model, dataset, hardware, experiment,
        profiling/torch@pipeline.torch_profiler, profiling/nsys@pipeline.nsys,
        profiling/ncu@pipeline.ncu
Hydra's own flags: --hydra-help. Every key: docs/configuration.md.
"""


def help_text() -> str:
    """The help with the stages that are installed, plug-ins included."""
    names = ", ".join(dict.fromkeys((*BUILT_IN, *sorted(point.name for point in entry_points(group=STAGE_GROUP)))))
    return HELP.format(stages="\n".join(wrap(f"Stages: {names};", 80, subsequent_indent=" " * 8)))


def main(argv: Sequence[str], *, implied: Sequence[str] = ()) -> int:
    """Run the orchestrator with Hydra overrides and flags, after those a command stands for; returns the exit code."""
    if "--help" in argv or "-h" in argv:
        print(help_text(), end="")
        return EXIT_OK
    as_json = asks_for_json(argv)
    try:
        arguments = parse_arguments(argv, implied=implied)
        if arguments.notice:
            print(f"INFO: {arguments.notice}", file=sys.stderr)
        return run_hydra(arguments)
    except ProfilingError as error:
        print_error(error)
        if as_json:
            print_failure(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: every process of the run was ended, the manifest is complete", file=sys.stderr)
        if as_json:
            print_interrupted()
        return EXIT_INTERRUPTED


def run_hydra(arguments: Arguments, *, only: tuple[int, ...] | None = None) -> int:
    """Give the arguments to Hydra, and let its errors come back to us instead of being printed.

    `only`: of a sweep that was begun, the jobs to do again.
    """
    _refuse_json_of_hydra(arguments)
    with text_to_stderr(arguments.as_json):
        outcome = _run_hydra(arguments, only)
    if arguments.as_json:
        _print_outcome(outcome)
    return outcome.exit_code


def _refuse_json_of_hydra(arguments: Arguments) -> None:
    """Hydra answers its own flags with text."""
    shown = [flag for flag in arguments.flags if flag.partition("=")[0] in HYDRA_TEXTS]
    if arguments.as_json and shown:
        raise ConfigError(f"{JSON}: has no effect with {shown[0]}, which prints text; leave one of them out")


def _print_outcome(outcome: "HydraOutcome") -> None:
    """A sweep's runs, a dry run's plan, a run's result, or why there is none."""
    if outcome.sweep_dir is not None:
        from llm_perf_opt.commands.sweep import print_sweep

        print_sweep(outcome.sweep_dir)
        return
    (end,) = outcome.ends
    if end.error is not None:
        print_failure(end.error)
    elif end.not_foreseen is not None:
        print_error_document("not_foreseen", [end.not_foreseen], end.exit_code)
    elif end.plan is not None:
        print_json(end.plan)
    else:
        from llm_perf_opt.pipeline.run_result import read_run_result

        print_json(read_run_result(end.run_dir))


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """How one job of Hydra ended; `plan` is that of a dry run."""

    run_dir: Path
    exit_code: int
    plan: Any = None
    error: ProfilingError | None = None
    not_foreseen: str | None = None


@dataclass(frozen=True, kw_only=True)
class HydraOutcome:
    """What a call of Hydra came to; `ends` are those of the jobs that ran in this process."""

    exit_code: int
    ends: tuple[JobEnd, ...]
    sweep_dir: Path | None


def _run_hydra(arguments: Arguments, only: tuple[int, ...] | None) -> HydraOutcome:
    import hydra
    from hydra.core.hydra_config import HydraConfig

    from llm_perf_opt.config.paths import conf_dir
    from llm_perf_opt.pipeline.compose import (
        COMPOSITION_ERRORS,
        CONFIG_NAME,
        ConfigEntry,
        Given,
        explain_composition_error,
        first_bad_job,
        open_known_keys,
        require_values,
    )
    from llm_perf_opt.pipeline.jobs.record import ASKED, Asked
    from llm_perf_opt.pipeline.jobs.states import all_ok
    from llm_perf_opt.pipeline.plan import find_entry_points, open_plugin_keys
    from llm_perf_opt.pipeline.resume import resumed_arguments

    plugins = find_entry_points().keys() - set(BUILT_IN)
    overrides = open_plugin_keys(resumed_arguments([*arguments.implied, *arguments.overrides]), plugins)
    if arguments.config_name is not None:
        overrides = open_known_keys(overrides)
    elif arguments.config_dir is not None:
        # Presets of the user's own may leave out keys of their stage; which keys a model has, its own preset says.
        overrides = open_known_keys(overrides, below="pipeline.")
    given = Given(overrides=arguments.overrides, implied=arguments.implied)
    ends: list[JobEnd] = []
    started: list[str] = []

    def task(cfg: "DictConfig") -> None:
        started.append("job")
        # Hydra prints an exception of a job as a stack trace, so a job reports through its exit code. A launcher may
        # have moved this to another machine, where the exit code is lost: there the run directory says how it ended.
        with LastResort() as last, terminate_like_interrupt():
            ends.append(run_job(cfg, given, opens=arguments.opens))
        if last.caught is not None:
            run_dir = Path(HydraConfig.get().runtime.output_dir)
            ends.append(JobEnd(run_dir=run_dir, exit_code=EXIT_FAILED, not_foreseen=last.caught))
            note_failure(last.caught)

    is_sweep = bool({"-m", "--multirun"} & set(arguments.flags))
    asked = Asked(arguments=(*arguments.flags, *arguments.implied, *arguments.overrides), only=only)
    ASKED.set(asked)
    entry = ConfigEntry(name=arguments.config_name or CONFIG_NAME, extra_dir=arguments.config_dir)
    with _arguments([*arguments.flags, *overrides]), terminate_like_interrupt():
        try:
            require_values(overrides, entry)
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=CONFIG_NAME)(task)()
        except COMPOSITION_ERRORS as error:
            job_overrides = first_bad_job(overrides, entry) if is_sweep else overrides
            raise explain_composition_error(error, job_overrides, user_dir=Path.cwd(), entry=entry) from error
        except OSError as error:
            if started:
                raise
            raise ConfigError(
                f"the run directory cannot be made: {error.filename or ''} ({error.strerror or error}); set "
                "artifacts.runs_dir or hydra.run.dir to a place you may write to"
            ) from error
    codes = [end.exit_code for end in ends]
    return HydraOutcome(
        exit_code=max([*codes, EXIT_OK if all_ok(asked.begun) else EXIT_FAILED]),
        ends=tuple(ends),
        sweep_dir=asked.begun[0] if asked.begun else None,
    )


def note_failure(text: str) -> None:
    """Leave the reason of a job that ended before it had a manifest where the states of a sweep are read."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from llm_perf_opt.pipeline.jobs.record import ERROR_FILE
    from llm_perf_opt.system.redact import Redactor

    hydra_config = HydraConfig.get()
    if hydra_config.mode == RunMode.MULTIRUN:
        path = Path(hydra_config.runtime.output_dir, ERROR_FILE)
        path.write_text(Redactor.of(os.environ).text(text) + "\n", encoding="utf-8", errors="backslashreplace")


def run_job(cfg: "DictConfig", given: "Given", *, opens: bool = False) -> JobEnd:
    """One job of Hydra: everything from the composed configuration to the reports."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from llm_perf_opt.pipeline.compose import translate_files, type_config
    from llm_perf_opt.pipeline.job import Job
    from llm_perf_opt.pipeline.resume import refuse_foreign
    from llm_perf_opt.system.lock import locked

    hydra_config = HydraConfig.get()
    run_dir = Path(hydra_config.runtime.output_dir)
    overrides = tuple(str(o) for o in hydra_config.overrides.task)
    is_sweep = hydra_config.mode == RunMode.MULTIRUN
    plan: Any = None
    failure: ProfilingError | None = None
    try:
        # A sweep and a run that is resumed have a directory of ours.
        if not is_sweep and cfg.run.get("resume") is None:
            refuse_foreign(run_dir)
        with locked(run_dir, partial(print, file=sys.stderr)) as lock:
            cfg, notice = translate_files(cfg, given)
            if notice:
                print(f"INFO: {notice}", file=sys.stderr)
            config = _with_declared_model(type_config(cfg, user_dir=Path(hydra_config.runtime.cwd)), overrides)
            if is_sweep and (run_dir / MANIFEST_FILE).exists():
                # A job of a sweep that is done again, by `sweep resume` or by a scheduler that put it back.
                config = replace(config, run=replace(config.run, resume=run_dir))
            job = Job.prepare(config, run_dir, overrides, created_at=datetime.now(UTC), free_room=lock.free_room)
            if config.run.dry_run:
                # The states of a sweep's jobs are read from their directories.
                shown = job.show(run_dir / PLAN_FILE if is_sweep else config.run.plan_file)
                code, plan = shown.exit_code, shown.document
            else:
                code = job.run()
        page = run_dir / PAGE
        if opens and page.is_file():
            show_page(page)
    except ProfilingError as error:
        print_error(error)
        code, failure = error.exit_code, error
        if not (run_dir / MANIFEST_FILE).exists():
            note_failure(str(error))
    _remove_if_empty(run_dir)
    if cfg.run.get("dry_run") and not is_sweep:
        _remove_empty_parents(run_dir, Path(hydra_config.runtime.cwd))
    return JobEnd(run_dir=run_dir, exit_code=code, plan=plan, error=failure)


def _with_declared_model(config: "AppConfig", overrides: Sequence[str]) -> "AppConfig":
    """A command line that names a model says which one the program of `workload.command` runs."""
    if config.workload.command is None or config.workload.declares_model is not None:
        return config
    return replace(config, workload=replace(config.workload, declares_model=declares_model(overrides)))


def _remove_if_empty(run_dir: Path) -> None:
    """Bad input leaves nothing behind."""
    if run_dir.is_dir() and not any(run_dir.iterdir()):
        os.chdir(run_dir.parent)
        run_dir.rmdir()


def _remove_empty_parents(run_dir: Path, user_dir: Path) -> None:
    """A dry run leaves none of the directories that Hydra made for it below the one the user is in."""
    for folder in run_dir.parents:
        if run_dir.exists() or user_dir not in folder.parents or any(folder.iterdir()):
            return
        os.chdir(folder.parent)
        folder.rmdir()


@contextmanager
def _arguments(argv: Sequence[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and prints errors itself unless HYDRA_FULL_ERROR is set."""
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["llm-perf profile", *argv]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with warnings.catch_warnings():
            # It warns of what it raises a moment later, and then we say it in one line.
            warnings.filterwarnings("ignore", category=UserWarning, module="hydra")
            yield
    finally:
        sys.argv = before
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]


@contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM (a batch system's notice) and SIGHUP (a lost terminal) end a run as cleanly as Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Only the main thread may say what a signal does.
    may = threading.current_thread() is threading.main_thread()
    handled = [n for n in (signal.SIGTERM, signal.SIGHUP) if may and signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
