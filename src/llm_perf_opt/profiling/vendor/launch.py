"""The command line of our own workload, as a list of Hydra overrides that survive any value.

What of Python's own settings its processes get: a place for compiled modules where the installation has none.
"""

import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_perf_opt.config.schema import AUTO, AppConfig, RunSection

INFERENCE_RUNNER = "llm_perf_opt.runners.direct_inference_runner"
PROFILE_RUNNER = "llm_perf_opt.runners.llm_profile_runner"
CHILD_FLAG = "--child"
LARGE_PACKAGES = ("torch", "transformers")
# Where `run.repeats=auto` leaves it to the clean pass.
CAPTURED_REPEATS = 3
DEFAULT_RENDEZVOUS = "FIRST-NODE-OF-THE-JOB"
FIRST_NODE = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1):29400"'


def build_work_argv(
    module: str,
    overrides: Sequence[str],
    *,
    hydra_run_dir: Path | str,
    chdir: bool = True,
    run_mode: str | None = None,
    python: str = sys.executable,
) -> list[str]:
    """The argv of a child that composes conf/config.yaml with these overrides and works in `hydra_run_dir`."""
    mode = [] if run_mode is None else [f"run.mode={run_mode}"]
    return [
        python,
        "-m",
        module,
        CHILD_FLAG,
        *overrides,
        *mode,
        f"artifacts.runs_dir={quote(str(hydra_run_dir))}",
        f"hydra.run.dir={quote(str(hydra_run_dir))}",
        f"hydra.job.chdir={quote(chdir)}",
    ]


def bytecode_environment(
    environ: Mapping[str, str], folder: Path, packages: Sequence[str] = LARGE_PACKAGES
) -> dict[str, str]:
    """What makes our processes keep compiled modules in `folder`; nothing where they lie alongside their sources.

    A container whose packages were installed without them, and that may not write them, compiles the 2,700 modules of
    torch and transformers in every process: 11 s of processor time instead of 4.
    """
    if environ.get("PYTHONPYCACHEPREFIX"):
        return {}
    found = [importlib.util.find_spec(name) for name in packages]
    sources = [Path(spec.origin) for spec in found if spec is not None and spec.origin is not None]
    bare = [path for path in sources if not Path(importlib.util.cache_from_source(path)).is_file()]
    forbidden = bool(environ.get("PYTHONDONTWRITEBYTECODE"))
    if all(os.access(path.parent, os.W_OK) and not forbidden for path in bare):
        return {}
    return {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


def launch_ranks(work_argv: Sequence[str], run: RunSection, *, python: str = sys.executable) -> list[str]:
    """The workload as `run.ranks` processes of torchrun, on several nodes through srun; unchanged without ranks."""
    if run.ranks is None:
        return list(work_argv)
    meeting = (
        ["--standalone"]
        if run.nodes == 1
        else [
            f"--nnodes={run.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={run.rendezvous or DEFAULT_RENDEZVOUS}",
            "--rdzv-id=llm-perf",
        ]
    )
    torchrun = [
        python,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={run.ranks}",
        *meeting,
        "--no-python",
        *work_argv,
    ]
    if run.nodes == 1:
        return torchrun
    on_all_nodes = [
        "srun",
        f"--nodes={run.nodes}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
    ]
    # Every node must name the same first one, which only Slurm knows.
    named = shlex.join(torchrun).replace(DEFAULT_RENDEZVOUS, FIRST_NODE)
    return [*on_all_nodes, "sh", "-c", f"exec {named}"]


def workload_overrides(config: AppConfig) -> list[str]:
    """All of model.*, infer.*, dataset.*, hardware.* and the run's shared knobs, as values.

    The groups `model` and `dataset` are taken out of the defaults list first, so that a child never sees a key of a
    preset the user replaced, and presets from a user's own config directory need not be found again. `run.mode` is not
    among them: its changes are in the values, and a child that made them again would undo what its stage asks for.
    """
    run = config.run
    sections: dict[str, Any] = {
        "dataset": asdict(config.dataset),
        "model": asdict(config.model),
        "infer": asdict(config.infer),
        "hardware": asdict(config.hardware),
        "workload": asdict(config.workload),
    }
    shared = {
        "run.device": run.device,
        "run.repeats": run.repeats,
        "run.target_ci": run.target_ci,
        "run.max_repeats": run.max_repeats,
        "run.seed": run.seed,
        "run.top_n_kernels": run.top_n_kernels,
        "run.ranks": run.ranks,
        "run.nodes": run.nodes,
    }
    return [
        "~model",
        "~dataset",
        *(f"++{key}={quote(value)}" for name, section in sections.items() for key, value in _leaves(name, section)),
        *(f"{key}={quote(value)}" for key, value in shared.items()),
    ]


def capture_overrides(config: AppConfig) -> list[str]:
    """The workload as nsys and ncu watch it: plain inference, no other stage, neither predictions nor gallery."""
    return [
        *workload_overrides(config),
        # Times under a profiler are not reason to continue.
        *([f"run.repeats={CAPTURED_REPEATS}"] if config.run.repeats == AUTO else []),
        "pipeline.static_analysis.enable=false",
        "pipeline.torch_profiler.enable=false",
        "pipeline.direct_inference.enable=true",
        "pipeline.direct_inference.output.prediction.enable=false",
        "pipeline.direct_inference.output.visualization.enable=false",
    ]


def stage_overrides(name: str, section: Mapping[str, Any]) -> list[str]:
    """A stage's own section as overrides."""
    return [f"++{key}={quote(value)}" for key, value in _leaves(f"pipeline.{name}", section)]


def quote(value: Any) -> str:
    """A value in Hydra's override grammar. Strings are double-quoted, so any character survives."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{quote(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(quote(v) for v in value) + "]"
    return _quote_text(str(value))


def _quote_text(text: str) -> str:
    """Double-quoted for Hydra, and safe from OmegaConf: `${` must not become an interpolation.

    OmegaConf halves the backslashes in front of `${` and takes an odd one as an escape; Hydra does the same in front of
    a quote and at the end.
    """
    literal = re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + r"\${", text)
    return '"' + re.sub(r'(\\*)("|\Z)', lambda m: m[1] * 2 + (r"\"" if m[2] else ""), literal) + '"'


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted keys; an empty mapping stays a value."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(f"{prefix}.{key}", item)
    else:
        yield prefix, value
