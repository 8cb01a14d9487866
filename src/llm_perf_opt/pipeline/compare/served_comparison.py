"""Load on a server as values to compare: the requests of `llm-perf bench`, and results of other load generators.

Requests that are under way together share what the server did, so those that follow each other are one repeat: they are
drawn together when chance is judged. Results of `vllm bench serve` and aiperf are summaries; the standard error of a
median is estimated from the deviation and the number of requests, a block of concurrent ones counting once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.comparison.statistics import MEDIAN_BY_MEAN
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.errors import ParseError
from llm_perf_opt.serving.foreign_results import read_results
from llm_perf_opt.serving.load_results import BenchDocument, LevelResult
from llm_perf_opt.system.files import read_limited

# This many requests are one repeat where the concurrency is not known.
BLOCK = 16
LARGEST_BYTES = 1 << 30
LARGEST_ERROR = 0.25


@dataclass(frozen=True, kw_only=True)
class ServedLevel:
    """One level: what it is called, the values of its requests that succeeded, by metric, and figures of it as a whole.

    `block` requests that follow each other are one repeat; 0 of a summary, whose medians are single values with
    standard errors (as shares) in `errors`. `invalid` is why its figures are those of the client.
    """

    label: str
    block: int
    values: Mapping[str, Sequence[RepeatedValue]]
    rates: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    failed: int = 0
    invalid: str | None = None


@dataclass(frozen=True, kw_only=True)
class ForeignLoad:
    """Result files of another load generator: the n-th result of a level belongs to the n-th pass."""

    made_by: str
    model: str | None
    passes: tuple[Mapping[str, ServedLevel], ...]


# Our names of vLLM's latencies.
LATENCY_METRICS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms"}


class _Request(msgspec.Struct):
    """The part of a line of requests.jsonl that is compared."""

    level: str
    index: int
    started_s: float
    status: str
    ttft_s: float | None
    latency_s: float | None
    output_tokens: int
    is_ramp: bool = False


def served_levels(manifest: RunManifest) -> dict[str, ServedLevel]:
    """The levels of a run of `bench` by key, in the order they were measured; none of any other run."""
    for stage in manifest.stages:
        document, lines = stage.file("bench_json"), stage.file("bench_requests")
        if document is not None and lines is not None:
            return _levels(document, lines)
    return {}


def _levels(document: Path, lines: Path) -> dict[str, ServedLevel]:
    try:
        levels = msgspec.json.decode(read_limited(document, LARGEST_BYTES), type=BenchDocument).levels
        requests = [
            msgspec.json.decode(line, type=_Request) for line in read_limited(lines, LARGEST_BYTES).splitlines()
        ]
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{lines}: cannot be read as the requests of a load ({error}); measure it again") from error
    return {
        level.key: ServedLevel(
            label=level.label,
            block=level.concurrency or BLOCK,
            values=_values([one for one in requests if one.level == level.key], level.concurrency or BLOCK),
            rates=_whole(level),
            failed=level.failed,
            invalid=level.invalid,
        )
        for level in levels
        if any(one.level == level.key and one.status == "ok" for one in requests)
    }


def _values(requests: Sequence[_Request], block: int) -> dict[str, list[RepeatedValue]]:
    found: dict[str, list[RepeatedValue]] = {}

    def add(metric: str, value: float, *, place: int, repeat: int) -> None:
        found.setdefault(metric, []).append(RepeatedValue(sample_id=str(place), repeat=repeat, value=value))

    for one in requests:
        repeat, place = divmod(one.index, block)
        if one.status != "ok" or one.is_ramp:
            continue
        if one.ttft_s is not None:
            add("ttft_ms", 1e3 * one.ttft_s, place=place, repeat=repeat)
        if one.latency_s is None:
            continue
        add("e2e_ms", 1e3 * one.latency_s, place=place, repeat=repeat)
        if one.ttft_s is not None and one.output_tokens > 1:
            each_s = (one.latency_s - one.ttft_s) / (one.output_tokens - 1)
            add("tpot_ms", 1e3 * each_s, place=place, repeat=repeat)
    return found


def foreign_levels(files: Sequence[Path]) -> ForeignLoad:
    """Results of `vllm bench serve` or aiperf; several of one level are several passes."""
    document = read_results(files)
    passes: list[dict[str, ServedLevel]] = []
    for level in document.levels:
        if not level.completed:
            continue
        place = next((one for one in passes if level.key not in one), None)
        if place is None:
            place = {}
            passes.append(place)
        place[level.key] = _summary(level)
    return ForeignLoad(made_by=document.made_by, model=document.model, passes=tuple(passes))


def _summary(level: LevelResult) -> ServedLevel:
    medians, errors = {}, {}
    for name, figures in level.latencies.items():
        metric = LATENCY_METRICS.get(name)
        if metric is None or not figures.median_ms:
            continue
        medians[metric] = figures.median_ms
        count = (figures.n or level.completed) / (level.concurrency or 1)
        if figures.std_ms is None or count < 2:
            continue
        error = MEDIAN_BY_MEAN * figures.std_ms / figures.median_ms / math.sqrt(count)
        # With a larger error the deviation is that of a few outliers, and no bound of the median.
        if error < LARGEST_ERROR:
            errors[metric] = error
    values = {name: [RepeatedValue(sample_id="median", repeat=0, value=one)] for name, one in medians.items()}
    return ServedLevel(
        label=level.label, block=0, values=values, rates=_whole(level), errors=errors, failed=level.failed
    )


def _whole(level: LevelResult) -> dict[str, float]:
    """Figures of a level that have one value: rates and 99th percentiles."""
    rates = {
        "output_tokens_per_s": level.output_tokens_per_s,
        "requests_per_s": level.requests_per_s,
        "goodput_per_s": level.goodput_per_s,
    }
    tails = {
        f"{LATENCY_METRICS[name].removesuffix('_ms')}_p99_ms": figures.p99_ms
        for name, figures in level.latencies.items()
        if name in LATENCY_METRICS
    }
    return {name: value for name, value in (rates | tails).items() if value is not None}
