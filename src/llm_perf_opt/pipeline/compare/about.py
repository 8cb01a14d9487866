"""What a side is, in the lines that a page needs to be read alone: model or program, device, command, commit, dates."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from llm_perf_opt.comparison.comparison import DEVICE, WORKLOAD, SideFact
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.model.hardware.hardware import find_by_device_name, load_catalogue
from llm_perf_opt.pipeline.index import index_manifest

COMMIT_SHOWN = 12
PACKAGES = ("torch", "transformers", "vllm", "sglang")
# Of the rates of two GPUs, the first that both data sheets have.
RATES = ("bf16", "fp16", "fp32")


def about_runs(path: Path, manifests: Sequence[RunManifest]) -> tuple[SideFact, ...]:
    """The facts of the passes of one side; what differs among them is listed."""
    runs = [index_manifest(one, str(path)) for one in manifests]
    dates = sorted(run.labels["date"] for run in runs)
    first = manifests[0]
    lines = [
        (WORKLOAD, _several(run.labels["model"] for run in runs)),
        (DEVICE, devices_of(manifests)),
        ("GPU driver", _several(_driver(one) for one in manifests)),
        ("command", _command(first)),
        ("commit", _several(_commit(one) for one in manifests)),
        ("date", dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"),
        ("software", _packages(first)),
        ("host", _several(str(one.environment.get("hostname") or "") for one in manifests)),
    ]
    return tuple(SideFact(label=label, text=text) for label, text in lines if text)


def devices_of(manifests: Sequence[RunManifest]) -> str:
    """What the passes of one side ran on; nothing where no manifest says."""
    return _several(index_manifest(one, "").labels["device"] for one in manifests)


def about_capture(path: Path, *, kind: str, gpu: str | None, producer: str | None) -> tuple[SideFact, ...]:
    lines = [("capture", f"{path.name} ({kind})"), (DEVICE, gpu or ""), ("recorded by", producer or "")]
    return tuple(SideFact(label=label, text=text) for label, text in lines if text)


def about_load(path: Path, *, made_by: str, model: str | None) -> tuple[SideFact, ...]:
    lines = [(WORKLOAD, model or ""), ("result", path.name), ("measured by", made_by)]
    return tuple(SideFact(label=label, text=text) for label, text in lines if text)


def device_difference(base: str, candidate: str) -> tuple[str, ...]:
    """Two devices by their data sheets: how the bounds of memory- and compute-bound runs differ, as factors of time."""
    catalogue = load_catalogue(conf_dir() / "hardware")
    sections = [find_by_device_name(catalogue, name) for name in (base, candidate)]
    if any(section is None for section in sections):
        unknown = [name for name, one in zip((base, candidate), sections, strict=True) if one is None]
        return (
            f"different device: {base} → {candidate}; no data sheet of {' and '.join(unknown)}, so the difference has "
            "no known bound",
        )
    first, second = (section for section in sections if section is not None)
    bounds = [*_bandwidth(first, second), *_rate(first, second)]
    return (f"different device: {base} → {candidate}; {'; '.join(bounds)}",)


def _bandwidth(base: HardwareSection, candidate: HardwareSection) -> list[str]:
    before, after = base.memory_bandwidth_gb_s, candidate.memory_bandwidth_gb_s
    if before is None or after is None:
        return []
    return [
        f"peak memory bandwidth {before:,.0f} → {after:,.0f} GB/s (bound of a memory-bound run: ×{before / after:.2f})"
    ]


def _rate(base: HardwareSection, candidate: HardwareSection) -> list[str]:
    name = next((name for name in RATES if name in base.peak_tflops and name in candidate.peak_tflops), None)
    if name is None:
        return []
    before, after = base.peak_tflops[name], candidate.peak_tflops[name]
    return [
        f"peak {name} rate {before:,.0f} → {after:,.0f} TFLOP/s (bound of a compute-bound run: ×{before / after:.2f})"
    ]


def _several(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(text for text in texts if text))


def _driver(manifest: RunManifest) -> str:
    gpus = manifest.environment.get("gpus")
    known = gpus if isinstance(gpus, list | tuple) else ()
    return _several(str(gpu["driver"]) for gpu in known if isinstance(gpu, Mapping) and gpu.get("driver"))


def _command(manifest: RunManifest) -> str:
    workload = manifest.config.get("workload")
    command = workload.get("command") if isinstance(workload, Mapping) else None
    words = [word for word in manifest.overrides if not word.startswith(("artifacts.", "hydra.", "workload.command="))]
    if isinstance(command, list | tuple) and command:
        return " ".join([*words, "--", *map(str, command)]) if words else " ".join(map(str, command))
    return " ".join(words)


def _commit(manifest: RunManifest) -> str:
    git = manifest.environment.get("git")
    if not isinstance(git, Mapping) or not git.get("commit"):
        return ""
    return str(git["commit"])[:COMMIT_SHOWN] + (" with uncommitted changes" if git.get("changed") else "")


def _packages(manifest: RunManifest) -> str:
    packages = manifest.environment.get("packages")
    known = packages if isinstance(packages, Mapping) else {}
    python = manifest.environment.get("python")
    shown = [f"Python {python}"] if python else []
    return ", ".join([*shown, *(f"{name} {known[name]}" for name in PACKAGES if known.get(name))])
