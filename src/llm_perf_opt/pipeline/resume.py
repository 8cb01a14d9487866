"""Decides whether a stage's earlier result may be reused.

Decides which records of the earlier run stay in a resumed one, and says which do not.

Turns `run.resume=<dir>` into the overrides the run was started with, plus the new ones.

Claims a run's directory before Hydra makes it: two runs of one second differ, and a resumed run keeps its own.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from llm_perf_opt.config.legacy import override_key
from llm_perf_opt.config.load import validate
from llm_perf_opt.config.schema import AppConfig, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import LAST_START, RunManifest, RunWarning, left_out, read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE, PLAN_FILE, SYNC_FILE
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.core.stage import Stage
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.provenance import write_yaml
from llm_perf_opt.system.files import odd_entries, real_path
from llm_perf_opt.system.lock import LOCK_FILE, RunInUse, is_locked, release_lock, take_lock
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.secrets.secret_shapes import REDACTED
from llm_perf_opt.system.trust import is_own, recorded_command

# Knobs that change how long we wait, not what is measured.
_NOT_SETTINGS = ("enable", "timeout_s")
_RUN_KEYS = ("mode", "device", "repeats", "seed", "env_passthrough", "ranks", "nodes")
_PACKAGES = ("torch", "transformers", "llm-perf-opt")
_READS = "reads."
_ABSENT = "absent"
CHANGES_NAMED = 8
FILES_NAMED = 3
# What may lie in a directory before its run has a manifest.
OURS = (LOCK_FILE, PLAN_FILE, SYNC_FILE, "logs", ".hydra")


class EarlierRecords(Mapping[str, StageRecord]):
    """The records a stage may read. Remembers which it asked for, because its own result then depends on them."""

    def __init__(self, records: Mapping[str, StageRecord]) -> None:
        self._records = dict(records)
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> StageRecord:
        self._asked.add(name)
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def marks(self) -> dict[str, str]:
        """What was requested and what was there, as part of a fingerprint."""
        return {f"{_READS}{name}": _identity(self._records, name) for name in sorted(self._asked)}


def _identity(records: Mapping[str, StageRecord], name: str) -> str:
    """The identity of one attempt at a stage."""
    if name not in records:
        return _ABSENT
    record = records[name]
    return f"{record.status} {record.started_at} {record.duration_s}"


def fingerprint(stage: Stage, cfg: StageConfig, config: AppConfig, host: Host) -> dict[str, str]:
    """What must be equal for a result to be reused: the stage's settings, the workload's, and the tools' versions."""
    settings = {k: v for k, v in asdict(cfg).items() if k not in _NOT_SETTINGS}
    run = asdict(config.run)
    workload = {
        "run": {key: run[key] for key in _RUN_KEYS},
        **{
            name: asdict(section)
            for name, section in (
                ("workload", config.workload),
                ("dataset", config.dataset),
                ("model", config.model),
                ("infer", config.infer),
                ("hardware", config.hardware),
            )
        },
    }
    versions = {"python": host.python, **{name: str(host.packages.get(name)) for name in _PACKAGES}}
    versions |= {name: str(host.tool(name).version) for name in stage.tools}
    return {
        "settings": _digest(settings),
        "workload": _digest(workload),
        "tools": ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
    }


def why_run(
    name: str,
    old: StageRecord | None,
    new: Mapping[str, str],
    *,
    earlier: Mapping[str, StageRecord],
    old_config: Mapping[str, Any],
    new_config: Mapping[str, Any],
) -> str | None:
    """The reason for running a stage again, or None when its result is reused. `earlier`: the results before it."""
    if old is None:
        return "it was not run before"
    if old.status != "ok":
        return f"it was {old.status} before"
    if old.fingerprint is None:
        return "the earlier run did not record its settings"
    if any(not file.path.exists() for file in old.files):
        missing = next(file.path.name for file in old.files if not file.path.exists())
        return f"its file {missing} is gone"
    stale = why_stale(name, old.fingerprint, new, old_config=old_config, new_config=new_config)
    return stale or _why_read_again(old.fingerprint, earlier)


def why_stale(
    name: str,
    old: Mapping[str, str],
    new: Mapping[str, str],
    *,
    old_config: Mapping[str, Any],
    new_config: Mapping[str, Any],
) -> str | None:
    """What a result depends on and is not as it was, or None when the result is one of this configuration."""
    if old.get("tools") != new["tools"]:
        return f"tool versions changed ({old.get('tools')} -> {new['tools']})"
    if old.get("settings") != new["settings"]:
        return f"its settings changed{_changes(old_config, new_config, (f'pipeline.{name}.',))}"
    if old.get("workload") != new["workload"]:
        prefixes = (*(f"run.{key}" for key in _RUN_KEYS), "workload.", "dataset.", "model.", "infer.", "hardware.")
        return f"the workload's settings changed{_changes(old_config, new_config, prefixes)}"
    return None


def _why_read_again(old: Mapping[str, str], earlier: Mapping[str, StageRecord]) -> str | None:
    """A stage that used another one's result is run again when that result is another one now."""
    for key, before in old.items():
        name = key.removeprefix(_READS)
        now = _identity(earlier, name)
        if not key.startswith(_READS) or now == before:
            continue
        if before == _ABSENT:
            return f"it reads the result of {name}, which was not there before"
        return f"it reads the result of {name}, which {'is not there now' if now == _ABSENT else 'was run again'}"
    return None


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefixes: tuple[str, ...]) -> str:
    """The keys that differ, named; the many of a model's geometry last."""
    before, after = flat_keys(old), flat_keys(new)
    keys = [k for k in before.keys() | after.keys() if before.get(k) != after.get(k)]
    keys.sort(key=lambda key: (key.startswith("model.geometry."), key))
    named = [
        f"{k}: {before.get(k)!r} -> {after.get(k)!r}"
        for k in keys
        if k.startswith(prefixes) and k.rpartition(".")[2] not in _NOT_SETTINGS
    ]
    if not named:
        return " (this version has a key, or a default, that the one which made the run had not)"
    rest = [f"and {len(named) - CHANGES_NAMED} more"] if len(named) > CHANGES_NAMED else []
    return f" ({'; '.join([*named[:CHANGES_NAMED], *rest])})"


def flat_keys(value: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of a tree of settings by their full keys."""
    if not isinstance(value, Mapping):
        return {prefix[:-1]: value}
    return {k: v for name, item in value.items() for k, v in flat_keys(item, f"{prefix}{name}.").items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What a run starts with. `warnings` name the stages that were left out and why."""

    stages: tuple[StageRecord, ...] = ()
    warnings: tuple[RunWarning, ...] = ()


def carry_over(previous: RunManifest | None, config: AppConfig, stages: Mapping[str, Stage], host: Host) -> Carried:
    """The earlier records that are results of this configuration; those of other settings would mix two runs in one.

    A planned stage reports why it runs again, so only stages that are not enabled now are warned about. Warnings of a
    version that gave them no ids are not repeated: of another version no result stays that they could be about.
    """
    if previous is None:
        return Carried()
    kept: list[StageRecord] = []
    over = {LAST_START, *map(left_out, config.stages)}
    said = [warning for warning in previous.warned if warning.id not in over]
    for record in previous.stages:
        stale = _why_stale(record, previous, config, stages, host)
        if record.name in config.stages:
            kept += [record] if stale is None or record.fingerprint is None else []
            continue
        reason = stale if record.status == "ok" else f"it was {record.status} before and is not enabled now"
        if reason is None:
            kept.append(record)
        else:
            text = f"{record.name}: left out of this run because {reason}; its files stay in {record.name}/"
            said.append(RunWarning(text=text, id=left_out(record.name)))
    return Carried(stages=tuple(kept), warnings=tuple(dict.fromkeys(said)))


def _why_stale(
    record: StageRecord, previous: RunManifest, config: AppConfig, stages: Mapping[str, Stage], host: Host
) -> str | None:
    name = record.name
    if record.fingerprint is None:
        return "the earlier run did not record its settings"
    if name not in stages:
        return "its plug-in cannot be loaded now"
    settings = _settings(stages[name], config)
    if settings is None:
        return f"its present settings are not valid (pipeline.{name})"
    marks = fingerprint(stages[name], settings, config, host)
    return why_stale(name, record.fingerprint, marks, old_config=previous.config, new_config=config.resolved)


def _settings(stage: Stage, config: AppConfig) -> StageConfig | None:
    """A stage's present settings, though it may be disabled; None if they are not valid."""
    if stage.name in config.stages:
        return config.stages[stage.name]
    # The section of a plug-in is there only if the user gave one of its keys.
    section = config.resolved["pipeline"].get(stage.name) or {}
    settings, _ = validate(stage.config_cls, section, f"pipeline.{stage.name}")
    return settings if settings is None or config.run.mode != "light" else settings.light()


KEY = "run.resume"
COULD_NOT_GO_ON, NO_REPORTS = "the run could not continue", "the reports could not be written"
TRUST = "run.trust"


def resumed_arguments(argv: Sequence[str]) -> list[str]:
    """The arguments of the first start with the new ones on top; unchanged when nothing is resumed.

    Relative paths in the recorded overrides were meant from where the user was, so the process goes back there.
    """
    value = next((a.partition("=")[2] for a in argv if override_key(a) == KEY), None)
    if value is None or value in ("null", ""):
        return list(argv)
    run_dir = real_path(Path(value.strip("'\"")).expanduser())
    if not (run_dir / MANIFEST_FILE).exists():
        raise ConfigError(
            f"{KEY}: no {MANIFEST_FILE} in it (got {value!r}), allowed: the directory of a run "
            "(`llm-perf runs` lists them)"
        )
    manifest = read_manifest(run_dir)
    _refuse_strangers(run_dir, manifest, argv)
    new = [a for a in argv if override_key(a) != KEY]
    given = {override_key(a) for a in new}
    old = [o for o in manifest.overrides if override_key(o) not in given | {KEY, TRUST, "run.dry_run"}]
    lost = [override_key(o) for o in old if REDACTED in o]
    if lost:
        raise ConfigError([f"{key}: held a secret, which a run does not record; give it again" for key in lost])
    if manifest.user_dir and Path(manifest.user_dir).is_dir():
        os.chdir(manifest.user_dir)
    return [*old, *new, f'{KEY}="{run_dir}"']


def _refuse_strangers(run_dir: Path, manifest: RunManifest, argv: Sequence[str]) -> None:
    """What a run of another user would execute is shown first; files that lead elsewhere are never written to."""
    odd = list(islice(odd_entries(run_dir), CHANGES_NAMED))
    if odd:
        raise ConfigError([f"{KEY}: {run_dir} holds what no run makes; remove it: {text}" for text in odd])
    trusted = any(override_key(a) == TRUST and a.partition("=")[2].lower() == "true" for a in argv)
    if not trusted and not is_own(manifest, os.environ):
        raise ConfigError(
            f"{KEY}: the run in {run_dir} was not started by you on this machine, or was changed since; resuming it "
            f"would run: {recorded_command(manifest)}; allowed: {TRUST}=true if you trust that"
        )


class ClaimRunDir(Callback):
    """Hydra calls this after composition and before it makes the output directory."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        HydraConfig.instance().set_config(config)  # not done yet, and conf/ refers to hydra.runtime.cwd
        resume = OmegaConf.select(config, "run.resume")
        if resume is not None:
            _set(config, "hydra.run.dir", Path(config.hydra.runtime.cwd) / Path(str(resume)).expanduser())
        elif not _is_chosen_by_user(config):
            _set(config, "hydra.run.dir", claim(Path(str(config.hydra.run.dir))))
        else:
            wanted = Path(config.hydra.runtime.cwd, str(config.hydra.run.dir))
            free = claim_chosen(wanted)
            if free != wanted:
                print(f"{wanted}: another run has just started there; this one goes to {free}", file=sys.stderr)
                _set(config, "hydra.run.dir", free)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        # Only a sweep needs these.
        from llm_perf_opt.pipeline.jobs.record import ASKED
        from llm_perf_opt.pipeline.jobs.sweeper import use_our_jobs

        HydraConfig.instance().set_config(config)
        wanted = Path(config.hydra.runtime.cwd, str(config.hydra.sweep.dir))
        _set(config, "hydra.sweep.dir", wanted if ASKED.get().only is not None else claim(wanted))
        use_our_jobs(config, _set)
        # Held while jobs are launched and waited for; a reader of the states knows from it that a launcher is active.
        take_lock(Path(str(config.hydra.sweep.dir)))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from llm_perf_opt.pipeline.jobs.states import remove_pickles

        # Hydra and submitit wrote the overrides there as they were given.
        sweep_dir = Path(str(config.hydra.sweep.dir))
        release_lock(sweep_dir)
        remove_pickles(sweep_dir)
        written = sweep_dir / "multirun.yaml"
        if written.is_file():
            content = yaml.safe_load(written.read_text(encoding="utf-8"))
            write_yaml(written, Redactor.of(os.environ).tree(content))


def claim(wanted: Path) -> Path:
    """Make this directory, or the first of `wanted-2`, `wanted-3`, … that does not exist yet."""
    path, number = wanted, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = wanted.with_name(f"{wanted.name}-{number}")


def claim_chosen(wanted: Path) -> Path:
    """This directory, locked, or the first free name like it if another run is at work there.

    One that holds a finished run is left to be refused in words.
    """
    path, number = wanted, 1
    while True:
        path.mkdir(parents=True, exist_ok=True)
        try:
            if not (path / MANIFEST_FILE).exists():
                take_lock(path)
            elif path != wanted:
                raise RunInUse(f"{path}: holds a run")
            elif is_locked(path):
                raise RunInUse(f"{path}: a run has just started")
            return path
        except RunInUse:
            number += 1
            path = wanted.with_name(f"{wanted.name}-{number}")


def refuse_foreign(run_dir: Path) -> None:
    """Not into a directory of the user's own: a run writes config.yaml, report.md and more.

    What a run leaves behind that had no manifest yet is not a preflight issue: a plan, a log, or all a killed one
    wrote.
    """
    if (run_dir / MANIFEST_FILE).exists():
        return
    lock = take_lock(run_dir)
    found = sorted(path.name for path in run_dir.iterdir() if path.name not in OURS and path.suffix != ".log")
    if not found or lock.left_by is not None:
        return
    release_lock(run_dir)
    more = f" and {len(found) - FILES_NAMED} more" if len(found) > FILES_NAMED else ""
    raise ConfigError(
        f"artifacts.runs_dir: is not empty and holds no run (got {str(run_dir)!r} with "
        f"{', '.join(found[:FILES_NAMED])}{more}), allowed: a new or an empty directory, such as "
        f"artifacts.runs_dir={run_dir / 'run-1'}"
    )


def _is_chosen_by_user(config: DictConfig) -> bool:
    overrides = [*config.hydra.overrides.task, *config.hydra.overrides.hydra]
    keys = {str(o).lstrip("+").partition("=")[0] for o in overrides}
    return bool(keys & {"artifacts.runs_dir", "hydra.run.dir"})


def _set(config: DictConfig, key: str, path: Path | str) -> None:
    with read_write(config), read_write(config.hydra), open_dict(config):
        OmegaConf.update(config, key, str(path))
        if key == "hydra.run.dir":
            OmegaConf.update(config, "artifacts.runs_dir", str(path))
