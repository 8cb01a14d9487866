"""`static.json`: every number of a static analysis that a report joins with measurements, and the manifest's headline.

The records below are what is written and what a report reads. Keys without a value are null, with a reason alongside
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.core.records import Metric
from llm_perf_opt.model.hardware.roofline import Bound
from llm_perf_opt.model.hardware.work import Dtypes, View, Work
from llm_perf_opt.model.static.double_entry import Entry, disagreements
from llm_perf_opt.model.static.model_analysis import Analysis
from llm_perf_opt.model.static.model_what_if import WhatIf
from llm_perf_opt.model.static.operator_count import Tally
from llm_perf_opt.model.static.parts import in_order
from llm_perf_opt.model.static.prediction import PhasePrediction

NO_HARDWARE_MEMORY = "the device's memory is not known"


@dataclass(frozen=True, kw_only=True)
class StaticHardware:
    """The device's ceilings; `name` None: it is not known, and `reason` says why."""

    name: str | None
    reason: str | None = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    memory_bandwidth_gb_s: float | None = None
    memory_gb: float | None = None
    l2_mb: float | None = None
    link: str | None = None
    link_gb_s: float | None = None
    calibrated: bool = False
    achieved_tflops: Mapping[str, float] = field(default_factory=dict)
    achieved_bandwidth_gb_s: float | None = None
    launch_us: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StaticWorkload:
    """The input the analysis is made for; `how` says where it is from."""

    batch: int
    prompt_tokens: int
    context: int | None = None
    views: tuple[View, ...] = ()
    how: str | None = None


@dataclass(frozen=True, kw_only=True)
class StaticParameters:
    """`activated`: those one token uses, None where that is not known; `groups`: all, by part of the model.

    `activated_inside` leaves embedding and output matrix out.
    """

    total: int
    activated: int | None
    activated_inside: int | None = None
    groups: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LatentMode:
    """What one way to run latent attention costs."""

    decode_flops: float
    kv_bytes_per_token: float


@dataclass(frozen=True, kw_only=True)
class LatentModes:
    """The ways to run latent attention; `mode` is the one analysed."""

    mode: str
    modes: Mapping[str, LatentMode]


@dataclass(frozen=True, kw_only=True)
class StaticMemory:
    """What the model needs and what fits; `largest_context` None with a capacity: memory sets no limit."""

    weights_bytes: float | None = None
    kv_cache_bytes: float | None = None
    activations_bytes: float | None = None
    peak_bytes: float | None = None
    capacity_bytes: float | None = None
    usable_bytes: float | None = None
    largest_batch: int | None = None
    largest_context: int | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class StaticGroup:
    """One part of the model in one phase; `counted_*` and `operators` are None where operators were not counted."""

    params: float
    flops: float | None
    flops_needed: float | None
    bytes: float | None
    bytes_needed: float | None
    weight_bytes: float | None = None
    kv_read_bytes: float | None = None
    kv_write_bytes: float | None = None
    activation_bytes: float | None = None
    intensity: float | None = None
    counted_flops: float | None = None
    counted_bytes: float | None = None
    counted_other_bytes: float | None = None
    operators: float | None = None


@dataclass(frozen=True, kw_only=True)
class BoundParts:
    """The two times of which a bound is the larger, in ms."""

    compute: float
    memory: float


@dataclass(frozen=True, kw_only=True)
class PhaseBound:
    """Milliseconds no run can beat, at the data sheet's and at the measured ceilings, each with its own reason.

    `latent_modes`: the bound of each way to run latent attention, of which the lowest counts.
    """

    datasheet: float | None
    achievable: float | None
    datasheet_reason: str | None = None
    achievable_reason: str | None = None
    datasheet_parts: BoundParts | None = None
    achievable_parts: BoundParts | None = None
    latent_modes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PhaseEstimate:
    """What a run is expected to take, in ms; `gpu` is the device's busy time where it is distinguished.

    `label`: from rates measured on the device, or transferred from another.
    """

    low: float | None
    mid: float | None
    high: float | None
    reason: str | None = None
    gpu: float | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class TokenRates:
    """Tokens per second at the bounds and at the middle of the estimate."""

    datasheet: float | None
    achievable: float | None
    estimate: float | None


@dataclass(frozen=True, kw_only=True)
class StaticPhase:
    """One phase: its work, and how fast it could be. All figures are per prompt or per decode step, as `per` says."""

    flops: float | None
    flops_needed: float | None
    bytes: float | None
    bytes_needed: float | None
    weight_bytes: float | None = None
    kv_read_bytes: float | None = None
    kv_write_bytes: float | None = None
    activation_bytes: float | None = None
    intensity: float | None = None
    tokens: int | None = None
    counted_flops: float | None = None
    counted_bytes: float | None = None
    counted_other_bytes: float | None = None
    operators: float | None = None
    operators_how: str | None = None
    groups: Mapping[str, StaticGroup] = field(default_factory=dict)
    bound_ms: PhaseBound
    limit: str | None = None
    launch_ms: float | None = None
    estimate_ms: PhaseEstimate | None = None
    tokens_per_s: TokenRates | None = None
    per: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServingForecast:
    """Requests under a way of running: ms of a request, tokens per second of all replicas, cost of a million tokens.

    `concurrency`: requests in flight over all replicas. `ttft_ms` is the median. `band`: why low and high are that far
    apart. `fits`: whether all requests in flight fit into the memory; null: not known.
    """

    engine: str
    tp: int
    pp: int
    ep: int
    dp: int
    output_tokens: int | None = None
    concurrency: int | None = None
    arrivals_per_s: float | None = None
    ttft_ms: float | None = None
    ttft_p95_ms: float | None = None
    tpot_ms: float | None = None
    request_ms: float | None = None
    output_tokens_per_s: float | None = None
    output_tokens_per_s_low: float | None = None
    output_tokens_per_s_high: float | None = None
    band: str | None = None
    cost_per_million_tokens: float | None = None
    fits: bool | None = None


@dataclass(frozen=True, kw_only=True)
class StaticDocument:
    """`static.json`: the static analysis of one model at one shape on one device.

    `closed_form_reason`: why there is no closed form; its figures are then null, and only `counted_*` is given.
    `what_if`: predicted times of other choices, in documents of runs.
    """

    schema_version: Literal[1] = 1
    model: str
    dtype: str
    dtypes: Dtypes | None = None
    closed_form_reason: str | None = None
    hardware: StaticHardware
    workload: StaticWorkload
    parameters: StaticParameters
    kv_bytes_per_token: float | None
    latent_attention: LatentModes | None = None
    experts: Mapping[str, float] | None = None
    memory: StaticMemory
    serving: ServingForecast | None = None
    phases: Mapping[str, StaticPhase]
    double_entry: tuple[Entry, ...] = ()
    what_if: WhatIf | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PredictionsDocument:
    """What `llm-perf predict --json` prints: one static analysis for each combination asked for."""

    schema_version: Literal[1] = 1
    predictions: tuple[StaticDocument, ...]


def build_document(analysis: Analysis, *, notes: tuple[str, ...] = (), what_if: WhatIf | None = None) -> StaticDocument:
    """The analysis as it is written."""
    shape = analysis.shape
    return StaticDocument(
        model=analysis.name,
        dtype=analysis.dtypes.compute,
        dtypes=analysis.dtypes,
        hardware=hardware_record(analysis.hardware, analysis.hardware_reason),
        workload=StaticWorkload(
            batch=shape.batch, prompt_tokens=shape.prompt, context=shape.context, views=shape.views, how=shape.how
        ),
        parameters=StaticParameters(
            total=analysis.parameters.total,
            activated=analysis.parameters.activated,
            activated_inside=analysis.parameters.activated_inside,
            groups=dict(analysis.parameters.groups),
        ),
        kv_bytes_per_token=analysis.kv_bytes_per_token,
        latent_attention=_latent(analysis),
        experts=None if analysis.experts is None else dict(analysis.experts),
        memory=_memory(analysis),
        phases={name: _phase(analysis, name) for name in analysis.phases},
        double_entry=analysis.entries,
        what_if=what_if,
        notes=notes,
    )


def hardware_record(section: HardwareSection | None, reason: str | None) -> StaticHardware:
    if section is None:
        return StaticHardware(name=None, reason=reason)
    return StaticHardware(
        name=section.name,
        reason=reason,
        peak_tflops=dict(section.peak_tflops),
        memory_bandwidth_gb_s=section.memory_bandwidth_gb_s,
        memory_gb=section.memory_gb,
        l2_mb=section.l2_mb,
        link=section.link,
        link_gb_s=section.link_gb_s,
        calibrated=bool(section.achieved_tflops),
        achieved_tflops=dict(section.achieved_tflops),
        achieved_bandwidth_gb_s=section.achieved_bandwidth_gb_s,
        launch_us=section.launch_us,
        sources=dict(section.sources),
    )


def _latent(analysis: Analysis) -> LatentModes | None:
    if analysis.latent_modes is None:
        return None
    modes = {
        mode: LatentMode(decode_flops=flops, kv_bytes_per_token=size)
        for mode, (flops, size) in analysis.latent_modes.items()
    }
    return LatentModes(mode=analysis.mla_mode, modes=modes)


def _memory(analysis: Analysis) -> StaticMemory:
    need = analysis.memory
    fit = analysis.fit
    return StaticMemory(
        weights_bytes=need.weights_bytes,
        kv_cache_bytes=need.kv_cache_bytes,
        activations_bytes=need.activations_bytes,
        peak_bytes=need.peak_bytes,
        capacity_bytes=fit.capacity_bytes if fit else None,
        usable_bytes=fit.usable_bytes if fit else None,
        largest_batch=fit.largest_batch if fit else None,
        largest_context=fit.largest_context if fit else None,
        reason=None if fit else NO_HARDWARE_MEMORY,
    )


def _phase(analysis: Analysis, name: str) -> StaticPhase:
    phase, prediction = analysis.phases[name], analysis.predictions[name]
    total = phase.total
    count = analysis.counts.get(name)
    groups = in_order({*phase.groups, *(count.groups if count else ())})
    return StaticPhase(
        flops=total.flops,
        flops_needed=total.flops_needed,
        bytes=total.bytes,
        bytes_needed=total.bytes_needed,
        weight_bytes=total.weight_bytes,
        kv_read_bytes=total.kv_read_bytes,
        kv_write_bytes=total.kv_write_bytes,
        activation_bytes=total.activation_bytes,
        intensity=_intensity(total),
        tokens=phase.step.rows,
        counted_flops=count.total.flops if count else None,
        counted_bytes=count.total.bytes if count else None,
        counted_other_bytes=count.total.other_bytes if count else None,
        operators=prediction.operators.count,
        operators_how=prediction.operators.how,
        groups={group: _group(analysis, name, group) for group in groups},
        bound_ms=_bounds(prediction),
        limit=prediction.limit,
        launch_ms=prediction.launch_ms,
        estimate_ms=_estimate(prediction),
        tokens_per_s=_rates(prediction),
        per="decode step" if name == DECODE else "prompt",
    )


def _group(analysis: Analysis, phase: str, group: str) -> StaticGroup:
    work = analysis.phases[phase].groups.get(group, Work())
    count = analysis.counts.get(phase)
    tally = None if count is None else count.groups.get(group, Tally())
    return StaticGroup(
        params=analysis.parameters.groups.get(group, 0),
        flops=work.flops,
        flops_needed=work.flops_needed,
        bytes=work.bytes,
        bytes_needed=work.bytes_needed,
        weight_bytes=work.weight_bytes,
        kv_read_bytes=work.kv_read_bytes,
        kv_write_bytes=work.kv_write_bytes,
        activation_bytes=work.activation_bytes,
        intensity=_intensity(work),
        counted_flops=tally.flops if tally else None,
        counted_bytes=tally.bytes if tally else None,
        counted_other_bytes=tally.other_bytes if tally else None,
        operators=tally.operators if tally else None,
    )


def _intensity(work: Work) -> float | None:
    return work.flops / work.bytes if work.bytes else None


def _bounds(prediction: PhasePrediction) -> PhaseBound:
    return PhaseBound(
        datasheet=_ms(prediction.datasheet),
        achievable=_ms(prediction.achievable),
        datasheet_reason=prediction.datasheet_reason,
        achievable_reason=prediction.achievable_reason,
        datasheet_parts=_parts(prediction.datasheet),
        achievable_parts=_parts(prediction.achievable),
        latent_modes={mode: found.ms for mode, found in prediction.modes.items()},
    )


def _ms(bound: Bound | None) -> float | None:
    return None if bound is None else bound.ms


def _parts(bound: Bound | None) -> BoundParts | None:
    return None if bound is None else BoundParts(compute=bound.compute_ms, memory=bound.memory_ms)


def _estimate(prediction: PhasePrediction) -> PhaseEstimate:
    found = prediction.estimate
    if found is None:
        return PhaseEstimate(low=None, mid=None, high=None, reason=prediction.achievable_reason)
    return PhaseEstimate(low=found.low_ms, mid=found.mid_ms, high=found.high_ms, gpu=found.gpu_ms, label=found.label)


def _rates(prediction: PhasePrediction) -> TokenRates:
    found = prediction.estimate
    return TokenRates(
        datasheet=prediction.tokens_per_s(_ms(prediction.datasheet)),
        achievable=prediction.tokens_per_s(_ms(prediction.achievable)),
        estimate=prediction.tokens_per_s(found.mid_ms if found else None),
    )


CLOSED_FORM = "closed form from the model's configuration"


def static_metrics(analysis: Analysis, *, source: str | None) -> dict[str, Metric]:
    """Names as in `static.json`, with the phase at the end."""

    def number(value: float | int, unit: str, *, how: str = CLOSED_FORM, per: str | None = None) -> Metric:
        return Metric(value=value, unit=unit, how=how, per=per, source=source)

    found = {
        "params_total": number(analysis.parameters.total, "parameters"),
        "params_activated": number(analysis.parameters.activated, "parameters", per="token"),
        "kv_bytes_per_token": number(analysis.kv_bytes_per_token, "bytes", per="token"),
        "weights_bytes": number(analysis.memory.weights_bytes, "bytes"),
        "peak_memory_predicted_bytes": number(analysis.memory.peak_bytes, "bytes"),
        "double_entry_disagreements": _disagreements(analysis, source),
    }
    for phase in (PREFILL, DECODE):
        total = analysis.phases[phase].total
        per = "prompt" if phase == PREFILL else "decode step"
        found[f"flops_{phase}"] = number(total.flops, "FLOP", per=per)
        found[f"flops_needed_{phase}"] = number(total.flops_needed, "FLOP", per=per)
        found[f"bytes_{phase}"] = number(total.bytes, "bytes", per=per)
        found[f"bytes_needed_{phase}"] = number(total.bytes_needed, "bytes", per=per)
        found |= _bound_metrics(analysis, phase, per, source)
    return found


def _bound_metrics(analysis: Analysis, phase: str, per: str, source: str | None) -> dict[str, Metric]:
    """`bound_*` is the data sheet's where there is one, else the calibration's (a CPU has only that)."""
    p = analysis.predictions[phase]
    name = analysis.hardware.name if analysis.hardware else "unknown hardware"
    reason = analysis.hardware_reason
    if p.datasheet is not None:
        best = _metric(p.datasheet.ms, f"data-sheet peaks of {name}", per, source, None)
    else:
        ms = p.achievable.ms if p.achievable else None
        best = _metric(ms, f"calibration of {name}", per, source, reason or p.achievable_reason)
    reach = p.achievable.ms if p.achievable else None
    middle = p.estimate.mid_ms if p.estimate else None
    why = reason or p.achievable_reason
    return {
        f"bound_{phase}_ms": best,
        f"bound_achievable_{phase}_ms": _metric(reach, f"achievable ceilings of {name}", per, source, why),
        f"estimate_{phase}_ms": _metric(middle, f"eager run at achievable ceilings of {name}", per, source, why),
        f"limit_{phase}": _limit(p, per, source, reason or p.datasheet_reason),
        f"operators_{phase}": Metric(
            value=p.operators.count, unit="operators", how=p.operators.how, per=per, source=source
        ),
    }


def _metric(ms: float | None, how: str, per: str, source: str | None, reason: str | None) -> Metric:
    return Metric(value=ms, unit="ms", how=how, per=per, source=source, reason=None if ms is not None else reason)


def _limit(p: PhasePrediction, per: str, source: str | None, reason: str | None) -> Metric:
    how = "largest of compute, memory and launch time"
    return Metric(value=p.limit, unit="", how=how, per=per, source=source, reason=None if p.limit else reason)


def _disagreements(analysis: Analysis, source: str | None) -> Metric:
    if not analysis.entries:
        return Metric(
            value=None, unit="entries", how="closed form against operator count", reason="operators were not counted"
        )
    return Metric(
        value=len(disagreements(analysis.entries)),
        unit="entries",
        how="closed form against operator count, over 1 %",
        per=f"{len(analysis.entries)} entries",
        source=source,
    )
