"""When each step of an engine executed, and how much of that its prefill took.

A step executes from the end of its scheduling, or the results of the step before where that is later (two batches in
flight), to the arrival of its own results. So executions never overlap, and what lies between them is the host's.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from llm_perf_opt.serving.requests.request_records import EngineStep, StepRange, StepTrace


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A step with the time of its execution. `prefill` are tokens of prompts in it, by request.

    `extra_s` is what prefill adds: the execution beyond that of steps which decode as many sequences and prefill none.
    """

    step: EngineStep
    start_s: float
    end_s: float
    prefill: Mapping[int, int]
    extra_s: float

    @property
    def prefill_tokens(self) -> int:
        return sum(self.prefill.values())

    @property
    def wait_end_s(self) -> float:
        """When requests that were not in a step before stop waiting: the scheduler turns to them."""
        return self.step.begin_s if self.start_s <= self.step.scheduled_s else self.start_s


def time_steps(trace: StepTrace) -> tuple[TimedStep, ...]:
    """All steps with their execution, in order."""
    bounds = list(_executions(trace.steps))
    prefills = [
        {work.request: tokens for work in step.work if (tokens := trace.prefill_tokens(work))} for step in trace.steps
    ]
    decode_s = _DecodeTimes(
        [
            (len(step.work), end - start)
            for step, (start, end), prefill in zip(trace.steps, bounds, prefills, strict=True)
            if not prefill
        ]
    )
    return tuple(
        TimedStep(
            step=step, start_s=start, end_s=end, prefill=prefill, extra_s=_extra(step, prefill, end - start, decode_s)
        )
        for step, (start, end), prefill in zip(trace.steps, bounds, prefills, strict=True)
    )


def step_ranges(numbers: Sequence[int]) -> tuple[StepRange, ...]:
    """Numbers of steps as ranges, in order."""
    ranges: list[StepRange] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1].last == number - 1:
            ranges[-1] = StepRange(first=ranges[-1].first, last=number)
        else:
            ranges.append(StepRange(first=number, last=number))
    return tuple(ranges)


def _executions(steps: Sequence[EngineStep]) -> Iterator[tuple[float, float]]:
    before = 0.0
    for step in steps:
        start = max(step.scheduled_s, before)
        yield start, max(start, step.update_s)
        before = step.update_s


def _extra(step: EngineStep, prefill: Mapping[int, int], time_s: float, decode_s: "_DecodeTimes") -> float:
    decodes = len(step.work) - len(prefill)
    if not prefill or not decodes:
        return time_s if prefill else 0.0
    alone_s = decode_s.of(decodes)
    if alone_s is None:
        # Never seen alone: by the tokens of the step.
        return time_s * sum(prefill.values()) / sum(work.tokens for work in step.work)
    return max(0.0, time_s - alone_s)


class _DecodeTimes:
    """Median time of a step that decodes this many sequences and nothing else, or the nearest number that was seen."""

    def __init__(self, seen: Sequence[tuple[int, float]]) -> None:
        times: defaultdict[int, list[float]] = defaultdict(list)
        for count, time_s in seen:
            times[count].append(time_s)
        self._medians = {count: median(values) for count, values in times.items()}
        self._counts = sorted(times)

    def of(self, count: int) -> float | None:
        if not self._counts:
            return None
        place = bisect_left(self._counts, count)
        near = self._counts[max(0, place - 1) : place + 1]
        return self._medians[min(near, key=lambda seen: abs(seen - count))]
