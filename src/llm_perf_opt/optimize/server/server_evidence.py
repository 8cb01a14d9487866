"""What a load shows that makes an option worth trying: queue, cache, an idle GPU, no batch, spikes between tokens."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.units import digits
from llm_perf_opt.optimize.server.server_document import LoadObservation

# By id, as the choices of a space name them (`when`).
EVIDENCE: Mapping[str, str] = {
    "preemptions": "the engine preempted or retracted requests, because its KV cache was full",
    "full_kv_cache": "the KV cache was nearly full",
    "queue": "requests waited in the engine",
    "capped_batch": "requests waited although the KV cache had room: the limit of sequences or tokens holds them back",
    "queue_idle_gpu": "requests waited while the GPU was idle",
    "idle_gpu": "the GPU was idle during the load",
    "one_at_a_time": "the server answered one request after the other",
    "prefill_spikes": "tokens of a stream were late while the prompt of another request was processed",
    "slow_ttft": "of the limits TTFT is missed most",
    "slow_tpot": "of the limits TPOT is missed most",
    "unobserved": "neither the engine nor the GPU reports what limits the load",
}
FULL_CACHE = 0.9
# A request that waits on average; less is the moment before it is scheduled.
WAITING = 1.0
# Of the time. A saturated server keeps a GPU busy nearly always; NVML's utilisation counts any kernel as busy.
IDLE_GPU = 0.8
# Requests that receive tokens at the same time, on average, and those under way meanwhile.
ONE_STREAM, SEVERAL = 1.1, 2.0
# A gap this many times the median one is a spike.
SPIKE = 3.0
# Spikes are named where they take this share of all time between tokens, and prefills of others explain half of them.
SPIKE_SHARE, BY_PREFILL = 0.05, 0.5


@dataclass(frozen=True, kw_only=True)
class StreamedRequest:
    """When a request was sent, its first token came, and the gaps to each token after it, in seconds."""

    started_s: float
    ttft_s: float
    gaps_s: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How many requests were under way, and how many of them between their first and their last token, on average."""

    under_way: float
    streaming: float


@dataclass(frozen=True, kw_only=True)
class LoadFacts:
    """What is known of one load; None where it is not reported.

    `missed` is the limit the requests missed most, `gpu_busy` a share of the time.
    """

    preemptions: float | None = None
    kv_cache_most: float | None = None
    waiting_mean: float | None = None
    gpu_busy: float | None = None
    missed: str | None = None
    requests: tuple[StreamedRequest, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SpikeShare:
    """Spikes between tokens: their share of all time between tokens, and that of them with a prefill in their time."""

    of_time: float
    with_prefill: float
    count: int


def observations(facts: LoadFacts) -> tuple[LoadObservation, ...]:
    """What the load shows, by id, with the numbers behind it."""
    found: dict[str, str] = {}
    if facts.preemptions:
        found["preemptions"] = f"{facts.preemptions:.0f} preemptions"
    if facts.kv_cache_most is not None and facts.kv_cache_most >= FULL_CACHE:
        found["full_kv_cache"] = f"KV cache use up to {100 * facts.kv_cache_most:.0f} %"
    waits = facts.waiting_mean is not None and facts.waiting_mean >= WAITING
    idles = facts.gpu_busy is not None and facts.gpu_busy < IDLE_GPU
    if waits and facts.waiting_mean is not None:
        found["queue"] = f"{digits(facts.waiting_mean)} requests waiting on average"
        if facts.kv_cache_most is not None and facts.kv_cache_most < FULL_CACHE:
            found["capped_batch"] = f"{found['queue']}, KV cache use at most {100 * facts.kv_cache_most:.0f} %"
    if idles and facts.gpu_busy is not None:
        found["idle_gpu"] = f"the GPU was busy {100 * facts.gpu_busy:.0f} % of the time"
        if waits:
            found["queue_idle_gpu"] = f"{found['queue']}, {found['idle_gpu']}"
    overlap = overlap_of(facts.requests)
    if overlap is not None and overlap.streaming <= ONE_STREAM and overlap.under_way >= SEVERAL:
        found["one_at_a_time"] = (
            f"of {digits(overlap.under_way)} requests under way {digits(overlap.streaming)} received tokens, on average"
        )
    spikes = prefill_spikes(facts.requests)
    if spikes is not None and spikes.of_time >= SPIKE_SHARE and spikes.with_prefill >= BY_PREFILL:
        found["prefill_spikes"] = (
            f"{spikes.count} gaps of more than {SPIKE:g} times the median take {100 * spikes.of_time:.0f} % of the "
            f"time between tokens, {100 * spikes.with_prefill:.0f} % of them while a prompt was processed"
        )
    if facts.missed in ("ttft", "tpot"):
        found[f"slow_{facts.missed}"] = f"{facts.missed.upper()} is the limit that most requests miss"
    if facts.waiting_mean is None and facts.gpu_busy is None:
        found["unobserved"] = "no counters of the engine and no utilisation of a GPU"
    return tuple(LoadObservation(id=name, text=text) for name, text in found.items())


def overlap_of(requests: Sequence[StreamedRequest]) -> Overlap | None:
    """Without requests of one token, whose stream has no length; None where no time can be seen."""
    seen = [one for one in requests if one.gaps_s]
    begin = min((one.started_s for one in seen), default=0.0)
    end = max((one.started_s + one.ttft_s + sum(one.gaps_s) for one in seen), default=0.0)
    if end <= begin:
        return None
    streaming = sum(sum(one.gaps_s) for one in seen) / (end - begin)
    return Overlap(under_way=streaming + sum(one.ttft_s for one in seen) / (end - begin), streaming=streaming)


def prefill_spikes(requests: Sequence[StreamedRequest]) -> SpikeShare | None:
    """How much of the time between tokens is spikes, and in how many of them another request awaited its first token.

    A step that holds a prefill ends with the first token of that request: a spike counts as explained where the first
    token of another request came within it, or at its end.
    """
    gaps = sorted(gap for request in requests for gap in request.gaps_s)
    if len(gaps) < 20:
        return None
    limit = SPIKE * gaps[len(gaps) // 2]
    firsts = sorted(request.started_s + request.ttft_s for request in requests)
    spent = 0.0
    count = within = 0
    for request in requests:
        at = request.started_s + request.ttft_s
        for gap in request.gaps_s:
            begin, at = at, at + gap
            if gap <= limit:
                continue
            count += 1
            spent += gap
            # A tenth of the gap covers tokens that leave one step a moment apart.
            if _any_within(firsts, begin + 0.1 * gap, at + 0.1 * gap):
                within += 1
    total = sum(gaps)
    if not count or total <= 0:
        return SpikeShare(of_time=0.0, with_prefill=0.0, count=0)
    return SpikeShare(of_time=spent / total, with_prefill=within / count, count=count)


def _any_within(values: Sequence[float], low: float, high: float) -> bool:
    at = bisect_left(values, low)
    return at < len(values) and values[at] <= high
