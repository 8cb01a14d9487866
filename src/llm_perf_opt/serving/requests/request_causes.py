"""The slowest requests of a level, explained with the steps of the engine where they are known, else from arrivals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.requests.bounds import BoundedRequest, FirstTokens, bound_request
from llm_perf_opt.serving.requests.delays import delays_in_gaps, delays_in_steps
from llm_perf_opt.serving.requests.request_attribution import SplitRequest, split_request
from llm_perf_opt.serving.requests.request_records import (
    Delay,
    EngineRequest,
    ExplainedRequest,
    LatencyPart,
    LongestGap,
    MatchRate,
    Method,
    SlowLevel,
    StepTrace,
)
from llm_perf_opt.serving.requests.request_timeline import TimedStep, step_ranges, time_steps
from llm_perf_opt.serving.requests.step_kernels import CapturedWork, StepKernels, kernels_by_step

SLOWEST = 10
DELAYS_KEPT = 10
# Fewer steps of our own than this, and the parts may be those of other clients' work.
ENOUGH_MATCHED = 0.95
PartOrDelay = TypeVar("PartOrDelay", LatencyPart, Delay)


@dataclass(frozen=True, kw_only=True)
class LevelRecords:
    """A level as the client recorded it. `begun_s` is its start on the monotonic clock, None where not known."""

    key: str
    label: str
    begun_s: float | None
    records: tuple[RequestRecord, ...]

    @property
    def answered(self) -> list[RequestRecord]:
        return [record for record in self.records if record.status == "ok" and record.latency_s is not None]


@dataclass(frozen=True, kw_only=True)
class _Engine:
    """The part of one engine process in a level."""

    trace: StepTrace
    timed: tuple[TimedStep, ...]
    numbers: Mapping[str, EngineRequest]
    indices: Mapping[int, int]
    kernels: StepKernels | None = None

    def with_kernels(self, part: PartOrDelay) -> PartOrDelay:
        if self.kernels is None or not part.steps:
            return part
        kernels, kernels_s = self.kernels.of(part.steps)
        return replace(part, kernels=kernels, kernels_s=kernels_s)


def explain_level(level: LevelRecords, traces: Sequence[StepTrace], captures: Sequence[CapturedWork] = ()) -> SlowLevel:
    """Explain the ten slowest requests that succeeded, and rank the requests that delayed others.

    `captures` were made of the server while it served this level.
    """
    slowest = sorted(level.answered, key=lambda record: -(record.latency_s or 0.0))[:SLOWEST]
    engines = _engines(level, traces)
    if level.begun_s is not None and any(engine.indices for engine in engines):
        engines, notes = _captured(engines, captures)
        return _by_steps(level, slowest, engines, level.begun_s, notes)
    return _by_arrivals(level, slowest)


def _engines(level: LevelRecords, traces: Sequence[StepTrace]) -> list[_Engine]:
    """Only steps of the level's time, so that those of warming up are not yardstick."""
    if level.begun_s is None:
        return []
    ids = {record.request_id: record.index for record in level.records if record.request_id is not None}
    ends = (record.started_s + (record.latency_s or 0.0) for record in level.records)
    end = level.begun_s + max(ends, default=0.0)
    engines = []
    for trace in traces:
        inside = tuple(step for step in trace.steps if level.begun_s <= step.begin_s and step.begin_s <= end)
        part = replace(trace, steps=inside)
        ours = {request.client_id: request for request in trace.requests if request.client_id in ids}
        engines.append(
            _Engine(
                trace=part,
                timed=time_steps(part),
                numbers={str(name): request for name, request in ours.items()},
                indices={request.number: ids[name] for name, request in ours.items()},
            )
        )
    return engines


def _captured(engines: list[_Engine], captures: Sequence[CapturedWork]) -> tuple[list[_Engine], list[str]]:
    """With the kernels of their steps; a capture does not say to which of several engines it belongs."""
    working = [engine for engine in engines if engine.indices]
    if not captures:
        return engines, []
    if len(working) > 1:
        return engines, [f"kernels are not assigned to steps: {len(working)} engine processes served the level"]
    kernels, why = kernels_by_step(working[0].timed, captures)
    return [replace(one, kernels=kernels) if one is working[0] else one for one in engines], [why] if why else []


def _by_steps(
    level: LevelRecords,
    slowest: Sequence[RequestRecord],
    engines: Sequence[_Engine],
    begun_s: float,
    more_notes: Sequence[str],
) -> SlowLevel:
    first_tokens = FirstTokens.of(level.records)
    explained = []
    for record in slowest:
        engine = next((engine for engine in engines if record.request_id in engine.numbers), None)
        split = None
        if engine is not None:
            request = engine.numbers[str(record.request_id)]
            split = split_request(record, request, engine.timed, begun_s=begun_s)
        if engine is None or split is None:
            explained += _bounded(record, bound_request(record, first_tokens), first_tokens)
        else:
            explained.append(_explained(record, split, engine))
    delays = [(one, e) for e in engines for one in delays_in_steps(e.timed, e.indices, e.trace.prompts)]
    worst = sorted(delays, key=lambda pair: -pair[0].time_s)[:DELAYS_KEPT]
    match = _match(level, engines)
    notes = [*more_notes, *(note for engine in engines for note in engine.trace.notes)]
    if match.steps_share is not None and match.steps_share < ENOUGH_MATCHED:
        notes.append(
            f"{match.steps - match.matched_steps} of {match.steps} steps held requests that this client did not send: "
            "warm-up, or another client"
        )
    if match.tokens_share is not None and match.tokens_share < ENOUGH_MATCHED:
        notes.append(
            f"{match.tokens - match.matched_tokens} of {match.tokens} output tokens belong to no recorded step"
        )
    return SlowLevel(
        level=level.key,
        label=level.label,
        method="steps",
        match=match,
        slowest=tuple(explained),
        delays=tuple(engine.with_kernels(delay) for delay, engine in worst),
        notes=tuple(notes),
        captured=next((engine.kernels.captured for engine in engines if engine.kernels is not None), None),
    )


def _by_arrivals(level: LevelRecords, slowest: Sequence[RequestRecord]) -> SlowLevel:
    first_tokens = FirstTokens.of(level.records)
    bounded = {record.index: bound_request(record, first_tokens) for record in level.answered}
    delays = delays_in_gaps([one for one in bounded.values() if one is not None], level.records)
    return SlowLevel(
        level=level.key,
        label=level.label,
        method="arrival times",
        match=None,
        slowest=tuple(one for record in slowest for one in _bounded(record, bounded[record.index], first_tokens)),
        delays=tuple(delays[:DELAYS_KEPT]),
    )


def _bounded(
    record: RequestRecord, bounded: BoundedRequest | None, first_tokens: FirstTokens
) -> list[ExplainedRequest]:
    if bounded is None:
        return []
    prompts = {other.index: other.prompt_tokens for other in first_tokens.records}
    taken = bounded.taken_s.items()
    delays = [Delay(request=index, prompt_tokens=prompts.get(index), time_s=time_s) for index, time_s in taken]
    return [_document(record, "arrival times", bounded.parts, delays, bounded.longest_gap)]


def _explained(record: RequestRecord, split: SplitRequest, engine: _Engine) -> ExplainedRequest:
    """With the client's own indices; requests of other clients are left out of those that delayed it."""
    delays = [
        Delay(
            request=engine.indices[number],
            prompt_tokens=engine.trace.prompts.get(number),
            time_s=time_s,
            steps=step_ranges(split.taken_in[number]),
        )
        for number, time_s in split.taken_s.items()
        if number in engine.indices
    ]
    gap = split.longest_gap
    if gap is not None and gap.request is not None:
        gap = replace(gap, request=engine.indices.get(gap.request))
    return _document(record, "steps", tuple(engine.with_kernels(part) for part in split.parts), delays, gap)


def _document(
    record: RequestRecord,
    method: Method,
    parts: tuple[LatencyPart, ...],
    delays: Sequence[Delay],
    gap: LongestGap | None,
) -> ExplainedRequest:
    return ExplainedRequest(
        index=record.index,
        request_id=record.request_id,
        started_s=record.started_s,
        e2e_s=record.latency_s or 0.0,
        ttft_s=record.ttft_s or 0.0,
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        method=method,
        parts=parts,
        delayed_by=tuple(sorted(delays, key=lambda delay: -delay.time_s)[:DELAYS_KEPT]),
        longest_gap=gap,
    )


def _match(level: LevelRecords, engines: Sequence[_Engine]) -> MatchRate:
    """Steps whose requests are all ours, and output tokens of the client that some step made."""
    steps = [(one.step, engine) for engine in engines for one in engine.timed]
    made: dict[int, int] = {}
    matched = 0
    for step, engine in steps:
        matched += all(work.request in engine.indices for work in step.work)
        for work in step.work:
            if work.request in engine.indices:
                index = engine.indices[work.request]
                made[index] = made.get(index, 0) + work.sampled
    tokens = sum(record.output_tokens for record in level.answered)
    return MatchRate(
        steps=len(steps),
        matched_steps=matched,
        tokens=tokens,
        matched_tokens=sum(min(record.output_tokens, made.get(record.index, 0)) for record in level.answered),
    )
