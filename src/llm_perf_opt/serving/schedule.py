"""When requests are sent in an open loop: moments from a seed, independent of the server."""

import math
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection
from llm_perf_opt.serving.traffic.sessions import Traffic

Arrival = Literal["poisson", "gamma", "constant", "recorded"]


def levels_of(load: LoadSection, traffic: Traffic) -> tuple[LoadLevel, ...]:
    """The levels of a load; recorded arrivals without a rate are one level at the rate of the recording."""
    if load.arrival != "recorded" or load.rate is not None:
        return load.levels()
    moments = _moments(load, traffic)
    return (LoadLevel(rate=_recorded_rate(moments) or 1.0),)


def _moments(load: LoadSection, traffic: Traffic) -> list[float]:
    """When the sessions of a recording started, up to its end or to the number of requests."""
    moments: list[float] = []
    while len(moments) < load.requests:
        at = traffic.session(len(moments)).at_s
        if at is None or (moments and at < moments[-1]):
            # The end of the recording: the first session again.
            break
        moments.append(at)
    return moments


def _recorded_rate(moments: Sequence[float]) -> float | None:
    span = moments[-1] - moments[0] if moments else 0.0
    return (len(moments) - 1) / span if span > 0 else None


def session_arrivals(load: LoadSection, rate: float, traffic: Traffic) -> tuple[tuple[int, float], ...]:
    """The sessions of a level by number, each with the second it starts; a ramp-up comes before the level's time."""
    if load.arrival == "recorded":
        return _recorded(load, rate, traffic)
    ramp = ramp_times(rate, load.ramp_up_s)
    steady = arrival_times(
        rate,
        arrival=load.arrival,
        burstiness=load.burstiness,
        requests=load.requests,
        duration_s=load.duration_s,
        seed=load.seed,
    )
    times = [*ramp, *(load.ramp_up_s + at for at in steady)]
    found: list[tuple[int, float]] = []
    requests = 0
    for number, at in enumerate(times):
        if requests >= load.requests:
            break
        found.append((number, at))
        if at >= load.ramp_up_s:
            requests += len(traffic.session(number).turns) if traffic.most_turns > 1 else 1
    return tuple(found)


def ramp_times(rate: float, ramp_up_s: float) -> tuple[float, ...]:
    """Moments at which a rate that grows evenly from zero reaches one more request."""
    count = math.floor(rate * ramp_up_s / 2 + 1e-9)
    return tuple(ramp_up_s * math.sqrt(number / count) for number in range(count))


def _recorded(load: LoadSection, rate: float, traffic: Traffic) -> tuple[tuple[int, float], ...]:
    """The recorded moments, stretched so that their mean rate is the one asked for."""
    moments = _moments(load, traffic)
    own = _recorded_rate(moments)
    stretch = 0.0 if own is None else own / rate
    times = [(at - moments[0]) * stretch for at in moments]
    return tuple((number, at) for number, at in enumerate(times) if at <= load.duration_s)


def arrival_times(
    rate: float,
    *,
    arrival: Arrival,
    requests: int,
    duration_s: float,
    seed: int,
    burstiness: float = 1.0,
) -> tuple[float, ...]:
    """Seconds from the start; at most `requests` requests, none after the duration.

    Poisson: gaps are drawn from an exponential distribution; gamma: from a gamma distribution of shape `burstiness`
    (below 1: in bursts, above 1: evenly). They are stretched so that their mean is 1 / rate, as `vllm bench serve`
    does: an arrival process with a known number of arrivals. Without that, the load of a few hundred requests would
    differ from the requested rate by several percent. There is a gap before the first request too, else a short load
    would have a higher rate than requested. A duration in which less than one request is due sends one at once.
    """
    # Rounding must not lose a request: 0.29 * 100 is 28.999….
    count = math.floor(min(float(requests), rate * duration_s) + 1e-9)
    if count < 1:
        return (0.0,)
    draw = random.Random(seed)
    gaps = [1.0] * count
    if arrival == "poisson":
        gaps = [draw.expovariate(1.0) for _ in range(count)]
    elif arrival == "gamma":
        gaps = [draw.gammavariate(burstiness, 1.0 / burstiness) for _ in range(count)]
    stretch = count / rate / sum(gaps)
    return tuple(accumulate(gap * stretch for gap in gaps))
