"""The server's own counters, from its Prometheus page: how many run, how many wait, how full the cache is."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

# What is kept, and the names servers give it.
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
    "speculative accept length": ("sglang:spec_accept_length",),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_reqs"),
    "prefix cache tokens asked": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix cache tokens found": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "draft tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted draft tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
}
_TOTALS = frozenset(
    {"preemptions", "prefix cache tokens asked", "prefix cache tokens found", "draft tokens", "accepted draft tokens"}
)
# Shares and means are averaged over the engines of a server, the rest is added up.
_MEANS = frozenset({"KV cache use", "prefix cache hits", "speculative accept length"})
# Shares of two totals: what is shown, the part and the whole.
_SHARES = (
    ("prefix cache hits", "prefix cache tokens found", "prefix cache tokens asked"),
    ("speculative acceptance", "accepted draft tokens", "draft tokens"),
)
_INFO = re.compile(r"^(vllm|sglang):(\w+)_info\{(.*)\}\s+1(?:\.0)?\s*$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class CounterSample:
    """One read of the page."""

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
            values[shown] = fmean(numbers) if shown in _MEANS else sum(numbers)
    return values


def summarise_counters(samples: Sequence[CounterSample], *, until_s: float | None = None) -> tuple[ServerCounter, ...]:
    """Every counter over a level that ended at `until_s`: a page read after it has the totals, and an idle server."""
    within = [sample for sample in samples if until_s is None or sample.at_s <= until_s] or samples[:1]
    rows = []
    for name in KNOWN:
        is_total = name in _TOTALS
        kept = samples if is_total else within
        values = [sample.values[name] for sample in kept if name in sample.values]
        if not values:
            continue
        last = values[-1] - values[0] if is_total else values[-1]
        rows.append(
            ServerCounter(
                name=name, kind="total" if is_total else "gauge", mean=fmean(values), most=max(values), last=last
            )
        )
    return (*rows, *_shares({row.name: row for row in rows}))


def _shares(rows: Mapping[str, ServerCounter]) -> list[ServerCounter]:
    found = []
    for name, part, whole in _SHARES:
        if name not in rows and part in rows and whole in rows and rows[whole].last > 0:
            share = rows[part].last / rows[whole].last
            found.append(ServerCounter(name=name, kind="gauge", mean=share, most=share, last=share))
    return found


def parse_info(text: str) -> dict[str, str]:
    """What a server says about itself on its page: the labels of its `…_info` lines, such as its cache's size."""
    found = {}
    for _, name, labels in _INFO.findall(text):
        found.update({f"{name}.{key}": value for key, value in _LABEL.findall(labels)})
    return found
