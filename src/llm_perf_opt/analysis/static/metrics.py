"""The headline numbers of a static analysis, for the manifest."""

from llm_perf_opt.analysis.static.analysis import Analysis
from llm_perf_opt.analysis.static.double_entry import disagreements
from llm_perf_opt.analysis.static.prediction import PhasePrediction
from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.core.records import Metric

CLOSED_FORM = "closed form from the model's configuration"


def static_metrics(analysis: Analysis, *, source: str | None) -> dict[str, Metric]:
    """Names as in `static.json`, with the phase at the end."""

    def number(value: float | int, unit: str, *, how: str = CLOSED_FORM, per: str | None = None) -> Metric:
        return Metric(value=value, unit=unit, how=how, per=per, source=source)

    found = {
        "params_total": number(analysis.parameters.total, "parameters"),
        "params_activated": number(analysis.parameters.activated, "parameters", per="token"),
        "kv_bytes_per_token": number(analysis.kv_bytes_per_token, "bytes", per="token"),
        "weights_bytes": number(analysis.memory.weights_bytes, "bytes"),
        "peak_memory_predicted_bytes": number(analysis.memory.peak_bytes, "bytes"),
        "double_entry_disagreements": _disagreements(analysis, source),
    }
    for phase in (PREFILL, DECODE):
        total = analysis.phases[phase].total
        per = "prompt" if phase == PREFILL else "decode step"
        found[f"flops_{phase}"] = number(total.flops, "FLOP", per=per)
        found[f"flops_needed_{phase}"] = number(total.flops_needed, "FLOP", per=per)
        found[f"bytes_{phase}"] = number(total.bytes, "bytes", per=per)
        found[f"bytes_needed_{phase}"] = number(total.bytes_needed, "bytes", per=per)
        found |= _bounds(analysis, phase, per, source)
    return found


def _bounds(analysis: Analysis, phase: str, per: str, source: str | None) -> dict[str, Metric]:
    """`bound_*` is the data sheet's where there is one, else the calibration's (a CPU has only that)."""
    p = analysis.predictions[phase]
    name = analysis.hardware.name if analysis.hardware else "unknown hardware"
    reason = analysis.hardware_reason
    if p.datasheet is not None:
        best = _metric(p.datasheet.ms, f"data-sheet peaks of {name}", per, source, None)
    else:
        ms = p.achievable.ms if p.achievable else None
        best = _metric(ms, f"calibration of {name}", per, source, reason or p.achievable_reason)
    reach = p.achievable.ms if p.achievable else None
    middle = p.estimate.mid_ms if p.estimate else None
    why = reason or p.achievable_reason
    return {
        f"bound_{phase}_ms": best,
        f"bound_achievable_{phase}_ms": _metric(reach, f"achievable ceilings of {name}", per, source, why),
        f"estimate_{phase}_ms": _metric(middle, f"eager run at achievable ceilings of {name}", per, source, why),
        f"limit_{phase}": _limit(p, per, source, reason or p.datasheet_reason),
        f"operators_{phase}": Metric(
            value=p.operators.count, unit="operators", how=p.operators.how, per=per, source=source
        ),
    }


def _metric(ms: float | None, how: str, per: str, source: str | None, reason: str | None) -> Metric:
    return Metric(value=ms, unit="ms", how=how, per=per, source=source, reason=None if ms is not None else reason)


def _limit(p: PhasePrediction, per: str, source: str | None, reason: str | None) -> Metric:
    how = "largest of compute, memory and launch time"
    return Metric(value=p.limit, unit="", how=how, per=per, source=source, reason=None if p.limit else reason)


def _disagreements(analysis: Analysis, source: str | None) -> Metric:
    if not analysis.entries:
        return Metric(
            value=None, unit="entries", how="closed form against operator count", reason="operators were not counted"
        )
    return Metric(
        value=len(disagreements(analysis.entries)),
        unit="entries",
        how="closed form against operator count, over 1 %",
        per=f"{len(analysis.entries)} entries",
        source=source,
    )
