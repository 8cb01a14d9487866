"""Writes what a run was made with: env.json, config.yaml and inputs.yaml."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.process import allowed_environment, run_quick

# Recorded for the reader; narrower than what children get, so that no user's paths are spread without need.
_RECORDED_PREFIXES = ("CUDA", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "KMP_", "TORCH", "PYTORCH", "TRITON_", "SLURM_JOB_ID")


def describe_environment(host: Host, environ: Mapping[str, str], user_dir: Path) -> dict[str, Any]:
    """What env.json holds. Environment variables come from an allow-list and none that looks like a secret."""
    return {
        "os": host.os,
        "cpu": host.cpu,
        "cpu_cores": host.cpu_cores,
        "memory_bytes": host.memory_bytes,
        "gpus": [asdict(gpu) for gpu in host.gpus],
        "cuda_driver": host.cuda_driver,
        "python": host.python,
        "packages": host.packages,
        "tools": {name: {"path": tool.path, "version": tool.version} for name, tool in host.tools.items()},
        "git": _git(user_dir, environ),
        "variables": {
            name: value
            for name, value in sorted(allowed_environment(environ).items())
            if name.startswith(_RECORDED_PREFIXES)
        },
    }


def write_environment(run_dir: Path, environment: Mapping[str, Any]) -> None:
    write_json(run_dir / "env.json", environment)


def write_config(run_dir: Path, resolved: Mapping[str, Any]) -> None:
    _write_yaml(run_dir / "config.yaml", dict(resolved))


def write_inputs(run_dir: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    """The samples actually used, with size and hash; stages that used the same ones are listed once."""
    unique = {str(sample.get("sample_id")): dict(sample) for sample in samples}
    _write_yaml(run_dir / "inputs.yaml", {"samples": list(unique.values())})


def _git(user_dir: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The commit of the working tree the user stood in, and whether it had changes; None outside a checkout."""
    env = allowed_environment(environ)
    code, head = run_quick(["git", "-C", str(user_dir), "rev-parse", "HEAD"], env=env)
    if code != 0:
        return {"commit": None, "changed": None}
    code, status = run_quick(["git", "-C", str(user_dir), "status", "--porcelain", "--untracked-files=no"], env=env)
    return {"commit": head.strip(), "changed": bool(status.strip()) if code == 0 else None}


def _write_yaml(path: Path, data: Any) -> None:
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    scratch.replace(path)
