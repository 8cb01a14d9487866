"""What is optimised: the typed configuration, and what a profile of it found, made now or read from a run."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.config.legacy import override_key
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.manifest import RunManifest, read_manifest
from llm_perf_opt.core.names import BUILT_IN, DIRECT_INFERENCE, MANIFEST_FILE
from llm_perf_opt.diagnosis.facts import RunFacts
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.diagnosis.run import diagnose_run
from llm_perf_opt.errors import CommandFailed, ConfigError
from llm_perf_opt.optimize.experiment_plan import TrialSet
from llm_perf_opt.optimize.recommend import EXPERIMENT, experiment_yaml
from llm_perf_opt.pipeline.compose import (
    COMPOSITION_ERRORS,
    ConfigEntry,
    compose_config,
    explain_composition_error,
    type_config,
)
from llm_perf_opt.pipeline.optimize.workers import ExperimentWorker, ModelWorker, Tick
from llm_perf_opt.pipeline.plan import find_entry_points, load_registry, open_plugin_keys
from llm_perf_opt.pipeline.preflight import workload_problems
from llm_perf_opt.pipeline.resume import KEY as RESUME
from llm_perf_opt.pipeline.resume import resumed_arguments
from llm_perf_opt.profiling.baseline import last_words
from llm_perf_opt.profiling.vendor.launch import quote
from llm_perf_opt.report.run_facts import gather, joined_ncu
from llm_perf_opt.report.run_files import Found, read_run_files
from llm_perf_opt.system.files import real_path, write_whole
from llm_perf_opt.system.process import run_command
from llm_perf_opt.system.redact import Redactor

RUN = "run"
PROFILE_DIR = "profile"
CONF_DIR = "conf"
GROUP = "experiment"
# One clean repeat is enough to rank findings: what is measured later is measured alongside the experiments.
PROFILE_WORDS = ("run.repeats=1",)


@dataclass(frozen=True, kw_only=True)
class OptimizedModel:
    """What is optimised. `overrides` make its configuration; `run_dir` is the run the user named, if any."""

    overrides: tuple[str, ...]
    entry: ConfigEntry
    config: AppConfig
    run_dir: Path | None

    def with_changes(self, changes: Sequence[str]) -> AppConfig:
        """The configuration of an experiment; raises ConfigError where there is none."""
        return _compose([*self.overrides, *(f"++{change}" for change in changes)], self.entry, self.config.user_dir)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a run found, and where it lies."""

    folder: Path
    manifest: RunManifest
    facts: RunFacts
    findings: tuple[Finding, ...]


def read_subject(words: Sequence[str], *, config_dir: Path | None = None) -> OptimizedModel:
    """The words of the command line: overrides, and `run=DIR` for a run that was made."""
    from llm_perf_opt.config.arguments import parse_arguments

    folders = [word.partition("=")[2] for word in words if word.partition("=")[0] == RUN]
    rest = [word for word in words if word.partition("=")[0] != RUN]
    overrides = list(parse_arguments(rest).overrides)
    run_dir = None
    if folders:
        run_dir = real_path(Path(folders[-1].strip("'\"")).expanduser())
        if not (run_dir / MANIFEST_FILE).is_file():
            raise ConfigError(
                f"run: no {MANIFEST_FILE} in it (got {folders[-1]!r}), allowed: the directory of a run "
                "(`llm-perf runs` lists them)"
            )
        overrides = [
            word
            for word in resumed_arguments([*overrides, f'{RESUME}="{run_dir}"'])
            if override_key(word) not in (RESUME, "artifacts.runs_dir", "hydra.run.dir")
        ]
    entry = ConfigEntry(extra_dir=config_dir)
    overrides = open_plugin_keys(overrides, find_entry_points().keys() - set(BUILT_IN))
    config = _compose(overrides, entry, Path.cwd())
    if config.workload.command is not None:
        raise ConfigError(
            f"{RUN if folders else 'workload.command'}: your own program; give it after `--`, with experiments: "
            "llm-perf optimize --experiments FILE -- python my_script.py"
        )
    return OptimizedModel(overrides=tuple(overrides), entry=entry, config=config, run_dir=run_dir)


def make_profile(
    subject: OptimizedModel,
    folder: Path,
    *,
    timeout_s: float,
    tick: Tick,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> Profile:
    """Profile the subject as it is: static analysis and torch.profiler, and whatever else its overrides switch on."""
    flags = [] if subject.entry.extra_dir is None else ["--config-dir", str(subject.entry.extra_dir)]
    argv = [
        *(sys.executable, "-m", "llm_perf_opt.cli", "profile", *flags, *PROFILE_WORDS, *subject.overrides),
        *(f"artifacts.runs_dir={quote(str(folder))}", f"hydra.run.dir={quote(str(folder))}"),
    ]
    # It is this program once more, which keeps secrets from its own children and files.
    env = {**os.environ, **(environment or {})}
    redactor = Redactor.of(os.environ)
    result = run_command(argv, env=env, timeout_s=timeout_s, log=log, on_tick=tick, redactor=redactor)
    if not (folder / MANIFEST_FILE).is_file():
        raise CommandFailed(f"the profile failed: {last_words(result.tail) or 'it printed nothing'}", log=log)
    if result.timed_out:
        raise CommandFailed(f"the profile was not done within {timeout_s:.0f} s; raise --budget", log=log)
    return read_profile(folder)


def read_profile(folder: Path) -> Profile:
    """What the rules find in a run, as its report has it."""
    manifest = read_manifest(folder)
    files = read_run_files(manifest, folder)
    facts = gather(files, joined_ncu(files))
    diagnosis = diagnose_run(
        facts,
        files.capture.content if isinstance(files.capture, Found) else None,
        files.trace.content if isinstance(files.trace, Found) else None,
    )
    return Profile(folder=folder, manifest=manifest, facts=facts, findings=diagnosis.claims)


@dataclass(frozen=True, kw_only=True)
class ModelBench:
    """Our own model: every configuration in its own process that stays alive."""

    subject: OptimizedModel
    redactor: Redactor

    @property
    def title(self) -> str:
        return self.subject.config.model.name

    def open(self, candidate: TrialSet | None, folder: Path, tick: Tick) -> ExperimentWorker:
        config = self.subject.config if candidate is None else self.subject.with_changes(candidate.overrides)
        environment = {} if candidate is None else dict(candidate.environment)
        return ModelWorker(config, folder, environment=environment, redactor=self.redactor, tick=tick)

    def refuse(self, candidate: TrialSet) -> str | None:
        try:
            problems = problems_of(self.subject.with_changes(candidate.overrides))
        except ConfigError as error:
            problems = error.problems
        return f"not possible here: {'; '.join(problems)}" if problems else None

    def look(self, candidate: TrialSet, folder: Path, timeout_s: float, tick: Tick) -> tuple[Finding, ...] | None:
        changed = tuple(f"++{change}" for change in candidate.overrides)
        subject = replace(
            self.subject,
            overrides=(*self.subject.overrides, *changed),
            config=self.subject.with_changes(candidate.overrides),
        )
        log = folder.with_name(f"{folder.name}.log")
        found = make_profile(
            subject, folder, timeout_s=timeout_s, tick=tick, log=log, environment=candidate.environment
        )
        return tuple(f for f in found.findings if f.saves_ms or f.max_gain)

    def recommend(self, candidate: TrialSet, sentence: str, folder: Path) -> tuple[str | None, str]:
        """An experiment for `--config-dir`. One that was chosen already becomes a part of it: Hydra takes one."""
        chosen = [word.partition("=")[2] for word in self.subject.overrides if override_key(word) == GROUP]
        given = self.redactor.words([word for word in self.subject.overrides if override_key(word) != GROUP])
        variables = self.redactor.tree(candidate.environment)
        words = [f"{key}={shlex.quote(value)}" for key, value in variables.items()]
        if not candidate.sets:
            given = self.redactor.words(self.subject.overrides)
            return None, " ".join([*words, "llm-perf", "profile", *map(shlex.quote, given)])
        file = folder / CONF_DIR / GROUP / f"{EXPERIMENT}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = experiment_yaml(candidate, sentence=sentence, parents=chosen)
        write_whole(file, self.redactor.text(text).encode())
        words += ["llm-perf", "profile", "--config-dir", shlex.quote(str(folder / CONF_DIR))]
        command = " ".join([*words, *map(shlex.quote, given), f"{GROUP}={EXPERIMENT}"])
        return file.relative_to(folder).as_posix(), command


def problems_of(config: AppConfig) -> tuple[str, ...]:
    """What keeps a configuration from being run at all."""
    stages = load_registry(find_entry_points(), {DIRECT_INFERENCE}).stages
    return workload_problems(config, [stages[DIRECT_INFERENCE]])


def _compose(overrides: Sequence[str], entry: ConfigEntry, user_dir: Path) -> AppConfig:
    try:
        composed = compose_config(overrides, entry)
    except COMPOSITION_ERRORS as error:
        raise explain_composition_error(error, overrides, user_dir=user_dir, entry=entry) from error
    return type_config(composed, user_dir=user_dir)
