"""The line between `optimize` and its workers: one JSON object a line over a socket, a question and its answer."""

from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.optimize.optimize_document import Agreement

# The path of the socket, for the worker.
SOCKET = "LLM_PERF_OPTIMIZE_SOCKET"


@dataclass(frozen=True, kw_only=True)
class WorkerAsk:
    """`pass`: every planned sample once. `reference`, `check`: outputs, into or against a file."""

    do: Literal["pass", "reference", "check", "end"]
    number: int = 0
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerReady:
    """What is known once a model is loaded, prepared and warm."""

    device: str
    device_name: str
    dtype: str
    load_s: float
    compile_s: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PassSample:
    """One sample of a pass; `tokens_per_s` are those of all sequences over the whole request."""

    sample_id: str
    ttft_ms: float
    tpot_ms: float | None
    tokens: int
    request_ms: float
    peak_memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was requested; `ready` is sent without being asked."""

    ready: WorkerReady | None = None
    samples: tuple[PassSample, ...] = ()
    agreement: Agreement | None = None
    error: str | None = None
