"""Load on a server as values to compare: the requests of every level of a run of `llm-perf bench`.

Requests that are under way together share what the server did, so those that follow each other are one repeat: they are
drawn together when chance is judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llm_perf_opt.analysis.compare.stability import RepeatedValue
from llm_perf_opt.core.files import read_limited
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.errors import ParseError
from llm_perf_opt.serving.results import BenchDocument

# So many requests are one repeat where nothing says how many are under way at once.
BLOCK = 16
LARGEST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class ServedLevel:
    """One level: what it is called, the values of its requests that succeeded, by metric, and its rates as a whole.

    `block` requests that follow each other are one repeat.
    """

    label: str
    block: int
    values: Mapping[str, Sequence[RepeatedValue]]
    rates: Mapping[str, float]


class _Request(msgspec.Struct):
    """The part of a line of requests.jsonl that is compared."""

    level: str
    index: int
    started_s: float
    status: str
    ttft_s: float | None
    latency_s: float | None
    output_tokens: int


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
            rates={} if level.output_tokens_per_s is None else {"output_tokens_per_s": level.output_tokens_per_s},
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
        if one.status != "ok":
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
