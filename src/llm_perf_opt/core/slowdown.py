"""How much slower a profiler made the workload: one meaning for every stage.

Where both passes ran the same samples, these are compared over the same first steps, because a later step reads a
longer cache. Where they share none, the medians of the two passes are compared. `how` of the metric says which.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from llm_perf_opt.core.names import DECODE, PREFILL, WALL_METRIC
from llm_perf_opt.core.records import Metric


@dataclass(frozen=True, kw_only=True)
class TimedSample:
    """What one sample took: its prefill and each step after the first token."""

    sample_id: str
    prefill_ms: float
    step_ms: tuple[float, ...]


def matched_ratios(clean: Sequence[TimedSample], profiled: Sequence[TimedSample]) -> dict[str, float | None]:
    """Profiled time by clean time, per phase; the clean time of a sample is the median of its repeats."""
    prefill: list[tuple[float, float]] = []
    decode: list[tuple[float, float]] = []
    for sample in profiled:
        same = [c for c in clean if c.sample_id == sample.sample_id]
        if not same:
            continue
        prefill.append((sample.prefill_ms, median(c.prefill_ms for c in same)))
        steps = len(sample.step_ms)
        means = [fmean(c.step_ms[:steps]) for c in same if len(c.step_ms) >= steps > 0]
        if means:
            decode.append((fmean(sample.step_ms), median(means)))
    return {PREFILL: _ratio(prefill), DECODE: _ratio(decode)}


def slowdown(
    matched: Mapping[str, float | None],
    *,
    clean_ms: Mapping[str, float | None],
    profiled_ms: Mapping[str, float | None],
    where: str,
    source: str,
) -> dict[str, Metric]:
    """The metrics of one profiler, per phase: `matched` ratios, or those of the passes' medians.

    `where` names the profiled pass in `how`: "under nsys".
    """
    found = {}
    for phase, key in WALL_METRIC.items():
        ratio = matched[phase]
        how = f"time {where} by time in the clean pass, same samples, same first steps"
        slow_ms, fast_ms = profiled_ms[phase], clean_ms[phase]
        if ratio is None and slow_ms and fast_ms:
            ratio = slow_ms / fast_ms
            how = f"median {key} {where} by that of the clean pass, because no sample has the same first steps in both"
        found[_name(phase)] = Metric(
            value=ratio,
            unit="x",
            how=how,
            per=f"clean {phase} time",
            source=source,
            reason=None if ratio is not None else f"no {phase} step was measured in both passes",
        )
    return found


def no_slowdown(reason: str, *, where: str) -> dict[str, Metric]:
    """Why a profiler's slowdown is not known."""
    how = f"time {where} by time in the clean pass"
    return {_name(phase): Metric(value=None, unit="x", how=how, reason=reason) for phase in WALL_METRIC}


def _name(phase: str) -> str:
    return f"slowdown_{phase}"


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    below = sum(clean for _, clean in pairs)
    return sum(profiled for profiled, _ in pairs) / below if below > 0 else None
