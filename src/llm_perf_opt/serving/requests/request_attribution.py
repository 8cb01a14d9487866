"""One request's end-to-end time in parts, from the steps it was in: each moment belongs to exactly one part.

    sent ─ network and client ─ front end ─ queue ─ step │ host │ step │ … │ last step ─ host ─ network and client ─
    last token

In a step that a request shares, the time that prefill adds belongs to the prompts in it, by their tokens: that of the
request itself is its own prefill, that of others is theirs. The rest of the step is the request's own work.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.requests.request_records import (
    PARTS,
    EngineRequest,
    LatencyPart,
    LongestGap,
    Part,
)
from llm_perf_opt.serving.requests.request_timeline import TimedStep, step_ranges

# A gap that is this much longer than that between its steps arose after the engine.
ENGINE_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class SplitRequest:
    """The parts of a request, the time each other request's prefill took of it and in which steps, its longest gap."""

    parts: tuple[LatencyPart, ...]
    taken_s: dict[int, float]
    taken_in: dict[int, list[int]]
    longest_gap: LongestGap | None


@dataclass
class _Sums:
    """Time of each part as it is added up."""

    time_s: defaultdict[Part, float] = field(default_factory=lambda: defaultdict(float))
    shared_s: defaultdict[Part, float] = field(default_factory=lambda: defaultdict(float))
    steps: defaultdict[Part, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, part: Part, time_s: float, timed: TimedStep | None = None) -> None:
        if time_s <= 0.0:
            return
        self.time_s[part] += time_s
        if timed is not None:
            self.steps[part].append(timed.step.number)
            if len(timed.step.work) > 1:
                self.shared_s[part] += time_s

    def parts(self) -> tuple[LatencyPart, ...]:
        return tuple(
            LatencyPart(
                name=name,
                time_s=self.time_s[name],
                shared_s=self.shared_s[name],
                steps=step_ranges(self.steps[name]),
            )
            for name in PARTS
            if self.time_s[name]
        )


def split_request(
    record: RequestRecord, request: EngineRequest, timed: Sequence[TimedStep], *, begun_s: float
) -> SplitRequest | None:
    """The request in parts, or None where no step holds it. `begun_s` is the start of the load in the steps' clock."""
    if record.latency_s is None:
        return None
    sent = begun_s + record.started_s
    last = sent + record.latency_s
    own = [one for one in timed if request.number in one.step.by_request]
    if not own:
        return None
    final = next((one for one in reversed(own) if one.step.by_request[request.number].sampled), own[-1])
    sums = _Sums()
    taken: defaultdict[int, float] = defaultdict(float)
    taken_in: defaultdict[int, list[int]] = defaultdict(list)
    arrived = _within(request.arrived_s, sent, last)
    cursor = _within(request.added_s, arrived, last)
    sums.add("network and client", arrived - sent)
    sums.add("host and scheduler", cursor - arrived)
    for one in timed:
        if one.end_s <= cursor or one.start_s < own[0].start_s:
            continue
        if one is own[0]:
            waited = _within(one.wait_end_s, cursor, last)
            sums.add("queue", waited - cursor)
            cursor = waited
        start = _within(one.start_s, cursor, last)
        end = _within(one.end_s, start, last)
        sums.add("host and scheduler", start - cursor)
        _split_step(sums, taken, taken_in, one, request.number, end - start)
        cursor = end
        if one is final:
            break
    done = _within(final.step.done_s, cursor, last)
    sums.add("host and scheduler", done - cursor)
    sums.add("network and client", last - done)
    gap = _longest_gap(record, request.number, timed, own, sent)
    return SplitRequest(parts=sums.parts(), taken_s=dict(taken), taken_in=dict(taken_in), longest_gap=gap)


def _split_step(
    sums: _Sums,
    taken: defaultdict[int, float],
    taken_in: defaultdict[int, list[int]],
    one: TimedStep,
    number: int,
    time_s: float,
) -> None:
    """A step's execution, as far as it lies within the request's life."""
    if number not in one.step.by_request:
        # Preempted, or left out because the step had no tokens left.
        sums.add("queue", time_s, one)
        return
    own, total = one.prefill.get(number, 0), one.prefill_tokens
    others_s = min(time_s, one.extra_s) * (total - own) / total if total else 0.0
    sums.add("other requests' prefill", others_s, one)
    sums.add("own prefill" if own else "decode", time_s - others_s, one)
    for other, tokens in one.prefill.items():
        if other != number and others_s > 0.0:
            taken[other] += others_s * tokens / (total - own)
            taken_in[other].append(one.step.number)


def _longest_gap(
    record: RequestRecord, number: int, timed: Sequence[TimedStep], own: Sequence[TimedStep], sent: float
) -> LongestGap | None:
    """The longest gap, and the steps between the two that made its tokens."""
    if not record.gaps_s or record.ttft_s is None:
        return None
    place = max(range(len(record.gaps_s)), key=record.gaps_s.__getitem__)
    gap_s, token = record.gaps_s[place], place + 2
    sampled = [one for one in own if one.step.by_request[number].sampled]
    if len(sampled) == len(record.gaps_s) + 1:
        before, after = sampled[place], sampled[place + 1]
    else:
        # Several tokens in one event: the last results that were there when it arrived.
        arrivals = list(accumulate((sent + record.ttft_s, *record.gaps_s)))
        ends = [one.step.update_s for one in sampled]
        first, then = (bisect_right(ends, moment) - 1 for moment in arrivals[place : place + 2])
        if not 0 <= first < then:
            return LongestGap(time_s=gap_s, token=token)
        before, after = sampled[first], sampled[then]
    if after.step.update_s - before.step.update_s < ENGINE_SHARE * gap_s:
        return LongestGap(time_s=gap_s, token=token)
    tokens: defaultdict[int, int] = defaultdict(int)
    for one in timed:
        if before.step.update_s < one.step.update_s <= after.step.update_s:
            for other, count in one.prefill.items():
                if other != number:
                    tokens[other] += count
    most = max(tokens, key=tokens.__getitem__, default=None)
    return LongestGap(
        time_s=gap_s, token=token, step=after.step.number, prefill_tokens=sum(tokens.values()), request=most
    )


def _within(moment: float, low: float, high: float) -> float:
    return min(max(moment, low), high)
