"""One row of a prediction and its columns: what the table, the CSV file and the plot show, and what rows sort by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.estimate.requests import Forecast
from llm_perf_opt.model.static.closed_form import kv_bytes
from llm_perf_opt.model.static.counted import CountedAnalysis
from llm_perf_opt.model.static.model_analysis import Analysis
from llm_perf_opt.model.static.prediction import PhasePrediction
from llm_perf_opt.planning.counted_rows import counted_predictions
from llm_perf_opt.planning.predict_request import Case

Value = str | float | int | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """The request and its result; `forecast` is None without an output length or an estimate.

    `slowest_replicas` of a plan: as many as a demand takes at the slow end of the band; None: no number, or not asked.
    """

    analysis: Analysis | CountedAnalysis
    case: Case
    forecast: Forecast | None
    notes: tuple[str, ...]
    slowest_replicas: int | None = None

    @cached_property
    def predictions(self) -> Mapping[str, PhasePrediction]:
        found = self.analysis
        return counted_predictions(found) if isinstance(found, CountedAnalysis) else found.predictions

    @property
    def prefill(self) -> PhasePrediction:
        return self.predictions[PREFILL]

    @property
    def decode(self) -> PhasePrediction:
        return self.predictions[DECODE]

    @property
    def fits(self) -> bool | None:
        """None: not known. Of a counted model weights and cache are known, which may not fit already."""
        found = self.analysis
        if isinstance(found, CountedAnalysis):
            capacity = found.capacity_bytes
            return False if capacity is not None and found.held_bytes > capacity else None
        return None if found.fit is None else found.memory.peak_bytes <= found.fit.usable_bytes

    @property
    def memory_bytes(self) -> float:
        """Over all devices; of a counted model weights and cache."""
        found, replicas = self.analysis, self.case.layout.dp
        return found.held_bytes if isinstance(found, CountedAnalysis) else found.memory.peak_bytes * replicas

    @property
    def kv_sequence_bytes(self) -> float | None:
        found = self.analysis
        if isinstance(found, CountedAnalysis):
            kept = found.kv_cache_bytes
            return None if kept is None else kept / found.shape.batch
        return kv_bytes(found.model, max(found.shape.longest, found.shape.prompt), found.dtypes, found.mla_mode)

    @property
    def largest_batch(self) -> int | None:
        found = self.analysis
        return None if isinstance(found, CountedAnalysis) or found.fit is None else found.fit.largest_batch

    @property
    def formats(self) -> str:
        d = self.analysis.dtypes
        parts = [d.compute]
        stored = self.analysis.stored_format if isinstance(self.analysis, CountedAnalysis) else None
        weight = stored or d.weight
        parts += [f"w{weight}"] if weight != d.compute else []
        parts += [f"kv{d.kv}"] if d.kv != d.compute else []
        parts += [f"a{d.activation}"] if d.activation is not None else []
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Column:
    """`key` is its name in files and for sorting; `is_question` separates what was requested from the results."""

    key: str
    header: str
    value: Callable[[Row], Value]
    is_question: bool = False
    falls: bool = False


def bound_ms(prediction: PhasePrediction) -> float | None:
    found = prediction.datasheet or prediction.achievable
    return None if found is None else found.ms


def middle_ms(prediction: PhasePrediction) -> float | None:
    return None if prediction.estimate is None else prediction.estimate.mid_ms


def _rate(row: Row, ms: float | None) -> float | None:
    found = row.decode.tokens_per_s(ms)
    return None if found is None else found * row.case.layout.dp


COLUMNS: tuple[Column, ...] = (
    Column(key="model", header="model", value=lambda r: r.analysis.name, is_question=True),
    Column(
        key="hardware",
        header="hardware",
        value=lambda r: r.analysis.hardware.name if r.analysis.hardware else "unknown",
        is_question=True,
    ),
    Column(key="dtype", header="dtype", value=lambda r: r.formats, is_question=True),
    Column(key="engine", header="engine", value=lambda r: r.case.engine, is_question=True),
    Column(key="mla_mode", header="mla", value=lambda r: r.case.mla_mode, is_question=True),
    Column(key="tp", header="tp", value=lambda r: r.case.layout.tp, is_question=True),
    Column(key="pp", header="pp", value=lambda r: r.case.layout.pp, is_question=True),
    Column(key="ep", header="ep", value=lambda r: r.case.layout.ep, is_question=True),
    Column(key="dp", header="dp", value=lambda r: r.case.layout.dp, is_question=True),
    Column(key="batch", header="batch", value=lambda r: r.analysis.shape.batch, is_question=True),
    Column(key="prompt", header="prompt", value=lambda r: r.analysis.shape.prompt, is_question=True),
    Column(key="context", header="context", value=lambda r: r.analysis.shape.context, is_question=True),
    Column(key="output", header="output", value=lambda r: r.case.output, is_question=True),
    Column(key="concurrency", header="conc", value=lambda r: r.case.concurrency, is_question=True),
    Column(key="rate", header="req/s", value=lambda r: r.case.rate, is_question=True),
    Column(key="burstiness", header="burst", value=lambda r: r.case.burstiness, is_question=True),
    Column(key="prefill_chunk", header="chunk", value=lambda r: r.case.prefill_chunk, is_question=True),
    Column(key="prefix_hit", header="hit", value=lambda r: r.case.prefix_hit, is_question=True),
    Column(key="acceptance", header="accept", value=lambda r: r.case.acceptance, is_question=True),
    Column(key="draft_tokens", header="draft", value=lambda r: r.case.draft_tokens, is_question=True),
    Column(key="prefill_bound_ms", header="prefill ≥", value=lambda r: bound_ms(r.prefill)),
    Column(key="prefill_ms", header="prefill ms", value=lambda r: middle_ms(r.prefill)),
    Column(key="decode_bound_ms", header="decode ≥", value=lambda r: bound_ms(r.decode)),
    Column(key="decode_ms", header="decode ms", value=lambda r: middle_ms(r.decode)),
    Column(key="tokens_per_s_bound", header="tok/s ≤", value=lambda r: _rate(r, bound_ms(r.decode)), falls=True),
    Column(key="tokens_per_s", header="tok/s", value=lambda r: _rate(r, middle_ms(r.decode)), falls=True),
    Column(key="ttft_ms", header="ttft ms", value=lambda r: r.forecast.ttft_ms if r.forecast else None),
    Column(key="ttft_p95_ms", header="p95", value=lambda r: r.forecast.ttft_p95_ms if r.forecast else None),
    Column(key="tpot_ms", header="tpot ms", value=lambda r: r.forecast.tpot_ms if r.forecast else None),
    Column(key="request_ms", header="request ms", value=lambda r: r.forecast.request_ms if r.forecast else None),
    Column(
        key="throughput",
        header="served tok/s",
        value=lambda r: r.forecast.output_tokens_per_s if r.forecast else None,
        falls=True,
    ),
    Column(
        key="throughput_low",
        header="at least",
        value=lambda r: r.forecast.slowest_tokens_per_s if r.forecast else None,
        falls=True,
    ),
    Column(
        key="throughput_high",
        header="at most",
        value=lambda r: r.forecast.fastest_tokens_per_s if r.forecast else None,
        falls=True,
    ),
    Column(key="cost", header="cost/M", value=lambda r: r.forecast.cost if r.forecast else None),
    Column(key="limit", header="limit p/d", value=lambda r: f"{r.prefill.limit or '–'}/{r.decode.limit or '–'}"),
    Column(key="memory_bytes", header="memory", value=lambda r: r.memory_bytes),
    Column(key="fits", header="fits", value=lambda r: None if r.fits is None else ("no", "yes")[r.fits]),
    Column(
        key="kv_bytes_at_context",
        header="KV/seq",
        value=lambda r: r.kv_sequence_bytes,
    ),
    Column(
        key="max_batch",
        header="max batch",
        value=lambda r: r.largest_batch,
        falls=True,
    ),
    Column(key="rates", header="rates", value=lambda r: r.decode.estimate.label if r.decode.estimate else None),
)
BY_KEY = {column.key: column for column in COLUMNS}


def sorted_rows(rows: Sequence[Row], key: str | None) -> list[Row]:
    """Cheapest, quickest or smallest first, rates in descending order; rows without the figure last."""
    if key is None:
        return list(rows)
    if key not in BY_KEY:
        raise ConfigError(f"--sort: no such column (got {key!r}), allowed: {', '.join(BY_KEY)}")
    column = BY_KEY[key]

    def place(row: Row) -> tuple[bool, float, str]:
        value = column.value(row)
        if isinstance(value, int | float):
            return False, -value if column.falls else value, ""
        return value is None, 0.0, value or ""

    return sorted(rows, key=place)
