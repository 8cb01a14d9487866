"""The configuration of `llm-perf bench`: the server, the load, the traffic and the capture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
            if not is_address(self.url):
                text = f"not an address (got {self.url!r}), allowed: such as http://127.0.0.1:8000 or http://[::1]:8000"
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


def is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        # A port that is not a number, or half of a bracket of IPv6.
        return False


@dataclass(frozen=True, kw_only=True)
class SloSection:
    """`load.slo.*`: limits of a good request in milliseconds (None: no limit), and the share of requests to be good.

    A level meets the SLO when at least `share` of its requests keep to every limit.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    ttft_ms: PositiveFloat | None = None
    tpot_ms: PositiveFloat | None = None
    e2el_ms: PositiveFloat | None = None
    share: Annotated[float, Interval(gt=0.0, le=1.0)] = 0.9

    @property
    def is_set(self) -> bool:
        return any(limit is not None for limit in (self.ttft_ms, self.tpot_ms, self.e2el_ms))

    @property
    def text(self) -> str:
        """`TTFT ≤ 200 ms, TPOT ≤ 30 ms`."""
        limits = {"TTFT": self.ttft_ms, "TPOT": self.tpot_ms, "E2EL": self.e2el_ms}
        return ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in limits.items() if limit is not None)


@dataclass(frozen=True, kw_only=True)
class LoadSection:
    """`load.*`: how much, for how long, and when to give up. Several rates or concurrencies are a sweep.

    `requests` and `duration_s` bound each level: whichever is reached first ends it; requests under way then have
    `drain_s` to finish. The load grows to its level during `ramp_up_s`; requests of that time are not counted.
    `stall_s` is the longest a stream may be silent. More than `max_failed_share` of failed requests fail the run.
    `search` finds the highest rate or concurrency that meets `slo` instead of given levels. `max_concurrency` limits
    the requests under way at a rate. `processes` None: as many as the level needs.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    rate: Annotated[tuple[PositiveFloat, ...], MinLen(1)] | None = None
    concurrency: Annotated[tuple[PositiveInt, ...], MinLen(1)] | None = None
    arrival: Literal["poisson", "gamma", "constant", "recorded"] = "poisson"
    burstiness: PositiveFloat = 1.0
    ramp_up_s: Annotated[float, Ge(0.0)] = 0.0
    max_concurrency: PositiveInt | None = None
    processes: Annotated[int, Interval(ge=1, le=256)] | None = None
    search: Literal["none", "capacity"] = "none"
    search_by: Literal["rate", "concurrency"] = "rate"
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
        found = []
        if self.rate is not None and self.concurrency is not None:
            text = "load.rate ignores requests in flight, allowed: one of the two, or load.max_concurrency"
            found.append(Problem(key="load.concurrency", text=text))
        if self.concurrency is not None and self.max_concurrency is not None:
            text = "limits the requests under way at a rate, allowed: load.rate with it, or load.concurrency alone"
            found.append(Problem(key="load.max_concurrency", text=text))
        if self.search == "capacity":
            found += self._search_problems()
        if self.arrival == "recorded" and self.ramp_up_s:
            found.append(Problem(key="load.ramp_up_s", text="recorded arrivals have no ramp-up, allowed: 0"))
        return tuple(found)

    def _search_problems(self) -> list[Problem]:
        found = []
        if not self.slo.is_set:
            text = "needs limits that the load has to meet, allowed: with load.slo.ttft_ms, tpot_ms or e2el_ms"
            found.append(Problem(key="load.search", text=text))
        if self.rate is not None or self.concurrency is not None or self.arrival == "recorded":
            text = "chooses the loads itself, allowed: without load.rate, load.concurrency and load.arrival=recorded"
            found.append(Problem(key="load.search", text=text))
        return found

    def levels(self) -> tuple["LoadLevel", ...]:
        """What is measured one after the other."""
        if self.rate is not None:
            return _counted([LoadLevel(rate=rate) for rate in self.rate])
        return _counted([LoadLevel(concurrency=count) for count in self.concurrency or (1,)])


@dataclass(frozen=True, kw_only=True)
class TrafficSection:
    """`traffic.*`: recorded traffic, or how synthetic requests hang together.

    `format` None: prompts come from `dataset`. `turns` are those of a synthetic session, or the most that are sent of a
    recorded one (None: all of them).
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    format: Literal["sharegpt", "mooncake", "otel", "jsonl"] | None = None
    path: str | None = None
    turns: PositiveInt | None = 1
    think_s: Annotated[float, Ge(0.0)] = 0.0
    shared_prefix_tokens: Annotated[int, Ge(0)] = 0
    shared_prefix_groups: PositiveInt = 1
    images: Annotated[int, Interval(ge=0, le=64)] = 0
    image_size: Annotated[int, Interval(ge=16, le=4096)] = 512

    def problems(self, load: LoadSection) -> tuple[Problem, ...]:
        found = []
        if (self.format is None) != (self.path is None):
            text = f"needs traffic.path too (got {self.format} and {self.path}), allowed: both or none"
            found.append(Problem(key="traffic.format", text=text))
        if self.images and load.api != "chat":
            found.append(Problem(key="traffic.images", text="only a chat has images, allowed: load.api=chat"))
        if load.arrival == "recorded" and self.format not in ("mooncake", "otel", "jsonl"):
            text = "needs recorded times, allowed: traffic.format=mooncake, otel or jsonl"
            found.append(Problem(key="load.arrival", text=text))
        if load.arrival == "recorded" and load.concurrency is not None:
            text = "recorded arrivals are sent at their times, allowed: load.rate, or neither for the recorded rate"
            found.append(Problem(key="load.concurrency", text=text))
        if self.format is None and self.turns is None:
            found.append(Problem(key="traffic.turns", text="a synthetic session needs a number of turns"))
        for name in ("shared_prefix_tokens", "images", "think_s"):
            if self.format is not None and getattr(self, name):
                found.append(
                    Problem(key=f"traffic.{name}", text="only for synthetic prompts, allowed: traffic.format=null")
                )
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class LoadLevel:
    """One load: requests at a rate, or at a concurrency. `repeat` counts the measurements of the same load."""

    rate: float | None = None
    concurrency: int | None = None
    repeat: int = 1

    @property
    def label(self) -> str:
        load = f"{self.rate:g} requests/s" if self.rate is not None else f"concurrency {self.concurrency}"
        return load if self.repeat == 1 else f"{load}, repeat {self.repeat}"

    @property
    def key(self) -> str:
        load = f"rate={self.rate:g}" if self.rate is not None else f"concurrency={self.concurrency}"
        return load if self.repeat == 1 else f"{load};repeat={self.repeat}"


def _counted(levels: Sequence[LoadLevel]) -> tuple[LoadLevel, ...]:
    """A load that is given twice is measured twice."""
    return tuple(replace(one, repeat=1 + levels[:place].count(one)) for place, one in enumerate(levels))


@dataclass(frozen=True, kw_only=True)
class WindowSection:
    """`capture.*`: a profiler's look at the server under the last level's load, apart from the measured ones.

    `requests` slowest explains the slowest requests of the measured levels. `startup` explains the time until ready.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    tool: Literal["none", "nsys", "engine"] = "none"
    requests: Literal["none", "slowest"] = "none"
    startup: bool = False
    duration_s: Seconds = 10.0
    trace: str = "cuda,nvtx,osrt"
    cuda_graph_trace: Literal["node", "graph"] = "graph"
    keep_report: bool = False
    timeout_s: Seconds = 600.0
