"""The time of one forward under a setting: a middle and a band.

A step's estimate is the engine's time for it (`engine`), in eager mode at least what the host needs to start its
operators, and never less than the bound. How wide the band is says `bands`.
"""

from dataclasses import dataclass, field, replace

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.estimate.bands import EAGER, band_of
from llm_perf_opt.model.estimate.efficiency import rates_of
from llm_perf_opt.model.estimate.engine_model import ENGINES, step_time
from llm_perf_opt.model.estimate.parallel import Layout, link_of
from llm_perf_opt.model.hardware.roofline import (
    Bound,
    Estimate,
    bound,
    datasheet_ceilings,
    launch_band,
)
from llm_perf_opt.model.hardware.work import Dtypes, Step
from llm_perf_opt.model.static.closed_form import forward_phase
from llm_perf_opt.model.static.forms import MLA_MODES, MlaMode
from llm_perf_opt.model.static.parts import LatentAttention, Model
from llm_perf_opt.model.static.prediction import estimate_operators


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a model is run: formats, device, engine and spread.

    `mla_mode` and `touched` (experts hit in a layer) are for runs of which they are known.
    """

    model: Model
    dtypes: Dtypes
    hardware: HardwareSection
    engine: str = "graph"
    layout: Layout = field(default_factory=Layout)
    mla_mode: MlaMode | None = None
    touched: float | None = None


def step_estimate(setting: Setting, step: Step) -> Estimate | None:
    """One forward. None: the device's peaks are not known, or not in the formats asked for."""
    hardware, dtypes = setting.hardware, setting.dtypes
    rates = rates_of(hardware)
    if rates is None or not {dtypes.compute, dtypes.engine_product(rates.ceilings.flops_per_s)} <= set(
        rates.ceilings.flops_per_s
    ):
        return None
    engine, layout = ENGINES[setting.engine], setting.layout
    time = step_time(
        setting.model.decoder,
        step,
        dtypes,
        rates,
        engine,
        layout,
        link_of(hardware),
        mla_mode=setting.mla_mode,
        touched=setting.touched,
    )
    lowest = shared_bound(setting, step)
    floor_ms = 0.0 if lowest is None else lowest.ms
    band = band_of(setting.model, setting.engine, layout, hardware)
    device_ms = max(time.device_ms, floor_ms)
    low_us, mid_us, high_us = launch_band(hardware.launch_us) if setting.engine == "eager" else (0.0, 0.0, 0.0)
    if hardware.launch_us is None:
        high_us = max(high_us, mid_us * EAGER.slower)
    operators = estimate_operators(setting.model, is_prefill=step.new > 1)
    launch_ms = operators * mid_us / 1e3
    return Estimate(
        low_ms=max(device_ms / band.faster, operators * low_us / 1e3, floor_ms),
        mid_ms=max(device_ms, launch_ms),
        high_ms=max(device_ms * band.slower, operators * high_us / 1e3),
        launch_ms=launch_ms,
        limit="launch" if launch_ms > device_ms or lowest is None else lowest.limit,
        gpu_ms=max(time.gpu_ms, floor_ms),
        label=rates.label,
    )


def shared_bound(setting: Setting, step: Step) -> Bound | None:
    """The bound of one forward of a replica, whose devices share the work, and the bound. None: peaks not known."""
    found = step_bound(setting, replace(step, batch=step.batch * setting.layout.sharing))
    if found is None:
        return None
    split = setting.layout.experts_split
    return Bound(compute_ms=found.compute_ms / split, memory_ms=found.memory_ms / split)


def step_bound(setting: Setting, step: Step) -> Bound | None:
    """What no run of this step on one device can beat: the lowest over the modes of latent attention."""
    ceilings = datasheet_ceilings(setting.hardware)
    if ceilings is None:
        return None
    is_latent = any(isinstance(layer.attention, LatentAttention) for layer, _ in setting.model.decoder.blocks)
    found = []
    for mode in MLA_MODES if is_latent else MLA_MODES[:1]:
        phase = forward_phase(setting.model, step, setting.dtypes, mode)
        found.append(bound(phase.total, setting.dtypes, ceilings))
    return min(found, key=lambda one: one.ms)
