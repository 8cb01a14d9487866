"""Predicts rows: one model on one device under one combination of the workload's lists."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.estimate.engine_model import ENGINES
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
from llm_perf_opt.model.hardware.hardware import (
    CPU,
    Device,
    Resolved,
)
from llm_perf_opt.model.hardware.work import DeviceShare, Dtypes, Shape, short_dtype
from llm_perf_opt.model.static.model_analysis import Analysis, analyse
from llm_perf_opt.model.static.model_memory import RESERVE, InMemory, held_context
from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.model.static.quantised import Quantised, read_quantised, run_dtypes, stored_weights
from llm_perf_opt.planning.chosen_device import find_hardware, memory_of, uncalibrated, with_cached_calibration
from llm_perf_opt.planning.counted_rows import MetaModel, count_model
from llm_perf_opt.planning.notes import counted_notes, format_notes, load_notes, subject_notes
from llm_perf_opt.planning.predict_request import Case, Request, parse_request
from llm_perf_opt.planning.predicted_rows import Row
from llm_perf_opt.planning.subject import Subject, subjects
from llm_perf_opt.profiling.static_child import shape_from_config
from llm_perf_opt.workload.dataset import PAGES
from llm_perf_opt.workload.models.registry import choose_dtype

# What serving engines leave of a device's memory by default (vLLM's gpu_memory_utilization of 0.9).
SERVER_RESERVE = 0.1


def predictions(overrides: Sequence[str]) -> list[Row]:
    """What a command line of overrides asks for."""
    return predict_rows(parse_request(overrides, conf=conf_dir()))


def predict_rows(request: Request) -> list[Row]:
    return [row for subject in subjects(request) for row in _predict(subject, request)]


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


@dataclass(frozen=True, kw_only=True)
class _Question:
    """One case of one subject on one device, with what follows from the three: formats, input, memory of a device."""

    subject: Subject
    case: Case
    section: HardwareSection | None
    reason: str | None
    dtypes: Dtypes
    stored: Quantised | None
    shape: Shape
    memory_bytes: float | None
    notes: tuple[str, ...]

    @property
    def capacity_bytes(self) -> float | None:
        """Of all devices that hold one copy of the weights."""
        return None if self.memory_bytes is None else self.memory_bytes * self.case.layout.model_devices


def predict_row(subject: Subject, case: Case, device: Device | None, resolved: Resolved) -> Row:
    dtypes, stored, notes = _dtypes(subject, resolved, device, case)
    section = with_cached_calibration(resolved.section, device, dtypes.compute)
    memory = memory_of(device, section)
    if memory is None and section is not None and section.memory_gb is not None:
        memory = section.memory_gb * 1e9
    question = _Question(
        subject=subject,
        case=case,
        section=section,
        reason=resolved.reason or uncalibrated(section),
        dtypes=dtypes,
        stored=stored,
        shape=_shape(subject, case),
        memory_bytes=memory,
        notes=notes,
    )
    model = subject.model
    return _counted_row(question, model) if isinstance(model, MetaModel) else _analysed_row(question, model)


def _counted_row(question: _Question, model: MetaModel) -> Row:
    """Of a family without a closed form: its operators are counted."""
    subject, case, stored = question.subject, question.case, question.stored
    counted = count_model(
        model,
        question.shape,
        Dtypes.uniform(question.dtypes.compute),
        question.section,
        name=subject.label,
        hardware_reason=question.reason,
        capacity_bytes=question.capacity_bytes,
        beside=subject.beside.params,
        stored=None if stored is None else stored.stored,
        weight_format=None if stored is None else stored.weight,
        devices=case.layout.model_devices,
    )
    notes = (
        *question.notes,
        *subject_notes(subject, question.shape, case, None),
        *counted_notes(subject.label, model, case),
    )
    return Row(analysis=counted, case=case, forecast=None, notes=notes)


def _analysed_row(question: _Question, model: Model) -> Row:
    """By the closed form; where requests are served, memory holds as many as are in flight."""
    case, shape, dtypes = question.case, question.shape, question.dtypes
    if question.stored is not None:
        model = replace(model, stored=stored_weights(model, question.stored, wide_bytes=dtypes.compute_bytes))
    problem = layout_problem(model.decoder, case.layout)
    setting = None if problem is not None else _setting(question, model)
    held = _held(case, shape)
    analysis = _analyse(question, model, setting, held, has_layout=problem is None)
    places = analysis.fit.largest_batch if analysis.fit is not None and held is not None else None
    served = _forecast(setting, case, shape, places or None)
    if held is not None and served is not None and case.rate is not None:
        # How many arrivals are in flight follows from how long they take.
        held = replace(held, sequences=max(1, math.ceil(served.in_flight / case.layout.dp)))
        analysis = _analyse(question, model, setting, held, has_layout=True)
    label = question.subject.label
    notes = (
        *question.notes,
        *subject_notes(question.subject, shape, case, problem),
        *load_notes(label, case, served, places),
        *format_notes(question.section, dtypes),
    )
    return Row(analysis=analysis, case=case, forecast=served, notes=notes)


def _setting(question: _Question, model: Model) -> Setting | None:
    """How the model is run; None where no times are estimated: on a CPU, or with an image side."""
    section, case = question.section, question.case
    if section is None or section.name == CPU or model.images is not None:
        return None
    return Setting(
        model=model,
        dtypes=question.dtypes,
        hardware=section,
        engine=case.engine,
        layout=case.layout,
        mla_mode=case.mla_mode,
    )


def _analyse(
    question: _Question, model: Model, setting: Setting | None, held: InMemory | None, *, has_layout: bool
) -> Analysis:
    """`has_layout`: an engine runs the model spread as asked; else the bounds are those of its tensor parallelism."""
    case, shape, section = question.case, question.shape, question.section
    is_by_engine = section is not None and section.name != CPU and model.images is None
    return analyse(
        model,
        shape,
        question.dtypes,
        section,
        name=question.subject.label,
        hardware_reason=question.reason,
        capacity_bytes=question.capacity_bytes,
        mla_mode=case.mla_mode or ENGINES[case.engine].mla_decode,
        estimator=(lambda step: None if setting is None else step_estimate(setting, step)) if is_by_engine else None,
        chunk=case.prefill_chunk if held is None else case.prefill_chunk or max(shape.prompt, PROMPT_TOKENS),
        spread=case.layout.spread if has_layout else DeviceShare(tp=case.layout.tp),
        held=held,
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


def _shape(subject: Subject, case: Case) -> Shape:
    config, adapter = subject.config, subject.adapter
    if adapter.data_kind == PAGES:
        # Its own context keeps the stage's half-way point, which is not what is requested, out of the shape.
        fixed = replace(config, workload=replace(config.workload, context=case.context or 1))
        base = shape_from_config(fixed, adapter, subject.geometry)
        views = tuple(replace(view, count=view.count * case.batch) for view in base.views)
        return replace(base, batch=case.batch, context=case.context or base.prompt, views=views)
    tokens = case.prompt or config.workload.prompt
    return Shape(batch=case.batch, prompt=tokens, context=case.context or tokens, how="as asked for")
