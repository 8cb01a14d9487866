"""A static analysis as `static.json`: every number a report joins with measurements."""

from dataclasses import asdict
from typing import Any

from llm_perf_opt.analysis.roofline import Bound
from llm_perf_opt.analysis.static.analysis import DECODE, Analysis
from llm_perf_opt.analysis.static.architecture import GROUPS
from llm_perf_opt.analysis.static.operator_count import Tally
from llm_perf_opt.analysis.static.prediction import PhasePrediction
from llm_perf_opt.analysis.static.work import Work

SCHEMA_VERSION = 1


def build_document(analysis: Analysis, *, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Plain data, ready for JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": analysis.name,
        "dtype": analysis.dtypes.compute,
        "dtypes": asdict(analysis.dtypes),
        "hardware": _hardware(analysis),
        "workload": {
            "batch": analysis.shape.batch,
            "prompt_tokens": analysis.shape.prompt,
            "context": analysis.shape.context,
            "views": [asdict(view) for view in analysis.shape.views],
            "how": analysis.shape.how,
        },
        "parameters": {
            "total": analysis.parameters.total,
            "activated": analysis.parameters.activated,
            "groups": dict(analysis.parameters.groups),
        },
        "kv_bytes_per_token": analysis.kv_bytes_per_token,
        "latent_attention": _latent(analysis),
        "experts": None if analysis.experts is None else dict(analysis.experts),
        "memory": _memory(analysis),
        "phases": {name: _phase(analysis, name) for name in analysis.phases},
        "double_entry": [asdict(entry) for entry in analysis.entries],
        "notes": list(notes),
    }


def _hardware(analysis: Analysis) -> dict[str, Any]:
    section = analysis.hardware
    if section is None:
        return {"name": None, "reason": analysis.hardware_reason}
    return {
        "name": section.name,
        "reason": analysis.hardware_reason,
        "peak_tflops": dict(section.peak_tflops),
        "memory_bandwidth_gb_s": section.memory_bandwidth_gb_s,
        "memory_gb": section.memory_gb,
        "l2_mb": section.l2_mb,
        "link": section.link,
        "link_gb_s": section.link_gb_s,
        "calibrated": bool(section.achieved_tflops),
        "achieved_tflops": dict(section.achieved_tflops),
        "achieved_bandwidth_gb_s": section.achieved_bandwidth_gb_s,
        "launch_us": section.launch_us,
        "sources": dict(section.sources),
    }


def _latent(analysis: Analysis) -> dict[str, Any] | None:
    if analysis.latent_modes is None:
        return None
    modes = {
        mode: {"decode_flops": flops, "kv_bytes_per_token": size}
        for mode, (flops, size) in analysis.latent_modes.items()
    }
    return {"mode": analysis.mla_mode, "modes": modes}


def _memory(analysis: Analysis) -> dict[str, Any]:
    need = analysis.memory
    fit = analysis.fit
    return {
        **asdict(need),
        "peak_bytes": need.peak_bytes,
        "capacity_bytes": fit.capacity_bytes if fit else None,
        "usable_bytes": fit.usable_bytes if fit else None,
        "largest_batch": fit.largest_batch if fit else None,
        "largest_context": fit.largest_context if fit else None,
        "reason": None if fit else "the device's memory is not known",
    }


def _phase(analysis: Analysis, name: str) -> dict[str, Any]:
    phase, prediction = analysis.phases[name], analysis.predictions[name]
    total = phase.total
    count = analysis.counts.get(name)
    return {
        **_work(total),
        "tokens": phase.step.rows,
        "counted_flops": count.total.flops if count else None,
        "counted_bytes": count.total.bytes if count else None,
        "counted_other_bytes": count.total.other_bytes if count else None,
        "operators": prediction.operators.count,
        "operators_how": prediction.operators.how,
        "groups": {g: _group(analysis, name, g) for g in GROUPS if g in phase.groups or (count and g in count.groups)},
        "bound_ms": _bounds(prediction),
        "limit": prediction.limit,
        "launch_ms": prediction.launch_ms,
        "estimate_ms": _estimate(prediction),
        "tokens_per_s": _rates(prediction),
        "per": "decode step" if name == DECODE else "prompt",
    }


def _work(work: Work) -> dict[str, Any]:
    return {
        "flops": work.flops,
        "flops_needed": work.flops_needed,
        "bytes": work.bytes,
        "bytes_needed": work.bytes_needed,
        "weight_bytes": work.weight_bytes,
        "kv_read_bytes": work.kv_read_bytes,
        "kv_write_bytes": work.kv_write_bytes,
        "activation_bytes": work.activation_bytes,
        "intensity": work.flops / work.bytes if work.bytes else None,
    }


def _group(analysis: Analysis, phase: str, group: str) -> dict[str, Any]:
    count = analysis.counts.get(phase)
    tally = None if count is None else count.groups.get(group, Tally())
    return {
        "params": analysis.parameters.groups.get(group, 0),
        **_work(analysis.phases[phase].groups.get(group, Work())),
        "counted_flops": tally.flops if tally else None,
        "counted_bytes": tally.bytes if tally else None,
        "counted_other_bytes": tally.other_bytes if tally else None,
        "operators": tally.operators if tally else None,
    }


def _bounds(prediction: PhasePrediction) -> dict[str, Any]:
    reasons = [r for r in (prediction.datasheet_reason, prediction.achievable_reason) if r]
    return {
        "datasheet": _ms(prediction.datasheet),
        "achievable": _ms(prediction.achievable),
        "reason": "; ".join(reasons) or None,
        "datasheet_parts": _parts(prediction.datasheet),
        "achievable_parts": _parts(prediction.achievable),
    }


def _ms(bound: Bound | None) -> float | None:
    return None if bound is None else bound.ms


def _parts(bound: Bound | None) -> dict[str, float] | None:
    return None if bound is None else {"compute": bound.compute_ms, "memory": bound.memory_ms}


def _estimate(prediction: PhasePrediction) -> dict[str, Any]:
    found = prediction.estimate
    if found is None:
        return {"low": None, "mid": None, "high": None, "reason": prediction.achievable_reason}
    return {"low": found.low_ms, "mid": found.mid_ms, "high": found.high_ms, "reason": None}


def _rates(prediction: PhasePrediction) -> dict[str, float | None]:
    found = prediction.estimate
    return {
        "datasheet": prediction.tokens_per_s(_ms(prediction.datasheet)),
        "achievable": prediction.tokens_per_s(_ms(prediction.achievable)),
        "estimate": prediction.tokens_per_s(found.mid_ms if found else None),
    }
