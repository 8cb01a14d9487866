"""The result of one level as the block of text that people paste, in the form of `vllm bench serve`."""

from collections.abc import Iterator

from llm_perf_opt.serving.load_results import LATENCIES, LevelResult
from llm_perf_opt.serving.serving_config import SloSection

WIDTH = 50
LABEL = 40
TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}


def result_block(level: LevelResult, *, slo: SloSection) -> str:
    return "\n".join(_lines(level, slo))


def _lines(level: LevelResult, slo: SloSection) -> Iterator[str]:
    yield f"{' Serving Benchmark Result ':=^{WIDTH}}"
    if level.invalid is not None:
        yield f"INVALID: {level.invalid}"
    if level.is_overloaded:
        yield f"NOT SUSTAINED: the last requests took {level.growth:.1f} times as long as the first"
    if level.comes_in_bursts:
        yield "IN BURSTS: tokens of a stream arrive together, so TTFT, TPOT and ITL are those of bursts"
    yield _row("Successful requests:", level.completed)
    yield _row("Failed requests:", level.failed)
    if level.unfinished:
        yield _row("Unfinished requests:", level.unfinished)
    if level.concurrency is not None:
        yield _row("Maximum request concurrency:", level.concurrency)
    if level.rate is not None:
        yield _row("Request rate configured (RPS):", level.rate)
    yield _row("Benchmark duration (s):", level.duration_s)
    if not level.completed:
        most = next(iter(level.errors), "no request was sent")
        which = "Every request failed" if level.failed == level.sent else "No request succeeded"
        yield f"{which}. Most frequent error: {most}" if level.sent else "No request was sent."
        yield "=" * WIDTH
        return
    if level.failed and level.errors:
        yield f"Most frequent error: {next(iter(level.errors))}"
    yield _row("Total input tokens:", level.input_tokens)
    yield _row("Total generated tokens:", level.output_tokens)
    yield _row("Request throughput (req/s):", level.requests_per_s)
    if level.goodput_per_s is not None:
        yield _row("Request goodput (req/s):", level.goodput_per_s)
        yield f"{'SLO:':<{LABEL}}{slo.text}"
    yield _row("Output token throughput (tok/s):", level.output_tokens_per_s)
    peak = level.peak_output_tokens_per_s
    # Counted as vLLM does, in events of whole seconds: below the mean where a load is shorter than a second.
    if peak is None or peak >= (level.output_tokens_per_s or 0.0):
        yield _row("Peak output token throughput (tok/s):", peak)
    yield _row("Peak concurrent requests:", level.most_at_once)
    yield _row("Total token throughput (tok/s):", level.total_tokens_per_s)
    for name in LATENCIES:
        figures = level.latencies.get(name)
        if figures is None:
            continue
        title, short = TITLES[name]
        yield f"{title:-^{WIDTH}}"
        yield _row(f"Mean {short} (ms):", figures.mean_ms)
        yield _row(f"Median {short} (ms):", figures.median_ms)
        yield _row(f"P90 {short} (ms):", figures.p90_ms)
        yield _row(f"P99 {short} (ms):", figures.p99_ms)
    yield "=" * WIDTH


def _row(label: str, value: float | int | None) -> str:
    text = "unknown" if value is None else f"{value:<10}" if isinstance(value, int) else f"{value:<10.2f}"
    return f"{label:<{LABEL}}{text}".rstrip()
