"""The table `llm-perf predict` prints: one line for each combination, as wide as the terminal, what it means below."""

import textwrap
from collections.abc import Mapping, Sequence

from llm_perf_opt.core.units import or_dash, si
from llm_perf_opt.model.estimate.requests import Forecast
from llm_perf_opt.model.static.closed_form import kv_bytes
from llm_perf_opt.model.static.counted import CountedAnalysis
from llm_perf_opt.model.static.forms import state_elements
from llm_perf_opt.model.static.model_analysis import Analysis
from llm_perf_opt.planning.predicted_rows import BY_KEY, COLUMNS, Column, Row, Value
from llm_perf_opt.system.terminal import screen_width, terminal_table

WIDTH = 80
# What a narrow table shows of the results, the least wanted last.
RESULTS = ("prefill_ms", "decode_ms", "tokens_per_s", "memory_bytes", "tokens_per_s_bound", "max_batch", "limit")
SERVED = ("ttft_ms", "ttft_p95_ms", "tpot_ms", "throughput", "cost", "memory_bytes", "request_ms", "max_batch")
# Where what does not fit is marked, so that such a figure is not mistaken for a possible run.
MARKED = ("memory_bytes", "throughput", "tokens_per_s")
ALWAYS = ("model", "hardware")
# Questions that say nothing while they have these values.
PLAIN: dict[str, Value] = {
    "tp": 1,
    "pp": 1,
    "ep": 1,
    "dp": 1,
    "prefix_hit": 0.0,
    "draft_tokens": 4,
    "burstiness": 1.0,
}
# What columns mean, printed where one of them is shown.
LEGEND: dict[tuple[str, ...], str] = {
    ("prefill_ms", "decode_ms"): "prefill, decode ms: what to expect of one prompt batch and one step.",
    ("ttft_ms", "tpot_ms", "request_ms"): "ttft, tpot, request ms: of one request among those in flight; ttft is the "
    "median.",
    ("ttft_p95_ms",): "p95: 95th percentile of ttft, of requests that start together (workload.concurrency) or of all "
    "that arrive (workload.rate).",
    ("throughput",): "served tok/s: output tokens of all requests in flight, prompts included in the time.",
    ("cost",): "cost/M: of a million output tokens, in the currency of hardware.price_per_hour.",
    ("tokens_per_s",): "tok/s: decode, all sequences.",
    ("prefill_bound_ms", "decode_bound_ms", "tokens_per_s_bound"): "≥, ≤: at data-sheet peaks (this machine's CPU: at "
    "measured ones), no run can be faster.",
    ("limit",): "limit: what takes longest in prefill / decode.",
    ("memory_bytes",): "memory: weights + KV cache of all requests in flight + activations over all devices.",
    MARKED: "! where it does not fit.",
    ("max_batch",): "max batch: sequences that fit, with 3 % of the memory left free (served: 10 %).",
}
ASSUMPTIONS = (
    "assumed: bounds multiply at the fastest rate the formats allow (4-bit weights also at 8-bit peaks), estimates as "
    "engines do (4-bit weights in the activations' format without units for them); full batches of one length, logits "
    "of the last position, experts picked evenly (bounds: as few as can be), no power or thermal limit.",
)
ENGINES = {
    "eager": "eager: stock transformers; the host launches every operator.",
    "graph": "graph: plain torch in a CUDA graph, measured on an H200.",
    "server": "server: a serving engine with fused kernels; reckoned from measured operators, not measured as a whole.",
}


def render_table(rows: Sequence[Row], *, is_wide: bool = False, width: int = WIDTH) -> str:
    """`width`: columns of the terminal; a narrow table leaves out results that have no room."""
    columns = list(COLUMNS) if is_wide else _narrow(rows, width)
    lines = [*_models(rows, width)]
    shared = [] if is_wide else _shared(rows, columns)
    lines += [*(textwrap.fill(", ".join(shared), width).splitlines() if shared else []), ""]
    cells = [tuple(_cell(column, row) for column in columns) for row in rows]
    right = [i for i, column in enumerate(columns) if not any(isinstance(column.value(row), str) for row in rows)]
    lines.append(terminal_table([column.header for column in columns], cells, right=right, rule=False))
    texts = [
        *_left_out(rows, columns),
        _legend(columns),
        *_modes(rows),
        *_engines(rows),
        *_bands(rows),
        *ASSUMPTIONS,
        *(f"note: {text}" for text in _notes(rows)),
    ]
    lines += ["", *(line for text in texts for line in ([text] if is_wide else filled(text, width)))]
    return "\n".join(lines) + "\n"


def _legend(columns: Sequence[Column]) -> str:
    shown = {column.key for column in columns}
    return " ".join(text for keys, text in LEGEND.items() if shown & set(keys))


def filled(text: str, width: int | None = None) -> list[str]:
    """A paragraph in lines, as wide as the terminal where no width is given."""
    return textwrap.wrap(text, width or screen_width() or WIDTH, break_long_words=False, break_on_hyphens=False)


def _narrow(rows: Sequence[Row], width: int) -> list[Column]:
    """Names, what differs between rows, and as many results as fit into the width."""
    asked = [c for c in COLUMNS if c.is_question and (c.key in ALWAYS or len({c.value(row) for row in rows}) > 1)]
    chosen = list(asked)
    for column in _wanted(rows):
        if _width([*chosen, column], rows) <= width:
            chosen.append(column)
    return chosen


def _wanted(rows: Sequence[Row]) -> list[Column]:
    """The results worth a column, as far as there are any, the most wanted first."""
    keys: tuple[str, ...] = SERVED if any(row.forecast for row in rows) else RESULTS
    if all(row.decode.estimate is None for row in rows):
        keys = ("prefill_bound_ms", "decode_bound_ms", *RESULTS)
    return [BY_KEY[key] for key in keys if any(BY_KEY[key].value(row) is not None for row in rows)]


def _left_out(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Results that had no room, and how to see them."""
    missing = [column.header for column in _wanted(rows) if column not in columns]
    return [f"hidden columns: {', '.join(missing)} (--wide, --csv and --json have them)."] if missing else []


def _width(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    widths = [max(len(column.header), *(len(_cell(column, row)) for row in rows)) for column in columns]
    return sum(widths) + 2 * (len(widths) - 1)


def _shared(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """What is requested and the same in all rows, unless it is the plain thing."""
    shown = {column.key for column in columns}
    found = []
    for column in COLUMNS:
        if not column.is_question or column.key in shown or not rows:
            continue
        value = column.value(rows[0])
        if value is not None and (column.key not in PLAIN or PLAIN[column.key] != value):
            found.append(f"{column.key} {value}")
    return found


def _cell(column: Column, row: Row) -> str:
    value = column.value(row)
    if value is None or isinstance(value, str):
        return value or "–"
    mark = "! " if column.key in MARKED and row.fits is False else ""
    if column.key in ("memory_bytes", "kv_bytes_at_context"):
        return mark + si(value, "B", count=3)
    if isinstance(value, int):
        return str(value) if column.is_question else f"{value:,}"
    return mark + or_dash(value, "{:,.0f}" if value >= 1000 else "{:.3g}", dash="–")


def _models(rows: Sequence[Row], width: int) -> list[str]:
    """One line or two for each model: what does not depend on the hardware."""
    seen: dict[str, str] = {}
    for row in rows:
        analysis = row.analysis
        if isinstance(analysis, CountedAnalysis):
            parts = _parts(analysis.total, analysis.beside)
            seen[analysis.name] = f"{analysis.name}: {analysis.total:,} parameters{parts}"
            continue
        p = analysis.parameters
        active = _parts(p.total, p.beside)
        if p.activated != p.total - sum(p.beside.values()):
            active += f", {p.activated:,} a token ({p.activated_inside:,} without embeddings)"
        text = f"{analysis.name}: {p.total:,} parameters{active}, {analysis.kv_bytes_per_token:,.0f} KV bytes a token"
        seen[analysis.name] = text + _windowed(analysis)
    return [line for text in seen.values() for line in textwrap.wrap(text, width)]


def _parts(total: int, beside: Mapping[str, int]) -> str:
    """How many parameters are the text model's and how many those of the parts alongside it."""
    if not beside:
        return ""
    parts = {"text": total - sum(beside.values()), **beside}
    return f" ({', '.join(f'{name} {count:,}' for name, count in parts.items())})"


def _windowed(analysis: Analysis) -> str:
    """Notes on the cache of a sequence: full windows keep it smaller, states add to it."""
    shape, model, dtypes, mode = analysis.shape, analysis.model, analysis.dtypes, analysis.mla_mode
    longest = max(shape.context, shape.prompt)
    state = sum(count * state_elements(layer.attention) for layer, count in model.decoder.blocks) * dtypes.kv_bytes
    held = kv_bytes(model, longest, dtypes, mode)
    text = f" and a state of {si(state, 'B', count=3)}" if state else ""
    if abs(held - state - longest * analysis.kv_bytes_per_token) < 1:
        return text
    return f"{text} until windows are full, {si(held, 'B', count=3)} at {longest:,}"


def _modes(rows: Sequence[Row]) -> list[str]:
    """Bounds of the first row with latent attention in each way to run it; the lowest counts."""
    row = next((row for row in rows if row.decode.modes), None)
    if row is None:
        return []
    each = ", ".join(
        f"{mode} {found.ms:.3g} / {row.decode.modes[mode].ms:.3g}" for mode, found in row.prefill.modes.items()
    )
    return [f"latent attention of {row.analysis.name}, prefill / decode ≥ in ms: {each}; the lowest is the bound."]


def _engines(rows: Sequence[Row]) -> list[str]:
    used = {
        row.case.engine for row in rows if row.decode.estimate is not None and row.decode.estimate.gpu_ms is not None
    }
    return [text for name, text in ENGINES.items() if name in used]


def _bands(rows: Sequence[Row]) -> list[str]:
    """How far the figures may be off, by the first row's bands of each kind."""
    found: dict[str, str] = {}
    for row in rows:
        estimate = row.decode.estimate
        if estimate is not None:
            band = f"{estimate.low_ms:.3g} – {estimate.high_ms:.3g} ms"
            name = row.analysis.hardware.name if row.analysis.hardware else "unknown"
            found.setdefault(estimate.label, f"rates {estimate.label}: {name} decode {estimate.mid_ms:.3g} ms, {band}.")
        if row.forecast is not None:
            found.setdefault(row.forecast.band.why, _served_band(row.forecast, is_arriving=row.case.rate is not None))
    return list(found.values())


def _served_band(forecast: Forecast, *, is_arriving: bool) -> str:
    served, low, high = forecast.output_tokens_per_s, forecast.slowest_tokens_per_s, forecast.fastest_tokens_per_s
    if is_arriving and low == served:
        return f"served {served:,.0f} tok/s: the load, also at the slow end of the band ({forecast.band.why})."
    return f"served {served:,.0f} tok/s may be {low:,.0f} to {high:,.0f} ({forecast.band.why})."


def _notes(rows: Sequence[Row]) -> list[str]:
    """Reasons for dashes and stated choices, each once."""
    found: dict[str, None] = {}
    for row in rows:
        analysis = row.analysis
        for text in (*row.notes, analysis.hardware_reason or ""):
            if text:
                found[text] = None
        if analysis.hardware_reason:
            continue
        for prediction in row.predictions.values():
            if prediction.estimate is not None:
                continue
            for reason in (prediction.achievable_reason, prediction.datasheet_reason):
                if reason:
                    found[reason] = None
    return list(found)
