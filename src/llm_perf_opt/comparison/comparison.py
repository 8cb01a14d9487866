"""Two sides in, everything `llm-perf compare` says about them out: the document `compare.json` holds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from llm_perf_opt.capture.rows import RangeRow
from llm_perf_opt.comparison.compared_captures import KERNEL_TIME, CaptureMetric, Moved, capture_metrics, largest_moves
from llm_perf_opt.comparison.differences import (
    DifferenceWaterfall,
    KernelChange,
    KernelVerdict,
    RowChange,
    TableName,
    TableRow,
    capture_waterfall,
    kernel_changes,
    over_passes,
    phase_waterfall,
    rows_by_name,
    table_changes,
)
from llm_perf_opt.comparison.gate import Condition, GateResult, check_condition, failed_run, gate_metrics
from llm_perf_opt.comparison.settings import SettingChange
from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.comparison.statistics import (
    GIVEN,
    NOT_OBSERVED,
    OBSERVED,
    THRESHOLD,
    ChangeEstimate,
    Level,
    Pass,
    StartVariation,
    Verdict,
    estimate,
    holm,
    judge,
    repeats_needed,
)
from llm_perf_opt.core.names import PHASE_RANGE, PHASES, WALL_METRIC
from llm_perf_opt.core.units import format_quantity
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis

# What every comparison looks at; a gate may name any other metric of the samples.
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms", "prefill_ms", "joules_per_token")
# Of a load on a server also: rates over the whole load, and tails.
RATES = ("output_tokens_per_s", "requests_per_s")
LOAD_METRICS = (*RATES, "ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms")
PEAK_MEMORY = "peak_memory_bytes"
# Compared where preparing is worth a finding: elsewhere it is noise, and each further metric widens the others.
PREPARE = "prepare_ms"
LEAST_PREPARING = 0.1
# Compared where nothing else was timed on both sides: a program that marks no phases, from its start to its end.
WALL = "wall_ms"
# Without chance: allocations repeat exactly, so a single value has no error.
EXACT = (PEAK_MEMORY,)
# Every metric that a gate may name although a run may not have it.
KNOWN_METRICS = (
    *(*METRICS, *LOAD_METRICS, PEAK_MEMORY, PREPARE, WALL, KERNEL_TIME),
    *("decode_ms", "post_ms", "decode_tokens_per_s", "prefill_tokens_per_s", "tokens", "prompt_tokens", "joules"),
    *("itl_ms", "goodput_per_s"),
)
# Metrics in the sentence; the table has them all.
NAMED = 3
AGREES = 0.01
# A change of this size is not a figure any more.
MOST_RATIO = 1000
OverallVerdict = Literal[
    "better", "worse", "mixed", "same", "inconclusive", "failed", "difference observed", "no difference observed"
]
Variations = Callable[[str], StartVariation | None]


def unknown_variation(metric: str) -> StartVariation | None:
    """What is known of start-to-start variation where it was not measured: nothing."""
    return None


@dataclass(frozen=True, kw_only=True)
class SideFact:
    """One line of what a side is: model, GPU, command, commit, date."""

    label: str
    text: str


@dataclass(frozen=True, kw_only=True)
class SideInput:
    """One side as it was read: the samples of each pass by metric, and a capture where there is one.

    Of profiled passes, `operators` are calls and own time in ns by name, one entry for each pass; `modules` are shares
    of each phase by group, of the first. `shared` says which GPUs did others' work meanwhile. `load` says what a server
    was under. `repeats_start`: each repeat of a pass is a start of the program of its own. `damage` says what of its
    runs is missing or unreadable. `problem` is set where a run failed or measured nothing. `errors` are standard errors
    (as shares) of metrics of which only a summary is known. `about` says what the side is.
    """

    name: str
    passes: Sequence[Mapping[str, Sequence[RepeatedValue]]] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    about: Sequence[SideFact] = ()
    bounds_ms: Mapping[str, float] = field(default_factory=dict)
    operators: Sequence[Mapping[str, tuple[int, int]]] = ()
    modules: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    capture: CaptureAnalysis | None = None
    shared: Sequence[str] = ()
    load: str | None = None
    repeats_start: bool = False
    damage: Sequence[str] = ()
    problem: str | None = None

    def series(self, metric: str) -> list[Pass]:
        return [one[metric] for one in self.passes if one.get(metric)]

    @property
    def starts(self) -> int:
        """How often the program was started."""
        if not self.repeats_start:
            return len(self.passes)
        return sum(len({item.repeat for series in one.values() for item in series}) for one in self.passes)


@dataclass(frozen=True, kw_only=True)
class MetricComparison:
    """One metric on both sides. `ratio` is candidate by base; `low` and `high` bound it with 95 % confidence.

    `base_value`, `candidate_value`, `difference` and `ratio` come from one estimator and agree; `base` and `candidate`
    are the levels as measured. `p_adjusted` is the p-value of "the change is within the threshold", corrected for the
    number of metrics. `repeats_needed`, in `repeats_unit`, is set where more would be conclusive. `knows_starts`: the
    interval contains what one start differs from the next; else it is that of the repeats inside one start.
    """

    metric: str
    lower_is_better: bool
    base: Level
    candidate: Level
    base_value: float
    candidate_value: float
    difference: float
    ratio: float
    low: float | None
    high: float | None
    p_adjusted: float | None
    verdict: Verdict
    repeats_needed: int | None
    how: str
    knows_starts: bool = True
    repeats_unit: str = "repeats"


@dataclass(frozen=True, kw_only=True)
class SideSummary:
    """What was compared: its name, passes and starts, what it is, and why it cannot win if it cannot."""

    name: str
    passes: int
    starts: int
    about: tuple[SideFact, ...]
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class CompareDocument:
    """`compare.json`. `forced` lists why the sides are not to be compared, where that was overruled.

    `what` is one line for both sides: what was compared.
    """

    schema_version: Literal[2] = 2
    what: str
    base: SideSummary
    candidate: SideSummary
    verdict: OverallVerdict
    sentence: str
    threshold: float
    paired: bool
    forced: tuple[str, ...]
    metrics: tuple[MetricComparison, ...]
    gates: tuple[GateResult, ...]
    waterfalls: tuple[DifferenceWaterfall, ...]
    kernels: tuple[KernelChange, ...]
    tables: Mapping[str, tuple[RowChange, ...]]
    settings: tuple[SettingChange, ...]
    notes: tuple[str, ...]


def compare_sides(
    base: SideInput,
    candidate: SideInput,
    *,
    conditions: Sequence[Condition] = (),
    paired: bool = False,
    threshold: float = THRESHOLD,
    settings: tuple[SettingChange, ...] = (),
    forced: tuple[str, ...] = (),
    spent: float = 1.0,
    variation: Variations = unknown_variation,
    notes: Sequence[str] = (),
) -> CompareDocument:
    """Everything about two sides; what was not measured on both is left out and named. `spent` as in `judge`.

    `variation` gives the start-to-start variation of a metric where a side was started once.
    """
    kernels: tuple[KernelChange, ...] = ()
    tables: dict[TableName, tuple[RowChange, ...]] = {}
    seen: tuple[CaptureMetric, ...] = ()
    moves: tuple[Moved, ...] = ()
    if base.capture is not None and candidate.capture is not None:
        kernels = kernel_changes(base.capture.kernels, candidate.capture.kernels, threshold=threshold)
        tables = table_changes(base.capture, candidate.capture, threshold=threshold)
        seen = capture_metrics(base.capture, candidate.capture, kernels)
        step = next((one.step for one in seen if one.step is not None), None)
        moves = largest_moves(base.capture, candidate.capture, kernels, tables, step=step)
    metrics = compare_metrics(
        base, candidate, paired=paired, threshold=threshold, spent=spent, variation=variation, seen=seen
    )
    if base.operators and candidate.operators:
        tables["operators"] = rows_by_name(_operators(base), _operators(candidate), threshold=threshold)
    bounds = _bounds(base, candidate, threshold)
    if bounds:
        tables["bounds"] = bounds
    waterfalls = _waterfalls(base, candidate, metrics, kernels)
    verdict = overall(base, candidate, metrics, kernels)
    gates = tuple(
        _gate(condition, base, candidate, paired=paired, spent=spent, variation=variation, seen=seen)
        for condition in conditions
    )
    return CompareDocument(
        base=_summary(base),
        candidate=_summary(candidate),
        what=_what(base, candidate),
        verdict=verdict,
        sentence=_sentence(verdict, base, candidate, metrics, waterfalls, moves),
        threshold=threshold,
        paired=paired,
        forced=forced,
        metrics=metrics,
        gates=gates,
        waterfalls=waterfalls,
        kernels=kernels,
        tables={str(name): rows for name, rows in tables.items()},
        settings=settings,
        notes=(*notes, *_notes(base, candidate, metrics, paired=paired, seen=seen)),
    )


def is_settled(found: CompareDocument) -> bool:
    """Whether more passes are of no use: every gate has an answer, or every metric where there are none."""
    if found.verdict == "failed":
        return True
    if found.gates:
        return all(gate.status != "inconclusive" for gate in found.gates)
    return bool(found.metrics) and all(row.verdict != "inconclusive" for row in _deciding(found.metrics))


def compare_metrics(
    base: SideInput,
    candidate: SideInput,
    *,
    paired: bool,
    threshold: float = THRESHOLD,
    spent: float = 1.0,
    variation: Variations = unknown_variation,
    seen: Sequence[CaptureMetric] = (),
) -> tuple[MetricComparison, ...]:
    """The metrics both sides have; of two captures what both repeat in them."""
    if base.problem is not None or candidate.problem is not None:
        return ()
    prepares = _prepares(base) or _prepares(candidate)
    names = (*METRICS, *LOAD_METRICS, *((PREPARE,) if prepares else ()), PEAK_MEMORY)
    found = _estimates(names, base, candidate, paired=paired, variation=variation)
    if not found.keys() - {PEAK_MEMORY}:
        found = {**_estimates((WALL,), base, candidate, paired=paired, variation=variation), **found}
    # Of runs, clean times decide; captures are queried where there are none.
    doubts = {} if found else {one.metric: one.doubt for one in seen}
    found = found or {one.metric: one.estimate for one in seen}
    known = [p for one in found.values() if (p := one.p_beyond(threshold)) is not None]
    adjusted = iter(holm(known))
    rows = []
    for name, one in found.items():
        p_adjusted = None if one.p_beyond(threshold) is None else next(adjusted)
        rows.append(_row(name, one, p_adjusted, threshold, spent))
    return tuple(_with_doubt(row, doubts.get(row.metric)) for row in rows)


def _with_doubt(row: MetricComparison, doubt: str | None) -> MetricComparison:
    if doubt is None:
        return row
    return replace(row, verdict="inconclusive", repeats_needed=None, how=f"{row.how}; {doubt}")


def _estimates(
    names: Sequence[str], base: SideInput, candidate: SideInput, *, paired: bool, variation: Variations
) -> dict[str, ChangeEstimate]:
    every = {name: _estimate(name, base, candidate, paired=paired, variation=variation) for name in names}
    return {name: one for name, one in every.items() if one is not None}


def _prepares(side: SideInput) -> bool:
    """Whether preparing inputs is a part of a request that a change may have been about."""
    sums = [sum(item.value for one in side.series(name) for item in one) for name in (PREPARE, "e2e_ms")]
    return sums[0] > 0 and sums[0] >= LEAST_PREPARING * sums[1]


def _deciding(metrics: Sequence[MetricComparison]) -> Sequence[MetricComparison]:
    """Metrics that the verdict rests on: those whose uncertainty is known, and rates; all where there are none of them.

    Of captures, the step is the whole; the time of kernels decides where the step does not.
    """
    found = [row for row in metrics if row.low is not None or row.metric in RATES] or metrics
    steps = [row for row in found if row.metric != KERNEL_TIME]
    return steps if any(row.verdict != "inconclusive" for row in steps) else found


def _estimate(
    metric: str, base: SideInput, candidate: SideInput, *, paired: bool, variation: Variations
) -> ChangeEstimate | None:
    sides = base.series(metric), candidate.series(metric)
    if not all(sides) or any(item.value <= 0 for side in sides for one in side for item in one):
        return None
    starts_repeat = base.repeats_start and candidate.repeats_start
    known = None if metric in EXACT else variation(metric)
    found = estimate(*sides, paired=paired, repeats_start=starts_repeat, variation=known)
    if found.error is not None:
        return found
    if metric in EXACT:
        return replace(found, error=0.0, freedom=GIVEN, how="one value on each side, the highest of all samples")
    if metric in base.errors and metric in candidate.errors:
        error = math.hypot(base.errors[metric], candidate.errors[metric])
        return replace(found, error=error, freedom=GIVEN, how="summaries: median, deviation and count of the requests")
    return found


def _row(
    name: str, found: ChangeEstimate, p_adjusted: float | None, threshold: float, spent: float
) -> MetricComparison:
    lower = lower_is_better(name)
    verdict = judge(found, p_adjusted, lower_is_better=lower, threshold=threshold, spent=spent)
    if name in RATES and found.error is None and not found.knows_starts:
        # One value of each load, of hundreds of requests: what it was is known, what the next will be is not.
        verdict = OBSERVED if abs(found.log_ratio) > math.log1p(threshold) else NOT_OBSERVED
    interval = found.interval
    base, candidate = found.typical
    return MetricComparison(
        metric=name,
        lower_is_better=lower,
        base=found.base,
        candidate=found.candidate,
        base_value=base,
        candidate_value=candidate,
        difference=candidate - base,
        ratio=found.ratio,
        low=None if interval is None else interval[0],
        high=None if interval is None else interval[1],
        p_adjusted=p_adjusted,
        verdict=verdict,
        repeats_needed=repeats_needed(found, threshold=threshold) if verdict == "inconclusive" else None,
        how=found.how,
        knows_starts=found.knows_starts,
        repeats_unit=found.unit,
    )


def lower_is_better(metric: str) -> bool:
    return not metric.endswith("_per_s")


def overall(
    base: SideInput, candidate: SideInput, metrics: Sequence[MetricComparison], kernels: Sequence[KernelChange]
) -> OverallVerdict:
    """One word for all of it. A side that failed or is empty never wins."""
    if base.problem is not None or candidate.problem is not None:
        return "failed"
    found = {row.verdict for row in _deciding(metrics)}
    is_of_captures = not base.passes and not candidate.passes
    if not found or (is_of_captures and found == {"inconclusive"}):
        return _of_kernels(kernels)
    if {"better", "worse"} <= found:
        return "mixed"
    # The first of these that any metric has.
    order: Sequence[Verdict] = ("worse", "better", OBSERVED, "inconclusive", NOT_OBSERVED, "same")
    return next(verdict for verdict in order if verdict in found)


def _of_kernels(kernels: Sequence[KernelChange]) -> OverallVerdict:
    """Captures without repeated launches or steps: only equality of every kernel can be shown."""
    if not kernels:
        return "inconclusive"
    unchanged = all(k.verdict == "same" and k.base_launches == k.candidate_launches for k in kernels)
    return "same" if unchanged else "inconclusive"


def _gate(
    condition: Condition,
    base: SideInput,
    candidate: SideInput,
    *,
    paired: bool,
    spent: float,
    variation: Variations,
    seen: Sequence[CaptureMetric],
) -> GateResult:
    for side, is_candidate in ((candidate, True), (base, False)):
        if side.problem is not None and (is_candidate or condition.is_relative):
            return failed_run(condition, f"{side.name}: {side.problem}", is_candidate=is_candidate)
    known = None if condition.metric in EXACT else variation(condition.metric)
    found = None
    if condition.is_relative:
        found = _estimate(condition.metric, base, candidate, paired=paired, variation=variation)
        of_capture = (one.estimate for one in seen if one.metric == condition.metric and one.doubt is None)
        found = found or next(of_capture, None)
    return check_condition(
        condition,
        found,
        candidate.series(condition.metric),
        spent=spent,
        repeats_start=candidate.repeats_start,
        variation=known,
        is_exact=condition.metric in EXACT,
    )


def refuse_unknown_metrics(conditions: Sequence[Condition], *sides: SideInput) -> None:
    """A gate on a metric that neither side has and none can have is a slip, and would never fail."""
    measured = [name for side in sides for one in side.passes for name in one]
    captures = [side.capture for side in sides if side.capture is not None]
    measured += [f"{row.name} {WALL}" for capture in captures for row in capture.ranges]
    gate_metrics(conditions, known=(*KNOWN_METRICS, *measured))


def _waterfalls(
    base: SideInput, candidate: SideInput, metrics: Sequence[MetricComparison], kernels: Sequence[KernelChange]
) -> tuple[DifferenceWaterfall, ...]:
    of_metric = {row.metric: row for row in metrics}
    found = []
    for phase in PHASES:
        row = of_metric.get(WALL_METRIC[phase])
        if row is not None:
            ranges = [_range(side.capture, PHASE_RANGE[phase]) for side in (base, candidate)]
            clean = row.base_value, row.candidate_value
            shares = base.modules.get(phase, {}), candidate.modules.get(phase, {})
            fall = phase_waterfall(phase, clean_ms=clean, base=ranges[0], candidate=ranges[1], modules=shares)
            # Without a trace it would be one step, which says nothing.
            found += [fall] if any(step.kind != "rest" for step in fall.steps) else []
    found.sort(key=lambda fall: -abs(fall.candidate_ms - fall.base_ms))
    if base.capture is not None and candidate.capture is not None:
        whole = capture_waterfall(base.capture, candidate.capture, kernels)
        found += [whole] if whole is not None else []
    return tuple(found)


def _range(capture: CaptureAnalysis | None, name: str) -> RangeRow | None:
    """The range of a phase, where kernels were recorded inside it."""
    rows = () if capture is None else capture.ranges
    return next((row for row in rows if row.name == name and row.instances and row.kernel_count), None)


def _operators(side: SideInput) -> dict[str, TableRow]:
    names = dict.fromkeys(name for one in side.operators for name in one)
    return {name: over_passes([one[name] for one in side.operators if name in one]) for name in names}


def _bounds(base: SideInput, candidate: SideInput, threshold: float) -> tuple[RowChange, ...]:
    """Bounds are computed, not measured: what differs, differs."""
    rows = []
    for name in (name for name in base.bounds_ms if name in candidate.bounds_ms):
        before, after = base.bounds_ms[name], candidate.bounds_ms[name]
        verdict: KernelVerdict = "slower" if after > before else "faster"
        verdict = "same" if abs(after - before) <= threshold * before else verdict
        rows.append(RowChange(name=name, base=before, candidate=after, verdict=verdict))
    return tuple(rows)


def _summary(side: SideInput) -> SideSummary:
    return SideSummary(
        name=side.name,
        passes=len(side.passes),
        starts=side.starts,
        about=tuple(side.about),
        problem=side.problem,
    )


def _what(base: SideInput, candidate: SideInput) -> str:
    """Model or program and device of both: once where they agree."""
    shown = []
    for label in (WORKLOAD, DEVICE):
        texts = [next((fact.text for fact in side.about if fact.label == label), "") for side in (base, candidate)]
        if any(texts):
            shown.append(" → ".join(dict.fromkeys(text or "unknown" for text in texts)))
    return " on ".join(shown)


WORKLOAD, DEVICE = "workload", "device"


def _sentence(
    verdict: OverallVerdict,
    base: SideInput,
    candidate: SideInput,
    metrics: Sequence[MetricComparison],
    waterfalls: Sequence[DifferenceWaterfall],
    moves: Sequence[Moved],
) -> str:
    if verdict == "failed":
        bad = [f"{side.name}: {side.problem}" for side in (base, candidate) if side.problem is not None]
        return f"No verdict, because a side did not finish or measured nothing: {'; '.join(bad)}."
    changed = [f"{move.label} {_signed(move.difference_ms)}" for move in moves]
    if metrics:
        moved = [row for row in metrics if row.verdict in ("better", "worse", OBSERVED)]
        clean = [row for row in metrics if row.metric in WALL_METRIC.values()]
        shown = moved or clean or [row for row in metrics if row.metric != PEAK_MEMORY] or list(metrics)
        ordered = sorted(shown, key=lambda row: -round(abs(math.log(row.ratio)), 3) if row.ratio > 0 else -math.inf)
        named = [_in_words(row, verdict) for row in ordered[:NAMED]]
        named += [f"{len(ordered) - NAMED} more changed"] if moved and len(ordered) > NAMED else []
        is_of_captures = not base.passes and not candidate.passes
        named += [f"largest changes: {', '.join(changed)}"] if changed and (moved or is_of_captures) else []
        return f"{'; '.join(named)}."
    if waterfalls:
        whole = waterfalls[-1]
        times = f"{format_quantity(whole.base_ms, 'ms')} → {format_quantity(whole.candidate_ms, 'ms')}"
        words = f"; largest changes: {', '.join(changed)}" if changed else ""
        total = _signed(whole.candidate_ms - whole.base_ms)
        return f"{whole.title[0].upper()}{whole.title[1:]}: {times} ({total}){words}."
    return "Nothing was measured on both sides."


def _signed(ms: float) -> str:
    return f"{'+' if ms > 0 else '−' if ms < 0 else ''}{format_quantity(abs(ms), 'ms')}"


def _in_words(row: MetricComparison, overall: OverallVerdict) -> str:
    """What was, what is, and how certain that is; the verdict where it is not that of all."""
    before, after = (format_quantity(value, unit_of(row.metric)) for value in (row.base_value, row.candidate_value))
    known = [] if row.low is None or row.high is None else [_interval(row.low, row.high, row.knows_starts)]
    known += [row.verdict] if row.verdict != overall else []
    known += [f"about {row.repeats_needed} {row.repeats_unit} needed"] if row.repeats_needed is not None else []
    brackets = f" ({', '.join(known)})" if known else ""
    return f"{row.metric} {before} → {after}, {100 * (row.ratio - 1):+.1f} %{brackets}"


def departs(row: MetricComparison) -> bool:
    """Whether the medians as measured say something else than the estimate, which compares like with like."""
    return row.base.median > 0 and abs(row.candidate.median / row.base.median / row.ratio - 1) > AGREES


def _interval(low: float, high: float, knows_starts: bool) -> str:
    kind = "95 %" if knows_starts else "within one start"
    return f"{kind}: {100 * (low - 1):+.1f} to {change_text(high)}"


def change_text(ratio: float) -> str:
    """A ratio as a change: +5.0 %. The few samples that leave more open than `MOST_RATIO` say no more than that."""
    return f"{100 * (ratio - 1):+.1f} %" if ratio < MOST_RATIO else f"over +{100 * (MOST_RATIO - 1):,} %"


def unit_of(metric: str) -> str:
    """The unit of a metric, by the end of its name."""
    if metric.endswith("_per_s"):
        return "requests/s" if metric in ("requests_per_s", "goodput_per_s") else "tokens/s"
    units = {"_bytes": "bytes", "_ms": "ms", "joules_per_token": "J/token"}
    return next((unit for ending, unit in units.items() if metric.endswith(ending)), "")


def _notes(
    base: SideInput,
    candidate: SideInput,
    metrics: Sequence[MetricComparison],
    *,
    paired: bool,
    seen: Sequence[CaptureMetric],
) -> tuple[str, ...]:
    notes = [f"{side.name}: {text}" for side in (base, candidate) for text in (*side.damage, *side.shared)]
    if base.load is not None:
        notes.append(f"both under {base.load}")
    starts = min(base.starts, candidate.starts)
    if metrics and 0 < starts < 2:
        fix = (
            "`llm-perf compare --interleave 5` measures it; --start-variation PERCENT states it"
            if base.load is None
            else "compare directories with several runs of each side, or state it: --start-variation PERCENT"
        )
        if not any(row.knows_starts for row in metrics):
            notes.append(
                "one start on a side: how much one start differs from the next is unknown, so nothing is called "
                f"better or worse; {fix}"
            )
    if metrics and not paired and starts > 1:
        notes.append("passes were not interleaved: drift between the two sides looks like a difference")
    if not base.passes and not candidate.passes and base.problem is None and candidate.problem is None:
        notes.append("captures hold no clean times, so only what they recorded is compared")
        notes += [f"{one.metric} decides nothing: {one.doubt}" for one in seen if one.doubt is not None]
        if seen:
            notes.append("one capture of each side: clocks and start-to-start variation are not in the interval")
    return tuple(notes)
