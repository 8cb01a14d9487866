"""Parts of a request's time from arrival times alone, for servers that write no record of their steps.

A request prefills some time between its sending and its first token. While it does, streams that share its steps pause:
their gaps are longer than gaps in which no request waited for a first token. What such gaps have above the usual is at
most the time of other requests' prefill. It is at least that of gaps which end with a first token, since both then come
from one step. Queue and own prefill cannot be separated.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import median

from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.requests.request_records import LatencyPart, LongestGap

# Tokens of one step arrive this much apart at most, or this share of the gap before them.
SAME_STEP_S = 0.003
SAME_STEP_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class BoundedRequest:
    """The parts of a request with their bounds, and the time that others' waits for a first token overlap with."""

    parts: tuple[LatencyPart, ...]
    taken_s: Mapping[int, float]
    longest_gap: LongestGap | None


@dataclass(frozen=True, kw_only=True)
class FirstTokens:
    """All requests of a level in the order they were sent, to find those that waited for their first token."""

    records: tuple[RequestRecord, ...]

    @classmethod
    def of(cls, records: Sequence[RequestRecord]) -> "FirstTokens":
        answered = (record for record in records if record.ttft_s is not None)
        return cls(records=tuple(sorted(answered, key=lambda record: record.started_s)))

    @cached_property
    def _sent(self) -> list[float]:
        return [record.started_s for record in self.records]

    @cached_property
    def _longest_s(self) -> float:
        return max((record.ttft_s or 0.0 for record in self.records), default=0.0)

    def waiting(self, start_s: float, end_s: float, *, but: int) -> list[RequestRecord]:
        """Requests other than `but` that waited for their first token at some time between the two moments."""
        first = bisect_left(self._sent, start_s - self._longest_s)
        last = bisect_right(self._sent, end_s)
        return [
            record
            for record in self.records[first:last]
            if record.index != but and record.started_s + (record.ttft_s or 0.0) > start_s
        ]


def bound_request(record: RequestRecord, first_tokens: FirstTokens) -> BoundedRequest | None:
    """The request in parts that sum to its time, or None where it has no token."""
    if record.ttft_s is None or record.latency_s is None:
        return None
    arrivals = list(accumulate((record.started_s + record.ttft_s, *record.gaps_s)))
    gaps = list(pairwise(arrivals))
    waits = [first_tokens.waiting(start, end, but=record.index) for start, end in gaps]
    quiet = [end - start for (start, end), others in zip(gaps, waits, strict=True) if not others]
    usual_s = median(quiet or record.gaps_s) if gaps else 0.0
    low = high = 0.0
    taken: defaultdict[int, float] = defaultdict(float)
    for (start, end), others in zip(gaps, waits, strict=True):
        extra_s = max(0.0, end - start - usual_s)
        if not others or not extra_s:
            continue
        high += extra_s
        low += extra_s if any(_comes_with(other, start, end) for other in others) else 0.0
        tokens = {other.index: max(1, other.prompt_tokens or 1) for other in others}
        for index, count in tokens.items():
            taken[index] += extra_s * count / sum(tokens.values())
    decode_s = record.latency_s - record.ttft_s
    high = min(high, decode_s)
    parts = (
        LatencyPart(name="other requests' prefill", time_s=high, low_s=min(low, high), high_s=high),
        LatencyPart(name="decode", time_s=decode_s - high, low_s=decode_s - high, high_s=decode_s - min(low, high)),
        LatencyPart(name="before the first token", time_s=record.ttft_s, low_s=record.ttft_s, high_s=record.ttft_s),
    )
    return BoundedRequest(parts=parts, taken_s=dict(taken), longest_gap=_longest_gap(record, waits))


def _comes_with(other: RequestRecord, start_s: float, end_s: float) -> bool:
    """Whether the first token of the other request arrived as that which ended the gap did."""
    first = other.started_s + (other.ttft_s or 0.0)
    return abs(first - end_s) <= max(SAME_STEP_S, SAME_STEP_SHARE * (end_s - start_s))


def _longest_gap(record: RequestRecord, waits: Sequence[Sequence[RequestRecord]]) -> LongestGap | None:
    if not record.gaps_s:
        return None
    place = max(range(len(record.gaps_s)), key=record.gaps_s.__getitem__)
    most = max(waits[place], key=lambda other: other.prompt_tokens or 0, default=None)
    return LongestGap(time_s=record.gaps_s[place], token=place + 2, request=None if most is None else most.index)
