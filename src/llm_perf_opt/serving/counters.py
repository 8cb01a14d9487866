"""The server's own counters, from its Prometheus page: how many run, how many wait, how full the cache is."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

# What is shown, and the names servers give it.
KNOWN: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "KV cache use": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "trtllm_kv_cache_utilization",
    ),
    "prefix cache hits": ("sglang:cache_hit_rate", "trtllm_kv_cache_hit_rate"),
    "preemptions": ("vllm:num_preemptions_total",),
}
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", re.MULTILINE)
_TOTALS = frozenset({"preemptions"})


@dataclass(frozen=True, kw_only=True)
class CounterSample:
    """One look at the page."""

    at_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class ServerCounter:
    """One counter over a load. `kind` total: it only grows, and `last` is by how much it did."""

    name: str
    kind: Literal["gauge", "total"]
    mean: float
    most: float
    last: float


def parse_counters(text: str) -> dict[str, float]:
    """The counters we show; those of several engines or ranks are added up, shares of a cache averaged."""
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            found.setdefault(name, []).append(number)
    values = {}
    for shown, names in KNOWN.items():
        numbers = next((found[name] for name in names if name in found), None)
        if numbers is not None:
            values[shown] = fmean(numbers) if "cache" in shown else sum(numbers)
    return values


def summarise_counters(samples: "list[CounterSample]") -> tuple[ServerCounter, ...]:
    rows = []
    for name in KNOWN:
        values = [sample.values[name] for sample in samples if name in sample.values]
        if not values:
            continue
        is_total = name in _TOTALS
        last = values[-1] - values[0] if is_total else values[-1]
        rows.append(
            ServerCounter(
                name=name, kind="total" if is_total else "gauge", mean=fmean(values), most=max(values), last=last
            )
        )
    return tuple(rows)
