"""Which kernels ran in which step of an engine: a capture of the server, put on the clock of the record of steps.

A capture knows the time of day; the offset of this machine's monotonic clock from it was taken when the capture was
made. Work belongs to the step in whose execution it started. Of a capture without a GPU the operators count, each
without those inside it. Whether the clocks agree shows: nearly all work lies within steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_perf_opt.capture.intervals import Flags, Ints, nest
from llm_perf_opt.capture.kernels.names import distinct_short_names
from llm_perf_opt.capture.timeline import HostEvents, Timeline
from llm_perf_opt.serving.requests.request_records import CapturedSteps, StepKernel, StepRange, Work
from llm_perf_opt.serving.requests.request_timeline import TimedStep

# Of a part, gap or delay so many are kept, those that took longest.
KERNELS_KEPT = 5
# With less of its work within steps, a capture is not on the clock of the steps, or of another process.
LEAST_INSIDE = 0.5
NS = 1e9


@dataclass(frozen=True, kw_only=True)
class CapturedWork:
    """What one capture recorded, on the monotonic clock, in the order of the starts. `name` indexes `names`."""

    file: str
    work: Work
    names: tuple[str, ...]
    name: Ints
    start_ns: Ints
    time_ns: Ints

    @classmethod
    def of(cls, timeline: Timeline, *, file: str, epoch_offset_ns: int) -> "CapturedWork | None":
        """The kernels, else the operators; None where the capture does not know the time of day.

        `epoch_offset_ns` added to the monotonic clock gives the time of day.
        """
        if not timeline.origin.base_ns:
            return None
        kernels, operators = timeline.kernels, timeline.operators
        work = kernels if len(kernels) else operators
        own_ns: Ints = kernels.end_ns - kernels.start_ns if len(kernels) else _own_ns(operators)
        order = np.argsort(work.start_ns, kind="stable")
        name, start_ns, time_ns = (column[order] for column in (work.name, work.start_ns, own_ns))
        return cls(
            file=file,
            work="kernels" if len(kernels) else "operators",
            names=timeline.names,
            name=name,
            start_ns=start_ns + (timeline.origin.base_ns - epoch_offset_ns),
            time_ns=time_ns,
        )


def _own_ns(events: HostEvents) -> Ints:
    """Each one's time without that of what is directly inside it."""
    own = (events.end_ns - events.start_ns).astype(np.int64)
    parent = nest(events.thread, events.start_ns, events.end_ns).parent
    inside = np.flatnonzero(parent >= 0)
    np.subtract.at(own, parent[inside], own[inside].copy())
    return np.maximum(own, 0)


@dataclass(frozen=True, kw_only=True)
class StepKernels:
    """The work of a capture by step: `step` numbers the step of each piece of work that started in one."""

    captured: CapturedSteps
    names: tuple[str, ...]
    name: Ints
    time_ns: Ints
    step: Ints

    def of(self, ranges: Sequence[StepRange]) -> tuple[tuple[StepKernel, ...], float]:
        """What took longest in these steps, and the time of everything in them, in seconds."""
        chosen = np.zeros(len(self.step), np.bool_)
        for one in ranges:
            chosen |= (one.first <= self.step) & (self.step <= one.last)
        codes, place = np.unique(self.name[chosen], return_inverse=True)
        sums = np.bincount(place, self.time_ns[chosen], len(codes))
        counts = np.bincount(place, minlength=len(codes))
        longest = [code for code in np.argsort(-sums, kind="stable")[:KERNELS_KEPT].tolist() if sums[code]]
        full = [self.names[int(codes[code])] for code in longest]
        short = distinct_short_names(full) if self.captured.work == "kernels" else full
        kept = tuple(
            StepKernel(name=name, time_s=float(sums[code]) / NS, count=int(counts[code]))
            for name, code in zip(short, longest, strict=True)
        )
        return kept, float(sums.sum()) / NS


def kernels_by_step(timed: Sequence[TimedStep], captures: Sequence[CapturedWork]) -> tuple[StepKernels | None, str]:
    """The capture with the most work within these steps, by step; None and the reason where none agrees with them."""
    if not timed or not captures:
        return None, ""
    starts, ends = (_ns([getattr(one, name) for one in timed]) for name in ("start_s", "end_s"))
    numbers = np.array([one.step.number for one in timed], np.int64)
    found = [_placed(one, starts, ends, numbers) for one in captures]
    best = max(found, key=lambda one: int(one.time_ns.sum()))
    share = best.captured.inside_share
    if share < LEAST_INSIDE:
        return None, (
            f"the {best.captured.work} of {best.captured.file} are not assigned to steps: {100 * share:.0f} % of their "
            "time lies within steps, so that the two clocks do not agree or the capture is of another process"
        )
    return best, ""


def _placed(capture: CapturedWork, starts: Ints, ends: Ints, numbers: Ints) -> StepKernels:
    place = np.maximum(starts.searchsorted(capture.start_ns, "right") - 1, 0)
    during: Flags = (capture.start_ns >= starts[0]) & (capture.start_ns < ends[-1])
    inside: Flags = during & (capture.start_ns < ends[place])
    total = int(capture.time_ns[during].sum())
    step = numbers[place[inside]]
    time_ns = capture.time_ns[inside]
    return StepKernels(
        captured=CapturedSteps(
            file=capture.file,
            work=capture.work,
            steps=len(np.unique(step)),
            inside_share=int(time_ns.sum()) / total if total else 0.0,
        ),
        names=capture.names,
        name=capture.name[inside],
        time_ns=time_ns,
        step=step,
    )


def _ns(seconds: Sequence[float]) -> Ints:
    moments: npt.NDArray[np.float64] = np.array(seconds, np.float64) * NS
    return moments.astype(np.int64)
