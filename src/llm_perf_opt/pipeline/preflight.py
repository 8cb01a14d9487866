"""What can be reported before any stage starts: files, packages, devices and memory. Bad input is not a failed run."""

import itertools
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.host import Gpu, Host
from llm_perf_opt.core.stage import Stage, traits_of
from llm_perf_opt.core.units import si
from llm_perf_opt.errors import ConfigError, ParseError
from llm_perf_opt.model.hardware.work import DeviceShare, short_dtype
from llm_perf_opt.model.static.closed_form import DEFAULT_MLA_MODE
from llm_perf_opt.model.static.config_json import NotInClosedForm
from llm_perf_opt.model.static.model_memory import RESERVE, memory_need
from llm_perf_opt.model.static.parts import GroupedAttention
from llm_perf_opt.model.static.quantised import Quantised, read_quantised, run_dtypes
from llm_perf_opt.profiling.static_child import shape_from_config
from llm_perf_opt.workload.dataset import PAGES, TOKENS, list_samples, vocabulary_of
from llm_perf_opt.workload.models.base import ModelAdapter
from llm_perf_opt.workload.models.registry import choose_dtype, load_adapter, page_files_of

# The oldest our own loop measures rightly with: docs/getting-started.md#install has the reasons.
RUN_PACKAGES = {"torch": (2, 11), "transformers": (5, 0)}
RUN_EXTRA = "pip install 'llm-perf-opt[run]'"
_ALL_HIDDEN = "CUDA_VISIBLE_DEVICES hides every GPU"


def workload_problems(config: AppConfig, stages: Collection[Stage]) -> tuple[str, ...]:
    """What is wrong with the model's files and the data set, if one of the stages will run the model.

    Static analysis needs the model's geometry alone, and says itself when that is missing.
    """
    if not any(traits_of(stage).runs_model for stage in stages):
        return ()
    if config.workload.command is not None:
        return _program_problems(config.workload.command[0], config.user_dir)
    adapter = load_adapter(config.model.adapter)
    infer, quantization, joined = config.infer, config.model.quantization, config.model.join_projections
    one_whole = infer.batch == 1 and infer.tp == 1 and quantization == "none" and not joined
    if adapter.data_kind == PAGES and not one_whole:
        return (
            "infer.batch, .tp, model.quantization, .join_projections: a model that reads pages runs one page at a "
            f"time, as it is stored (got {infer.batch}, {infer.tp}, {quantization!r}, {joined}), allowed: their "
            "defaults; infer.cache, .compile and .cuda_graph change its decode step",
        )
    if joined and infer.tp > 1:
        return (f"model.join_projections: not of a model split over ranks (infer.tp is {infer.tp}), allowed: false",)
    problems = adapter.check(config.model) or _split_problems(config, adapter) or _position_problems(config, adapter)
    return problems or _dataset_problems(config)


def _split_problems(config: AppConfig, adapter: ModelAdapter) -> tuple[str, ...]:
    """Ranks split attention by its heads, so each must get whole ones; silent where the heads are not known."""
    tp = config.infer.tp
    try:
        model = adapter.parts(adapter.geometry(config.model), where="model") if tp > 1 else None
    except (NotInClosedForm, ParseError):
        # transformers may know how to split it; if not, loading says so.
        return ()
    blocks = () if model is None else model.decoder.blocks
    counts = {
        count
        for layer, _ in blocks
        if isinstance(layer.attention, GroupedAttention)
        for count in (layer.attention.heads, layer.attention.kv_heads)
        if count % tp
    }
    if not counts:
        return ()
    return (
        f"infer.tp: {min(counts)} heads of attention cannot be split over {tp} ranks (got {tp}), allowed: a divisor of "
        "the numbers of heads, keys' and values' too, or run.ranks alone, which gives each rank a whole model",
    )


def _position_problems(config: AppConfig, adapter: ModelAdapter) -> tuple[str, ...]:
    """A synthetic prompt that is longer than the model's positions; silent where the model does not say how many."""
    if config.dataset.kind != "synthetic" or adapter.data_kind != TOKENS:
        return ()
    try:
        positions = adapter.geometry(config.model).get("max_position_embeddings")
    except ParseError:
        # The stage that reads the model says what is wrong with it.
        return ()
    prompt, new = config.dataset.prompt_tokens, config.infer.max_new_tokens
    if not isinstance(positions, int) or prompt + new <= positions:
        return ()
    return (
        f"dataset.prompt_tokens: {prompt} tokens of prompt and {new} new ones (infer.max_new_tokens) are more than the "
        f"{positions} positions of the model (got {prompt}), allowed: at most {max(0, positions - new)}",
    )


def package_problems(config: AppConfig, host: Host, stages: Collection[Stage]) -> tuple[str, ...]:
    """What is not installed and a stage cannot do without; a program of the user's brings its own packages."""
    if config.workload.command is not None or not any(traits_of(stage).runs_model for stage in stages):
        return ()
    missing = [name for name in RUN_PACKAGES if host.packages.get(name) is None]
    if missing:
        text = f"{' and '.join(missing)}: not installed, and needed to run a model; {RUN_EXTRA}"
        return (f"{text} (pipeline.static_analysis and `llm-perf predict` work without)",)
    found = ((name, host.packages.get(name) or "") for name in RUN_PACKAGES)
    return tuple(f"{name} {version}: {trouble}" for name, version in found if (trouble := too_old(name, version)))


def too_old(package: str, version: str) -> str | None:
    """Why our own loop does not run with this version, and what does; None where it runs."""
    least = RUN_PACKAGES[package]
    if _release(version) >= least:
        return None
    return (
        f"too old for our own loop, which needs {least[0]}.{least[1]}; {RUN_EXTRA} in its own environment, or "
        "`llm-perf run -- PROGRAM`, which takes your program with the packages it has"
    )


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    return (*numbers, 0)[:2]


@dataclass(frozen=True, kw_only=True)
class MemoryCheck:
    """What the model needs on its device, predicted; `problem`: it cannot be loaded, `note`: it may run out."""

    problem: str | None = None
    note: str | None = None


def check_memory(config: AppConfig, host: Host, stages: Collection[Stage], environ: Mapping[str, str]) -> MemoryCheck:
    """Whether the model fits, by its configuration alone; silent where that cannot be reported."""
    if config.workload.command is not None or not any(traits_of(stage).runs_model for stage in stages):
        return MemoryCheck()
    adapter = load_adapter(config.model.adapter)
    geometry = adapter.geometry(config.model)
    try:
        model = adapter.parts(geometry, where="model")
    except (NotInClosedForm, ParseError):
        # Static analysis says what is not known of it.
        return MemoryCheck()
    gpu = _gpu_that_runs(config, host, environ)
    split = 1 if gpu is None else config.infer.tp
    capacity = host.memory_bytes if gpu is None else split * gpu.memory_bytes
    if capacity <= 0:
        return MemoryCheck()
    asked = config.model.quantization
    stored = Quantised(weight=asked) if asked != "none" else read_quantised(geometry, where="model")
    dtype = choose_dtype(config.model.dtype, device="cpu" if gpu is None else "cuda", stored=None).value
    shape = shape_from_config(config, adapter, geometry)
    need = memory_need(
        model,
        batch=shape.batch,
        prompt=shape.prompt,
        context=shape.prompt + config.infer.max_new_tokens,
        dtypes=run_dtypes(short_dtype(dtype, where="model.dtype"), stored),
        mla_mode=DEFAULT_MLA_MODE,
        views=shape.views,
        spread=DeviceShare(tp=split),
    )
    name = "" if gpu is None else gpu.name if split == 1 else f"{split} × {gpu.name}"
    where = f"{host.cpu}, whose memory is" if gpu is None else f"{name}, which {'has' if split == 1 else 'have'}"
    has = f"{where} {si(capacity, 'B', count=3)}"
    if need.weights_bytes > capacity:
        text = f"the weights in {dtype} take {si(need.weights_bytes, 'B', count=3)}, more than {has}"
        smaller = "a smaller model, a narrower model.dtype or model.quantization, another run.device"
        return MemoryCheck(problem=f"model: {text}; allowed: {smaller}")
    if need.peak_bytes > capacity * (1 - RESERVE):
        text = f"weights, KV cache and activations are predicted to take {si(need.peak_bytes, 'B', count=3)} of {has}"
        return MemoryCheck(note=f"{text}: the run may end out of memory; shorten prompts or lower infer.batch")
    return MemoryCheck()


def _gpu_that_runs(config: AppConfig, host: Host, environ: Mapping[str, str]) -> Gpu | None:
    """The GPU the model will run on, None for the CPU."""
    if config.run.device == "cpu" or no_gpu_reason(host) is not None or not _visible_gpus(host, environ):
        return None
    number = int(config.run.device.removeprefix("cuda:")) if config.run.device.startswith("cuda:") else 0
    visible = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip().isdecimal()]
    index = int(visible[number]) if number < len(visible) else number
    return next((gpu for gpu in host.gpus if gpu.index == index), host.gpus[0])


def device_problem(config: AppConfig, host: Host, environ: Mapping[str, str]) -> str | None:
    """Why `run.device` names a GPU that is not there; None where it does not, or where that cannot be reported."""
    device, ranks = config.run.device, config.run.ranks or 1
    count = _visible_gpus(host, environ)
    reason = no_gpu_reason(host)
    if device != "cpu" and reason is None and 0 < count < ranks:
        return f"run.ranks: {ranks} ranks need a GPU each (got {ranks}), this machine shows {count}; allowed: {count}"
    if config.workload.command is not None or not device.startswith("cuda:"):
        return None
    if reason is None and (not host.gpus or int(device.removeprefix("cuda:")) < count):
        return None
    have = reason or (f"there are cuda:0 to cuda:{count - 1}" if count else _ALL_HIDDEN)
    return f"run.device: not there (got {device!r}): {have}; allowed: auto, cpu or a device that exists"


def fallback_note(config: AppConfig, host: Host, stages: Collection[Stage], environ: Mapping[str, str]) -> str | None:
    """What a reader must know when `run.device=auto` means the CPU; None when it does not, or no model is inspected."""
    looks = any(traits_of(stage).runs_model or traits_of(stage).needs_our_model for stage in stages)
    hidden = _ALL_HIDDEN if host.gpus and not _visible_gpus(host, environ) else None
    reason = no_gpu_reason(host) or hidden
    if config.run.device != "auto" or config.workload.command is not None or not looks or reason is None:
        return None
    return f"run.device=auto is the CPU here: {reason}"


def _visible_gpus(host: Host, environ: Mapping[str, str]) -> int:
    """How many GPUs CUDA shows a program: those CUDA_VISIBLE_DEVICES lists, up to the first that cannot be one."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(host.gpus)
    listed = itertools.takewhile(lambda name: name and not name.startswith("-"), map(str.strip, visible.split(",")))
    return min(len(host.gpus), len(list(listed)))


def no_gpu_reason(host: Host) -> str | None:
    """Why no model can run on a GPU of this machine, as far as can be reported without asking torch."""
    torch = host.packages.get("torch")
    if not host.gpus and not host.has_gpu_files:
        return "this machine has no GPU"
    return f"this torch ({torch}) is a CPU build" if torch is not None and torch.endswith("+cpu") else None


def _program_problems(program: str, user_dir: Path) -> tuple[str, ...]:
    """A name is searched on PATH, a path from where the user was."""
    found = shutil.which(program if "/" not in program else str(user_dir / program))
    if found is not None:
        return ()
    return (
        f"workload.command.0: no program of this name can be run (got {program!r}), allowed: a program or its path",
    )


def _dataset_problems(config: AppConfig) -> tuple[str, ...]:
    """Listing the samples finds a missing folder, file or entry; synthetic ones go to a scratch folder."""
    adapter = load_adapter(config.model.adapter)
    vocabulary = vocabulary_of(adapter.geometry(config.model)) if adapter.data_kind == TOKENS else None
    with TemporaryDirectory(prefix="llm-perf-") as scratch:
        try:
            list_samples(
                config.dataset,
                data_kind=adapter.data_kind,
                vocabulary=vocabulary,
                scratch_dir=Path(scratch),
                page_files=page_files_of(adapter),
            )
        except ConfigError as error:
            return error.problems
    return ()
