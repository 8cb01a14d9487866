"""The rows of the tables of a capture; apart from numpy, so that what only reads them starts at once."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from llm_perf_opt.capture.kernels.names import distinct_short_names

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Counts = TypeVar("Counts", bound=DataclassInstance)

PUSH_POP, START_END = "push_pop", "start_end"


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One kernel name. `time_pct` is its share of the time of all kernels, as nsys counts it.

    Median and deviation are None where a summary of an older nsys does not have them.
    """

    name: str
    short_name: str
    kernel_class: str
    instances: int
    total_ns: int
    avg_ns: float
    med_ns: float | None
    min_ns: int
    max_ns: int
    stddev_ns: float | None
    time_pct: float


def ranked(kernels: Iterable[KernelRow]) -> tuple[KernelRow, ...]:
    """Kernels by total time, then by name, under short names that no two of them share."""
    rows = sorted(kernels, key=lambda row: (-row.total_ns, row.name))
    short = distinct_short_names([row.name for row in rows])
    return tuple(replace(row, short_name=name) for row, name in zip(rows, short, strict=True))


@dataclass(frozen=True, kw_only=True)
class CopyRow:
    """Copies or sets of one kind. `bytes_per_s` is over the time they took together, None where a size is unknown."""

    kind: str
    instances: int
    total_ns: int
    size_bytes: int | None
    avg_ns: float
    min_ns: int
    max_ns: int
    bytes_per_s: float | None = None

    @property
    def way(self) -> str:
        return copy_way(self.kind)


_WAYS = {"h2d": ("hosttodevice", "htod"), "d2h": ("devicetohost", "dtoh"), "d2d": ("devicetodevice", "dtod")}
_NOT_LETTERS = re.compile(r"[^a-z]")


@lru_cache(maxsize=256)
def copy_way(kind: str) -> str:
    """The way a copy takes and the host's memory, of its kind as any profiler writes it: `h2d.pageable`, `set`, …"""
    text = _NOT_LETTERS.sub("", kind.lower())
    if "unified" in text or "migration" in text:
        return "page_migration"
    if "set" in text and "to" not in text:
        return "set"
    if "peer" in text or "ptop" in text:
        return "peer"
    way = next((key for key, words in _WAYS.items() if any(word in text for word in words)), "other")
    memory = next((word for word in ("pageable", "pinned") if word in text), None)
    return f"{way}.{memory}" if memory and way in ("h2d", "d2h") else way


def summed(parts: "Sequence[Counts]") -> "Counts":
    """Records of counts and times as one: whole numbers are added, what else they have is that of the first."""
    numbers = [field.name for field in fields(parts[0]) if field.type is int]
    return replace(parts[0], **{name: sum(getattr(part, name) for part in parts) for name in numbers})


def rate(size_bytes: int | None, time_ns: int) -> float | None:
    """Bytes per second, where both are known."""
    return None if size_bytes is None or not time_ns else size_bytes / time_ns * 1e9


@dataclass(frozen=True, kw_only=True)
class CounterRow:
    """What the hardware counted while one kernel ran: sums over its instances, under the counters' own names.

    `flop` is made of the additions, multiplications and fused ones among them, None where these were not counted.
    """

    name: str
    short_name: str
    kernel_class: str
    instances: int
    counters: dict[str, float]
    flop: float | None


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Why the GPU was idle; the parts add up to `gpu_idle_ns`.

    `starting_ns` is the part of the time between kernels in which a GPU that had waited for the host starts,
    `long_gaps_ns` the part of the time waiting for the host that lies in gaps too long to be a launch's, `held_ns` the
    part of the synchronisation in which launched work did not start either.
    """

    waiting_for_host_ns: int
    between_kernels_ns: int
    waiting_for_copy_or_sync_ns: int
    copy_ns: int
    sync_ns: int
    unattributed_ns: int
    starting_ns: int = 0
    long_gaps_ns: int = 0
    held_ns: int = 0

    @property
    def launching_ns(self) -> int:
        """Waiting for the host in gaps no longer than a launch takes, and the start of what it launched."""
        return self.waiting_for_host_ns - self.long_gaps_ns + self.starting_ns


@dataclass(frozen=True, kw_only=True)
class RangeInstance:
    """One time a range was open. `source` indexes the captures given; GPU times as in `RangeRow`."""

    source: int
    start_ns: int
    wall_ns: int
    kernel_count: int
    gpu_busy_ns: int | None
    gpu_idle_ns: int | None
    launch_ns: int
    idle: Idle | None


@dataclass(frozen=True, kw_only=True)
class RangeKernel:
    """What one kernel took inside a range."""

    name: str
    short_name: str
    kernel_class: str
    instances: int
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class RangeRow:
    """All instances of one range name; sums over the instances.

    `typical` is the instance of median wall time: the first ones carry one-time costs. GPU times are None where no
    capture holds GPU work. `kernels` is None where there are too many range names to tally each.
    `wall_spread` is the distance between the quartiles of the wall times over their median.

    Where the instances are those of several `processes` (ranks or repeats), all times and counts are sums over them;
    `devices` is on how many GPUs the work of the range ran, counted in each process by itself. `wall_ns` counts time in
    which several instances were open several times, `elapsed_ns` once in each capture.
    """

    name: str
    style: str
    parent: str | None
    instances: int
    wall_ns: int
    kernel_count: int
    kernel_ns: int
    graph_launches: int
    gpu_busy_ns: int | None
    gpu_idle_ns: int | None
    launch_calls: int
    launch_ns: int
    idle: Idle | None
    last: RangeInstance
    typical: RangeInstance
    kernels: tuple[RangeKernel, ...] | None
    wall_spread: float = 0.0
    elapsed_ns: int = 0
    processes: int = 1
    devices: int = 1
