"""Requests to figures, defined as `vllm bench serve` defines them, and the document `bench.json`.

Only requests that succeeded count. TTFT: from sending to the first token. TPOT: (end-to-end - TTFT) / (output tokens -
1), of requests with more than one token. ITL: every gap between two events of a stream. Throughput: by the time from
the start of the load to the last request's end. Goodput: requests that keep to all limits, by that time.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.core.percentiles import percentile
from llm_perf_opt.core.units import digits, format_ms
from llm_perf_opt.serving.counters import CounterSample, ServerCounter, summarise_counters
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.serving_config import LoadLevel, SloSection

BENCH: str = "bench"
BENCH_FILE = "bench.json"
REQUESTS_FILE = "requests.jsonl"
Resource = Literal["client", "KV cache", "queue", "GPU", "unknown"]
LATENCIES = ("ttft", "tpot", "itl", "e2el")
# A queue that grows makes the last requests this many times as slow as the first; fewer requests show nothing.
OVERLOADED = 2.0
ENOUGH_FOR_GROWTH = 16
# A client whose event loop is later than this share of the median TTFT measures itself; loops wake in whole ms.
LAG_SHARE = 0.05
LEAST_LAG_MS = 1.0
# Half of the gaps of a stream this much shorter than their mean are not gaps between tokens.
BURST = 0.1
ENOUGH_GAPS = 20
# Where Little's law does not hold to this, a level was not in a steady state.
STEADY = 0.1
# Kinds of errors that are kept of a level.
MOST_ERRORS = 100
# Nor are gaps this short, all of them: that would be 10,000 tokens a second of one stream, several times what the
# fastest servers give, and to wake a client for each packet takes a good part of it. A client that finds a whole
# reply in its buffer reads an event in some ten microseconds.
ONE_BY_ONE_MS = 0.1


@dataclass(frozen=True, kw_only=True)
class LatencyFigures:
    """Milliseconds; None where a result file does not say. `n` is how many values there were."""

    mean_ms: float | None = None
    median_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    std_ms: float | None = None
    n: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuFigures:
    """One GPU of this machine during a level, by the driver's samples."""

    device: str
    mean_power_w: float | None = None
    energy_j: float | None = None
    utilisation_pct: float | None = None
    most_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class LevelResult:
    """One load and its result. `repeat` counts the measurements of the same load in a run.

    `growth` of an open loop: end-to-end time of the last quarter of the requests over that of the first, by medians.
    `good_share` is the share of all requests that keep to every limit, `meets_slo` whether that is enough.
    `mean_concurrency` is the mean number of requests under way. `client_busy` is the share of the time in which the
    busiest of `client_processes` computed, `client_lag_*` how late its event loop was, `send_late_*` how long after
    their scheduled time requests were sent. `begun_s` is the start of the load on the monotonic clock of the client's
    machine, which a server there shares. `cut_short` is why a search did not continue with it.
    """

    label: str
    rate: float | None = None
    concurrency: int | None = None
    repeat: int = 1
    begun_s: float | None = None
    duration_s: float | None = None
    sent: int | None = None
    completed: int
    failed: int = 0
    unfinished: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    stopped: str | None = None
    cut_short: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    goodput_per_s: float | None = None
    good_share: float | None = None
    meets_slo: bool | None = None
    most_at_once: int | None = None
    growth: float | None = None
    peak_output_tokens_per_s: float | None = None
    mean_concurrency: float | None = None
    client_busy: float | None = None
    client_processes: int | None = None
    client_lag_mean_ms: float | None = None
    client_lag_p99_ms: float | None = None
    client_lag_max_ms: float | None = None
    send_late_mean_ms: float | None = None
    send_late_p99_ms: float | None = None
    latencies: Mapping[str, LatencyFigures] = field(default_factory=dict)
    counters: tuple[ServerCounter, ...] = ()
    counter_samples: tuple[CounterSample, ...] = ()
    gpus: tuple[GpuFigures, ...] = ()

    @property
    def key(self) -> str:
        return LoadLevel(rate=self.rate, concurrency=self.concurrency, repeat=self.repeat).key

    @property
    def is_overloaded(self) -> bool:
        """Requests waited longer and longer: latencies are those of this duration alone."""
        return self.growth is not None and self.growth >= OVERLOADED

    @property
    def marked_label(self) -> str:
        """The label as tables and charts show it: figures of a late client are marked wherever they are."""
        return self.label if self.invalid is None else f"{self.label} (invalid)"

    @property
    def invalid(self) -> str | None:
        """Why the figures are those of the client and not of the server, or None."""
        ttft = self.latencies["ttft"].median_ms if "ttft" in self.latencies else None
        if ttft is None:
            return None
        limit_ms = max(LAG_SHARE * ttft, LEAST_LAG_MS)
        share = f"more than {100 * LAG_SHARE:.0f} % of the median TTFT ({format_ms(ttft)})"
        if self.client_lag_mean_ms is not None and self.client_lag_mean_ms > limit_ms:
            late = f"{format_ms(self.client_lag_mean_ms)} (p99 {format_ms(self.client_lag_p99_ms or 0.0)})"
            return f"the client's event loop was late by {late}, {share}"
        if self.send_late_mean_ms is not None and self.send_late_mean_ms > limit_ms:
            return f"requests were sent {format_ms(self.send_late_mean_ms)} after their time, {share}"
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be known to read the figures, a sentence each."""
        found = []
        if self.invalid is not None:
            advice = "Use more load.processes, less load, or another machine for the client."
            found.append(f"invalid, because {self.invalid}. {advice}")
        if self.is_overloaded:
            found.append(
                f"the server did not keep up. The last requests took {self.growth:.1f} times as long as the first, so "
                "that these latencies hold for this duration alone."
            )
        if self.comes_in_bursts:
            gaps = self.latencies["itl"]
            found.append(
                f"tokens of a stream arrive in bursts (gaps: median {format_ms(gaps.median_ms or 0.0)}, "
                f"mean {format_ms(gaps.mean_ms or 0.0)}), so TTFT, TPOT and ITL are those of bursts; "
                "end-to-end times and throughput hold. A busy machine does that, and a server that sends text only "
                "once it is whole."
            )
        return tuple(found)

    @property
    def joules_per_output_token(self) -> float | None:
        """Energy of the GPUs that worked, over all output tokens."""
        energies = [gpu.energy_j for gpu in self.gpus if gpu.energy_j is not None]
        return sum(energies) / self.output_tokens if energies and self.output_tokens else None

    @property
    def littles_law(self) -> float | None:
        """Completed requests per second times their mean time, over the mean concurrency: 1 in a steady state."""
        mean = self.latencies["e2el"].mean_ms if "e2el" in self.latencies else None
        if mean is None or not self.mean_concurrency or self.requests_per_s is None:
            return None
        return self.requests_per_s * mean / 1e3 / self.mean_concurrency

    @property
    def comes_in_bursts(self) -> bool:
        """Several tokens of a stream arrive as one: then a token's own moment cannot be seen, TTFT is a burst's end."""
        gaps = self.latencies.get("itl")
        if gaps is None or gaps.median_ms is None or not gaps.mean_ms or (gaps.n or 0) < ENOUGH_GAPS:
            return False
        return gaps.median_ms < BURST * gaps.mean_ms or self._comes_as_one(gaps.median_ms)

    def _comes_as_one(self, gap_ms: float) -> bool:
        """A whole reply arrives at once: nothing is left of its time after the first token."""
        first, whole = (self.latencies[name].median_ms if name in self.latencies else None for name in ("ttft", "e2el"))
        if first is None or whole is None:
            return False
        return gap_ms < ONE_BY_ONE_MS and whole - first < BURST * first

    @property
    def failed_share(self) -> float:
        ended = self.completed + self.failed + self.unfinished
        return (self.failed + self.unfinished) / ended if ended else 1.0


@dataclass(frozen=True, kw_only=True)
class CapacityResult:
    """The highest load that meets the SLO, as a search found it.

    `value` is None where no level met the SLO; `high` None: it is met at the highest load. `met` and `missed` are the
    measured loads next to it. `littles_law` is the worst of the levels next to it: 1 in a steady state.
    """

    by: Literal["rate", "concurrency"]
    value: float | None
    low: float | None = None
    high: float | None = None
    met: float | None = None
    missed: float | None = None
    levels: int = 0
    limit: str | None = None
    resource: Resource = "unknown"
    why: str = ""
    littles_law: float | None = None

    @property
    def unit(self) -> str:
        return "requests/s" if self.by == "rate" else "requests under way"

    @property
    def interval(self) -> str:
        """The confidence interval in parentheses, or nothing."""
        if self.low is None or self.high is None:
            return ""
        return f" (95 % confidence interval {load_text(self.low)} to {load_text(self.high)})"

    @property
    def text(self) -> str:
        unit = self.unit
        if self.value is None and self.missed is None:
            return f"Capacity: not found, because no level at a {self.by} was measured. {self.why}".strip()
        if self.value is None:
            return f"Capacity: no load met the SLO, down to {load_text(self.missed or 0.0)} {unit}. {self.why}"
        if self.missed is None:
            most = "the highest load tried" if self.value == self.met else "as much as the late client got answered"
            return f"Capacity: at least {load_text(self.value)} {unit}, {most}. {self.why}"
        steady = ""
        if self.littles_law is not None and abs(self.littles_law - 1) > STEADY:
            steady = f" Not in a steady state: Little's law holds to {100 * abs(self.littles_law - 1):.0f} % only."
        found = f"{load_text(self.value)} {unit}{self.interval}"
        return f"Capacity: {found}, found in {self.levels} levels. {self.why}{steady}"


def load_text(load: float) -> str:
    """A rate by its digits, a concurrency as the whole number it is."""
    return f"{load:,.0f}" if load == int(load) else digits(load)


@dataclass(frozen=True, kw_only=True)
class CaptureWindow:
    """The load during a capture of the server, of which nothing is measured, for the explanation of its requests.

    `begun_s` is its start on the monotonic clock, to which `epoch_offset_ns` is added for the time of day. `captures`
    are paths in the run directory.
    """

    tool: Literal["nsys", "engine"]
    label: str
    begun_s: float | None
    epoch_offset_ns: int
    captures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BenchDocument:
    """`bench.json`: the server, and every level. `made_by` is the load generator, `recommended` the key of a level.

    `reported` is what the server says about itself. `window` is the load of a capture whose requests are explained.
    """

    schema_version: Literal[1] = 1
    made_by: str = "llm-perf bench"
    server: str | None = None
    model: str | None = None
    reported: Mapping[str, str] = field(default_factory=dict)
    slo: SloSection = field(default_factory=SloSection)
    levels: tuple[LevelResult, ...] = ()
    recommended: str | None = None
    capacity: CapacityResult | None = None
    notes: tuple[str, ...] = ()
    window: CaptureWindow | None = None


def tpot_s(record: RequestRecord) -> float | None:
    """Time per output token after the first; None for a single token."""
    if record.latency_s is None or record.ttft_s is None or record.output_tokens < 2:
        return None
    return (record.latency_s - record.ttft_s) / (record.output_tokens - 1)


def latency_figures(seconds: Sequence[float]) -> LatencyFigures | None:
    if not seconds:
        return None
    values = sorted(1e3 * value for value in seconds)
    mean = math.fsum(values) / len(values)
    return LatencyFigures(
        mean_ms=mean,
        median_ms=percentile(values, 50),
        p90_ms=percentile(values, 90),
        p99_ms=percentile(values, 99),
        std_ms=math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)),
        n=len(values),
    )


def level_result(run: LoadRun, slo: SloSection, *, gpus: Sequence[GpuFigures] = ()) -> LevelResult:
    counted = [r for r in run.records if not r.is_ramp]
    good = [r for r in counted if r.status == "ok"]
    prompts = [r.prompt_tokens for r in good if r.prompt_tokens is not None]
    inputs = sum(prompts) if good and len(prompts) == len(good) else None
    outputs = sum(r.output_tokens for r in good)
    time_s = run.duration_s if run.duration_s > 0 else None
    values = {
        "ttft": [r.ttft_s for r in good if r.ttft_s is not None],
        "tpot": [value for r in good if (value := tpot_s(r)) is not None],
        "itl": [gap for r in good for gap in r.gaps_s],
        "e2el": [r.latency_s for r in good if r.latency_s is not None],
    }
    figures = {name: latency_figures(seconds) for name, seconds in values.items()}
    late = latency_figures([r.late_s for r in counted if r.late_s is not None])
    kept = sum(1 for r in good if keeps_to(r, slo)) if slo.is_set else None
    return LevelResult(
        label=run.level.label,
        rate=run.level.rate,
        concurrency=run.level.concurrency,
        repeat=run.level.repeat,
        begun_s=run.begun_s,
        duration_s=run.duration_s,
        sent=len(counted),
        completed=len(good),
        failed=sum(1 for r in counted if r.status == "failed"),
        unfinished=sum(1 for r in counted if r.status == "unfinished"),
        errors=_errors(counted),
        stopped=run.stopped,
        cut_short=run.cut_short,
        input_tokens=inputs,
        output_tokens=outputs,
        requests_per_s=_per_s(len(good), time_s),
        output_tokens_per_s=_per_s(outputs, time_s),
        total_tokens_per_s=None if inputs is None else _per_s(inputs + outputs, time_s),
        goodput_per_s=None if kept is None else _per_s(kept, time_s),
        good_share=None if kept is None or not counted else kept / len(counted),
        meets_slo=None if kept is None or not counted else kept >= slo.share * len(counted) and bool(good),
        most_at_once=_most_at_once(good),
        growth=_growth(good) if run.level.rate is not None else None,
        peak_output_tokens_per_s=_peak_tokens(good),
        mean_concurrency=None if time_s is None else _mean_concurrency(run, time_s),
        client_busy=None if time_s is None else run.client_cpu_s / time_s,
        client_processes=run.processes,
        client_lag_mean_ms=None if run.lag is None else 1e3 * run.lag.mean_s,
        client_lag_p99_ms=None if run.lag is None else 1e3 * run.lag.p99_s,
        client_lag_max_ms=None if run.lag is None else 1e3 * run.lag.most_s,
        send_late_mean_ms=None if late is None else late.mean_ms,
        send_late_p99_ms=None if late is None else late.p99_ms,
        latencies={name: found for name, found in figures.items() if found is not None},
        counters=summarise_counters(run.counters, until_s=run.ended_s),
        counter_samples=tuple(run.counters),
        gpus=tuple(gpus),
    )


def _errors(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Errors with their count: those of failed requests by frequency, then why others did not end."""
    found: Counter[str] = Counter()
    for status in ("failed", "unfinished"):
        texts = Counter(r.error for r in records if r.status == status and r.error is not None)
        found.update(dict(texts.most_common(MOST_ERRORS)))
    return dict(found)


def keeps_to(record: RequestRecord, slo: SloSection) -> bool:
    """Whether a request is as fast as every limit asks; a single token has a TPOT of 0."""
    pairs = (
        (record.ttft_s or 0.0, slo.ttft_ms),
        (tpot_s(record) or 0.0, slo.tpot_ms),
        (record.latency_s or 0.0, slo.e2el_ms),
    )
    return all(limit is None or 1e3 * value <= limit for value, limit in pairs)


def _per_s(count: int, time_s: float | None) -> float | None:
    return None if time_s is None else count / time_s


def _growth(records: Sequence[RequestRecord]) -> float | None:
    times = [r.latency_s for r in sorted(records, key=lambda r: r.started_s) if r.latency_s]
    if len(times) < ENOUGH_FOR_GROWTH:
        return None
    quarter = len(times) // 4
    first, last = (percentile(sorted(part), 50) for part in (times[:quarter], times[-quarter:]))
    return last / first


def _most_at_once(records: Sequence[RequestRecord]) -> int | None:
    """The most requests that were under way at one moment; one that ends as another starts is not counted twice."""
    changes = [(r.started_s, 1) for r in records] + [(r.started_s + (r.latency_s or 0.0), -1) for r in records]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most if records else None


def _peak_tokens(records: Sequence[RequestRecord]) -> float | None:
    """The most token events in one whole second, as `vllm bench serve` counts them."""
    seconds: Counter[int] = Counter()
    for record in records:
        at = record.started_s + (record.ttft_s or 0.0)
        seconds[int(at)] += 1
        for gap in record.gaps_s:
            at += gap
            seconds[int(at)] += 1
    return float(max(seconds.values())) if seconds else None


def _mean_concurrency(run: LoadRun, time_s: float) -> float:
    """Requests under way, averaged over the time of the level; one that had not ended was under way until the end."""
    begin = max(0.0, min((r.started_s for r in run.records if not r.is_ramp), default=0.0))
    end = begin + time_s
    under_way = 0.0
    for record in run.records:
        ended = record.started_s + (record.latency_s or 0.0) if record.status != "unfinished" else end
        under_way += max(0.0, min(ended, end) - max(record.started_s, begin))
    return under_way / time_s
