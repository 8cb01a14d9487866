"""Writes what a run was made with: env.json, config.yaml and inputs.yaml."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import ManifestError, ProfilingError
from llm_perf_opt.system.files import read_limited, write_whole
from llm_perf_opt.system.process import allowed_environment, run_quick
from llm_perf_opt.system.redact import Redactor, given_secrets
from llm_perf_opt.system.secrets.secret_shapes import is_secret

ENVIRONMENT_FILE, CONFIG_FILE, INPUTS_FILE = "env.json", "config.yaml", "inputs.yaml"
LARGEST_INPUTS = 64 << 20
# What a sample holds; a stage of another user may leave some of it out.
_SAMPLE_VALUES = {"sample_id": str | int, "path": str | None, "size_bytes": int, "sha256": str}
# Recorded for the reader; narrower than what children get, so that no user's paths are spread without need.
_RECORDED_PREFIXES = ("CUDA", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "KMP_", "TORCH", "PYTORCH", "TRITON_", "SLURM_JOB_ID")


@dataclass(frozen=True, kw_only=True)
class GitState:
    """The commit the user was on, and whether tracked files differ from it; None: not known."""

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


def write_provenance(
    run_dir: Path, *, environment: Mapping[str, Any], resolved: Mapping[str, Any], redactor: Redactor
) -> None:
    """Write env.json and config.yaml; where that fails, neither stays in a directory that holds no run."""
    try:
        write_json(run_dir / ENVIRONMENT_FILE, redactor.tree(environment))
        write_yaml(run_dir / CONFIG_FILE, redactor.tree(resolved))
    except OSError as error:
        remove_strays(run_dir)
        raise ProfilingError(f"{run_dir}: nothing can be written there ({error.strerror or error})") from error


def remove_strays(run_dir: Path) -> None:
    """Without a manifest these would be files of no run."""
    if not (run_dir / MANIFEST_FILE).exists():
        for name in (ENVIRONMENT_FILE, CONFIG_FILE, INPUTS_FILE):
            (run_dir / name).unlink(missing_ok=True)


def make_redactor(config: AppConfig, environ: Mapping[str, str], more: Sequence[str] = ()) -> Redactor:
    """What must not be written in this run: secrets of the environment, and values the configuration took from it."""
    taken = taken_values(config.resolved, config.from_environment)
    return Redactor.of(environ, more=[*taken, *more, *given_secrets(config.workload.command or ())])


def taken_values(resolved: Mapping[str, Any], from_environment: Mapping[str, str]) -> list[str]:
    """What a configuration took from the environment, and must not be written down."""
    asked = [_at(resolved, key.split(".")) for key in from_environment]
    # A folder is not a secret, and would be missing in every path below it.
    return [value for value in asked if not value.startswith("/") or is_secret("", value)]


def _at(value: Any, path: Sequence[str]) -> str:
    for part in path:
        value = value[int(part) if isinstance(value, list | tuple) else part]
    return str(value)


def effective_config(config: AppConfig) -> dict[str, Any]:
    """The composed configuration with the values that are in force: `run.mode=light` and others change some.

    What was taken from the environment is there as it was written.
    """
    resolved = dict(config.resolved)
    sections = {"run": asdict(config.run), "dataset": asdict(config.dataset), "infer": asdict(config.infer)}
    shared = {name: _overlay(resolved.get(name), section) for name, section in sections.items()}
    stages = {
        name: _overlay(section, asdict(config.stages[name])) if name in config.stages else section
        for name, section in resolved["pipeline"].items()
    }
    whole = {**resolved, **shared, "pipeline": stages}
    return {name: as_written(section, config.from_environment, name) for name, section in whole.items()}


def as_written(value: Any, texts: Mapping[str, str], key: str = "") -> Any:
    """A configuration in which what was taken from the environment is as the user wrote it: `texts` by key."""
    if key in texts:
        return texts[key]
    start = f"{key}." if key else ""
    if isinstance(value, Mapping):
        return {name: as_written(item, texts, f"{start}{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_written(item, texts, f"{start}{index}") for index, item in enumerate(value)]
    return value


def _overlay(written: Any, in_force: Any) -> Any:
    """The keys as written with the values in force, as YAML."""
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
        raise ManifestError(f"{path}: cannot be read ({str(error).splitlines()[0]}); delete it to continue") from error
    samples = content.get("samples") if isinstance(content, dict) else None
    if not isinstance(samples, list) or not all(_is_sample(sample) for sample in samples):
        raise ManifestError(f"{path}: holds no list of samples; delete it to continue")
    return samples


def _is_sample(value: Any) -> bool:
    """A name made of lists within lists, which YAML writes in a few lines, could be as long as memory is large."""
    return isinstance(value, dict) and all(
        isinstance(value[key], kinds) for key, kinds in _SAMPLE_VALUES.items() if key in value
    )


def write_inputs(run_dir: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    """The samples actually used, with size and hash, each once; without any there is no file."""
    unique = {str(sample.get("sample_id")): dict(sample) for sample in samples}
    if unique:
        write_yaml(run_dir / INPUTS_FILE, {"samples": list(unique.values())})
    else:
        (run_dir / INPUTS_FILE).unlink(missing_ok=True)


def _git(user_dir: Path, environ: Mapping[str, str]) -> GitState:
    """The commit of the working tree the user was in, and whether it had changes; None outside a checkout."""
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
