"""`llm-perf predict`: what hardware allows for a model, from its configuration alone. Never imports torch.

`llm-perf predict`'s command line: comma lists to sweep over, keys of its own, and the rest for Hydra.
"""

import difflib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from llm_perf_opt.analysis.hardware.calibrate import cache_dir, cpu_driver, read_calibration
from llm_perf_opt.analysis.hardware.hardware import (
    AUTO,
    CPU,
    Device,
    Resolved,
    given_sources,
    is_given,
    load_catalogue,
    resolve_hardware,
    with_calibration,
)
from llm_perf_opt.analysis.hardware.work import BYTES, Dtypes, Shape, short_dtype
from llm_perf_opt.analysis.static.analysis import Analysis, analyse
from llm_perf_opt.analysis.static.closed_form import DEFAULT_MLA_MODE
from llm_perf_opt.analysis.static.config_json import NotInClosedForm, read_config_json
from llm_perf_opt.analysis.static.document import PredictionsDocument, build_document
from llm_perf_opt.analysis.static.forms import MLA_MODES, MlaMode
from llm_perf_opt.analysis.static.quantised import Quantised, read_quantised, run_dtypes
from llm_perf_opt.config.load import load_config, nearest_key
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import AppConfig, HardwareSection
from llm_perf_opt.core.manifest import plain
from llm_perf_opt.errors import EXIT_OK, ConfigError, ParseError
from llm_perf_opt.profiling.static_child import shape_from_config
from llm_perf_opt.profiling.vendor.tools import probe_gpus
from llm_perf_opt.runners.predict.table import render_table
from llm_perf_opt.workload.dataset import PAGES
from llm_perf_opt.workload.device import CPUINFO, cpu_name
from llm_perf_opt.workload.models.base import ModelAdapter
from llm_perf_opt.workload.models.registry import choose_dtype, load_adapter

SWEPT = ("workload.prompt", "workload.batch", "workload.context")
CHOICES = {
    "workload.weight_dtype": tuple(BYTES),
    "workload.kv_dtype": tuple(BYTES),
    "workload.activation_dtype": tuple(BYTES),
    "workload.mla_mode": MLA_MODES,
}
SECTIONS = ("model", "hardware", "workload", "infer", "dataset", "run")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for. Empty lists of models, prompts or contexts mean the configuration's own."""

    models: tuple[str, ...]
    path: Path | None
    hardware: tuple[str, ...]
    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    weight_dtype: str | None
    kv_dtype: str | None
    activation_dtype: str | None
    mla_mode: MlaMode
    overrides: tuple[str, ...]
    wants_json: bool

    @property
    def hardware_overrides(self) -> tuple[str, ...]:
        return tuple(o for o in self.overrides if o.lstrip("+").startswith("hardware."))


def parse_request(argv: Sequence[str], *, conf: Path) -> Request:
    """Every problem of the command line at once."""
    problems: list[str] = []
    given = _split(argv, problems)
    models = _names("model", given, conf / "model", problems)
    hardware = _names("hardware", given, conf / "hardware", problems) or ("auto",)
    numbers = {key: _numbers(key, given.get(key), problems) for key in SWEPT}
    for key, allowed in CHOICES.items():
        if key in given and given[key] not in allowed:
            problems.append(f"{key}: not one of the choices (got {given[key]!r}), allowed: {', '.join(allowed)}")
    known = {"model", "hardware", *SWEPT, *CHOICES}
    rest = {key: value for key, value in given.items() if key not in known}
    problems += _unknown_keys(rest)
    if problems:
        raise ConfigError(problems)
    modes: dict[str, MlaMode] = {mode: mode for mode in MLA_MODES}
    return Request(
        models=models,
        path=Path(given["model.path"]).expanduser() if "model.path" in given else None,
        hardware=hardware,
        prompts=numbers["workload.prompt"],
        batches=numbers["workload.batch"],
        contexts=numbers["workload.context"],
        weight_dtype=given.get("workload.weight_dtype"),
        kv_dtype=given.get("workload.kv_dtype"),
        activation_dtype=given.get("workload.activation_dtype"),
        mla_mode=modes[given.get("workload.mla_mode", DEFAULT_MLA_MODE)],
        overrides=tuple(f"{key}={value}" for key, value in rest.items()),
        wants_json="--json" in argv,
    )


def nearest_name(wanted: str, names: Sequence[str]) -> str | None:
    match = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
    return match[0] if match else None


def _split(argv: Sequence[str], problems: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for arg in argv:
        if arg == "--json":
            continue
        key, sign, value = arg.partition("=")
        if not sign or arg.startswith("-"):
            problems.append(f"{arg}: not an override, allowed: key=value or --json")
            continue
        given[key] = value
    return given


def _names(key: str, given: dict[str, str], folder: Path, problems: list[str]) -> tuple[str, ...]:
    """The presets a comma list names, each checked against the files there are."""
    if key not in given:
        return ()
    allowed = sorted(path.stem for path in folder.glob("*.yaml"))
    names = tuple(name.strip() for name in given[key].strip("[]").split(",") if name.strip())
    if not names:
        problems.append(f"{key}: empty, allowed: {', '.join(allowed)}")
    for name in names:
        if name not in allowed:
            nearest = nearest_name(name, allowed)
            hint = f"nearest: {nearest}; " if nearest else ""
            problems.append(f"{key}: no such choice (got {name!r}), {hint}allowed: {', '.join(allowed)}")
    return names


def _numbers(key: str, text: str | None, problems: list[str]) -> tuple[int, ...]:
    if text is None or text == "null":
        return ()
    found = []
    for part in text.strip("[]").split(","):
        if not part.strip().isascii() or not part.strip().isdecimal() or int(part) < 1:
            problems.append(
                f"{key}: not a whole number ≥ 1 (got {part.strip()!r}), allowed: numbers separated by commas"
            )
        else:
            found.append(int(part))
    return tuple(found)


def _unknown_keys(rest: dict[str, str]) -> list[str]:
    """Keys whose section predict does not read; keys inside a section are Hydra's to check."""
    known = [*SECTIONS, *SWEPT, *CHOICES]
    return [
        f"{key}: unknown key (got {value!r}), nearest known key: {nearest_key(key, known) or 'model'}"
        for key, value in rest.items()
        if key.lstrip("+~").partition(".")[0] not in SECTIONS or key.startswith("workload.")
    ]


HELP = """\
llm-perf predict [OVERRIDE ...] [--json]

What the hardware allows for a model, from its configuration alone: no weights, no torch.

  model=llama3_8b,qwen3_8b            presets, or model.path=/models/Qwen3-8B for a folder with a config.json
  hardware=h200,rtx3090               entries of conf/hardware; auto: this machine
  workload.prompt=1024,8192           tokens of the prompt
  workload.batch=1,8,64               sequences at once
  workload.context=4096               tokens in the cache at the decode step (default: the prompt)
  workload.weight_dtype=fp8           weights of the layers: bf16, fp16, fp32, fp8, int8, int4
  workload.kv_dtype=fp8               the KV cache
  workload.mla_mode=absorbed          latent attention: cached, latent-expand (what transformers does), absorbed
  dataset.page_width=… page_height=…  the page of a model that reads pages
  hardware.peak_tflops.bf16=…         peaks of your own, with hardware.memory_bandwidth_gb_s

Lists separated by commas make one row for each combination.
"""


def main(argv: Sequence[str]) -> int:
    if "-h" in argv or "--help" in argv:
        print(HELP, end="")
        return EXIT_OK
    request = parse_request(argv, conf=conf_dir())
    rows = _rows(request)
    if request.wants_json:
        documents = tuple(build_document(analysis, notes=notes) for analysis, notes in rows)
        json.dump(PredictionsDocument(predictions=documents), sys.stdout, indent=2, default=plain)
        print()
    else:
        print(render_table(rows), end="")
    return EXIT_OK


def predictions(overrides: Sequence[str]) -> list[tuple[Analysis, tuple[str, ...]]]:
    """What a command line of overrides asks for: each analysis with what the user must know about it."""
    return _rows(parse_request(overrides, conf=conf_dir()))


def _rows(request: Request) -> list[tuple[Analysis, tuple[str, ...]]]:
    return [row for name in _models(request) for row in _predict_model(name, request)]


def _models(request: Request) -> tuple[str, ...]:
    """The presets asked for; for a folder alone, the one that reads what lies in it."""
    if request.models:
        return request.models
    if request.path is None:
        return ("deepseek_ocr",)
    has_towers = {"language_config", "vision_config"} <= set(read_config_json(request.path))
    return ("deepseek_ocr",) if has_towers else ("causal_lm",)


def _predict_model(name: str, request: Request) -> Iterator[tuple[Analysis, tuple[str, ...]]]:
    """One analysis for each hardware, prompt, context and batch."""
    plain = tuple(o for o in request.overrides if o not in request.hardware_overrides)
    config = _compose([f"model={name}", *plain])
    geometry, where = _geometry(config, is_path_given=request.path is not None)
    adapter = load_adapter(config.model.adapter)
    try:
        model = adapter.parts(geometry, where=where)
    except NotInClosedForm as error:
        raise ParseError(
            f"{error}; predict works from the closed form alone, "
            f"`llm-perf profile model={name} …` counts the operators of such a model with torch"
        ) from error
    asked = config.model.quantization
    stored = Quantised(weight=asked) if asked != "none" else None
    if stored is None and request.weight_dtype is None:
        stored = read_quantised(geometry, where=where)
    if request.prompts and adapter.data_kind == PAGES:
        raise ConfigError(
            "workload.prompt: the page sets the prompt of this model; set dataset.page_width and page_height"
        )
    label = config.model.path.name if config.model.path and where.endswith(".json") else config.model.name
    for hardware in request.hardware:
        device, resolved = _find_hardware(hardware, request)
        dtypes, notes = _dtypes(config, resolved, device, stored, request)
        section = _with_cached_calibration(resolved.section, device, dtypes.compute)
        for shape in _shapes(config, adapter, geometry, request):
            analysis = analyse(
                model,
                shape,
                dtypes,
                section,
                name=label,
                hardware_reason=resolved.reason or _uncalibrated(section),
                capacity_bytes=_memory_of(device, section),
                mla_mode=request.mla_mode,
            )
            yield analysis, notes


def _compose(overrides: Sequence[str]) -> AppConfig:
    """The typed configuration without the stages: predict runs none."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from llm_perf_opt.pipeline.compose import compose_config, explain_composition_error

    try:
        composed = compose_config(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain_composition_error(error, overrides, user_dir=Path.cwd()) from error
    plain = OmegaConf.masked_copy(composed, [str(k) for k in composed if k not in ("hydra", "pipeline")])
    adapter = load_adapter(str(composed.model.adapter))
    return load_config(
        plain,
        user_dir=Path.cwd(),
        stage_classes={},
        known_stages=(),
        model_cls=adapter.config_cls,
        infer_cls=adapter.infer_cls,
    )


def _geometry(config: AppConfig, *, is_path_given: bool) -> tuple[Any, str]:
    """The model's configuration and where it was read: its folder if it is there, else the preset."""
    model = config.model
    if model.path is not None and (is_path_given or (model.path / "config.json").is_file()):
        read_config_json(model.path)
        adapter = load_adapter(model.adapter)
        return adapter.geometry(replace(model, weights="snapshot")), str(model.path / "config.json")
    if model.geometry is None:
        raise ConfigError(
            "model.path: missing, give the folder of a Hugging Face model, or a preset as model=llama3_8b"
        )
    return model.geometry, "model.geometry"


def _find_hardware(name: str, request: Request) -> tuple[Device | None, Resolved]:
    """A catalogue entry with the user's changes, or this machine's device. The device is None for somebody else's."""
    catalogue = load_catalogue(conf_dir() / "hardware")
    if request.hardware_overrides:
        section = _compose([f"hardware={name}", *request.hardware_overrides]).hardware
    else:
        section = HardwareSection() if name == AUTO else catalogue[name]
    device = _this_device() if name == AUTO else (_this_cpu() if name == CPU else None)
    if device is not None and name == AUTO and device.is_cpu and section.peak_tflops:
        # Peaks given on a machine without a GPU describe a device of the user's, not this machine's processor.
        return None, Resolved(section=replace(section, name="given", sources=given_sources(section)))
    return device, resolve_hardware(section, device, catalogue)


def _this_device() -> Device:
    """The first GPU nvidia-smi lists, or the CPU."""
    gpus, _ = probe_gpus(os.environ)
    if not gpus:
        return _this_cpu()
    return Device(name=gpus[0].name, is_cpu=False, driver=gpus[0].driver, memory_bytes=gpus[0].memory_bytes)


def _this_cpu() -> Device:
    import psutil

    memory = psutil.virtual_memory().total
    return Device(name=cpu_name(CPUINFO), is_cpu=True, driver=cpu_driver(os.environ), memory_bytes=memory)


def _dtypes(
    config: AppConfig, resolved: Resolved, device: Device | None, stored: Quantised | None, request: Request
) -> tuple[Dtypes, tuple[str, ...]]:
    """The formats a run would use on that device: `auto` is bfloat16 on GPUs and float32 on CPUs."""
    on_cpu = (device is not None and device.is_cpu) or (resolved.section is not None and resolved.section.name == CPU)
    chosen = choose_dtype(config.model.dtype, device="cpu" if on_cpu else "cuda:0", stored=None)
    compute = short_dtype(chosen.value, where="model.dtype")
    found = run_dtypes(compute, stored)
    weight, kv = request.weight_dtype or found.weight, request.kv_dtype or found.kv
    return replace(found, weight=weight, kv=kv, activation=request.activation_dtype), chosen.notes


def _with_cached_calibration(
    section: HardwareSection | None, device: Device | None, dtype: str
) -> HardwareSection | None:
    """This machine's own calibration, if an earlier run made one."""
    if section is None or device is None:
        return section
    known = read_calibration(cache_dir(os.environ), device, dtype)
    return section if known is None else with_calibration(section, known)


def _memory_of(device: Device | None, section: HardwareSection | None) -> int | None:
    """What the device itself says, unless the configuration says otherwise; None: the section's own figure counts."""
    if device is None or (section is not None and is_given(section, "memory_gb")):
        return None
    return device.memory_bytes


def _uncalibrated(section: HardwareSection | None) -> str | None:
    """A CPU has no data sheet to fall back on, and measuring it needs torch, which this command does not import."""
    if section is None or section.name != CPU or section.achieved_tflops or section.peak_tflops:
        return None
    return "this CPU was not calibrated yet: `llm-perf profile experiment=demo` measures it once, in about a second"


def _shapes(config: AppConfig, adapter: ModelAdapter, geometry: Mapping[str, Any], request: Request) -> Iterator[Shape]:
    for prompt in request.prompts or (None,):
        for context in request.contexts or (None,):
            for batch in request.batches or (config.infer.batch,):
                yield _shape(config, adapter, geometry, prompt, context, batch)


def _shape(
    config: AppConfig,
    adapter: ModelAdapter,
    geometry: Mapping[str, Any],
    prompt: int | None,
    context: int | None,
    batch: int,
) -> Shape:
    if adapter.data_kind == PAGES:
        # A context of its own keeps the stage's half-way point, which is not what is asked for, out of the shape.
        fixed = replace(config, workload=replace(config.workload, context=context or 1))
        base = shape_from_config(fixed, adapter, geometry)
        views = tuple(replace(view, count=view.count * batch) for view in base.views)
        return replace(base, batch=batch, context=context or base.prompt, views=views)
    tokens = prompt or config.workload.prompt
    return Shape(batch=batch, prompt=tokens, context=context or tokens, how="as asked for")
