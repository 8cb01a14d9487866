"""Results of a load as sections of the report and as metrics of the manifest."""

from collections.abc import Sequence

from llm_perf_opt.core.records import Metric
from llm_perf_opt.core.sections import Cell, Section, SectionTable, filled
from llm_perf_opt.serving.load_results import LATENCIES, BenchDocument, LatencyFigures, LevelResult
from llm_perf_opt.serving.saturation import is_sound, recommended, verdict

LATENCY, OVER_TIME, TRADE, COUNTERS = "Serving under load", "Latency over time", "Throughput and latency", "Counters"
GPUS, REPORTED, COUNTERS_OVER_TIME = "GPUs under load", "The server about itself", "Requests in the server over time"
WORDS = {
    "ttft": "TTFT: from sending a request to its first token",
    "tpot": "TPOT: time per output token after the first, (end-to-end - TTFT) / (tokens - 1)",
    "itl": "ITL: gaps between two events of a stream",
    "e2el": "E2EL: from sending a request to its last token",
}
SHORT = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
ERRORS_SHOWN = 10


def bench_sections(document: BenchDocument, *, source: str) -> tuple[Section, ...]:
    """The table of levels, latencies of each, errors, and the server's own counters."""
    if not document.levels:
        return (Section(title=LATENCY, paragraphs=("No load was measured.", *document.notes)),)
    found = [
        Section(
            title=LATENCY,
            paragraphs=_paragraphs(document),
            tables=(_throughput(document, source), _latency(document, source), *_errors(document.levels, source)),
        )
    ]
    if any(level.counters for level in document.levels):
        found.append(_counters(document.levels, source))
    if any(level.gpus for level in document.levels):
        found.append(_gpus(document.levels, source))
    if document.reported:
        rows = tuple(sorted(document.reported.items()))
        table = SectionTable(columns=("setting", "value"), rows=rows, source=source)
        found.append(Section(title=REPORTED, paragraphs=("What the server says about itself.",), tables=(table,)))
    return tuple(found)


def _gpus(levels: Sequence[LevelResult], source: str) -> Section:
    rows = tuple(
        (
            level.label,
            gpu.device,
            gpu.mean_power_w,
            gpu.energy_j,
            level.joules_per_output_token,
            gpu.utilisation_pct,
            None if gpu.most_memory_bytes is None else gpu.most_memory_bytes / 2**30,
        )
        for level in levels
        for gpu in level.gpus
    )
    columns = ("load", "GPU", "mean power W", "energy J", "J per output token", "utilisation %", "peak memory GiB")
    text = (
        "GPUs of this machine that worked during the load, sampled through the driver each 0.1 s. Utilisation is the "
        "share of the time with a kernel running; energy per output token counts all of these GPUs."
    )
    table = SectionTable(columns=columns, rows=rows, source=source)
    return Section(title=GPUS, paragraphs=(text,), tables=(table,))


def _paragraphs(document: BenchDocument) -> tuple[str, ...]:
    who = " ".join(text for text in (document.model, f"at {document.server}" if document.server else None) if text)
    texts = [f"Measured by {document.made_by}{f': {who}' if who else ''}. Only requests that succeeded are timed."]
    texts.append("; ".join(WORDS[name] for name in LATENCIES) + ".")
    said = verdict(document)
    if said is not None:
        texts.insert(0, said)
    if document.slo.is_set:
        texts.append(f"Goodput counts requests with {document.slo.text}.")
    failed = [level.label for level in document.levels if level.sent and not level.completed]
    if failed:
        texts.append(f"Every request failed at {', '.join(failed)}: there are no latencies.")
    texts += [f"{level.label}: ended early, because {level.stopped}." for level in document.levels if level.stopped]
    texts += [f"{level.label}: cut short, because {level.cut_short}." for level in document.levels if level.cut_short]
    texts += [f"{level.label}: {warning}" for level in document.levels for warning in level.warnings]
    return (*texts, *document.notes)


def _throughput(document: BenchDocument, source: str) -> SectionTable:
    columns: dict[str, list[Cell]] = {
        "load": [level.marked_label for level in document.levels],
        "requests": [level.completed for level in document.levels],
        "failed": [level.failed for level in document.levels],
        "unfinished": [level.unfinished for level in document.levels],
        "seconds": [level.duration_s for level in document.levels],
        "requests/s": [level.requests_per_s for level in document.levels],
        "output tokens/s": [level.output_tokens_per_s for level in document.levels],
        "all tokens/s": [level.total_tokens_per_s for level in document.levels],
        "goodput/s": [level.goodput_per_s for level in document.levels],
        "peak concurrency": [level.most_at_once for level in document.levels],
        "client lag ms": [level.client_lag_mean_ms for level in document.levels],
    }
    return filled("Throughput", columns, source)


def _latency(document: BenchDocument, source: str) -> SectionTable:
    rows: list[tuple[Cell, ...]] = []
    for level in document.levels:
        for name in LATENCIES:
            one = level.latencies.get(name)
            if one is not None:
                figures = (one.mean_ms, one.median_ms, one.p90_ms, one.p99_ms, one.n)
                rows.append((level.marked_label, SHORT[name], *figures))
    columns = ("load", "latency", "mean ms", "median ms", "p90 ms", "p99 ms", "values")
    return SectionTable(title="Latencies", columns=columns, rows=tuple(rows), source=source)


def _errors(levels: Sequence[LevelResult], source: str) -> tuple[SectionTable, ...]:
    rows = [(level.label, text, count) for level in levels for text, count in list(level.errors.items())[:ERRORS_SHOWN]]
    if not rows:
        return ()
    return (SectionTable(title="Errors", columns=("load", "error", "requests"), rows=tuple(rows), source=source),)


def _counters(levels: Sequence[LevelResult], source: str) -> Section:
    rows = tuple(
        (level.label, row.name, *((row.mean, row.most) if row.kind == "gauge" else (None, None)), row.last)
        for level in levels
        for row in level.counters
    )
    columns = ("load", "counter", "mean", "maximum", "last value, or growth of a total")
    text = "The server's own counters, from its Prometheus page, read once a second during the load."
    return Section(
        title=COUNTERS, paragraphs=(text,), tables=(SectionTable(columns=columns, rows=rows, source=source),)
    )


def shown_level(document: BenchDocument) -> LevelResult | None:
    """The level whose figures the headline shows: the recommended one, else the one with the most output tokens."""
    best = recommended(document) if len(document.levels) > 1 else None
    sound = [level for level in document.levels if is_sound(level)]
    done = sound or [level for level in document.levels if level.completed]
    return best or max(done, key=lambda level: level.output_tokens_per_s or level.requests_per_s or 0.0, default=None)


def bench_metrics(document: BenchDocument, *, source: str) -> dict[str, Metric]:
    """Medians and throughput: by their plain name those of the level shown, of a sweep also every level's own."""
    metrics: dict[str, Metric] = {}
    top = shown_level(document)
    if top is not None:
        metrics |= _metrics(top, "", source)
    if document.capacity is not None and document.capacity.value is not None:
        found = document.capacity
        how = f"{found.unit} that meet {document.slo.text}{found.interval}"
        metrics["serve_capacity"] = Metric(value=found.value, unit=found.unit, how=how, source=source)
    if len(document.levels) > 1:
        for level in document.levels:
            metrics |= _metrics(level, f"[{level.key}]", source)
    return metrics


def _metrics(level: LevelResult, suffix: str, source: str) -> dict[str, Metric]:
    how = f"{level.label}, {level.completed} requests"
    found: dict[str, Metric] = {}
    for name in LATENCIES:
        one = level.latencies.get(name)
        if one is not None:
            found |= _latency_metrics(name, one, how, suffix, source)
    rates = {
        "serve_requests_per_s": (level.requests_per_s, "requests/s"),
        "serve_output_tokens_per_s": (level.output_tokens_per_s, "tokens/s"),
        "serve_total_tokens_per_s": (level.total_tokens_per_s, "tokens/s"),
        "serve_goodput_per_s": (level.goodput_per_s, "requests/s"),
        "serve_joules_per_output_token": (level.joules_per_output_token, "J"),
    }
    for name, (value, unit) in rates.items():
        if value is not None:
            found[f"{name}{suffix}"] = Metric(value=value, unit=unit, how=how, source=source)
    share = Metric(value=level.failed_share, unit="share", how=f"{how}, failed or unfinished", source=source)
    if level.is_overloaded:
        text = f"{how}; end-to-end time of the last quarter of the requests over that of the first"
        found[f"serve_growth{suffix}"] = Metric(value=level.growth, unit="x", how=text, source=source)
    if level.invalid is not None:
        late_ms = max(level.client_lag_mean_ms or 0.0, level.send_late_mean_ms or 0.0)
        text = f"{how}; invalid, because {level.invalid}"
        found[f"serve_client_late_ms{suffix}"] = Metric(value=late_ms, unit="ms", how=text, source=source)
    return {**found, f"serve_failed_share{suffix}": share}


def _latency_metrics(name: str, one: LatencyFigures, how: str, suffix: str, source: str) -> dict[str, Metric]:
    parts = {f"serve_{name}_ms": (one.median_ms, "median"), f"serve_{name}_p99_ms": (one.p99_ms, "99th percentile")}
    return {
        f"{key}{suffix}": Metric(value=value, unit="ms", how=f"{word}; {how}", source=source)
        for key, (value, word) in parts.items()
        if value is not None
    }
