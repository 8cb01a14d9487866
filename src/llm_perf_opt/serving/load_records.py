"""What is kept of a load: every request as it ended, and the level they belong to."""

from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.serving.client.lag import LoopLag
from llm_perf_opt.serving.counters import CounterSample
from llm_perf_opt.serving.serving_config import LoadLevel

RequestStatus = Literal["ok", "failed", "unfinished"]


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """The result of one request. Times are seconds; `started_s` counts from the start of the load.

    `gaps_s` are the times between one token's arrival and the next. `counted_by` is `usage` where the server reported
    the number of tokens, else `events`. `late_s` is how long after its scheduled time the request was sent. `is_ramp`:
    sent while the load was still growing, and not part of the figures. `turn` counts the requests of a session.
    `request_id` is the id that was sent with it.
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
    late_s: float | None = None
    turn: int = 0
    is_ramp: bool = False
    request_id: str | None = None


@dataclass(kw_only=True)
class LoadRun:
    """One level while it runs, and its records. `stopped` is why it ended early.

    `duration_s` counts from the end of the ramp-up to `ended_s` after the start. `client_cpu_s` is the CPU time of the
    busiest of `processes` client processes, `lag` how late their event loops were. `begun_s` is the start of the load
    on the monotonic clock, which all processes of a machine share. `cut_short` is why a search did not continue with
    it.
    """

    level: LoadLevel
    records: list[RequestRecord] = field(default_factory=list)
    counters: list[CounterSample] = field(default_factory=list)
    duration_s: float = 0.0
    ended_s: float | None = None
    begun_s: float | None = None
    client_cpu_s: float = 0.0
    lag: LoopLag | None = None
    processes: int = 1
    stopped: str | None = None
    cut_short: str | None = None
