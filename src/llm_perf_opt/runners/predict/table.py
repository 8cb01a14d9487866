"""The table `llm-perf predict` prints: one line for each combination, what it means below it."""

from collections.abc import Sequence

from llm_perf_opt.analysis.static.analysis import Analysis
from llm_perf_opt.analysis.static.prediction import PhasePrediction
from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.core.terminal import terminal_table
from llm_perf_opt.core.units import or_dash, si

HEADER = (
    "model",
    "hardware",
    "dtype",
    "batch",
    "prompt",
    "context",
    "prefill ms",
    "estimate",
    "decode ms",
    "estimate",
    "tok/s ≤",
    "tok/s est",
    "limit p/d",
    "memory",
    "max batch",
)
# The first columns are names, the others numbers.
NAMES = 3
LEGEND = (
    "prefill, decode ms: bound from data-sheet peaks (from the calibration on a CPU), per prompt and per step; "
    "no run can be faster.",
    "estimate: an eager run at what the device was measured to reach, (low – high). tok/s: decode, all sequences.",
    "limit: what takes longest in prefill / decode. memory: weights + KV cache + activations, ! where it does not fit; "
    "max batch leaves 3 % free.",
)


def render_table(rows: Sequence[tuple[Analysis, tuple[str, ...]]]) -> str:
    lines = [*_models(rows), ""]
    cells = [_row(analysis) for analysis, _ in rows]
    lines.append(terminal_table(HEADER, cells, right=range(NAMES, len(HEADER)), rule=False))
    lines += ["", *LEGEND, *(f"note: {text}" for text in _notes(rows))]
    return "\n".join(lines) + "\n"


def _models(rows: Sequence[tuple[Analysis, tuple[str, ...]]]) -> list[str]:
    """One line for each model: what does not depend on the hardware."""
    seen: dict[str, str] = {}
    for analysis, _ in rows:
        p = analysis.parameters
        active = "" if p.activated == p.total else f", {p.activated:,} a token"
        mode = f", MLA {analysis.mla_mode}" if analysis.latent_modes else ""
        text = f"{analysis.name}: {p.total:,} parameters{active}"
        seen[analysis.name] = f"{text}, {analysis.kv_bytes_per_token:,.0f} KV bytes a token{mode}"
    return list(seen.values())


def _row(analysis: Analysis) -> tuple[str, ...]:
    prefill, decode = analysis.predictions[PREFILL], analysis.predictions[DECODE]
    fit = analysis.fit
    bound_ms = _bound_ms(decode)
    estimate_ms = decode.estimate.mid_ms if decode.estimate else None
    return (
        analysis.name,
        analysis.hardware.name if analysis.hardware else "unknown",
        _dtypes(analysis),
        str(analysis.shape.batch),
        str(analysis.shape.prompt),
        str(analysis.shape.context),
        _ms(_bound_ms(prefill)),
        _band(prefill),
        _ms(bound_ms),
        _band(decode),
        or_dash(decode.tokens_per_s(bound_ms), "{:,.0f}", dash="–"),
        or_dash(decode.tokens_per_s(estimate_ms), "{:,.0f}", dash="–"),
        f"{prefill.limit or '–'}/{decode.limit or '–'}",
        _memory(analysis),
        "–" if fit is None else f"{fit.largest_batch:,}",
    )


def _dtypes(analysis: Analysis) -> str:
    d = analysis.dtypes
    parts = [d.compute]
    parts += [f"w{d.weight}"] if d.weight != d.compute else []
    parts += [f"kv{d.kv}"] if d.kv != d.compute else []
    return " ".join(parts)


def _memory(analysis: Analysis) -> str:
    """A mark where the peak does not fit, so that nobody takes the times beside it for a run that could be made."""
    text = si(analysis.memory.peak_bytes, "B")
    fit = analysis.fit
    return f"! {text}" if fit is not None and analysis.memory.peak_bytes > fit.usable_bytes else text


def _bound_ms(prediction: PhasePrediction) -> float | None:
    found = prediction.datasheet or prediction.achievable
    return None if found is None else found.ms


def _ms(value: float | None, count: int = 4) -> str:
    return or_dash(value, "{:,.0f}" if value is not None and value >= 1000 else f"{{:.{count}g}}", dash="–")


def _band(prediction: PhasePrediction) -> str:
    found = prediction.estimate
    return "–" if found is None else f"{_ms(found.mid_ms, 3)} ({_ms(found.low_ms, 3)} – {_ms(found.high_ms, 3)})"


def _notes(rows: Sequence[tuple[Analysis, tuple[str, ...]]]) -> list[str]:
    """Reasons for dashes and stated choices, each once."""
    found: dict[str, None] = {}
    for analysis, notes in rows:
        for text in (*notes, analysis.hardware_reason or ""):
            if text:
                found[text] = None
        if analysis.hardware_reason:
            continue
        for prediction in analysis.predictions.values():
            reasons = [prediction.achievable_reason]
            reasons += [prediction.datasheet_reason] if prediction.achievable is None else []
            for reason in reasons:
                if reason:
                    found[reason] = None
    return list(found)
