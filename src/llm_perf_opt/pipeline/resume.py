"""Decides whether a stage's earlier result may be reused."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from llm_perf_opt.config.schema import AppConfig, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.core.stage import Stage

# Knobs that change how long we wait, not what is measured.
_NOT_SETTINGS = ("enable", "timeout_s")
_RUN_KEYS = ("mode", "device", "repeats", "seed", "env_passthrough")
_PACKAGES = ("torch", "transformers", "llm-perf-opt")
_READS = "reads."
_ABSENT = "absent"
CHANGES_NAMED = 8


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
        """What was asked for and what was there, as part of a fingerprint."""
        return {f"{_READS}{name}": _identity(self._records, name) for name in sorted(self._asked)}


def _identity(records: Mapping[str, StageRecord], name: str) -> str:
    """One attempt at a stage, told from every other one."""
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
        prefixes = ("run.", "workload.", "dataset.", "model.", "infer.", "hardware.")
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
    before, after = _flat(old), _flat(new)
    keys = [k for k in before.keys() | after.keys() if before.get(k) != after.get(k)]
    keys.sort(key=lambda key: (key.startswith("model.geometry."), key))
    named = [
        f"{k}: {before.get(k)!r} -> {after.get(k)!r}"
        for k in keys
        if k.startswith(prefixes) and k != "run.resume" and k.rpartition(".")[2] not in _NOT_SETTINGS
    ]
    rest = [f"and {len(named) - CHANGES_NAMED} more"] if len(named) > CHANGES_NAMED else []
    return f" ({'; '.join([*named[:CHANGES_NAMED], *rest])})" if named else ""


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix[:-1]: value}
    return {k: v for name, item in value.items() for k, v in _flat(item, f"{prefix}{name}.").items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
