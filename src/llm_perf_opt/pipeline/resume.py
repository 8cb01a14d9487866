"""Decides whether a stage's earlier result may be reused."""

import hashlib
import json
from collections.abc import Mapping
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
    old_config: Mapping[str, Any],
    new_config: Mapping[str, Any],
) -> str | None:
    """The reason for running a stage again, or None when its result is reused."""
    if old is None:
        return "it was not run before"
    if old.status != "ok":
        return f"it was {old.status} before"
    if old.fingerprint is None:
        return "the earlier run did not record its settings"
    if any(not file.path.exists() for file in old.files):
        missing = next(file.path.name for file in old.files if not file.path.exists())
        return f"its file {missing} is gone"
    if old.fingerprint.get("tools") != new["tools"]:
        return f"tool versions changed ({old.fingerprint.get('tools')} -> {new['tools']})"
    if old.fingerprint.get("settings") != new["settings"]:
        return f"its settings changed{_changes(old_config, new_config, (f'pipeline.{name}.',))}"
    if old.fingerprint.get("workload") != new["workload"]:
        prefixes = ("run.", "workload.", "dataset.", "model.", "infer.", "hardware.")
        return f"the workload's settings changed{_changes(old_config, new_config, prefixes)}"
    return None


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefixes: tuple[str, ...]) -> str:
    """The keys that differ, named."""
    before, after = _flat(old), _flat(new)
    keys = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    named = [
        f"{k}: {before.get(k)!r} -> {after.get(k)!r}" for k in keys if k.startswith(prefixes) and k != "run.resume"
    ]
    return f" ({'; '.join(named)})" if named else ""


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix[:-1]: value}
    return {k: v for name, item in value.items() for k, v in _flat(item, f"{prefix}{name}.").items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
