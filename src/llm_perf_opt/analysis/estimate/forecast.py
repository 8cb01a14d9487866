"""From steps to what people plan with: time to first token, time per token, requests, throughput, cost.

A step's estimate is the engine's time for it (`engine`), in eager mode at least what the host needs to start its
operators, and never less than the bound. Bands hold nine of ten points that were measured (docs/accuracy.md); they are
wider where rates were transferred from another GPU.
"""

from dataclasses import dataclass, field, replace

from llm_perf_opt.analysis.estimate.efficiency import TRANSFERRED, rates_of
from llm_perf_opt.analysis.estimate.engine import ENGINES, step_time
from llm_perf_opt.analysis.estimate.parallel import Layout, link_of
from llm_perf_opt.analysis.hardware.roofline import (
    Bound,
    Estimate,
    bound,
    datasheet_ceilings,
    launch_band,
)
from llm_perf_opt.analysis.hardware.work import Dtypes, Step
from llm_perf_opt.analysis.static.closed_form import forward_phase
from llm_perf_opt.analysis.static.forms import MLA_MODES, MlaMode
from llm_perf_opt.analysis.static.parts import Model
from llm_perf_opt.analysis.static.prediction import estimate_operators
from llm_perf_opt.config.schema import HardwareSection

# Widths of the bands: nine of ten measured points of the H200 lie within the first.
BAND_MEASURED, BAND_TRANSFERRED = 1.18, 1.45
# As many tokens of prompts as serving engines take into one forward unless told otherwise.
PROMPT_TOKENS = 8192
MOST_PIECES = 256


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


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked of it. `concurrency`: requests in flight on one replica; `chunk`: prompts go in such pieces.

    `prefix_hit`: the share of the prompt that a cache of prefixes holds already. `acceptance` and `draft`: the share of
    drafted tokens that are kept, and how many are drafted at a time; a draft costs `draft_cost` of a step.
    """

    prompt: int
    output: int
    concurrency: int = 1
    prefix_hit: float = 0.0
    chunk: int | None = None
    acceptance: float | None = None
    draft: int = 4
    draft_cost: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Milliseconds of a request and tokens per second of all replicas; `cost` per million output tokens, if priced."""

    ttft_ms: float
    tpot_ms: float
    request_ms: float
    output_tokens_per_s: float
    cost: float | None
    label: str


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
    # Devices that share the work share the bound.
    lowest = _lowest_bound(setting, replace(step, batch=step.batch * layout.sharing))
    floor_ms = 0.0 if lowest is None else lowest.ms / layout.experts_split
    width = BAND_TRANSFERRED if rates.label == TRANSFERRED else BAND_MEASURED
    device_ms = max(time.device_ms, floor_ms)
    low_us, mid_us, high_us = launch_band(hardware.launch_us) if setting.engine == "eager" else (0.0, 0.0, 0.0)
    operators = estimate_operators(setting.model, is_prefill=step.new > 1)
    launch_ms = operators * mid_us / 1e3
    return Estimate(
        low_ms=max(device_ms / width, operators * low_us / 1e3, floor_ms),
        mid_ms=max(device_ms, launch_ms),
        high_ms=max(device_ms * width, operators * high_us / 1e3),
        launch_ms=launch_ms,
        limit="launch" if launch_ms > device_ms or lowest is None else lowest.limit,
        gpu_ms=max(time.gpu_ms, floor_ms),
        label=rates.label,
    )


def _lowest_bound(setting: Setting, step: Step) -> Bound | None:
    """What no run of this step on one device can beat: the lowest over the modes of latent attention."""
    ceilings = datasheet_ceilings(setting.hardware)
    if ceilings is None:
        return None
    found = []
    for mode in MLA_MODES:
        phase = forward_phase(setting.model, step, setting.dtypes, mode)
        found.append(bound(phase.total, setting.dtypes, ceilings))
    return min(found, key=lambda one: one.ms)


def prompt_ms(setting: Setting, load: Load, *, batch: int = 1) -> float | None:
    """The prompt, less what a prefix cache holds, in chunks where asked for."""
    held = int(load.prompt * load.prefix_hit)
    left = max(1, load.prompt - held)
    piece = left if load.chunk is None else max(1, min(left, load.chunk // batch))
    starts = range(0, left, piece)
    # A piece takes a little longer than the one before it, so of very many some stand for their neighbours.
    stride = -(-len(starts) // MOST_PIECES)
    seen = starts[stride // 2 :: stride]
    total = 0.0
    for done in seen:
        found = step_estimate(setting, Step(batch=batch, new=min(piece, left - done), past=held + done))
        if found is None:
            return None
        total += found.mid_ms
    return total * len(starts) / len(seen)


def token_ms(setting: Setting, load: Load, *, batch: int) -> float | None:
    """Time per token half-way through the output; with drafts, the verified step's time over the tokens it yields."""
    context = load.prompt + load.output // 2
    plain = step_estimate(setting, Step(batch=batch, new=1, past=context))
    if plain is None or load.acceptance is None:
        return None if plain is None else plain.mid_ms
    checked = step_estimate(setting, Step(batch=batch, new=load.draft + 1, past=context))
    if checked is None:
        return None
    # A cache of that length is read once by the check as by a plain step, so it is never cheaper than one.
    verify = max(checked.mid_ms, plain.mid_ms)
    return (verify + load.draft * load.draft_cost * plain.mid_ms) / tokens_per_check(load.acceptance, load.draft)


def tokens_per_check(acceptance: float, draft: int) -> float:
    """Tokens a verified step yields when each draft is kept with this probability: those kept in a row, and one."""
    if acceptance >= 1:
        return draft + 1.0
    return float((1 - acceptance ** (draft + 1)) / (1 - acceptance))


def forecast(setting: Setting, load: Load) -> Forecast | None:
    """Requests that come and go: while `concurrency` of them decode, prompts of new ones ride in between.

    For each step of the batch, concurrency / output prompts have to be worked in, so a token takes a step and its share
    of prompts, and so does everybody else's. Short prompts go in together.
    """
    first = prompt_ms(setting, load)
    together = max(1, min(load.concurrency, (load.chunk or PROMPT_TOKENS) // load.prompt))
    packed = prompt_ms(setting, replace(load, chunk=None), batch=together) if together > 1 else first
    step = token_ms(setting, load, batch=load.concurrency)
    if first is None or packed is None or step is None:
        return None
    # A pipeline works on as many batches as it has stages, so its throughput is that of one stage.
    prompts = load.concurrency / load.output * packed / together
    busy_ms = (step + prompts) / setting.layout.pp
    rate = load.concurrency / (busy_ms / 1e3) * setting.layout.dp
    tpot = step + prompts if load.concurrency > 1 else step
    return Forecast(
        ttft_ms=first,
        tpot_ms=tpot,
        request_ms=first + (load.output - 1) * tpot,
        output_tokens_per_s=rate,
        cost=cost_per_million(setting, rate),
        label=_label(setting.hardware),
    )


def _label(hardware: HardwareSection) -> str:
    rates = rates_of(hardware)
    return TRANSFERRED if rates is None else rates.label


def cost_per_million(setting: Setting, tokens_per_s: float) -> float | None:
    price = setting.hardware.price_per_hour
    return None if price is None else price * setting.layout.devices / (tokens_per_s * 3600) * 1e6
