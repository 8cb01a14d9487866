"""What a client process is given, and what it sends back: frames of a kind and its data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from llm_perf_opt.serving.client.lag import LoopLag
from llm_perf_opt.serving.client.request import RequestTemplate
from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection
from llm_perf_opt.serving.traffic.sessions import Traffic
from llm_perf_opt.system.redact import Redactor

READY, RECORDS, ENDED, GO, STOP = b"y", b"r", b"e", b"g", b"s"


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of a level that process `number` of `processes` sends.

    `arrivals` are the sessions of an open loop with the seconds at which they start.
    """

    number: int
    processes: int
    url: str
    headers: Mapping[str, str]
    template: RequestTemplate
    traffic: Traffic
    load: LoadSection
    level: LoadLevel
    arrivals: Sequence[tuple[int, float]]
    redactor: Redactor

    @property
    def streams(self) -> int:
        """The concurrency of this process in a closed loop."""
        return len(range(self.number, self.level.concurrency or 1, self.processes))


@dataclass(frozen=True, kw_only=True)
class ShareSummary:
    """How a share ended. `left` requests were under way when its time was over; `error` is a fault of ours."""

    worked_s: float
    cpu_s: float
    lag: LoopLag | None
    left: int = 0
    is_over_time: bool = False
    error: str | None = None


def frame(kind: bytes, value: Any = None) -> bytes:
    return kind + msgspec.msgpack.encode(value)


def read_records(data: bytes) -> list[RequestRecord]:
    return msgspec.msgpack.decode(data[1:], type=list[RequestRecord])


def read_summary(data: bytes) -> ShareSummary:
    return msgspec.msgpack.decode(data[1:], type=ShareSummary)


def read_start(data: bytes) -> float:
    return msgspec.msgpack.decode(data[1:], type=float)
