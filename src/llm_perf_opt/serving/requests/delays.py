"""Which requests held up the others: the time that their prefill added to steps which other requests shared."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.requests.bounds import BoundedRequest
from llm_perf_opt.serving.requests.request_records import Delay
from llm_perf_opt.serving.requests.request_timeline import TimedStep, step_ranges


@dataclass
class _Taken:
    """What one request's prefill took of others so far."""

    time_s: float = 0.0
    victims: set[int] = field(default_factory=set)
    steps: list[int] = field(default_factory=list)


def delays_in_steps(timed: Sequence[TimedStep], indices: Mapping[int, int], prompts: Mapping[int, int]) -> list[Delay]:
    """Worst first. Time counts once for each other request in the step; `indices` are the client's, by the engine's."""
    taken: defaultdict[int, _Taken] = defaultdict(_Taken)
    for one in timed:
        total = one.prefill_tokens
        if not total or len(one.step.work) < 2:
            continue
        for number, tokens in one.prefill.items():
            others = one.step.by_request.keys() - {number}
            mine = taken[number]
            mine.time_s += one.extra_s * tokens / total * len(others)
            mine.victims |= others
            mine.steps.append(one.step.number)
    delays = [
        Delay(
            request=indices[number],
            prompt_tokens=prompts.get(number),
            time_s=mine.time_s,
            victims=len(mine.victims),
            steps=step_ranges(mine.steps),
        )
        for number, mine in taken.items()
        if number in indices and mine.time_s > 0.0
    ]
    return sorted(delays, key=lambda delay: -delay.time_s)


def delays_in_gaps(bounded: Sequence[BoundedRequest], records: Sequence[RequestRecord]) -> list[Delay]:
    """Worst first: upper bounds from the gaps of all streams."""
    prompts = {record.index: record.prompt_tokens for record in records}
    taken: defaultdict[int, _Taken] = defaultdict(_Taken)
    for place, one in enumerate(bounded):
        for index, time_s in one.taken_s.items():
            taken[index].time_s += time_s
            taken[index].victims.add(place)
    delays = [
        Delay(request=index, prompt_tokens=prompts.get(index), time_s=mine.time_s, victims=len(mine.victims))
        for index, mine in taken.items()
    ]
    return sorted(delays, key=lambda delay: -delay.time_s)
