"""Two sides in, everything `llm-perf compare` says about them out: the document `compare.json` holds."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.analysis.compare.differences import (
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
from llm_perf_opt.analysis.compare.gate import Condition, GateResult, check_condition, failed_run
from llm_perf_opt.analysis.compare.settings import SettingChange
from llm_perf_opt.analysis.compare.stability import RepeatedValue
from llm_perf_opt.analysis.compare.statistics import (
    THRESHOLD,
    ChangeEstimate,
    Level,
    Pass,
    Verdict,
    estimate,
    holm,
    judge,
    repeats_needed,
)
from llm_perf_opt.analysis.timeline.rows import RangeRow
from llm_perf_opt.core.names import PHASE_RANGE, PHASES, WALL_METRIC
from llm_perf_opt.core.units import format_quantity
from llm_perf_opt.diagnosis.document import CaptureAnalysis

# A part of a request from which on preparing its input is compared too.
MIN_PREPARING = 0.1
# What every comparison asks; a gate may ask for any other metric of the samples.
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms", "prefill_ms", "joules_per_token")
# Asked where it is worth a finding: elsewhere it is noise, and one metric more makes all others less certain.
PREPARE = "prepare_ms"
# Asked where nothing else was timed on both sides: a program that marks no phases, from its start to its end.
WALL = "wall_ms"
# Metrics in the sentence; the table has them all.
NAMED = 3
AGREES = 0.01
OverallVerdict = Literal["better", "worse", "mixed", "same", "inconclusive", "failed"]


@dataclass(frozen=True, kw_only=True)
class SideInput:
    """One side as it was read: the samples of each pass by metric, and a capture where there is one.

    Of profiled passes, `operators` are calls and own time in ns by name, one entry for each pass; `modules` are shares
    of each phase by group, of the first. `shared` says which GPUs did others' work meanwhile. `load` says what a server
    was under. `repeats_start`: each repeat of a pass is a start of the program of its own. `damage` says what of its
    runs is missing or unreadable. `problem` is set where a run failed or measured nothing.
    """

    name: str
    passes: Sequence[Mapping[str, Sequence[RepeatedValue]]] = ()
    single: Mapping[str, float] = field(default_factory=dict)
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

    `p_adjusted` is corrected for the number of metrics. `repeats_needed` is there where more would settle it.
    """

    metric: str
    lower_is_better: bool
    base: Level
    candidate: Level
    difference: float
    ratio: float
    low: float | None
    high: float | None
    p_adjusted: float | None
    verdict: Verdict
    repeats_needed: int | None
    how: str


@dataclass(frozen=True, kw_only=True)
class SideSummary:
    """What was compared: its name, how many passes, and why it cannot win if it cannot."""

    name: str
    passes: int
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class CompareDocument:
    """`compare.json`. `forced` lists why the sides are not to be compared, where that was overruled."""

    schema_version: Literal[1] = 1
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
) -> CompareDocument:
    """Everything about two sides; what was not measured on both is left out and said. `spent` as in `judge`."""
    metrics = compare_metrics(base, candidate, paired=paired, threshold=threshold, spent=spent)
    kernels: tuple[KernelChange, ...] = ()
    tables: dict[TableName, tuple[RowChange, ...]] = {}
    if base.capture is not None and candidate.capture is not None:
        kernels = kernel_changes(base.capture.kernels, candidate.capture.kernels, threshold=threshold)
        tables = table_changes(base.capture, candidate.capture, threshold=threshold)
    if base.operators and candidate.operators:
        tables["operators"] = rows_by_name(_operators(base), _operators(candidate), threshold=threshold)
    bounds = _bounds(base, candidate, threshold)
    if bounds:
        tables["bounds"] = bounds
    waterfalls = _waterfalls(base, candidate, metrics, kernels)
    verdict = overall(base, candidate, metrics, kernels)
    return CompareDocument(
        base=_summary(base),
        candidate=_summary(candidate),
        verdict=verdict,
        sentence=_sentence(verdict, base, candidate, metrics, kernels, waterfalls),
        threshold=threshold,
        paired=paired,
        forced=forced,
        metrics=metrics,
        gates=tuple(_gate(condition, base, candidate, paired=paired, spent=spent) for condition in conditions),
        waterfalls=waterfalls,
        kernels=kernels,
        tables={str(name): rows for name, rows in tables.items()},
        settings=settings,
        notes=_notes(base, candidate, metrics, paired=paired),
    )


def is_settled(found: CompareDocument) -> bool:
    """Whether more passes would tell nothing more: every gate has an answer, or every metric where there are none."""
    if found.verdict == "failed":
        return True
    if found.gates:
        return all(gate.status != "inconclusive" for gate in found.gates)
    return bool(found.metrics) and all(row.verdict != "inconclusive" for row in found.metrics)


def compare_metrics(
    base: SideInput, candidate: SideInput, *, paired: bool, threshold: float = THRESHOLD, spent: float = 1.0
) -> tuple[MetricComparison, ...]:
    """The metrics both sides sampled, and those they have one number of."""
    if base.problem is not None or candidate.problem is not None:
        return ()
    names = (*METRICS, PREPARE) if _prepares(base) or _prepares(candidate) else METRICS
    found = [(name, one) for name in names if (one := _estimate(name, base, candidate, paired=paired)) is not None]
    if not found:
        whole = _estimate(WALL, base, candidate, paired=paired)
        found = [] if whole is None else [(WALL, whole)]
    known = [p for _, one in found if (p := one.p_value) is not None]
    adjusted = iter(holm(known))
    rows = []
    for name, one in found:
        p_adjusted = None if one.p_value is None else next(adjusted)
        rows.append(_row(name, one, p_adjusted, threshold, spent))
    return (*rows, *_single(base, candidate, threshold))


def _prepares(side: SideInput) -> bool:
    """Whether preparing inputs is a part of a request that a change may have been about."""
    sums = [sum(item.value for one in side.series(name) for item in one) for name in (PREPARE, "e2e_ms")]
    return sums[0] > 0 and sums[0] >= MIN_PREPARING * sums[1]


def _estimate(metric: str, base: SideInput, candidate: SideInput, *, paired: bool) -> ChangeEstimate | None:
    sides = base.series(metric), candidate.series(metric)
    if not all(sides) or any(item.value <= 0 for side in sides for one in side for item in one):
        return None
    return estimate(*sides, paired=paired)


def _row(
    name: str, found: ChangeEstimate, p_adjusted: float | None, threshold: float, spent: float
) -> MetricComparison:
    lower = lower_is_better(name)
    verdict = judge(found, p_adjusted, lower_is_better=lower, threshold=threshold, spent=spent)
    interval = found.interval
    return MetricComparison(
        metric=name,
        lower_is_better=lower,
        base=found.base,
        candidate=found.candidate,
        difference=found.candidate.median - found.base.median,
        ratio=found.ratio,
        low=None if interval is None else interval[0],
        high=None if interval is None else interval[1],
        p_adjusted=p_adjusted,
        verdict=verdict,
        repeats_needed=repeats_needed(found, threshold=threshold) if verdict == "inconclusive" else None,
        how=found.how,
    )


def lower_is_better(metric: str) -> bool:
    return not metric.endswith("_per_s")


def _single(base: SideInput, candidate: SideInput, threshold: float) -> list[MetricComparison]:
    """Numbers that are no medians: equal within the threshold or simply different, as the peak of memory is.

    A rate over a whole load is one draw of many: beyond the threshold nothing is sure.
    """
    rows = []
    for name in base.single:
        if name not in candidate.single or base.single[name] <= 0:
            continue
        values = base.single[name], candidate.single[name]
        ratio = values[1] / values[0]
        lower = lower_is_better(name)
        different: Verdict = "inconclusive" if not lower else "better" if ratio < 1 else "worse"
        levels = [Level(median=v, p10=v, p90=v, n=1) for v in values]
        rows.append(
            MetricComparison(
                metric=name,
                lower_is_better=lower,
                base=levels[0],
                candidate=levels[1],
                difference=values[1] - values[0],
                ratio=ratio,
                low=None,
                high=None,
                p_adjusted=None,
                verdict="same" if abs(ratio - 1) <= threshold else different,
                repeats_needed=None,
                how=f"one number on each side, {'the highest of all samples' if lower else 'over the whole load'}",
            )
        )
    return rows


def overall(
    base: SideInput, candidate: SideInput, metrics: Sequence[MetricComparison], kernels: Sequence[KernelChange]
) -> OverallVerdict:
    """One word for all of it. A side that failed or is empty never wins."""
    if base.problem is not None or candidate.problem is not None:
        return "failed"
    found = {row.verdict for row in metrics}
    if not found:
        return _of_kernels(kernels)
    if {"better", "worse"} <= found:
        return "mixed"
    if "worse" in found:
        return "worse"
    if "better" in found:
        return "better"
    return "inconclusive" if "inconclusive" in found else "same"


def _of_kernels(kernels: Sequence[KernelChange]) -> OverallVerdict:
    """Captures alone have no samples of the whole, so only equality of every kernel can be said."""
    if not kernels:
        return "inconclusive"
    unchanged = all(k.verdict == "same" and k.base_launches == k.candidate_launches for k in kernels)
    return "same" if unchanged else "inconclusive"


def _gate(condition: Condition, base: SideInput, candidate: SideInput, *, paired: bool, spent: float) -> GateResult:
    for side, is_candidate in ((candidate, True), (base, False)):
        if side.problem is not None and (is_candidate or condition.is_relative):
            return failed_run(condition, f"{side.name}: {side.problem}", is_candidate=is_candidate)
    found = _estimate(condition.metric, base, candidate, paired=paired) if condition.is_relative else None
    return check_condition(condition, found, candidate.series(condition.metric), spent=spent)


def _waterfalls(
    base: SideInput, candidate: SideInput, metrics: Sequence[MetricComparison], kernels: Sequence[KernelChange]
) -> tuple[DifferenceWaterfall, ...]:
    of_metric = {row.metric: row for row in metrics}
    found = []
    for phase in PHASES:
        row = of_metric.get(WALL_METRIC[phase])
        if row is not None:
            ranges = [_range(side.capture, PHASE_RANGE[phase]) for side in (base, candidate)]
            clean = row.base.median, row.candidate.median
            shares = base.modules.get(phase, {}), candidate.modules.get(phase, {})
            found.append(phase_waterfall(phase, clean_ms=clean, base=ranges[0], candidate=ranges[1], modules=shares))
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
    return SideSummary(name=side.name, passes=len(side.passes), problem=side.problem)


def _sentence(
    verdict: OverallVerdict,
    base: SideInput,
    candidate: SideInput,
    metrics: Sequence[MetricComparison],
    kernels: Sequence[KernelChange],
    waterfalls: Sequence[DifferenceWaterfall],
) -> str:
    if verdict == "failed":
        bad = [f"{side.name}: {side.problem}" for side in (base, candidate) if side.problem is not None]
        return f"No verdict, because a side did not finish or measured nothing: {'; '.join(bad)}."
    if metrics:
        moved = [row for row in metrics if row.verdict in ("better", "worse")]
        shown = moved or [row for row in metrics if row.metric in WALL_METRIC.values()] or list(metrics)
        ordered = sorted(shown, key=lambda row: -round(abs(math.log(row.ratio)), 3) if row.ratio > 0 else -math.inf)
        named = [_in_words(row, verdict) for row in ordered[:NAMED]]
        named += [f"{len(ordered) - NAMED} more changed"] if moved and len(ordered) > NAMED else []
        return f"{'; '.join(named)}."
    if waterfalls:
        whole = waterfalls[-1]
        moved_ms = whole.candidate_ms - whole.base_ms
        counts = Counter(k.verdict for k in kernels)
        changed = [f"{counts[w]} {w}" for w in ("appeared", "vanished", "slower", "faster") if counts[w]]
        words = f"kernels: {', '.join(changed)}" if changed else "no kernel changed"
        times = f"{whole.base_ms:.3f} → {whole.candidate_ms:.3f} ms ({moved_ms:+.3f} ms)"
        return f"{whole.title[0].upper()}{whole.title[1:]}: {times}; {words}."
    return "Nothing was measured on both sides."


def _in_words(row: MetricComparison, overall: OverallVerdict) -> str:
    """What was, what is, and how sure that is; the verdict where it is not that of all."""
    before, after = (format_quantity(level.median, unit_of(row.metric)) for level in (row.base, row.candidate))
    # The change compares each sample with itself; where the medians of all say something else, they are not named.
    is_same = row.base.median > 0 and abs(row.candidate.median / row.base.median / row.ratio - 1) <= AGREES
    values = f" {before} → {after}," if is_same else ""
    known = [] if row.low is None or row.high is None else [_interval(row.low, row.high)]
    known += [row.verdict] if row.verdict != overall else []
    known += [f"about {row.repeats_needed} repeats would settle it"] if row.repeats_needed is not None else []
    brackets = f" ({', '.join(known)})" if known else ""
    return f"{row.metric}{values} {100 * (row.ratio - 1):+.1f} %{brackets}"


def _interval(low: float, high: float) -> str:
    return f"95 %: {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %"


def unit_of(metric: str) -> str:
    """The unit of a metric, by the end of its name."""
    if metric.endswith("_per_s"):
        return "tokens/s"
    units = {"_bytes": "bytes", "_ms": "ms", "joules_per_token": "J/token"}
    return next((unit for ending, unit in units.items() if metric.endswith(ending)), "")


def _notes(
    base: SideInput, candidate: SideInput, metrics: Sequence[MetricComparison], *, paired: bool
) -> tuple[str, ...]:
    notes = [f"{side.name}: {text}" for side in (base, candidate) for text in (*side.damage, *side.shared)]
    if base.load is not None:
        notes.append(f"both under {base.load}")
    starts = min(base.starts, candidate.starts)
    if metrics and starts < 2:
        remedy = (
            "`llm-perf compare --interleave 5` measures it"
            if base.load is None
            else "a directory with several runs of `llm-perf bench` on each side tells it"
        )
        notes.append(
            "one pass on a side: how much one start of the program differs from the next is not known, nor in the "
            f"intervals; {remedy}"
        )
    if metrics and not paired and starts > 1:
        notes.append("passes were not interleaved: what drifted between the two sides looks like a difference")
    if not metrics and base.problem is None and candidate.problem is None:
        notes.append("captures hold no clean times, so only what they recorded is compared")
    return tuple(notes)
