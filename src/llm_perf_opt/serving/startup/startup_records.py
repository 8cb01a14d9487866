"""The document about a server's start: time by purpose, marks of its log, memory by purpose."""

from dataclasses import dataclass
from typing import Literal

STARTUP_FILE = "startup.json"
Purpose = Literal[
    "process creation",
    "imports",
    "configuration",
    "weights",
    "compile",
    "autotune",
    "graph capture",
    "KV cache allocation",
    "warm-up",
    "engine set-up",
    "HTTP server",
    "waiting",
    "other",
]
# Time that is not explained: no process works, or no rule knows the stack of the one that does.
UNEXPLAINED: tuple[Purpose, ...] = ("waiting", "other")
MemoryPurpose = Literal["weights", "KV cache", "activations", "graphs"]


@dataclass(frozen=True, kw_only=True)
class StartupPart:
    """Time of one purpose on the critical path, the processes that share it, and its most frequent function."""

    purpose: Purpose
    time_s: float
    processes: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class StartupSpan:
    """A stretch of the critical path: from `start_s` on, after the server was started."""

    purpose: Purpose
    process: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class MemoryRow:
    """Memory of one purpose. `measured_bytes` is what the server's log says, `predicted_bytes` what its files say."""

    purpose: MemoryPurpose
    measured_bytes: int | None = None
    predicted_bytes: int | None = None
    how: str = ""


@dataclass(frozen=True, kw_only=True)
class StartupDocument:
    """`startup.json`. `parts` sum to `ready_s`; without samples there are none, and `notes` says why."""

    engine: str
    ready_s: float
    sampler: str | None = None
    parts: tuple[StartupPart, ...] = ()
    path: tuple[StartupSpan, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    notes: tuple[str, ...] = ()
    schema_version: Literal[1] = 1

    @property
    def attributed(self) -> float | None:
        """The share of the time with a purpose."""
        if not self.parts:
            return None
        return sum(part.time_s for part in self.parts if part.purpose not in UNEXPLAINED) / self.ready_s
