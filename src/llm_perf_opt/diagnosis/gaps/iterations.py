"""The steps of a loop: marked by torch's profiler, or found as a sequence of kernels that repeats."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Ints
from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.timeline import Timeline, distinct, grouped, int_percentile

MIN_ITERATIONS = 3
# A loop shows in the first kernels of a capture; more of them only take time.
LOOKED_AT = 200_000
# A kernel marks the steps when the number of kernels from one of it to the next is the same this often.
REGULAR = 0.6
# Steps found must hold this part of all kernels: what repeats only at the edge is not a loop of the program.
COVERED = 0.5
# An outlier is this many robust standard deviations from the median, and this part of it.
OUTLIER_DEVIATIONS, OUTLIER_SHARE = 5.0, 0.2
MAD_TO_DEVIATION = 1.4826
SHOWN = 10
_PROFILER_STEP = re.compile(r"^ProfilerStep\b")


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A step that took much longer or shorter than the others, counted from 0 in its capture."""

    index: int
    length_ns: int
    source: int = 0


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The steps of a capture. `how` says by what they were distinguished; quartiles say how much they spread."""

    how: str
    count: int
    kernels_each: int | None
    median_ns: int
    p25_ns: int
    p75_ns: int
    outliers: tuple[Outlier, ...]

    @property
    def spread(self) -> float:
        return (self.p75_ns - self.p25_ns) / self.median_ns if self.median_ns else 0.0


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """The steps of one capture: how they were distinguished, kernels in each, and their lengths in order."""

    how: str
    kernels_each: int | None
    length: Ints


def find_iterations(timelines: Sequence[Timeline]) -> Iterations | None:
    """The steps of all captures in which they are distinguished the same way, the way that finds most of them."""
    found: dict[tuple[str, int | None], list[tuple[int, Ints]]] = {}
    for source, timeline in enumerate(timelines):
        steps = _steps(timeline)
        if steps is not None:
            found.setdefault((steps.how, steps.kernels_each), []).append((source, steps.length))
    if not found:
        return None
    (how, kernels_each), parts = max(found.items(), key=lambda item: sum(len(length) for _, length in item[1]))
    return _describe(how, kernels_each, parts)


def _steps(timeline: Timeline) -> _Steps | None:
    """Marked steps where there are three of them, else a repeated sequence of kernels, else None."""
    ranges = timeline.ranges
    codes = [code for code in distinct(ranges.name).tolist() if _PROFILER_STEP.match(timeline.names[code])]
    marked = np.flatnonzero(np.isin(ranges.name, codes))
    if len(marked) >= MIN_ITERATIONS:
        marked = marked[np.argsort(ranges.start_ns[marked], kind="stable")]
        length = ranges.end_ns[marked] - ranges.start_ns[marked]
        return _Steps(how="marked as ProfilerStep", kernels_each=None, length=length)
    return _repeated(timeline)


def _repeated(timeline: Timeline) -> _Steps | None:
    """Steps from one of a regular kernel to the next, of the regular kernel that is rarest."""
    kernels = timeline.kernels
    if len(kernels) < 2 * MIN_ITERATIONS or len(distinct(kernels.process)) > 1:
        return None
    start: Ints = kernels.start_ns[:LOOKED_AT]
    name: Ints = kernels.name[:LOOKED_AT]
    if not bool(np.all(start[1:] >= start[:-1])):
        in_time = np.argsort(start, kind="stable")
        start, name = start[in_time], name[in_time]
    # Numbers of 16 bits are sorted by their digits, several times as fast.
    by_name = np.argsort(name.astype(np.int16) if len(timeline.names) <= 2**15 else name, kind="stable")
    groups = np.split(by_name, np.flatnonzero(np.diff(name[by_name])) + 1)
    for positions in sorted(groups, key=len):
        if len(positions) <= MIN_ITERATIONS:
            continue
        steps = np.diff(positions)
        values, index = grouped(steps)
        counts = np.bincount(index)
        usual = int(values[np.argmax(counts)])
        # One kernel after the other is a loop only where there is no other kernel.
        if (usual < 2 and len(groups) > 1) or counts.max() < max(REGULAR * len(steps), MIN_ITERATIONS):
            continue
        if usual * counts.max() >= COVERED * len(name):
            length = np.diff(start[positions])[steps == usual]
            repeated = short_kernel_name(timeline.names[int(name[positions[0]])])
            return _Steps(how=f"by the repeated kernel {repeated}", kernels_each=usual, length=length)
    return None


def _describe(how: str, kernels_each: int | None, parts: Sequence[tuple[int, Ints]]) -> Iterations:
    length = np.concatenate([one for _, one in parts])
    source = np.concatenate([np.full(len(one), number) for number, one in parts])
    index = np.concatenate([np.arange(len(one)) for _, one in parts])
    low, median, high = (int(value) for value in (int_percentile(length, percent) for percent in (25, 50, 75)))
    deviation = MAD_TO_DEVIATION * float(np.median(np.abs(length - median)))
    far = np.flatnonzero(np.abs(length - median) > max(OUTLIER_DEVIATIONS * deviation, OUTLIER_SHARE * median))
    far = far[np.argsort(-np.abs(length[far] - median), kind="stable")]
    return Iterations(
        how=how,
        count=len(length),
        kernels_each=kernels_each,
        median_ns=median,
        p25_ns=low,
        p75_ns=high,
        outliers=tuple(
            Outlier(index=int(index[i]), length_ns=int(length[i]), source=int(source[i])) for i in far[:SHOWN]
        ),
    )
