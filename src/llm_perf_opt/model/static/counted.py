"""A static analysis of a model the closed form does not know: operators alone, counted on the meta device.

FLOPs, bytes of matrix operators and parameters are counted. What only the closed form knows is null and says so: bounds
and estimates, what attention's mask throws away, bytes that no fusion can spare, and memory beyond weights and cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.core.markdown import table_block
from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.core.records import Metric
from llm_perf_opt.core.units import si
from llm_perf_opt.model.hardware.roofline import launch_band
from llm_perf_opt.model.hardware.work import Dtypes, Shape
from llm_perf_opt.model.static.operator_count import Count, Tally
from llm_perf_opt.model.static.parts import in_order
from llm_perf_opt.model.static.prediction import PhasePrediction
from llm_perf_opt.model.static.static_document import (
    PhaseBound,
    PhaseEstimate,
    StaticDocument,
    StaticGroup,
    StaticMemory,
    StaticParameters,
    StaticPhase,
    StaticWorkload,
    hardware_record,
)

COUNTED = "operators counted on the meta device"
BUILT = "parameters of the model built on the meta device"
PER = {PREFILL: "prompt", DECODE: "decode step"}


@dataclass(frozen=True, kw_only=True)
class CountedAnalysis:
    """`reason` says what the closed form does not know; `parameters` and `counts` are by module group and by phase.

    `beside`: parameters by group of parts that are held in memory and were not run. `least_read_bytes`: of weights, by
    every forward, on all `devices` together. `stored_bytes` and `stored_format`: of a quantised checkpoint, whose times
    are not reckoned from a count.
    """

    name: str
    reason: str
    dtypes: Dtypes
    shape: Shape
    hardware: HardwareSection | None
    hardware_reason: str | None
    capacity_bytes: float | None
    parameters: Mapping[str, int]
    counts: Mapping[str, Count]
    beside: Mapping[str, int] = field(default_factory=dict)
    least_read_bytes: float = 0.0
    devices: int = 1
    stored_bytes: float | None = None
    stored_format: str | None = None

    @property
    def total(self) -> int:
        return sum(self.parameters.values()) + sum(self.beside.values())

    @property
    def activated(self) -> int | None:
        """How many experts a token goes to is not known without the closed form."""
        return None if "experts" in self.parameters else sum(self.parameters.values())

    @property
    def weights_bytes(self) -> float:
        return self.total * self.dtypes.weight_bytes if self.stored_bytes is None else self.stored_bytes

    @property
    def kv_cache_bytes(self) -> float | None:
        """Of the whole batch at the context, as the model's own code keeps it; None where it was not seen."""
        kept = self.counts[DECODE].cache_elements if DECODE in self.counts else None
        return None if kept is None else kept * self.dtypes.kv_bytes

    @property
    def held_bytes(self) -> float:
        """Weights, and the cache where it is known; activations are not."""
        return self.weights_bytes + (self.kv_cache_bytes or 0.0)

    def launch_ms(self, phase: str) -> float:
        launch_us = self.hardware.launch_us if self.hardware is not None else None
        return self.counts[phase].total.operators * launch_band(launch_us)[1] / 1e3


def unknown_text(what: str) -> str:
    """Why a figure is missing, in a sentence."""
    return f"the closed form does not know {what}"


def counted_document(
    analysis: CountedAnalysis,
    *,
    notes: tuple[str, ...] = (),
    predictions: Mapping[str, PhasePrediction] | None = None,
) -> StaticDocument:
    """`static.json` with the keys of the closed form null; `predictions`: estimates that were made of the count."""
    shape = analysis.shape
    return StaticDocument(
        model=analysis.name,
        dtype=analysis.dtypes.compute,
        dtypes=analysis.dtypes,
        closed_form_reason=analysis.reason,
        hardware=hardware_record(analysis.hardware, analysis.hardware_reason),
        workload=StaticWorkload(
            batch=shape.batch, prompt_tokens=shape.prompt, context=shape.context, views=shape.views, how=shape.how
        ),
        parameters=StaticParameters(
            total=analysis.total,
            activated=analysis.activated,
            groups={**analysis.parameters, **analysis.beside},
        ),
        kv_bytes_per_token=None,
        memory=StaticMemory(
            weights_bytes=analysis.weights_bytes,
            kv_cache_bytes=analysis.kv_cache_bytes,
            capacity_bytes=analysis.capacity_bytes,
            reason=analysis.reason,
        ),
        phases={
            name: _phase(analysis, name, count, None if predictions is None else predictions[name])
            for name, count in analysis.counts.items()
        },
        notes=notes,
    )


def _phase(analysis: CountedAnalysis, name: str, count: Count, predicted: PhasePrediction | None) -> StaticPhase:
    shape, total = analysis.shape, count.total
    expected = predicted.estimate if predicted else None
    weights = predicted.datasheet if predicted else None
    return StaticPhase(
        flops=None,
        flops_needed=None,
        bytes=None,
        bytes_needed=None,
        tokens=shape.batch * (shape.prompt if name == PREFILL else 1),
        counted_flops=total.flops,
        counted_bytes=total.bytes,
        counted_other_bytes=total.other_bytes,
        operators=total.operators,
        operators_how="counted",
        groups={group: _group(analysis, group, count.groups[group]) for group in in_order(count.groups)},
        bound_ms=PhaseBound(
            datasheet=weights.ms if weights else None,
            achievable=None,
            datasheet_reason=None if weights else analysis.reason,
            achievable_reason=analysis.reason,
        ),
        launch_ms=analysis.launch_ms(name),
        estimate_ms=PhaseEstimate(
            low=expected.low_ms if expected else None,
            mid=expected.mid_ms if expected else None,
            high=expected.high_ms if expected else None,
            reason=None if expected else analysis.reason,
        ),
        per=PER[name],
    )


def _group(analysis: CountedAnalysis, group: str, tally: Tally) -> StaticGroup:
    return StaticGroup(
        params=analysis.parameters.get(group, 0),
        flops=None,
        flops_needed=None,
        bytes=None,
        bytes_needed=None,
        counted_flops=tally.flops,
        counted_bytes=tally.bytes,
        counted_other_bytes=tally.other_bytes,
        operators=tally.operators,
    )


def counted_metrics(analysis: CountedAnalysis, *, source: str | None) -> dict[str, Metric]:
    """The names of a full analysis; those it cannot fill carry the reason."""

    def counted(value: float | None, unit: str, *, how: str = COUNTED, per: str | None = None) -> Metric:
        reason = None if value is not None else analysis.reason
        return Metric(value=value, unit=unit, how=how, per=per, source=source, reason=reason)

    form = "closed form from the model's configuration"
    found = {
        "params_total": counted(analysis.total, "parameters", how=BUILT),
        "params_activated": counted(analysis.activated, "parameters", how=BUILT, per="token"),
        "kv_bytes_per_token": counted(None, "bytes", how=form, per="token"),
        "weights_bytes": counted(analysis.weights_bytes, "bytes", how=BUILT),
        "peak_memory_predicted_bytes": counted(None, "bytes", how=form),
        "double_entry_disagreements": counted(None, "entries", how="closed form against operator count"),
    }
    for phase, count in analysis.counts.items():
        per = PER[phase]
        found[f"flops_{phase}"] = counted(count.total.flops, "FLOP", per=per)
        found[f"flops_needed_{phase}"] = counted(None, "FLOP", how=form, per=per)
        found[f"bytes_{phase}"] = counted(count.total.bytes, "bytes", per=per)
        found[f"bytes_needed_{phase}"] = counted(None, "bytes", how=form, per=per)
        for name in ("bound", "bound_achievable", "estimate"):
            found[f"{name}_{phase}_ms"] = counted(None, "ms", how=form, per=per)
        found[f"limit_{phase}"] = counted(None, "", how="largest of compute, memory and launch time", per=per)
        found[f"operators_{phase}"] = counted(count.total.operators, "operators", how="counted", per=per)
    return found


def counted_markdown(analysis: CountedAnalysis, *, notes: Sequence[str] = ()) -> str:
    """`static_compute.md` of operators alone."""
    shape = analysis.shape
    opening = (
        f"Operators alone: {analysis.reason}. FLOPs and bytes are those of the operators the model starts on the meta "
        "device; there is no second book to compare them with, and no bound.\n\n"
        f"Batch {shape.batch}, prompt of {shape.prompt} tokens, decode at context {shape.context} ({shape.how}). "
        f"Counted in {analysis.dtypes.compute}. FLOPs are 2 per multiply-add of matrix products, convolutions and "
        "attention, whose masked part is included. Bytes are operands and results of matrix operators; those of all "
        "other operators are listed apart as *unfused*."
    )
    activated = analysis.activated
    rows = [
        ("parameters", f"{analysis.total:,}"),
        ("of which one token uses (embeddings in full)", "–" if activated is None else f"{activated:,}"),
        ("weights in memory", si(analysis.weights_bytes, "B")),
        ("KV cache of the batch at the context", si(analysis.kv_cache_bytes, "B")),
    ]
    parts = [f"# Static analysis of {analysis.name}", opening, "## Model", table_block(("what", "value"), rows)]
    for name, count in analysis.counts.items():
        parts += ["## Prefill" if name == PREFILL else "## Decode step", _phase_table(analysis, count)]
    parts += ["## Bounds", f"No bound: {analysis.reason}."]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _phase_table(analysis: CountedAnalysis, count: Count) -> str:
    listed = [(group, analysis.parameters.get(group, 0), count.groups[group]) for group in in_order(count.groups)]
    rows = [
        (
            name,
            f"{params:,}",
            si(tally.flops, "FLOP"),
            si(tally.bytes, "B"),
            si(tally.other_bytes, "B"),
            f"{tally.operators:,}",
        )
        for name, params, tally in [*listed, ("**total**", analysis.total, count.total)]
    ]
    return table_block(("group", "parameters", "FLOPs", "bytes", "unfused", "operators"), rows)
