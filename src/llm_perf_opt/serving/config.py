"""What `llm-perf bench` can be told: the server, the load and the capture."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from annotated_types import Ge, Interval, MinLen

from llm_perf_opt.config.schema import FORBID_UNKNOWN, PositiveInt, Problem, Seconds

PositiveFloat = Seconds
ADDRESS_FLAGS = ("--host", "--port")


@dataclass(frozen=True, kw_only=True)
class ServerSection:
    """`server.*`: a server to start, or the address of one that runs.

    In `command`, `{args}` stands for `args`, `{host}` and `{port}` for the address. `env_passthrough` are names of
    variables, or beginnings of them with a `*`. `model` None: the first one the server lists, or with `model_from` args
    the one it was started with.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    name: str
    url: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_passthrough: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: Annotated[int, Interval(ge=1, le=65535)] | None = None
    model: str | None = None
    model_from: Literal["list", "args"] = "list"
    api_key_env: str | None = None
    ready_path: str = "/health"
    ready_timeout_s: Seconds = 600.0
    end_timeout_s: Seconds = 15.0
    metrics_path: str | None = "/metrics"
    ignore_eos: bool = False
    profile_args: tuple[str, ...] = ()
    profile_body: Mapping[str, Any] = field(default_factory=dict)

    def problems(self) -> tuple[Problem, ...]:
        found = []
        if self.url is None and not self.command:
            text = "needed because no server is started, allowed: http://127.0.0.1:8000, or server=vllm to start one"
            found.append(Problem(key="server.url", text=text))
        if self.url is not None:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                text = f"not an address (got {self.url!r}), allowed: such as http://127.0.0.1:8000"
                found.append(Problem(key="server.url", text=text))
            if self.command:
                text = (
                    f"names a server that runs, and server.command (of server={self.name}) starts one, allowed: one of "
                    "the two; server.ignore_eos=true says of one that runs that it understands this key of a request"
                )
                found.append(Problem(key="server.url", text=text))
            elif self.args:
                text = "nothing is started where server.url names a server that runs, allowed: one of the two"
                found.append(Problem(key="server.args", text=text))
        for flag in ADDRESS_FLAGS:
            if any(word.partition("=")[0] == flag for word in self.args):
                text = f"holds {flag}, which is set by us, allowed: server.{flag.removeprefix('--')}=…"
                found.append(Problem(key="server.args", text=text))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class SloSection:
    """`load.slo.*`: what a good request keeps to, in milliseconds; None: no limit."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    ttft_ms: PositiveFloat | None = None
    tpot_ms: PositiveFloat | None = None
    e2el_ms: PositiveFloat | None = None

    @property
    def is_set(self) -> bool:
        return any(limit is not None for limit in (self.ttft_ms, self.tpot_ms, self.e2el_ms))


@dataclass(frozen=True, kw_only=True)
class LoadSection:
    """`load.*`: how much, for how long, and when to give up. Several rates or concurrencies are a sweep.

    `requests` and `duration_s` bound each level: whichever is reached first ends it; what is under way then has
    `drain_s` to finish. `stall_s` is the longest a stream may be silent. More than `max_failed_share` of failed
    requests fail the run.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    rate: Annotated[tuple[PositiveFloat, ...], MinLen(1)] | None = None
    concurrency: Annotated[tuple[PositiveInt, ...], MinLen(1)] | None = None
    arrival: Literal["poisson", "constant"] = "poisson"
    requests: PositiveInt = 1000
    duration_s: Seconds = 60.0
    drain_s: Seconds = 60.0
    stall_s: Seconds = 60.0
    warmup_requests: Annotated[int, Ge(0)] = 2
    api: Literal["completions", "chat"] = "completions"
    output_tokens: PositiveInt = 128
    ignore_eos: bool = True
    temperature: Annotated[float, Ge(0.0)] = 0.0
    seed: Annotated[int, Ge(0)] = 0
    max_failed_share: Annotated[float, Interval(ge=0.0, le=1.0)] = 0.05
    slo: SloSection = field(default_factory=SloSection)

    def problems(self) -> tuple[Problem, ...]:
        if self.rate is None or self.concurrency is None:
            return ()
        text = "load.rate sends at a rate, whatever is under way, allowed: one of the two"
        return (Problem(key="load.concurrency", text=text),)

    def levels(self) -> tuple["LoadLevel", ...]:
        """What is measured one after the other."""
        if self.rate is not None:
            return tuple(LoadLevel(rate=rate) for rate in self.rate)
        return tuple(LoadLevel(concurrency=count) for count in self.concurrency or (1,))


@dataclass(frozen=True, kw_only=True)
class LoadLevel:
    """One load: requests at a rate, or so many at once."""

    rate: float | None = None
    concurrency: int | None = None

    @property
    def label(self) -> str:
        return f"{self.rate:g} requests/s" if self.rate is not None else f"{self.concurrency} at once"

    @property
    def key(self) -> str:
        return f"rate={self.rate:g}" if self.rate is not None else f"concurrency={self.concurrency}"


@dataclass(frozen=True, kw_only=True)
class WindowSection:
    """`capture.*`: a profiler's look at the server under the last level's load, apart from the measured ones."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    tool: Literal["none", "nsys", "engine"] = "none"
    duration_s: Seconds = 10.0
    trace: str = "cuda,nvtx,osrt"
    keep_report: bool = False
    timeout_s: Seconds = 600.0
