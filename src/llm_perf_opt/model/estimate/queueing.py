"""Requests that share one engine: what they wait for each other, and how long they take.

An engine works on what is in flight in iterations: one token for every request that decodes, and the prompts of new
requests up to a budget of tokens. Two loads are answered: a constant number of requests in flight (closed: each one
that ends is followed by the next), or so many that arrive per second (open: arrivals do not wait for each other).

Little's law holds in every answer: requests in flight = requests per second · seconds of a request.
"""

import math
from dataclasses import dataclass
from typing import Protocol

TAIL = 0.95
# Iterations that are still growing after this many rounds are unstable.
MOST_ROUNDS = 200
MOST_SEQUENCES = 100_000


class EnginePace(Protocol):
    """How long one engine takes for tokens and prompts."""

    @property
    def arrival_ms(self) -> float:
        """What delays a request's first token without keeping the engine busy."""
        ...

    @property
    def own_prompt_ms(self) -> float:
        """A prompt alone."""
        ...

    @property
    def most_together(self) -> int:
        """The most prompts in one iteration."""
        ...

    def together(self, sequences: int) -> int:
        """Prompts per iteration at this concurrency."""
        ...

    def others_prompt_ms(self, sequences: int) -> float:
        """How long another request's prompt holds up this one."""
        ...

    def prompt_ms_each(self, together: int, sequences: int) -> float:
        """The time of a prompt when an iteration has this many."""
        ...

    def step_ms(self, sequences: int) -> float:
        """The time of a decode step of this many sequences."""
        ...


@dataclass(frozen=True, kw_only=True)
class LoadTimes:
    """Milliseconds. `ttft_ms` is the median; `ttft_p95_ms` of a closed load is of requests that start together."""

    ttft_ms: float
    ttft_p95_ms: float
    tpot_ms: float
    request_ms: float


def closed_load(pace: EnginePace, sequences: int, *, output: int, places: int | None) -> LoadTimes:
    """A constant number of requests in flight on one engine with `places` slots."""
    admitted = sequences if places is None else max(1, min(sequences, places))
    step, prompt = pace.step_ms(admitted), pace.others_prompt_ms(admitted)
    alone = pace.arrival_ms + pace.own_prompt_ms
    # In the time of one request every other one has its prompt worked in once, whoever waits for it.
    decode = (output - 1) * step
    cycle = alone + (admitted - 1) * prompt + decode
    together = pace.together(admitted)
    first = cycle - decode
    if output > 1 and admitted > 1:
        # Requests that started together end together, so the next ones arrive together, behind a step that has begun.
        first = min(first, alone + (together - 1) * prompt + 2 * step)
    rounds = math.ceil(math.ceil(TAIL * admitted) / together)
    tail = alone + (min(admitted, rounds * together) - 1) * prompt + (rounds - 1) * step / 2
    waiting = (sequences - admitted) * cycle / admitted
    return LoadTimes(
        ttft_ms=first + waiting,
        ttft_p95_ms=max(first, tail) + waiting,
        tpot_ms=step if output == 1 else (cycle - first) / (output - 1),
        request_ms=sequences / admitted * cycle,
    )


def open_load(
    pace: EnginePace, per_ms: float, *, output: int, places: int | None, burstiness: float = 1.0
) -> LoadTimes | None:
    """Arrivals per millisecond at one engine. None: more than it can keep up with.

    Prompts that arrive during one iteration go into the next one (gated service). An arrival waits for the rest of an
    iteration, which is a long one more often than not, and takes part in the next; benchmarks/queueing.py holds this
    against a simulation. `burstiness`: the shape of gamma-distributed gaps.
    """
    found = _iterations(pace, per_ms, output=output, places=places)
    if found is None:
        return None
    most = pace.most_together
    # How full the prompts' budget is: beyond 1 they pile up.
    share = per_ms * (found.step_ms / most + pace.prompt_ms_each(most, found.sequences))
    if share >= 1:
        return None
    prompt, variation = found.prompt_ms, 1 / burstiness
    spread = prompt**2 * per_ms * found.ms * variation / max(1e-9, 1 - (per_ms * prompt) ** 2)
    met = found.ms + spread / found.ms
    full = share**most * (found.step_ms + most * prompt) * (1 + variation) / 2 / most / (1 - share) / 2
    busy = min(1.0, found.decoding)
    start = pace.arrival_ms + pace.own_prompt_ms
    own = busy * (found.step_ms + prompt * per_ms * met)
    long = met + math.sqrt(spread)
    mean = start + own + busy * met / 2 + full
    median = start + busy * (found.step_ms + prompt * per_ms * found.ms + found.ms / 2) + full / 2
    tail = start + busy * (found.step_ms + prompt * per_ms * long + TAIL * long) + full * math.log(1 / (1 - TAIL))
    return LoadTimes(
        ttft_ms=median,
        ttft_p95_ms=max(median, tail),
        tpot_ms=found.ms,
        request_ms=mean + (output - 1) * found.ms,
    )


@dataclass(frozen=True, kw_only=True)
class _Iterations:
    """An engine's iterations at a steady rate of arrivals.

    `ms` of the mean one, `step_ms` of it without prompts; `prompt_ms` of each prompt in it; `decoding` requests, for
    which `step_ms` was taken of `sequences`.
    """

    ms: float
    step_ms: float
    prompt_ms: float
    decoding: float
    sequences: int


def _iterations(pace: EnginePace, per_ms: float, *, output: int, places: int | None) -> _Iterations | None:
    """Iterations at this arrival rate per millisecond. None: unstable, or beyond the slots available."""
    most = places or MOST_SEQUENCES
    step = length = pace.step_ms(1)
    for _ in range(MOST_ROUNDS):
        decoding = per_ms * max(1, output - 1) * length
        sequences = max(1, math.ceil(decoding))
        if sequences > most:
            return None
        together = min(float(pace.most_together), max(1.0, per_ms * length))
        few, part = int(together), together % 1
        prompt = pace.prompt_ms_each(few, sequences)
        if part:
            prompt += part * (pace.prompt_ms_each(few + 1, sequences) - prompt)
        step = pace.step_ms(sequences)
        busy = per_ms * prompt
        if busy >= 1 and together == pace.most_together:
            return None
        # More prompts go together in a longer iteration, until each takes little enough.
        after = step / (1 - busy) if busy < 1 else 2 * length
        if abs(after - length) <= 1e-3 * length:
            return _Iterations(ms=after, step_ms=step, prompt_ms=prompt, decoding=decoding, sequences=sequences)
        length = after
    return None
