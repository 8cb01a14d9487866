"""Rows of `llm-perf predict`: from overrides, through a model's configuration, to one prediction per combination."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from llm_perf_opt.config.load import load_config
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import AppConfig, HardwareSection
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.estimate.engine import ENGINES
from llm_perf_opt.model.estimate.parallel import layout_problem
from llm_perf_opt.model.estimate.requests import (
    DRAFT_COST,
    PROMPT_TOKENS,
    ArrivalRate,
    Forecast,
    Load,
    forecast,
    forecast_arrivals,
)
from llm_perf_opt.model.estimate.steps import Setting, step_estimate
from llm_perf_opt.model.families.wrapped import is_wrapped, longest_context, text_fields
from llm_perf_opt.model.hardware.calibrate import cache_dir, read_calibration
from llm_perf_opt.model.hardware.hardware import (
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
from llm_perf_opt.model.hardware.roofline import uncounted_products
from llm_perf_opt.model.hardware.work import DeviceShare, Dtypes, Shape, short_dtype
from llm_perf_opt.model.static.analysis import Analysis, analyse
from llm_perf_opt.model.static.config_json import Fields, NotADecoder, NotInClosedForm, read_config_json
from llm_perf_opt.model.static.counted import CountedAnalysis, counted_document
from llm_perf_opt.model.static.document import (
    PredictionsDocument,
    ServingForecast,
    StaticDocument,
    build_document,
)
from llm_perf_opt.model.static.memory import RESERVE, InMemory, held_context
from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.model.static.quantised import Quantised, read_quantised, run_dtypes, stored_weights
from llm_perf_opt.planning.counted import MetaModel, count_model
from llm_perf_opt.planning.machine import this_cpu, this_device
from llm_perf_opt.planning.predict_request import Case, Request, parse_request
from llm_perf_opt.planning.prediction import Row
from llm_perf_opt.planning.source import fetch_config, find_config
from llm_perf_opt.planning.vision_params import Beside, count_beside
from llm_perf_opt.profiling.static_child import shape_from_config
from llm_perf_opt.workload.dataset import PAGES
from llm_perf_opt.workload.models.base import ModelAdapter
from llm_perf_opt.workload.models.registry import choose_dtype, load_adapter

# Cards that run above the boost clock of their data sheet while power and temperature allow it, and by how much:
# the sheets say 1.7 to 2.6 GHz, the cards reach 1.95 to 2.9. A published run came to 98 % of such a bound.
BOOSTS, BOOST = "NVIDIA GeForce", 0.15
# What serving engines leave of a device's memory by default (vLLM's gpu_memory_utilization of 0.9).
SERVER_RESERVE = 0.1
# What they call layers that predict tokens beyond the next one.
FURTHER = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def predictions(overrides: Sequence[str]) -> list[Row]:
    """What a command line of overrides asks for."""
    return predict_rows(parse_request(overrides, conf=conf_dir()))


def predict_rows(request: Request) -> list[Row]:
    return [row for subject in subjects(request) for row in _predict(subject, request)]


def predictions_document(rows: Sequence[Row]) -> PredictionsDocument:
    return PredictionsDocument(predictions=tuple(_document(row) for row in rows))


def _document(row: Row) -> StaticDocument:
    layout, case, found = row.case.layout, row.case, row.forecast
    serving = ServingForecast(
        engine=case.engine,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        output_tokens=case.output,
        concurrency=None if case.rate is not None else case.in_flight,
        arrivals_per_s=case.rate,
        fits=row.fits,
    )
    if found is not None:
        serving = replace(
            serving,
            ttft_ms=found.ttft_ms,
            ttft_p95_ms=found.ttft_p95_ms,
            tpot_ms=found.tpot_ms,
            request_ms=found.request_ms,
            output_tokens_per_s=found.output_tokens_per_s,
            output_tokens_per_s_low=found.output_tokens_per_s / found.band.slower,
            output_tokens_per_s_high=found.output_tokens_per_s * found.band.faster,
            band=found.band.why,
            cost_per_million_tokens=found.cost,
        )
    analysis = row.analysis
    if isinstance(analysis, CountedAnalysis):
        return counted_document(analysis, notes=row.notes, predictions=row.predictions)
    return replace(build_document(analysis, notes=row.notes), serving=serving)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model to predict: its configuration, where that was read, and its parts or what has to be counted."""

    label: str
    config: AppConfig
    adapter: ModelAdapter
    geometry: Any
    where: str
    model: Model | MetaModel
    beside: Beside

    @property
    def text(self) -> Fields:
        """The fields of the text model, which a wrapper has inside."""
        return text_fields(self.geometry, self.where)

    @property
    def longest(self) -> int | None:
        return longest_context(self.text)


def subjects(request: Request) -> Iterator[Subject]:
    """The presets asked for, and the model in each path: read by the preset named, or by the one that knows it."""
    paths = [find_config(path) or fetch_config(path, os.environ) for path in request.paths]
    if not paths:
        for name in request.models or ("deepseek_ocr",):
            yield _subject(name, None, request)
    for path in paths:
        data = read_config_json(path)
        has_towers = {"language_config", "vision_config"} <= set(data)
        for name in request.models or (("deepseek_ocr",) if has_towers else ("causal_lm",)):
            yield _subject(name, path, request)


def _subject(name: str, path: Path | None, request: Request) -> Subject:
    plain = tuple(o for o in request.overrides if o not in request.hardware_overrides)
    folder = () if path is None else (f"model.path={json.dumps(str(path.parent))}",)
    config = _compose([f"model={name}", *folder, *plain])
    geometry, where = _geometry(config, path)
    adapter = load_adapter(config.model.adapter)
    model: Model | MetaModel
    try:
        model = adapter.parts(geometry, where=where)
    except NotADecoder:
        raise
    except NotInClosedForm as error:
        model = MetaModel(adapter, config.model, text_fields(geometry, where).data, error.what)
    is_text = adapter.data_kind != PAGES
    beside = count_beside(geometry, where=where) if is_text and is_wrapped(geometry) else Beside()
    if isinstance(model, Model):
        model = replace(model, beside=tuple(beside.params.items()))
    label = config.model.name
    if path is not None:
        label = path.parent.name if path.name == "config.json" else path.stem
    return Subject(
        label=label, config=config, adapter=adapter, geometry=geometry, where=where, model=model, beside=beside
    )


def _predict(subject: Subject, request: Request) -> Iterator[Row]:
    """One row for each hardware and each combination of the workload's lists."""
    if "prompt" in request.lists and subject.adapter.data_kind == PAGES:
        raise ConfigError(
            "workload.prompt: the page sets the prompt of this model; set dataset.page_width and page_height"
        )
    for hardware in request.hardware:
        device, resolved = find_hardware(hardware, request)
        for case in request.cases():
            yield predict_row(subject, case, device, resolved)


def predict_row(subject: Subject, case: Case, device: Device | None, resolved: Resolved) -> Row:
    dtypes, quantised, notes = _dtypes(subject, resolved, device, case)
    section = _with_cached_calibration(resolved.section, device, dtypes.compute)
    shape = _shape(subject, case)
    capacity = _memory_of(device, section)
    if capacity is None and section is not None and section.memory_gb is not None:
        capacity = section.memory_gb * 1e9
    model, reason = subject.model, resolved.reason or _uncalibrated(section)
    if isinstance(model, MetaModel):
        counted = count_model(
            model,
            shape,
            Dtypes.uniform(dtypes.compute),
            section,
            name=subject.label,
            hardware_reason=reason,
            capacity_bytes=None if capacity is None else capacity * case.layout.model_devices,
            beside=subject.beside.params,
            stored=None if quantised is None else quantised.stored,
            weight_format=None if quantised is None else quantised.weight,
            devices=case.layout.model_devices,
        )
        said = (*notes, *_subject_notes(subject, shape, case, None), *_counted_notes(subject.label, model, case))
        return Row(analysis=counted, case=case, forecast=None, notes=said)
    if quantised is not None:
        model = replace(model, stored=stored_weights(model, quantised, wide_bytes=dtypes.compute_bytes))
    setting = None
    problem = layout_problem(model.decoder, case.layout)
    is_reckoned = section is not None and section.name != CPU and model.images is None
    if is_reckoned and section is not None and problem is None:
        setting = Setting(
            model=model,
            dtypes=dtypes,
            hardware=section,
            engine=case.engine,
            layout=case.layout,
            mla_mode=case.mla_mode,
        )
    held = _held(case, shape)

    def analysed(held: InMemory | None) -> Analysis:
        return analyse(
            model,
            shape,
            dtypes,
            section,
            name=subject.label,
            hardware_reason=reason,
            capacity_bytes=None if capacity is None else capacity * case.layout.model_devices,
            mla_mode=case.mla_mode or ENGINES[case.engine].mla_decode,
            estimator=(lambda step: None if setting is None else step_estimate(setting, step)) if is_reckoned else None,
            chunk=case.prefill_chunk if held is None else case.prefill_chunk or max(shape.prompt, PROMPT_TOKENS),
            spread=case.layout.spread if problem is None else DeviceShare(tp=case.layout.tp),
            held=held,
        )

    analysis = analysed(held)
    places = analysis.fit.largest_batch if analysis.fit is not None and held is not None else None
    served = _forecast(setting, case, shape, places or None)
    if held is not None and served is not None and case.rate is not None:
        # How many arrivals are in flight follows from how long they take.
        analysis = analysed(replace(held, sequences=max(1, math.ceil(served.in_flight / case.layout.dp))))
    return Row(
        analysis=analysis,
        case=case,
        forecast=served,
        notes=(
            *notes,
            *_subject_notes(subject, shape, case, problem),
            *_load_notes(subject.label, case, served, places),
            *_format_notes(section, dtypes),
        ),
    )


def _held(case: Case, shape: Shape) -> InMemory | None:
    """Requests in flight as memory holds them, half-way through their answers; None: a single batch."""
    if case.output is None:
        return None
    sequences = -(-case.in_flight // case.layout.dp)
    return InMemory(
        sequences=sequences,
        context=held_context(shape.prompt, case.output, sequences),
        draft_share=DRAFT_COST if case.acceptance is not None else 0.0,
        reserve=SERVER_RESERVE if case.engine == "server" else RESERVE,
    )


def _load_notes(label: str, case: Case, served: Forecast | None, places: int | None) -> tuple[str, ...]:
    found = []
    if served is None and case.rate is not None and places:
        found.append(f"{label}: {case.rate:g} requests per second are more than {_devices(case)} can keep up with")
    per_replica = -(-case.in_flight // case.layout.dp)
    if case.rate is None and case.output is not None and places and per_replica > places:
        found.append(
            f"{label}: of {per_replica:,} requests in flight on a replica {places:,} fit into the memory, the others "
            "wait"
        )
    if case.prefix_hit:
        found.append(
            "prefix_hit: each request in flight holds its whole prompt, cached or not; prefixes kept for later "
            "requests need more memory"
        )
    return tuple(found)


def _devices(case: Case) -> str:
    count = case.layout.devices
    return "one device" if count == 1 else f"{count} devices"


def _format_notes(section: HardwareSection | None, dtypes: Dtypes) -> tuple[str, ...]:
    """Products a data sheet has no rate for, and weights in a format the device has no units for."""
    if section is None or section.name == CPU:
        return ()
    found = [text] if (text := uncounted_products(section, dtypes)) is not None else []
    if any(name.startswith(BOOSTS) for name in section.device_names):
        found.append(
            f"{section.name} boosts above the clock of its data sheet: compute-bound runs may be up to {BOOST:.0%} "
            "faster than the bound"
        )
    is_widened = dtypes.weight != dtypes.compute and dtypes.engine_product(section.peak_tflops) == dtypes.compute
    if is_widened and dtypes.weight != "int4" and section.peak_tflops:
        found.append(
            f"{section.name} has no units for {dtypes.weight}: estimates multiply in {dtypes.compute}, bounds in the "
            "fastest format such weights are widened to"
        )
    return tuple(found)


def _counted_notes(label: str, model: MetaModel, case: Case) -> tuple[str, ...]:
    """What a count does not say, and what was asked for in vain."""
    found = [
        f"{label}: {model.reason}; its operators were counted with torch (slower): an eager run of one device; "
        "bounds are the reading of the weights alone, and so is the memory"
    ]
    asked = [name for name in ("weight_dtype", "kv_dtype", "activation_dtype", "output") if getattr(case, name)]
    if asked or case.layout.devices > 1 or case.engine != "eager":
        found.append(
            f"{label}: times of other formats and engines, of several devices and of requests are not reckoned from a "
            "count: times are one device's, memory is held against all"
        )
    return tuple(found)


def _forecast(setting: Setting | None, case: Case, shape: Shape, places: int | None) -> Forecast | None:
    if setting is None or case.output is None:
        return None
    load = Load(
        prompt=shape.prompt,
        output=case.output,
        concurrency=case.in_flight,
        places=places,
        prefix_hit=case.prefix_hit,
        chunk=case.prefill_chunk,
        acceptance=case.acceptance,
        draft=case.draft_tokens,
    )
    if case.rate is None:
        return forecast(setting, load)
    return forecast_arrivals(setting, load, ArrivalRate(per_s=case.rate, burstiness=case.burstiness))


def _subject_notes(subject: Subject, shape: Shape, case: Case, problem: str | None) -> tuple[str, ...]:
    found = [f"{subject.label}: no estimate, {problem}"] if problem is not None else []
    longest = subject.longest
    reach = max(shape.prompt + (case.output or 0), shape.context)
    if longest is not None and reach > longest:
        found.append(f"{subject.label}: {reach:,} tokens are beyond its max_position_embeddings of {longest:,}")
    further = next((key for key in FURTHER if subject.text.data.get(key)), None)
    if further is not None:
        found.append(
            f"{subject.label}: layers that predict further tokens ({further}) are not counted, published totals may "
            "have them: transformers leaves them out, engines load them for speculative decoding"
        )
    if subject.adapter.data_kind != PAGES and is_wrapped(subject.geometry):
        found.append(f"{subject.label}: {_beside_note(subject.beside)}")
    return tuple(found)


def _beside_note(beside: Beside) -> str:
    """What is reckoned of the parts that read images or sound."""
    why = "" if beside.reason is None else f"; {beside.reason}"
    if beside.params:
        return (
            f"what reads images or sound ({', '.join(beside.params)}) is in the memory, unquantised; times and FLOPs "
            "are the text model's alone: tokens made of images count as tokens of the prompt, making them does not"
            f"{why}"
        )
    return f"the text model alone is counted, in the memory too, not what reads images or sound{why}"


def _compose(overrides: Sequence[str]) -> AppConfig:
    """The typed configuration without the stages: predict runs none."""
    from llm_perf_opt.pipeline.compose import COMPOSITION_ERRORS, compose_config, explain_composition_error

    try:
        composed = compose_config(overrides)
    except COMPOSITION_ERRORS as error:
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


def _geometry(config: AppConfig, path: Path | None) -> tuple[Any, str]:
    """The model's configuration and where it was read: its file if it is there, else the preset."""
    model = config.model
    if path is not None and path.name != "config.json":
        return read_config_json(path), str(path)
    if model.path is not None and (path is not None or (model.path / "config.json").is_file()):
        data = read_config_json(model.path)
        adapter = load_adapter(model.adapter)
        found = adapter.geometry(replace(model, weights="snapshot"))
        if "quantization_config" in data and isinstance(found, Mapping):
            # It may stand in a file of its own beside config.json.
            found = {**found, "quantization_config": data["quantization_config"]}
        return found, str(model.path / "config.json")
    if model.geometry is None:
        raise ConfigError(
            "model.path: missing, give the folder of a Hugging Face model, or a preset as model=llama3_8b"
        )
    return model.geometry, "model.geometry"


def find_hardware(name: str, request: Request) -> tuple[Device | None, Resolved]:
    """A catalogue entry with the user's changes, or this machine's device. The device is None for somebody else's."""
    catalogue = load_catalogue(conf_dir() / "hardware")
    if request.hardware_overrides:
        section = _compose([f"hardware={name}", *request.hardware_overrides]).hardware
    else:
        section = HardwareSection() if name == AUTO else catalogue[name]
    device = this_device(os.environ) if name == AUTO else (this_cpu() if name == CPU else None)
    if device is not None and name == AUTO and device.is_cpu and section.peak_tflops:
        # Peaks given on a machine without a GPU describe a device of the user's, not this machine's processor.
        return None, Resolved(section=replace(section, name="given", sources=given_sources(section)))
    return device, resolve_hardware(section, device, catalogue)


def _dtypes(
    subject: Subject, resolved: Resolved, device: Device | None, case: Case
) -> tuple[Dtypes, Quantised | None, tuple[str, ...]]:
    """The formats a run would use there: `auto` is bfloat16 on GPUs (float16 before Ampere) and float32 on CPUs.

    And what the checkpoint says of its formats, where it is taken as it is.
    """
    section, model = resolved.section, subject.config.model
    on_cpu = (device is not None and device.is_cpu) or (section is not None and section.name == CPU)
    chosen = choose_dtype(model.dtype, device="cpu" if on_cpu else "cuda:0", stored=None)
    compute, notes = short_dtype(chosen.value, where="model.dtype"), chosen.notes
    if section is not None and model.dtype == "auto" and compute == "bf16":
        peaks = section.peak_tflops
        if "bf16" not in peaks and "fp16" in peaks:
            compute, notes = "fp16", (*notes, f"{section.name} has no bf16: fp16 is used")
    stored = Quantised(weight=model.quantization) if model.quantization != "none" else None
    if stored is None and case.weight_dtype is None:
        # A wrapper has it outside or inside its text model.
        text = dict(subject.text.data)
        outer = subject.geometry.get("quantization_config")
        stored = read_quantised({**text, "quantization_config": outer} if outer else text, where=subject.where)
    found = run_dtypes(compute, stored)
    weight, kv = case.weight_dtype or found.weight, case.kv_dtype or found.kv
    return replace(found, weight=weight, kv=kv, activation=case.activation_dtype), stored, notes


def _with_cached_calibration(
    section: HardwareSection | None, device: Device | None, dtype: str
) -> HardwareSection | None:
    """This machine's own calibration, if an earlier run made one."""
    if section is None or device is None:
        return section
    known = read_calibration(cache_dir(os.environ), device, dtype)
    return section if known is None else with_calibration(section, known)


def _memory_of(device: Device | None, section: HardwareSection | None) -> float | None:
    """What the device itself says, unless the configuration says otherwise; None: the section's own figure counts."""
    if device is None or (section is not None and is_given(section, "memory_gb")):
        return None
    return device.memory_bytes


def _uncalibrated(section: HardwareSection | None) -> str | None:
    """A CPU has no data sheet to fall back on, and measuring it needs torch, which this command does not import."""
    if section is None or section.name != CPU or section.achieved_tflops or section.peak_tflops:
        return None
    return "this CPU was not calibrated yet: `llm-perf profile experiment=demo` measures it once, in about a second"


def _shape(subject: Subject, case: Case) -> Shape:
    config, adapter = subject.config, subject.adapter
    if adapter.data_kind == PAGES:
        # A context of its own keeps the stage's half-way point, which is not what is asked for, out of the shape.
        fixed = replace(config, workload=replace(config.workload, context=case.context or 1))
        base = shape_from_config(fixed, adapter, subject.geometry)
        views = tuple(replace(view, count=view.count * case.batch) for view in base.views)
        return replace(base, batch=case.batch, context=case.context or base.prompt, views=views)
    tokens = case.prompt or config.workload.prompt
    return Shape(batch=case.batch, prompt=tokens, context=case.context or tokens, how="as asked for")
