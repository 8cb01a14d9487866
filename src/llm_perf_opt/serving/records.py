"""What is kept of a load: every request as it ended, and the level they belong to."""

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.serving.config import LoadLevel
from llm_perf_opt.serving.counters import CounterSample

RequestStatus = Literal["ok", "failed", "unfinished"]


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """What came of one request. Times are seconds; `started_s` counts from the start of the load.

    `gaps_s` are the times between one token's arrival and the next. `counted_by` is `usage` where the server said how
    many tokens there were, else `events`.
    """

    index: int
    started_s: float
    status: RequestStatus
    error: str | None = None
    ttft_s: float | None = None
    latency_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int = 0
    counted_by: Literal["usage", "events"] = "events"


@dataclass(kw_only=True)
class LoadRun:
    """One level while it runs, and what is left of it. `stopped` is why it ended early, `client_cpu_s` our own work."""

    level: LoadLevel
    records: list[RequestRecord] = field(default_factory=list)
    counters: list[CounterSample] = field(default_factory=list)
    duration_s: float = 0.0
    client_cpu_s: float = 0.0
    stopped: str | None = None
