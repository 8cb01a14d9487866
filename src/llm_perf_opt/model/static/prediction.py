"""One phase on one device: operators of an eager run, bounds, estimate, what limits it, tokens per second.

How many operators an eager PyTorch model starts in one forward is estimated from its parts: the numbers are those of
transformers' plain modules (a norm in half precision is eight operators: two casts, square, mean, add, reciprocal root,
two products). The operator count replaces this estimate where it was run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.hardware.hardware import CPU
from llm_perf_opt.model.hardware.roofline import (
    Bound,
    Ceilings,
    Estimate,
    Limit,
    achievable_ceilings,
    bound,
    datasheet_ceilings,
    estimate,
    launch_band,
    limit_of,
    missing_ceiling,
)
from llm_perf_opt.model.hardware.work import Dtypes, Step
from llm_perf_opt.model.static.closed_form import DEFAULT_MLA_MODE, Phase
from llm_perf_opt.model.static.forms import MlaMode
from llm_perf_opt.model.static.parts import (
    DenseMlp,
    GroupedAttention,
    Layer,
    Model,
    Moe,
    StateMixer,
)

NORM = 8
OUTSIDE_LAYERS = 21
RESIDUALS = 2
ROTARY = 10
CACHE = 2
LATENT_ATTENTION = 22
MIXER = 40
ROUTED = 23
SHARED = 8


def estimate_operators(model: Model, *, is_prefill: bool, view_batches: int = 0) -> int:
    """Operators of one forward. `view_batches`: how many times the image side runs."""
    decoder = model.decoder
    # The causal mask of a prompt costs one more operator in each layer.
    mask = 1 if is_prefill else 0
    text = OUTSIDE_LAYERS + sum(count * (_layer(layer) + mask) for layer, count in decoder.blocks)
    if model.images is None or not is_prefill:
        return text
    return text + model.images.operators(view_batches)


def _layer(layer: Layer) -> int:
    return layer.norms * NORM + RESIDUALS + _attention(layer) + _feed_forward(layer)


def _attention(layer: Layer) -> int:
    a = layer.attention
    if isinstance(a, StateMixer):
        return MIXER if a.in_width else 0
    if not isinstance(a, GroupedAttention):
        return LATENT_ATTENTION + (NORM + 1 if a.q_rank is not None else 0)
    projections = 2 if a.is_fused_qkv else 4
    norms = 2 * NORM if a.norm_elements else 0
    return projections + norms + ROTARY + CACHE + 1


def _feed_forward(layer: Layer) -> int:
    block = layer.feed_forward
    if isinstance(block, Moe):
        return ROUTED + (SHARED if block.shared_width else 0)
    return _dense(block)


def _dense(mlp: DenseMlp) -> int:
    if not mlp.width:
        return 0
    if not mlp.is_gated:
        return 3
    return 4 if mlp.is_fused_gate else 5


@dataclass(frozen=True, kw_only=True)
class Operators:
    """How many operators a phase starts and what the small ones move; `how` says where that is from."""

    count: float
    other_bytes: float
    how: str


# What a forward takes under a way of running; None: not known.
Estimator = Callable[[Step], Estimate | None]


@dataclass(frozen=True, kw_only=True)
class PhasePrediction:
    """None wherever a ceiling is not known, with the reason alongside it.

    Bounds are those of the fastest way to run latent attention; `modes` has the data sheet's (where there is none, the
    achievable one) of each way, and is empty for other models.
    """

    tokens: int
    datasheet: Bound | None
    datasheet_reason: str | None
    achievable: Bound | None
    achievable_reason: str | None
    estimate: Estimate | None
    launch_ms: float
    limit: Limit | None
    operators: Operators
    modes: Mapping[MlaMode, Bound] = field(default_factory=dict)

    def tokens_per_s(self, ms: float | None) -> float | None:
        return self.tokens / (ms / 1e3) if ms else None


def predict_phase(
    phase: Phase,
    *,
    tokens: int,
    dtypes: Dtypes,
    hardware: HardwareSection | None,
    operators: Operators,
    ways: Mapping[MlaMode, Phase] | None = None,
    is_latent: bool = False,
    estimator: Estimator | None = None,
    devices: int = 1,
) -> PhasePrediction:
    """`tokens` is what the phase yields: the prompt's tokens, or one per sequence.

    `ways` are what the bound is taken of, with latent attention in each of its ways: no run can be faster than the
    fastest of them.
    `estimator` says what a forward takes; without one the estimate is the roofline's own. `devices` share the work of a
    forward, and with it the bound.
    """
    whole: Mapping[MlaMode, Phase] = ways or {DEFAULT_MLA_MODE: phase}
    sheets, why_no_sheet = _bounds(whole, dtypes, hardware, "datasheet", devices)
    reaches, why_no_reach = _bounds(whole, dtypes, hardware, "achievable", devices)
    sheet, reach = _lowest(sheets), _lowest(reaches)
    launch_us = hardware.launch_us if hardware is not None else None
    launch_ms = operators.count * launch_band(launch_us)[1] / 1e3
    known = reach or sheet
    if estimator is not None:
        expected = estimator(phase.step)
    else:
        expected = _estimate(phase, dtypes, hardware, operators) if reach else None
    return PhasePrediction(
        tokens=tokens,
        datasheet=sheet,
        datasheet_reason=why_no_sheet,
        achievable=reach,
        achievable_reason=why_no_reach,
        estimate=_not_below(expected, sheet),
        launch_ms=launch_ms if expected is None or estimator is None else expected.launch_ms,
        limit=_limit(known, launch_ms, expected if estimator is not None else None),
        operators=operators,
        modes=(sheets or reaches) if is_latent else {},
    )


def _not_below(found: Estimate | None, sheet: Bound | None) -> Estimate | None:
    """An estimate below what no run can beat is the bound itself, regardless of measured or given rates."""
    if found is None or sheet is None:
        return found
    return replace(
        found,
        low_ms=max(found.low_ms, sheet.ms),
        mid_ms=max(found.mid_ms, sheet.ms),
        high_ms=max(found.high_ms, sheet.ms),
    )


def _limit(known: Bound | None, launch_ms: float, expected: Estimate | None) -> Limit | None:
    if expected is not None:
        return expected.limit
    return limit_of(known, launch_ms) if known else None


def ceilings_of(hardware: HardwareSection, kind: str) -> Ceilings | None:
    return achievable_ceilings(hardware) if kind == "achievable" else datasheet_ceilings(hardware)


def _bounds(
    ways: Mapping[MlaMode, Phase], dtypes: Dtypes, hardware: HardwareSection | None, kind: str, devices: int
) -> tuple[dict[MlaMode, Bound], str | None]:
    if hardware is None:
        return {}, "the hardware is not known"
    ceilings = ceilings_of(hardware, kind)
    reason = missing_ceiling(hardware, ceilings, dtypes, kind)
    if ceilings is None or reason is not None:
        return {}, reason
    whole = {way: bound(phase.total, dtypes, ceilings) for way, phase in ways.items()}
    return {
        way: Bound(compute_ms=one.compute_ms / devices, memory_ms=one.memory_ms / devices) for way, one in whole.items()
    }, None


def _lowest(bounds: Mapping[MlaMode, Bound]) -> Bound | None:
    return min(bounds.values(), key=lambda found: found.ms, default=None)


def _estimate(phase: Phase, dtypes: Dtypes, hardware: HardwareSection | None, operators: Operators) -> Estimate | None:
    ceilings = achievable_ceilings(hardware) if hardware is not None else None
    if hardware is None or ceilings is None:
        return None
    return estimate(
        phase.groups,
        dtypes,
        ceilings,
        operators=operators.count,
        launch_us=hardware.launch_us,
        other_bytes=operators.other_bytes,
        is_synchronous=hardware.name == CPU,
    )
