"""Prompts on devices of their own: how many for prompts and how many for decoding meet the limits, and at what price.

A prompt device works on prompts alone, one after the other; the cache then moves to a decoding device, whose steps no
prompt holds up. Both pools are sized by their own limit: arrivals that wait for a prompt device, and time per token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.model.estimate.engine_model import ENGINES
from llm_perf_opt.model.estimate.parallel import Layout
from llm_perf_opt.model.estimate.requests import Load, prompt_ms, token_ms
from llm_perf_opt.model.estimate.steps import Setting
from llm_perf_opt.model.static.closed_form import kv_bytes
from llm_perf_opt.planning.deployments import Demand, Limits

# Bytes per second between pools: one 400 Gbit/s adapter a device.
NETWORK_BYTES_PER_S = 50e9
TAIL_WAITS = math.log(1 / (1 - 0.95))
FULLEST = 0.95


@dataclass(frozen=True, kw_only=True)
class Pools:
    """`prompts` and `decoders`: replicas of their layouts; `batch`: requests that one decoder holds."""

    hardware: str
    weight_dtype: str | None
    prompt_layout: Layout
    prompts: int
    decode_layout: Layout
    decoders: int
    batch: int
    ttft_p95_ms: float
    tpot_ms: float
    per_s: float
    price_per_hour: float | None

    @property
    def devices(self) -> int:
        return self.prompts * self.prompt_layout.devices + self.decoders * self.decode_layout.devices


@dataclass(frozen=True, kw_only=True)
class PoolOption:
    """A layout that holds the model, and how many sequences fit into it."""

    setting: Setting
    places: int


def best_pools(
    options: Sequence[PoolOption], load: Load, limits: Limits, demand: Demand, *, weight_dtype: str | None
) -> Pools | None:
    """The fewest devices for a demand, with prompts on some and decoding on others. None: no limits are kept."""
    tried = (_decoder(place, load, limits) for place in options)
    decoders = [decoder for decoder in tried if decoder is not None]
    if not decoders:
        return None
    decode, batch, step = min(decoders, key=lambda each: each[2] * each[0].setting.layout.devices / each[1])
    found: list[Pools] = []
    for place in options:
        first = prompt_ms(place.setting, load)
        pools = None if first is None else _sized(place, decode, first, batch, step, load, limits, demand, weight_dtype)
        found += [] if pools is None else [pools]
    return min(found, key=lambda pools: pools.devices, default=None)


def _decoder(place: PoolOption, load: Load, limits: Limits) -> tuple[PoolOption, int, float] | None:
    """The most sequences whose step meets the limit per token."""
    low, high = 0, place.places + 1
    step = 0.0
    while high - low > 1:
        middle = (low + high) // 2
        ms = token_ms(place.setting, load, batch=middle)
        if ms is None:
            return None
        if limits.tpot_ms is None or ms <= limits.tpot_ms:
            low, step = middle, ms
        else:
            high = middle
    return (place, low, step) if low else None


def _sized(
    place: PoolOption,
    decode: PoolOption,
    first_ms: float,
    batch: int,
    step_ms: float,
    load: Load,
    limits: Limits,
    demand: Demand,
    weight_dtype: str | None,
) -> Pools | None:
    setting = place.setting
    host = ENGINES[setting.engine].host
    each = first_ms + host.request_us / 1e3
    cache = kv_bytes(setting.model, load.prompt, setting.dtypes, "absorbed")
    moved = 1e3 * cache / (NETWORK_BYTES_PER_S * setting.layout.devices)
    alone = host.arrival_ms + host.prompt_token_us * load.prompt / 1e3 + each + moved + step_ms
    share = FULLEST
    if limits.ttft_ms is not None:
        room = limits.ttft_ms - alone
        if room <= 0:
            return None
        # The 95th percentile of the wait for a server with fixed service times: each · share / (2 (1 − share)) · ln 20.
        waits = 2 * room / (each * TAIL_WAITS)
        share = min(FULLEST, waits / (1 + waits))
    wait = each * share / (2 * (1 - share)) * TAIL_WAITS
    seconds = (alone + wait / TAIL_WAITS + (load.output - 1) * step_ms) / 1e3
    per_s = demand.per_s if demand.per_s is not None else (demand.users or 0) / seconds
    wanted = per_s * (1 + demand.headroom)
    prompts = math.ceil(wanted * each / 1e3 / share)
    decoders = math.ceil(wanted * (load.output - 1) * step_ms / 1e3 / batch) or 1
    hourly = setting.hardware.price_per_hour
    found = Pools(
        hardware=setting.hardware.name,
        weight_dtype=weight_dtype,
        prompt_layout=setting.layout,
        prompts=prompts,
        decode_layout=decode.setting.layout,
        decoders=decoders,
        batch=batch,
        ttft_p95_ms=alone + wait,
        tpot_ms=step_ms,
        per_s=per_s,
        price_per_hour=None,
    )
    return found if hourly is None else replace(found, price_per_hour=hourly * found.devices)
