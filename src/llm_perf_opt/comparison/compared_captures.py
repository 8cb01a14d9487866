"""Two captures as samples: instances of the step they repeat or launches of their kernels, and what moved between them.

A capture is one start of its program. Its launches and instances show what the program did in it; clocks and other
conditions of the whole capture are the same for all of them, and a note says so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.capture.rows import KernelRow, RangeRow
from llm_perf_opt.comparison.differences import FEWEST_INSTANCES, KernelChange, RowChange, TableName, range_error
from llm_perf_opt.comparison.statistics import GIVEN, ChangeEstimate, Level
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis

KERNEL_TIME = "kernel_time_ms"
# A range stands for the whole capture if its instances fill this part of it.
STEP_FILLS = 0.5
# Kernels that ran once have no known spread; with more of the time than this, the total has none.
MOST_UNREPEATED = 0.1
# Launches of kernels that both captures have; beyond this they did not do the same work.
LAUNCHES_DIFFER = 0.1
# A part is named as what changed from this share of the whole change on.
WORTH_NAMING = 0.2
NAMED = 2


@dataclass(frozen=True, kw_only=True)
class CaptureMetric:
    """What two captures measured several times each.

    `doubt` says why the estimate must not decide; `step` is the range it is the wall time of.
    """

    metric: str
    estimate: ChangeEstimate
    step: str | None = None
    doubt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A part that changed, and by how much in total."""

    label: str
    difference_ms: float


def capture_metrics(
    base: CaptureAnalysis, candidate: CaptureAnalysis, kernels: Sequence[KernelChange]
) -> tuple[CaptureMetric, ...]:
    """The step that both repeat and the time of all kernels, as far as both were recorded several times."""
    step = shared_step(base, candidate)
    total = _of_kernels(
        base, candidate, kernels, same_steps=step is not None and step[0].instances == step[1].instances
    )
    return (*(() if step is None else (_of_step(*step),)), *(() if total is None else (total,)))


def shared_step(base: CaptureAnalysis, candidate: CaptureAnalysis) -> tuple[RangeRow, RangeRow] | None:
    """The outermost range with several instances on both sides that fills most of both captures."""
    others = {row.name: row for row in candidate.ranges if _may_be_step(row, candidate)}
    found = [(row, others[row.name]) for row in base.ranges if row.name in others and _may_be_step(row, base)]
    return max(found, key=lambda pair: pair[0].wall_ns, default=None)


def _may_be_step(row: RangeRow, capture: CaptureAnalysis) -> bool:
    if row.instances < FEWEST_INSTANCES or row.parent is not None or row.typical.wall_ns <= 0:
        return False
    return not capture.gpu.span_ns or row.wall_ns >= STEP_FILLS * capture.gpu.span_ns


def _of_step(base: RangeRow, candidate: RangeRow) -> CaptureMetric:
    rows = base, candidate
    levels = [Level(median=r.typical.wall_ns / 1e6, p10=None, p90=None, n=r.instances) for r in rows]
    errors = [range_error(row) or 0.0 for row in rows]
    counts = [row.instances for row in rows]
    return CaptureMetric(
        metric=f"{base.name} wall_ms",
        step=base.name,
        estimate=ChangeEstimate(
            base=levels[0],
            candidate=levels[1],
            log_ratio=math.log(levels[1].median / levels[0].median),
            error=math.hypot(*(error / row.typical.wall_ns for error, row in zip(errors, rows, strict=True))),
            freedom=min(counts) - 1,
            units=min(counts),
            how=f"medians of {counts[0]} and {counts[1]} instances of {base.name}",
        ),
    )


def _of_kernels(
    base: CaptureAnalysis, candidate: CaptureAnalysis, kernels: Sequence[KernelChange], *, same_steps: bool
) -> CaptureMetric | None:
    sides = [_total(capture.kernels) for capture in (base, candidate)]
    if any(side is None for side in sides):
        return None
    before, after = (side for side in sides if side is not None)
    variance = sum((side.error_ns / side.total_ns) ** 2 for side in (before, after))
    return CaptureMetric(
        metric=KERNEL_TIME,
        estimate=ChangeEstimate(
            base=Level(median=before.total_ns / 1e6, p10=None, p90=None, n=before.launches),
            candidate=Level(median=after.total_ns / 1e6, p10=None, p90=None, n=after.launches),
            log_ratio=math.log(after.total_ns / before.total_ns),
            error=math.sqrt(variance),
            freedom=min(before.freedom, after.freedom),
            units=min(before.launches, after.launches),
            how=f"time of all kernels, {before.launches:,} and {after.launches:,} launches",
        ),
        doubt=_doubt(base, candidate, kernels, after.total_ns / before.total_ns, same_steps=same_steps),
    )


@dataclass(frozen=True, kw_only=True)
class _Total:
    launches: int
    total_ns: int
    error_ns: float
    freedom: int


def _total(rows: Sequence[KernelRow]) -> _Total | None:
    """The time of all kernels; its standard error is that of a sum of launches, each kernel with its own spread."""
    total = sum(row.total_ns for row in rows)
    repeated = [row for row in rows if row.instances > 1 and row.stddev_ns is not None]
    known = sum(row.total_ns for row in repeated)
    if not total or total - known > MOST_UNREPEATED * total:
        return None
    parts = [(row.instances * (row.stddev_ns or 0.0) ** 2, row.instances - 1) for row in repeated]
    variance = sum(part for part, _ in parts)
    # Welch and Satterthwaite's degrees of freedom of a sum of variances.
    square = sum(part**2 / freedom for part, freedom in parts)
    return _Total(
        launches=sum(row.instances for row in rows),
        total_ns=total,
        error_ns=math.sqrt(variance),
        freedom=GIVEN if square == 0 else max(1, min(GIVEN, int(variance**2 / square))),
    )


def _doubt(
    base: CaptureAnalysis,
    candidate: CaptureAnalysis,
    kernels: Sequence[KernelChange],
    ratio: float,
    *,
    same_steps: bool,
) -> str | None:
    both = [row for row in kernels if row.base_launches and row.candidate_launches]
    shared = sum(row.base_launches for row in both), sum(row.candidate_launches for row in both)
    every = sum(row.base_launches for row in kernels), sum(row.candidate_launches for row in kernels)
    # Fusing changes the count of all launches, other kernels for another GPU that of shared ones; less work both.
    if not same_steps and all(
        not min(counts) or abs(counts[1] / counts[0] - 1) > LAUNCHES_DIFFER for counts in (shared, every)
    ):
        return f"{every[0]:,} and {every[1]:,} kernels were launched: the captures may not hold the same work"
    spans = base.gpu.span_ns, candidate.gpu.span_ns
    if spans[0] and spans[1] and (spans[1] / spans[0] - 1) * (ratio - 1) < 0 and abs(spans[1] / spans[0] - 1) > 0.02:
        return "kernel time and the time from the first GPU work to the last changed in opposite directions"
    return None


def largest_moves(
    base: CaptureAnalysis,
    candidate: CaptureAnalysis,
    kernels: Sequence[KernelChange],
    tables: Mapping[TableName, Sequence[RowChange]],
    *,
    step: str | None,
) -> tuple[Moved, ...]:
    """What changed most, in the direction of the whole: ranges inside the step, kernels, copies, or idle time by cause.

    Idle time is what the GPU sees of work on the host, so it is named only where no range names that work.
    """
    whole = _whole_ms(base, candidate)
    inside = {row.name: row.parent for row in (*base.ranges, *candidate.ranges)}
    ranges = [
        Moved(label=row.name, difference_ms=row.difference / 1e6)
        for row in tables.get("ranges", ())
        if row.name != step and not _is_outermost(row.name, inside, step)
    ]
    devices = [Moved(label=row.name, difference_ms=row.difference_ns / 1e6) for row in kernels]
    devices += [Moved(label=row.name, difference_ms=row.difference / 1e6) for row in tables.get("copies", ())]
    idle = [Moved(label=row.name, difference_ms=row.difference / 1e6) for row in tables.get("idle", ())]
    found = [*_worth_naming(ranges, whole)[:1], *_worth_naming(devices, whole)]
    found = found if _worth_naming(ranges, whole) else [*found, *_worth_naming(idle, whole)]
    return tuple(sorted(found, key=lambda one: -abs(one.difference_ms))[:NAMED])


def _whole_ms(base: CaptureAnalysis, candidate: CaptureAnalysis) -> float:
    spans = [capture.gpu.span_ns or capture.gpu.kernel_ns for capture in (base, candidate)]
    return (spans[1] - spans[0]) / 1e6


def _is_outermost(name: str, parents: Mapping[str, str | None], step: str | None) -> bool:
    """A range that encloses everything is the whole, not a part of it; alongside a step, all others are parts."""
    return step is None and parents.get(name) is None and name in parents.values()


def _worth_naming(found: Sequence[Moved], whole_ms: float) -> list[Moved]:
    ordered = sorted(found, key=lambda one: -abs(one.difference_ms))
    return [
        one
        for one in ordered
        if one.difference_ms * whole_ms > 0 and abs(one.difference_ms) >= WORTH_NAMING * abs(whole_ms)
    ]
