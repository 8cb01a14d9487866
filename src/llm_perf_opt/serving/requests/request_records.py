"""Steps of an engine as it wrote them, and the document that explains slow requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

SLOW_FILE = "slow_requests.json"
Part = Literal[
    "queue",
    "own prefill",
    "other requests' prefill",
    "decode",
    "host and scheduler",
    "network and client",
    "before the first token",
]
# In the order of a request's life. The last one stands for queue and prefill where they cannot be separated.
PARTS: tuple[Part, ...] = (
    "queue",
    "own prefill",
    "other requests' prefill",
    "decode",
    "host and scheduler",
    "network and client",
    "before the first token",
)
Method = Literal["steps", "arrival times"]
Work = Literal["kernels", "operators"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """Tokens of one request in one step. `computed` tokens of its prompt were there before; `sampled` came out."""

    request: int
    tokens: int
    computed: int
    sampled: int


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """A request as the engine knows it. `client_id` is the id our client sent, None for requests of others.

    `arrived_s` is when the server's front end took it, `added_s` when its scheduler did.
    """

    number: int
    client_id: str | None
    prompt_tokens: int
    arrived_s: float
    added_s: float


@dataclass(frozen=True, kw_only=True)
class EngineStep:
    """One step: its scheduling takes `begin_s` to `scheduled_s`; its results are taken from `update_s` to `done_s`."""

    number: int
    begin_s: float
    scheduled_s: float
    update_s: float
    done_s: float
    work: tuple[StepWork, ...]

    @cached_property
    def by_request(self) -> Mapping[int, StepWork]:
        return {work.request: work for work in self.work}


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """All steps that one engine process wrote, in the order in which they ended. Times: the monotonic clock."""

    engine: str
    version: str
    requests: tuple[EngineRequest, ...]
    steps: tuple[EngineStep, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def prompts(self) -> Mapping[int, int]:
        return {request.number: request.prompt_tokens for request in self.requests}

    def prefill_tokens(self, work: StepWork) -> int:
        """How many of the step's tokens belong to the prompt."""
        return max(0, min(work.tokens, self.prompts.get(work.request, 0) - work.computed))


@dataclass(frozen=True, kw_only=True)
class StepRange:
    """Consecutive steps, by the numbers they have in the file of steps."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class StepKernel:
    """A kernel in some steps, or an operator without those inside it where a capture holds no kernels."""

    name: str
    time_s: float
    count: int


@dataclass(frozen=True, kw_only=True)
class CapturedSteps:
    """The capture whose `work` was assigned to steps, by its path in the run directory.

    It recorded work in `steps` of them; `inside_share` of the work's time lies within steps.
    """

    file: str
    work: Work
    steps: int
    inside_share: float


@dataclass(frozen=True, kw_only=True)
class LatencyPart:
    """One part of a request's end-to-end time.

    `shared_s` is the time of it in steps with tokens of other requests. `low_s` and `high_s` bound it where arrival
    times alone are known; they are None where it was measured. `kernels` took longest in its steps, where a capture of
    them is known; all of them together took `kernels_s`.
    """

    name: Part
    time_s: float
    shared_s: float = 0.0
    low_s: float | None = None
    high_s: float | None = None
    steps: tuple[StepRange, ...] = ()
    kernels: tuple[StepKernel, ...] = ()
    kernels_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Delay:
    """Time that the prefill of request `request` added to another one, or to `victims` of them."""

    request: int
    prompt_tokens: int | None
    time_s: float
    victims: int = 1
    steps: tuple[StepRange, ...] = ()
    kernels: tuple[StepKernel, ...] = ()
    kernels_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class LongestGap:
    """The longest time between two tokens of a request: it ended with token `token`, made in step `step`.

    `prefill_tokens` of other requests were in the steps of the gap; most of them belong to `request`.
    """

    time_s: float
    token: int
    step: int | None = None
    prefill_tokens: int | None = None
    request: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExplainedRequest:
    """One request and the parts of its time, which sum to `e2e_s`. `delayed_by` lists other requests, worst first."""

    index: int
    request_id: str | None
    started_s: float
    e2e_s: float
    ttft_s: float
    prompt_tokens: int | None
    output_tokens: int
    method: Method
    parts: tuple[LatencyPart, ...]
    delayed_by: tuple[Delay, ...] = ()
    longest_gap: LongestGap | None = None

    @property
    def largest(self) -> LatencyPart:
        return max(self.parts, key=lambda part: part.time_s)


@dataclass(frozen=True, kw_only=True)
class MatchRate:
    """How much of what the engine wrote belongs to requests of this client, and how many of their tokens to a step."""

    steps: int
    matched_steps: int
    tokens: int
    matched_tokens: int

    @property
    def steps_share(self) -> float | None:
        return self.matched_steps / self.steps if self.steps else None

    @property
    def tokens_share(self) -> float | None:
        return self.matched_tokens / self.tokens if self.tokens else None


@dataclass(frozen=True, kw_only=True)
class SlowLevel:
    """The slowest requests of one level, and the requests of it that delayed others most.

    `captured` is the capture that its kernels come from, None where none covers it.
    """

    level: str
    label: str
    method: Method
    match: MatchRate | None
    slowest: tuple[ExplainedRequest, ...]
    delays: tuple[Delay, ...]
    notes: tuple[str, ...] = ()
    captured: CapturedSteps | None = None


@dataclass(frozen=True, kw_only=True)
class SlowDocument:
    """`slow_requests.json`. `engine` and `version` are those of the server whose steps were recorded, if any were."""

    engine: str | None = None
    version: str | None = None
    levels: tuple[SlowLevel, ...] = ()
    notes: tuple[str, ...] = ()
    schema_version: Literal[1] = 1
