"""Result files of other load generators as our own document: `vllm bench serve` and aiperf.

aiperf calls `inter_token_latency` what vLLM and we call TPOT, the mean of one request; its gaps between pieces of a
stream are `inter_chunk_latency`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ParseError
from llm_perf_opt.serving.load_results import LATENCIES, BenchDocument, LatencyFigures, LevelResult
from llm_perf_opt.serving.serving_config import LoadLevel
from llm_perf_opt.system.files import read_limited

LARGEST = 1 << 30
_TO_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "ns": 1e-6}
_OF_AIPERF = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2el": "request_latency",
}


@dataclass(frozen=True, kw_only=True)
class _Read:
    """One result of a file."""

    level: LevelResult
    made_by: str
    model: str | None


def read_results(paths: Sequence[Path]) -> BenchDocument:
    """Every result in the files, in their order: the levels of one sweep."""
    found = [result for path in paths for result in _read(path)]
    if not found:
        raise ParseError(f"{paths[0]}: holds no result of a load generator")
    makers = list(dict.fromkeys(one.made_by for one in found))
    models = dict.fromkeys(one.model for one in found if one.model)
    note = "TPOT is what aiperf calls inter-token latency, ITL what it calls inter-chunk latency."
    return BenchDocument(
        made_by=" and ".join(makers),
        model=", ".join(models) or None,
        levels=tuple(one.level for one in found),
        notes=(note,) if "aiperf" in makers else (),
    )


def _read(path: Path) -> list[_Read]:
    """The results of a file: one, or one a line as `vllm bench serve --append-result` writes them."""
    try:
        text = read_limited(path, LARGEST).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ParseError(f"{path}: could not be read ({error})") from error
    decoder, at = json.JSONDecoder(), 0
    found: list[_Read] = []
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"{path}: not valid JSON ({error})") from error
        if not isinstance(value, dict):
            raise ParseError(f"{path}: not a result of a load generator, but a {type(value).__name__}")
        found.append(_result(path, value))
    return found


def _result(path: Path, result: Mapping[str, Any]) -> _Read:
    if isinstance(result.get("request_throughput"), int | float):
        model = result.get("model_id")
        return _Read(level=_vllm(path, result), made_by="vllm bench serve", model=None if model is None else str(model))
    return _Read(level=_aiperf(path, result), made_by="aiperf", model=None)


def _vllm(path: Path, result: Mapping[str, Any]) -> LevelResult:
    rate, concurrency = _positive(result.get("request_rate")), _positive(result.get("max_concurrency"))
    completed = _whole(result.get("completed")) or 0
    sent = _whole(result.get("num_prompts"))
    failed = _whole(result.get("failed"))
    level = LoadLevel(rate=rate, concurrency=None if rate is not None or concurrency is None else int(concurrency))
    latencies = {
        name: LatencyFigures(
            mean_ms=_positive(result.get(f"mean_{name}_ms")),
            median_ms=_positive(result.get(f"median_{name}_ms")),
            p90_ms=_positive(result.get(f"p90_{name}_ms")),
            p99_ms=_positive(result.get(f"p99_{name}_ms")),
            std_ms=_positive(result.get(f"std_{name}_ms")),
        )
        for name in LATENCIES
        if f"median_{name}_ms" in result
    }
    return LevelResult(
        label=_label(level, path),
        rate=level.rate,
        concurrency=level.concurrency,
        duration_s=_positive(result.get("duration")),
        sent=sent,
        completed=completed,
        failed=failed if failed is not None else max(0, (sent or completed) - completed),
        input_tokens=_whole(result.get("total_input_tokens")),
        output_tokens=_whole(result.get("total_output_tokens")),
        requests_per_s=_positive(result.get("request_throughput")),
        output_tokens_per_s=_positive(result.get("output_throughput")),
        total_tokens_per_s=_positive(result.get("total_token_throughput")),
        goodput_per_s=_positive(result.get("request_goodput")),
        most_at_once=_whole(result.get("max_concurrent_requests")),
        latencies=latencies,
    )


def _aiperf(path: Path, result: Mapping[str, Any]) -> LevelResult:
    # Early versions kept the figures one level deeper.
    inner = result.get("records")
    figures = inner if isinstance(inner, Mapping) else result
    asked = result.get("input_config")
    rate, concurrency = _asked(asked, "request_rate"), _asked(asked, "concurrency")
    level = LoadLevel(rate=rate, concurrency=None if rate is not None or concurrency is None else int(concurrency))
    latencies = {name: _block(figures.get(key)) for name, key in _OF_AIPERF.items()}
    completed, failed = _whole(_average(figures, "request_count")), _whole(_average(figures, "error_request_count"))
    return LevelResult(
        label=_label(level, path),
        rate=level.rate,
        concurrency=level.concurrency,
        duration_s=_average(figures, "benchmark_duration"),
        sent=None if completed is None else completed + (failed or 0),
        completed=completed or 0,
        failed=failed or 0,
        input_tokens=_whole(_average(figures, "total_isl")),
        output_tokens=_whole(_average(figures, "total_output_tokens") or _average(figures, "total_osl")),
        requests_per_s=_average(figures, "request_throughput"),
        output_tokens_per_s=_average(figures, "output_token_throughput"),
        total_tokens_per_s=_average(figures, "total_token_throughput"),
        goodput_per_s=_average(figures, "goodput"),
        latencies={name: block for name, block in latencies.items() if block is not None},
    )


def _block(block: Any) -> LatencyFigures | None:
    """aiperf's figures of one latency, in milliseconds."""
    factor = _TO_MS.get(str(block.get("unit"))) if isinstance(block, Mapping) else None
    if factor is None:
        return None
    values = {name: _positive(block.get(name)) for name in ("avg", "p50", "p90", "p99", "std")}
    ms = {name: None if value is None else value * factor for name, value in values.items()}
    return LatencyFigures(
        mean_ms=ms["avg"],
        median_ms=ms["p50"],
        p90_ms=ms["p90"],
        p99_ms=ms["p99"],
        std_ms=ms["std"],
        n=_whole(block.get("count")),
    )


def _average(figures: Mapping[str, Any], name: str) -> float | None:
    block = figures.get(name)
    return _positive(block.get("avg")) if isinstance(block, Mapping) else None


def _asked(config: Any, name: str) -> float | None:
    """A setting by its name, wherever a version of aiperf keeps it."""
    if not isinstance(config, Mapping):
        return None
    direct = _positive(config.get(name))
    if direct is not None:
        return direct
    return next((found for value in config.values() if (found := _asked(value, name)) is not None), None)


def _label(level: LoadLevel, path: Path) -> str:
    return path.stem if level.rate is None and level.concurrency is None else level.label


def _positive(value: Any) -> float | None:
    """A finite number of at least 0; `inf` as text is what vLLM writes for no rate at all."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _whole(value: Any) -> int | None:
    number = _positive(value)
    return None if number is None else int(number)
