"""What appeared, vanished and moved between two captures, and steps from one time to the other that add up.

Kernels have verdicts: each instance in a capture is a measurement of its kernel, so Welch's test compares the averages,
corrected for the number of kernels. What a whole capture did differently, such as a lower clock, no such test can see.
Rows of other tables get what their samples allow: instances of ranges and profiled passes with operators are tested in
the same way, bounds are exact, and of numbers that were taken once only equality within the threshold can be reported.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from msgspec import UNSET

from llm_perf_opt.capture.kernels.names import OTHER
from llm_perf_opt.capture.rows import Idle, KernelRow, RangeRow
from llm_perf_opt.comparison.matching import MatchedBy, NameMatch, match_names
from llm_perf_opt.comparison.statistics import MEDIAN_BY_MEAN, MIDDLE_HALF, THRESHOLD, holm
from llm_perf_opt.comparison.student import two_sided_p
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, GpuIdle

KernelVerdict = Literal["appeared", "vanished", "faster", "slower", "same", "inconclusive"]
TableName = Literal["copies", "ranges", "operators", "modules", "idle", "bounds"]
StepKind = Literal["kernel", "module", "overlap", "idle", "rest"]
ALPHA = 0.05
# Fewer instances of a range say nothing of their spread.
FEWEST_INSTANCES = 4
# Of the largest row of a table.
WORTH_ASKING = 0.01
# Kernels that get their own step.
STEPS = 8


@dataclass(frozen=True, kw_only=True)
class KernelChange:
    """One kernel on both sides, under all names it has there.

    `average_ratio` is candidate by base, of the time of one launch; `p_adjusted` how often chance alone changes any of
    all kernels that much.
    """

    name: str
    kernel_class: str
    base_names: tuple[str, ...]
    candidate_names: tuple[str, ...]
    matched_by: MatchedBy
    base_launches: int
    candidate_launches: int
    base_ns: int
    candidate_ns: int
    difference_ns: int
    average_ratio: float | None
    p_adjusted: float | None
    verdict: KernelVerdict


@dataclass(frozen=True, kw_only=True)
class RowChange:
    """One row of another table of a capture: times in ns, or ms of bounds. None: it is not on that side.

    The verdict is about one call or instance; `samples` is the smaller number of times that was measured on a side.
    """

    name: str
    base: float | None
    candidate: float | None
    base_count: int | None = None
    candidate_count: int | None = None
    verdict: KernelVerdict = "inconclusive"
    samples: int = 1

    @property
    def difference(self) -> float:
        return (self.candidate or 0) - (self.base or 0)


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row of one side. `typical` is the time of one call or instance, `error` its standard error, None where it
    was measured once.
    """

    count: int
    time: float
    typical: float
    error: float | None = None
    samples: int = 1


@dataclass(frozen=True, kw_only=True)
class WaterfallStep:
    """A part of the way from the base's time to the candidate's."""

    label: str
    kind: StepKind
    difference_ms: float


@dataclass(frozen=True, kw_only=True)
class DifferenceWaterfall:
    """Where a difference went: `base_ms` and all steps are `candidate_ms`."""

    title: str
    base_ms: float
    candidate_ms: float
    steps: tuple[WaterfallStep, ...]


@dataclass(frozen=True, kw_only=True)
class _Pooled:
    """All launches of some kernels together."""

    launches: int
    total_ns: int
    average_ns: float
    deviation_ns: float | None


def kernel_changes(
    base: Sequence[KernelRow], candidate: Sequence[KernelRow], *, threshold: float = THRESHOLD
) -> tuple[KernelChange, ...]:
    """Every kernel of both captures, the largest difference first."""
    sides = {row.name: row for row in base}, {row.name: row for row in candidate}

    def place(name: str, is_base: bool) -> object | None:
        row = sides[0 if is_base else 1][name]
        if row.kernel_class == OTHER or row.avg_ns <= 0:
            return None
        # Of about the same length too: what takes ten times as long is another kernel.
        return row.kernel_class, row.instances, round(math.log(row.avg_ns, 4))

    matches = match_names(sides[0], sides[1], place=place)
    pooled = [
        (_pool([sides[0][n] for n in match.base]), _pool([sides[1][n] for n in match.candidate])) for match in matches
    ]
    tested = [_p_value(a, b) for a, b in pooled]
    adjusted = iter(holm([p for p in tested if p is not None]))
    rows = []
    for match, (before, after), p in zip(matches, pooled, tested, strict=True):
        named = sides[1][match.candidate[0]] if match.candidate else sides[0][match.base[0]]
        rows.append(_change(match, named, before, after, None if p is None else next(adjusted), threshold))
    return tuple(sorted(rows, key=lambda row: (-abs(row.difference_ns), row.name)))


def _pool(rows: Sequence[KernelRow]) -> _Pooled | None:
    if not rows:
        return None
    count, total = sum(r.instances for r in rows), sum(r.total_ns for r in rows)
    average = total / count if count else 0.0
    inside = 0.0
    for r in rows:
        if r.stddev_ns is None:
            return _Pooled(launches=count, total_ns=total, average_ns=average, deviation_ns=None)
        inside += (r.instances - 1) * r.stddev_ns**2 + r.instances * (r.avg_ns - average) ** 2
    return _Pooled(
        launches=count,
        total_ns=total,
        average_ns=average,
        deviation_ns=math.sqrt(max(0.0, inside) / (count - 1)) if count > 1 else 0.0,
    )


def _p_value(base: _Pooled | None, candidate: _Pooled | None) -> float | None:
    """Welch's test of the averages; None where one side has fewer than two launches, or no deviation is known."""
    if base is None or candidate is None or min(base.launches, candidate.launches) < 2:
        return None
    if base.deviation_ns is None or candidate.deviation_ns is None:
        return None
    error = math.sqrt(base.deviation_ns**2 / base.launches + candidate.deviation_ns**2 / candidate.launches)
    moved = candidate.average_ns - base.average_ns
    if error == 0:
        return 1.0 if moved == 0 else 0.0
    # The smaller side's freedom: fewer than Welch would allow, never more.
    return two_sided_p(moved / error, min(base.launches, candidate.launches) - 1)


def _change(
    match: NameMatch,
    named: KernelRow,
    base: _Pooled | None,
    candidate: _Pooled | None,
    p_adjusted: float | None,
    threshold: float,
) -> KernelChange:
    ratio = None
    if base is not None and candidate is not None and base.average_ns > 0:
        ratio = candidate.average_ns / base.average_ns
    before, after = base or _NOTHING, candidate or _NOTHING
    return KernelChange(
        name=named.short_name,
        kernel_class=named.kernel_class,
        base_names=match.base,
        candidate_names=match.candidate,
        matched_by=match.by,
        base_launches=before.launches,
        candidate_launches=after.launches,
        base_ns=before.total_ns,
        candidate_ns=after.total_ns,
        difference_ns=after.total_ns - before.total_ns,
        average_ratio=ratio,
        p_adjusted=p_adjusted,
        verdict=_kernel_verdict(base, candidate, ratio, p_adjusted, threshold),
    )


_NOTHING = _Pooled(launches=0, total_ns=0, average_ns=0.0, deviation_ns=0.0)


def _kernel_verdict(
    base: _Pooled | None, candidate: _Pooled | None, ratio: float | None, p_adjusted: float | None, threshold: float
) -> KernelVerdict:
    if base is None:
        return "appeared"
    if candidate is None:
        return "vanished"
    if ratio is None:
        return "inconclusive"
    if abs(ratio - 1) <= threshold:
        return "same"
    if p_adjusted is None or p_adjusted >= ALPHA:
        return "inconclusive"
    return "slower" if ratio > 1 else "faster"


def capture_waterfall(
    base: CaptureAnalysis, candidate: CaptureAnalysis, kernels: Sequence[KernelChange]
) -> DifferenceWaterfall | None:
    """From the span of GPU work of one capture to that of the other; of kernels alone where no span is known."""
    sides = base.gpu, candidate.gpu
    steps = _kernel_steps([(k.name, k.difference_ns / 1e6) for k in kernels])
    spans = [gpu.span_ns for gpu in sides]
    if spans[0] is None or spans[1] is None or any(gpu.busy_ns is None or gpu.idle is None for gpu in sides):
        if not (sides[0].kernel_ns or sides[1].kernel_ns):
            return None
        return DifferenceWaterfall(
            title="time of all kernels",
            base_ms=sides[0].kernel_ns / 1e6,
            candidate_ms=sides[1].kernel_ns / 1e6,
            steps=_largest_first(steps),
        )
    graphs = candidate.graphs.total_ns - base.graphs.total_ns
    if graphs:
        steps.append(WaterfallStep(label="graphs traced as a whole", kind="kernel", difference_ms=graphs / 1e6))
    busy = (sides[1].busy_ns or 0) - (sides[0].busy_ns or 0)
    work = sides[1].kernel_ns - sides[0].kernel_ns + graphs
    if busy != work:
        label = "kernels at the same time as others"
        steps.append(WaterfallStep(label=label, kind="overlap", difference_ms=(busy - work) / 1e6))
    steps += [
        WaterfallStep(label=row.name, kind="idle", difference_ms=row.difference / 1e6)
        for row in idle_changes(base, candidate)
        if row.difference
    ]
    return DifferenceWaterfall(
        title="from the first GPU work to the last",
        base_ms=spans[0] / 1e6,
        candidate_ms=spans[1] / 1e6,
        steps=_largest_first(steps),
    )


def _largest_first(steps: Sequence[WaterfallStep]) -> tuple[WaterfallStep, ...]:
    """What a reader looks for comes first; what nothing explains stays last."""
    return tuple(sorted(steps, key=lambda step: (step.kind == "rest", -abs(step.difference_ms))))


def phase_waterfall(
    name: str,
    *,
    clean_ms: tuple[float, float],
    base: RangeRow | None,
    candidate: RangeRow | None,
    modules: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {}),
) -> DifferenceWaterfall:
    """From the clean time of a phase to that of the other run: what the captures saw inside it, and the rest.

    Without captures, `modules` share the clean times out: the shares of the profiled pass, by group of modules.
    """
    steps: list[WaterfallStep] = []
    if (base is None or candidate is None) and all(modules):
        steps = _module_steps(clean_ms, modules)
        return DifferenceWaterfall(title=name, base_ms=clean_ms[0], candidate_ms=clean_ms[1], steps=tuple(steps))
    if base is not None and candidate is not None:
        steps = [*_kernel_steps(_range_kernels(base, candidate)), *_range_idle(base, candidate, clean_ms)]
    seen = math.fsum(step.difference_ms for step in steps)
    rest = clean_ms[1] - clean_ms[0] - seen
    label = (
        "not in the captures: overlap, what the profiler changed" if steps else "unattributed: no trace was recorded"
    )
    steps.append(WaterfallStep(label=label, kind="rest", difference_ms=rest))
    return DifferenceWaterfall(title=name, base_ms=clean_ms[0], candidate_ms=clean_ms[1], steps=_largest_first(steps))


def _module_steps(
    clean_ms: tuple[float, float], modules: tuple[Mapping[str, float], Mapping[str, float]]
) -> list[WaterfallStep]:
    """Shares of a phase sum to one, so these steps are all of the difference."""
    groups = dict.fromkeys((*modules[0], *modules[1]))
    moved = [
        (group, clean_ms[1] * modules[1].get(group, 0.0) - clean_ms[0] * modules[0].get(group, 0.0)) for group in groups
    ]
    steps = [
        WaterfallStep(label=f"{group} (share of the profiled pass)", kind="module", difference_ms=ms)
        for group, ms in sorted(moved, key=lambda item: -abs(item[1]))
    ]
    rest = clean_ms[1] - clean_ms[0] - math.fsum(ms for _, ms in moved)
    if abs(rest) > 1e-9 * max(clean_ms):
        steps.append(WaterfallStep(label="in no group of modules", kind="rest", difference_ms=rest))
    return steps


def _range_kernels(base: RangeRow, candidate: RangeRow) -> list[tuple[str, float]]:
    """The time of each kernel in one instance of the range, candidate less base."""
    tables = [
        {k.name: (k.short_name, k.total_ns / row.instances / 1e6) for k in row.kernels or ()}
        for row in (base, candidate)
    ]
    found = []
    for match in match_names(tables[0], tables[1]):
        label = tables[1][match.candidate[0]][0] if match.candidate else tables[0][match.base[0]][0]
        times = (
            math.fsum(tables[0][name][1] for name in match.base),
            math.fsum(tables[1][name][1] for name in match.candidate),
        )
        found.append((label, times[1] - times[0]))
    return found


def _range_idle(base: RangeRow, candidate: RangeRow, clean_ms: tuple[float, float]) -> list[WaterfallStep]:
    """Idle time of the clean pass by cause: what its kernels leave of it, shared out as the captures saw their causes.

    A profiler makes the host slower, so the idle time of a capture itself may be longer than the whole clean pass.
    """
    sides = [_clean_idle(row, clean) for row, clean in zip((base, candidate), clean_ms, strict=True)]
    return [
        WaterfallStep(label=label, kind="idle", difference_ms=sides[1][label] - before)
        for label, before in sides[0].items()
        if label in sides[1] and sides[1][label] != before
    ]


def _clean_idle(row: RangeRow, clean_ms: float) -> dict[str, float]:
    if row.idle is None or row.gpu_busy_ns is None:
        return {}
    idle_ms = max(0.0, clean_ms - row.gpu_busy_ns / row.instances / 1e6)
    parts = dict(_idle_parts(row.idle))
    whole = sum(parts.values())
    return {label: idle_ms * ns / whole if whole else 0.0 for label, ns in parts.items()}


def _idle_parts(idle: GpuIdle | Idle) -> tuple[tuple[str, int], ...]:
    return (
        ("idle: waiting for the host", idle.waiting_for_host_ns),
        ("idle: between kernels", idle.between_kernels_ns),
        ("idle: waiting for a copy or a synchronisation", idle.waiting_for_copy_or_sync_ns),
        ("idle: cause not recorded", idle.unattributed_ns),
    )


def _kernel_steps(differences: Sequence[tuple[str, float]]) -> list[WaterfallStep]:
    """The largest differences by name, and all others together."""
    ordered = sorted((d for d in differences if d[1]), key=lambda d: -abs(d[1]))
    steps = [WaterfallStep(label=label, kind="kernel", difference_ms=ms) for label, ms in ordered[:STEPS]]
    rest = ordered[STEPS:]
    if rest:
        total = math.fsum(ms for _, ms in rest)
        steps.append(WaterfallStep(label=f"{len(rest)} other kernels", kind="kernel", difference_ms=total))
    return steps


def idle_changes(base: CaptureAnalysis, candidate: CaptureAnalysis) -> tuple[RowChange, ...]:
    """Idle time of the GPU by cause."""
    if base.gpu.idle is None or candidate.gpu.idle is None:
        return ()
    pairs = zip(_idle_parts(base.gpu.idle), _idle_parts(candidate.gpu.idle), strict=True)
    return tuple(
        RowChange(
            name=label,
            base=before,
            candidate=after,
            verdict="same" if abs(after - before) <= THRESHOLD * before else "inconclusive",
        )
        for (label, before), (_, after) in pairs
    )


def table_changes(
    base: CaptureAnalysis, candidate: CaptureAnalysis, *, threshold: float = THRESHOLD
) -> dict[TableName, tuple[RowChange, ...]]:
    """The other tables of two captures; only those that both have."""
    sides = base, candidate
    found: dict[TableName, tuple[RowChange, ...]] = {
        "copies": rows_by_name(
            *({r.kind: once(r.instances, r.total_ns) for r in side.copies} for side in sides), threshold=threshold
        ),
        "ranges": rows_by_name(*(_ranges(side.ranges) for side in sides), threshold=threshold),
        "idle": idle_changes(base, candidate),
    }
    if base.operators is not UNSET and candidate.operators is not UNSET:
        # Own time on the device where there is any, else on the CPU.
        device = any(o.self_device_ns for side in (base, candidate) for o in side.operators or ())
        found["operators"] = rows_by_name(
            *(
                {o.name: once(o.calls, o.self_device_ns if device else o.self_cpu_ns) for o in side.operators or ()}
                for side in sides
            ),
            threshold=threshold,
        )
    if base.modules is not UNSET and candidate.modules is not UNSET:
        found["modules"] = rows_by_name(
            *({m.name: once(m.calls, m.wall_ns) for m in side.modules or ()} for side in sides), threshold=threshold
        )
    return {name: rows for name, rows in found.items() if rows}


def once(count: int, time: float) -> TableRow:
    """What was measured once: the calls of one profiled pass are not independent, and their spread is not kept."""
    return TableRow(count=count, time=time, typical=time / max(count, 1))


def over_passes(passes: Sequence[tuple[int, int]]) -> TableRow:
    """Calls and time of each of several profiled passes: as many samples as passes."""
    count, time = sum(calls for calls, _ in passes), float(sum(spent for _, spent in passes))
    if len(passes) < 2:
        return once(count, time)
    each = [spent / max(calls, 1) for calls, spent in passes]
    error = stdev(each) / math.sqrt(len(each))
    return TableRow(count=count, time=time, typical=fmean(each), error=error, samples=len(each))


def _of_range(row: RangeRow) -> TableRow:
    """The median instance and its standard error."""
    typical = float(row.typical.wall_ns)
    return TableRow(
        count=row.instances, time=row.wall_ns, typical=typical, error=range_error(row), samples=row.instances
    )


def range_error(row: RangeRow) -> float | None:
    """The standard error of the median instance, from the middle half of all, as for a normal distribution."""
    if row.instances < FEWEST_INSTANCES:
        return None
    return MEDIAN_BY_MEAN * row.wall_spread * row.typical.wall_ns / MIDDLE_HALF / math.sqrt(row.instances)


# PyTorch names the range of a data loader by the class of its iterator, which changes with the number of workers.
_LOADER, LOADING = "enumerate(DataLoader)#", "data loading (DataLoader)"


def _ranges(rows: Sequence[RangeRow]) -> dict[str, TableRow]:
    return {LOADING if row.name.startswith(_LOADER) else row.name: _of_range(row) for row in rows}


def rows_by_name(
    base: Mapping[str, TableRow], candidate: Mapping[str, TableRow], *, threshold: float = THRESHOLD
) -> tuple[RowChange, ...]:
    """Rows by name with their verdicts, the largest difference first."""
    matches = match_names(base, candidate)
    pairs = [([base[n] for n in match.base], [candidate[n] for n in match.candidate]) for match in matches]
    # Every question asked costs the others some of their certainty: small rows are not asked.
    least = WORTH_ASKING * max((row.time for row in base.values()), default=0.0)
    tested = [_row_p_value(before, after) if _time(before) >= least else None for before, after in pairs]
    adjusted = iter(holm([p for p in tested if p is not None]))
    rows = []
    for match, (before, after), p in zip(matches, pairs, tested, strict=True):
        rows.append(
            RowChange(
                name=(match.candidate or match.base)[0],
                base=sum(row.time for row in before) if before else None,
                candidate=sum(row.time for row in after) if after else None,
                base_count=sum(row.count for row in before) if before else None,
                candidate_count=sum(row.count for row in after) if after else None,
                verdict=_row_verdict(before, after, None if p is None else next(adjusted), threshold),
                samples=min((row.samples for row in (*before, *after)), default=1),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-abs(row.difference), row.name)))


def _time(rows: Sequence[TableRow]) -> float:
    return sum(row.time for row in rows)


def _row_p_value(before: Sequence[TableRow], after: Sequence[TableRow]) -> float | None:
    """Welch's test, where one row of each side was measured several times."""
    if len(before) != 1 or len(after) != 1 or before[0].error is None or after[0].error is None:
        return None
    error, moved = math.hypot(before[0].error, after[0].error), after[0].typical - before[0].typical
    if error == 0:
        return 1.0 if moved == 0 else 0.0
    return two_sided_p(moved / error, min(before[0].samples, after[0].samples) - 1)


def _row_verdict(
    before: Sequence[TableRow], after: Sequence[TableRow], p_adjusted: float | None, threshold: float
) -> KernelVerdict:
    if not before or not after:
        return "vanished" if before else "appeared"
    typical = [
        sum(row.typical * row.count for row in side) / max(sum(r.count for r in side), 1) for side in (before, after)
    ]
    ratio = typical[1] / typical[0] if typical[0] > 0 else 1.0 if typical[1] == typical[0] else math.inf
    if abs(ratio - 1) <= threshold:
        return "same"
    if p_adjusted is None or p_adjusted >= ALPHA:
        return "inconclusive"
    return "slower" if ratio > 1 else "faster"
