"""The whole static analysis of one model at one shape on one device, as records that documents are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.model.hardware.work import ONE_DEVICE, DeviceShare, Dtypes, Shape
from llm_perf_opt.model.static.closed_form import (
    DEFAULT_MLA_MODE,
    Parameters,
    Phase,
    count_parameters,
    decode_phase,
    kv_bytes_per_token,
    prefill_phase,
)
from llm_perf_opt.model.static.double_entry import Entry, double_entry
from llm_perf_opt.model.static.forms import MLA_MODES, MlaMode, expected_experts
from llm_perf_opt.model.static.model_memory import Fit, InMemory, MemoryNeed, memory_fit, memory_need
from llm_perf_opt.model.static.operator_count import Count
from llm_perf_opt.model.static.parts import LatentAttention, Model, Moe
from llm_perf_opt.model.static.prediction import (
    Estimator,
    Operators,
    PhasePrediction,
    estimate_operators,
    predict_phase,
)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """`counts` is empty if operators were not counted; `latent_modes` and `experts` are None if a model has none."""

    name: str
    model: Model
    dtypes: Dtypes
    mla_mode: MlaMode
    shape: Shape
    hardware: HardwareSection | None
    hardware_reason: str | None
    parameters: Parameters
    kv_bytes_per_token: float
    phases: Mapping[str, Phase]
    predictions: Mapping[str, PhasePrediction]
    counts: Mapping[str, Count]
    entries: tuple[Entry, ...]
    memory: MemoryNeed
    fit: Fit | None
    latent_modes: Mapping[str, tuple[float, float]] | None
    experts: Mapping[str, float] | None


def analyse(
    model: Model,
    shape: Shape,
    dtypes: Dtypes,
    hardware: HardwareSection | None,
    *,
    name: str,
    hardware_reason: str | None = None,
    capacity_bytes: float | None = None,
    counts: Mapping[str, Count] | None = None,
    mla_mode: MlaMode = DEFAULT_MLA_MODE,
    estimator: Estimator | None = None,
    chunk: int | None = None,
    spread: DeviceShare = ONE_DEVICE,
    held: InMemory | None = None,
) -> Analysis:
    """`capacity_bytes` is the device's own figure where it could be queried; else the data sheet's.

    `estimator` is the way of running in question; `chunk`: prefill in chunks of this many tokens; `spread`:
    devices that share the work of a forward; `held`: requests in flight, where memory holds more than the batch.
    """
    phases = _phases(model, shape, dtypes, mla_mode)
    counted = counts or {}
    return Analysis(
        name=name,
        model=model,
        dtypes=dtypes,
        mla_mode=mla_mode,
        shape=shape,
        hardware=hardware,
        hardware_reason=hardware_reason,
        parameters=count_parameters(model),
        kv_bytes_per_token=kv_bytes_per_token(model, dtypes, mla_mode),
        phases=phases,
        predictions={
            phase: _predict(phase, found, model, shape, dtypes, hardware, counted, estimator, spread)
            for phase, found in phases.items()
        },
        counts=counted,
        entries=double_entry(model, {phase: (phases[phase], count) for phase, count in counted.items()}, dtypes),
        memory=memory_need(
            model,
            batch=shape.batch,
            prompt=shape.prompt,
            context=shape.longest,
            dtypes=dtypes,
            mla_mode=mla_mode,
            views=shape.views,
            chunk=chunk,
            spread=spread,
            held=held,
        ),
        fit=_fit(model, shape, dtypes, hardware, capacity_bytes, mla_mode, chunk, spread, held),
        latent_modes=_latent_modes(model, shape, dtypes),
        experts=_experts(model, shape),
    )


def _phases(model: Model, shape: Shape, dtypes: Dtypes, mla_mode: MlaMode) -> dict[str, Phase]:
    prefill = prefill_phase(
        model, batch=shape.batch, prompt=shape.prompt, dtypes=dtypes, mla_mode=mla_mode, views=shape.views
    )
    decode = decode_phase(model, batch=shape.batch, context=shape.context, dtypes=dtypes, mla_mode=mla_mode)
    return {PREFILL: prefill, DECODE: decode}


def _predict(
    name: str,
    phase: Phase,
    model: Model,
    shape: Shape,
    dtypes: Dtypes,
    hardware: HardwareSection | None,
    counts: Mapping[str, Count],
    estimator: Estimator | None,
    spread: DeviceShare,
) -> PhasePrediction:
    if name in counts:
        total = counts[name].total
        operators = Operators(count=total.operators, other_bytes=total.other_bytes, how="counted")
    else:
        number = estimate_operators(model, is_prefill=name == PREFILL, view_batches=len(shape.views))
        operators = Operators(count=number, other_bytes=0.0, how="estimated from the model's parts")
    return predict_phase(
        phase,
        tokens=phase.step.rows,
        dtypes=dtypes,
        hardware=hardware,
        operators=operators,
        ways=_ways(name, phase, model, shape, dtypes, spread),
        is_latent=_is_latent(model),
        estimator=estimator,
        devices=spread.tp * spread.sharing * (spread.stages if name == PREFILL else 1),
    )


def _ways(
    name: str, phase: Phase, model: Model, shape: Shape, dtypes: Dtypes, spread: DeviceShare
) -> dict[MlaMode, Phase]:
    """What a bound is taken of, in each mode of latent attention: the phase of all replicas that share experts.

    Stages of a pipeline divide the work of prompts. A token passes all of them, at best in a batch that is a stage's
    share of the sequences.
    """
    modes = MLA_MODES if _is_latent(model) else (DEFAULT_MLA_MODE,)
    parts = spread.stages if name == DECODE else 1
    if spread.sharing == parts == 1 and len(modes) == 1:
        return {DEFAULT_MLA_MODE: phase}
    whole = replace(shape, batch=-(-shape.batch // parts) * spread.sharing)
    return {mode: _phases(model, whole, dtypes, mode)[name] for mode in modes}


def _is_latent(model: Model) -> bool:
    return any(isinstance(layer.attention, LatentAttention) for layer, _ in model.decoder.blocks)


def _fit(
    model: Model,
    shape: Shape,
    dtypes: Dtypes,
    hardware: HardwareSection | None,
    capacity_bytes: float | None,
    mla_mode: MlaMode,
    chunk: int | None,
    spread: DeviceShare,
    held: InMemory | None,
) -> Fit | None:
    if capacity_bytes is None and hardware is not None and hardware.memory_gb is not None:
        capacity_bytes = hardware.memory_gb * 1e9
    if capacity_bytes is None:
        return None
    return memory_fit(
        model,
        capacity_bytes,
        batch=shape.batch,
        prompt=shape.prompt,
        context=shape.longest,
        dtypes=dtypes,
        mla_mode=mla_mode,
        views=shape.views,
        chunk=chunk,
        spread=spread,
        held=held,
    )


def _latent_modes(model: Model, shape: Shape, dtypes: Dtypes) -> dict[str, tuple[float, float]] | None:
    """FLOPs of a decode step and KV bytes per token in each mode of latent attention."""
    if not _is_latent(model):
        return None
    return {
        mode: (
            decode_phase(model, batch=shape.batch, context=shape.context, dtypes=dtypes, mla_mode=mode).total.flops,
            kv_bytes_per_token(model, dtypes, mode),
        )
        for mode in MLA_MODES
    }


def _experts(model: Model, shape: Shape) -> dict[str, float] | None:
    """Distinct experts a layer is expected to touch in each phase; a bound counts those of one token alone."""
    moes = [layer.feed_forward for layer, _ in model.decoder.blocks if isinstance(layer.feed_forward, Moe)]
    if not moes:
        return None
    moe = moes[0]
    return {
        "experts": moe.experts,
        "per_token": moe.top_k,
        PREFILL: expected_experts(moe.experts, moe.top_k, shape.batch * shape.prompt),
        DECODE: expected_experts(moe.experts, moe.top_k, shape.batch),
    }
