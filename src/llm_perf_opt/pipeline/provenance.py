"""Writes what a run was made with: env.json, config.yaml and inputs.yaml."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.files import read_limited, write_whole
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.process import allowed_environment, run_quick
from llm_perf_opt.core.redact import Redactor, given_secrets
from llm_perf_opt.errors import ManifestError

INPUTS_FILE = "inputs.yaml"
LARGEST_INPUTS = 64 << 20
# Recorded for the reader; narrower than what children get, so that no user's paths are spread without need.
_RECORDED_PREFIXES = ("CUDA", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "KMP_", "TORCH", "PYTORCH", "TRITON_", "SLURM_JOB_ID")


@dataclass(frozen=True, kw_only=True)
class GitState:
    """The commit the user stood on, and whether tracked files differ from it; None: not known."""

    commit: str | None
    changed: bool | None


def describe_environment(host: Host, environ: Mapping[str, str], user_dir: Path) -> dict[str, Any]:
    """What env.json holds. Environment variables come from an allow-list and none that looks like a secret."""
    return {
        "hostname": platform.node(),
        "os": host.os,
        "cpu": host.cpu,
        "cpu_cores": host.cpu_cores,
        "memory_bytes": host.memory_bytes,
        "gpus": [asdict(gpu) for gpu in host.gpus],
        "cuda_driver": host.cuda_driver,
        "python": host.python,
        "packages": host.packages,
        "tools": {name: {"path": tool.path, "version": tool.version} for name, tool in host.tools.items()},
        "git": asdict(_git(user_dir, environ)),
        "variables": {
            name: value
            for name, value in sorted(allowed_environment(environ).items())
            if name.startswith(_RECORDED_PREFIXES)
        },
    }


def write_environment(run_dir: Path, environment: Mapping[str, Any], redactor: Redactor) -> None:
    write_json(run_dir / "env.json", redactor.tree(environment))


def write_config(run_dir: Path, resolved: Mapping[str, Any], redactor: Redactor) -> None:
    write_yaml(run_dir / "config.yaml", redactor.tree(resolved))


def make_redactor(config: AppConfig, environ: Mapping[str, str]) -> Redactor:
    """What must not be written in this run: secrets of the environment, and values the configuration took from it."""
    asked = [_at(config.resolved, key.split(".")) for key in config.from_environment]
    # A folder is no secret, and would be missing in every path below it.
    taken = [value for value in asked if not value.startswith("/")]
    return Redactor.of(environ, more=[*taken, *given_secrets(config.workload.command or ())])


def _at(value: Any, path: Sequence[str]) -> str:
    for part in path:
        value = value[int(part) if isinstance(value, list | tuple) else part]
    return str(value)


def effective_config(config: AppConfig) -> dict[str, Any]:
    """The composed configuration with the values that are in force: `run.mode=light` and others change some.

    What was taken from the environment stands there as it was written.
    """
    resolved = dict(config.resolved)
    sections = {"run": asdict(config.run), "dataset": asdict(config.dataset), "infer": asdict(config.infer)}
    shared = {name: _overlay(resolved.get(name), section) for name, section in sections.items()}
    stages = {
        name: _overlay(section, asdict(config.stages[name])) if name in config.stages else section
        for name, section in resolved["pipeline"].items()
    }
    whole = {**resolved, **shared, "pipeline": stages}
    return {name: _as_written(section, config.from_environment, name) for name, section in whole.items()}


def _as_written(value: Any, texts: Mapping[str, str], key: str) -> Any:
    if key in texts:
        return texts[key]
    if isinstance(value, Mapping):
        return {name: _as_written(item, texts, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_written(item, texts, f"{key}.{index}") for index, item in enumerate(value)]
    return value


def _overlay(written: Any, in_force: Any) -> Any:
    """The keys as written with the values in force, in the words of YAML."""
    if isinstance(written, Mapping) and isinstance(in_force, Mapping):
        return {key: _overlay(value, in_force[key]) if key in in_force else value for key, value in written.items()}
    if isinstance(in_force, Mapping) and written is None:
        return {key: _overlay(None, value) for key, value in in_force.items()}
    if isinstance(in_force, tuple | list):
        return [_overlay(None, item) for item in in_force]
    return str(in_force) if isinstance(in_force, Path) else in_force


def recorded_inputs(run_dir: Path) -> list[dict[str, Any]]:
    """The samples an earlier run of this directory used."""
    path = run_dir / INPUTS_FILE
    if not path.exists():
        return []
    try:
        content = yaml.safe_load(read_limited(path, LARGEST_INPUTS))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ManifestError(f"{path}: cannot be read ({str(error).splitlines()[0]}); delete it to go on") from error
    samples = content.get("samples") if isinstance(content, dict) else None
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        raise ManifestError(f"{path}: holds no list of samples; delete it to go on")
    return samples


def write_inputs(run_dir: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    """The samples actually used, with size and hash, each once; without any there is no file."""
    unique = {str(sample.get("sample_id")): dict(sample) for sample in samples}
    if unique:
        write_yaml(run_dir / INPUTS_FILE, {"samples": list(unique.values())})
    else:
        (run_dir / INPUTS_FILE).unlink(missing_ok=True)


def _git(user_dir: Path, environ: Mapping[str, str]) -> GitState:
    """The commit of the working tree the user stood in, and whether it had changes; None outside a checkout."""
    env = allowed_environment(environ)
    code, head = run_quick(["git", "-C", str(user_dir), "rev-parse", "HEAD"], env=env)
    if code != 0:
        return GitState(commit=None, changed=None)
    code, status = run_quick(["git", "-C", str(user_dir), "status", "--porcelain", "--untracked-files=no"], env=env)
    return GitState(commit=head.strip(), changed=bool(status.strip()) if code == 0 else None)


def write_yaml(path: Path, data: Any) -> None:
    """Write plain data through a temporary file and a rename."""
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    write_whole(path, text.encode("utf-8", "backslashreplace"))
