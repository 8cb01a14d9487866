"""The time ledger of a scope: exclusive cells in integer nanoseconds that sum to its wall time.

Cell ids form a tree by their dots. The device side: `gpu.compute.<class>`, `gpu.communication` and `gpu.copy.<kind>`
with nothing overlapped. The idle side: `idle.<cause>`, split by what the host did. Time of the host outside the span of
the GPU work: `host.before`, `host.after`. A scope without a GPU: `host.operators`, `host.outside`.

Causes make claims on cells, and the findings are made of those.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from llm_perf_opt.capture.exclusive import KernelTime

COMPUTE, COMMUNICATION, COPY = "gpu.compute", "gpu.communication", "gpu.copy"
LAUNCH, SYNC, HELD_SYNC, DEVICE_GAPS, LATE_STARTS = (
    "idle.launch",
    "idle.sync",
    "idle.held_sync",
    "idle.device_gaps",
    "idle.late_starts",
)
STARTUP, UNRECORDED_LAUNCH, UNRECORDED_HOST = "idle.startup", "idle.unrecorded_launch", "idle.unrecorded_host"
ALLOCATION = "idle.allocation"
OPERATORS, OUTSIDE, HOST_LOADING = "host.operators", "host.outside", "host.data_loading"
BEFORE, AFTER = "host.before", "host.after"
# What a longer run would not pay again.
ONE_TIME = (STARTUP, "host.startup")
# Time of which nothing says what happened in it.
NOT_RECORDED = (UNRECORDED_LAUNCH, UNRECORDED_HOST)
# What a short description shows.
CELLS_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Exclusive time of one kind. `owner` names what the host was in, the innermost first: evidence permitting."""

    id: str
    time_ns: int
    count: int = 0
    owner: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The leaves of the tree; their sum is `wall_ns`, which `balanced` guarantees."""

    wall_ns: int
    cells: tuple[Cell, ...]

    def __repr__(self) -> str:
        """The wall time and the largest cells, each id once."""
        sums: dict[str, int] = {}
        for cell in self.cells:
            sums[cell.id] = sums.get(cell.id, 0) + cell.time_ns
        largest = sorted(sums, key=lambda name: -sums[name])[:CELLS_SHOWN]
        shown = [f"{name} {sums[name] / self.wall_ns:.3g}" for name in largest if self.wall_ns]
        more = [f"{len(sums) - len(largest)} more"] if len(sums) > len(largest) else []
        return f"Ledger({self.wall_ns / 1e6:,.3f} ms: {', '.join((*shown, *more))})"

    def ns(self, *prefixes: str) -> int:
        """The time of all cells at or below some ids."""
        return sum(self.by_id(*prefixes).values())

    def by_id(self, *prefixes: str) -> dict[str, int]:
        """The time of the cells at or below some ids, by their own ids."""
        found: dict[str, int] = {}
        for cell in self.cells:
            if any(is_in(cell.id, prefix) for prefix in prefixes):
                found[cell.id] = found.get(cell.id, 0) + cell.time_ns
        return found

    def share(self, *prefixes: str) -> float:
        return self.ns(*prefixes) / self.wall_ns if self.wall_ns else 0.0

    def below(self, prefix: str) -> list[Cell]:
        """The cells at or below an id, the largest first."""
        return sorted((c for c in self.cells if is_in(c.id, prefix)), key=lambda cell: (-cell.time_ns, cell.id))

    @property
    def idle_ns(self) -> int:
        return self.ns("idle") + self.ns(COPY)

    @property
    def busy_ns(self) -> int:
        """When a kernel ran."""
        return self.ns(COMPUTE, COMMUNICATION)


def is_in(cell: str, prefix: str) -> bool:
    return cell == prefix or cell.startswith(prefix + ".")


def balanced(wall_ns: int, cells: Iterable[Cell]) -> Ledger:
    """A ledger of cells with time; an error where they do not sum to the wall time, which is a defect of ours."""
    kept = tuple(cell for cell in cells if cell.time_ns)
    total = sum(cell.time_ns for cell in kept)
    if total != wall_ns or any(cell.time_ns < 0 for cell in kept):
        raise AssertionError(f"the cells of a ledger sum to {total} ns of {wall_ns} ns: {kept}")
    return Ledger(wall_ns=wall_ns, cells=kept)


def fitted(weights: Mapping[str, float], total_ns: int) -> dict[str, int]:
    """Whole nanoseconds in the proportions of some weights that sum to a total exactly; the largest takes the rest."""
    whole = sum(weights.values())
    if not weights or whole <= 0:
        return {}
    parts = {key: int(total_ns * weight / whole) for key, weight in weights.items()}
    parts[max(weights, key=lambda key: (weights[key], key))] += total_ns - sum(parts.values())
    return parts


@cache
def cell_names() -> Mapping[str, str]:
    """Names for people by the id of a cell: `cells.toml`."""
    return tomllib.loads(Path(__file__).with_name("cells.toml").read_text(encoding="utf-8"))


def cell_name(cell: str) -> str:
    """A cell's name for people: that of the nearest cell above it that has one."""
    parts = cell.split(".")
    names = (cell_names().get(".".join(parts[:length])) for length in range(len(parts), 0, -1))
    return next((name for name in names if name is not None), cell)


Confidence = Literal["low", "medium", "high"]
Value = str | int | float
# Instances of a range that differ little, and evidence for most of the time, make a claim certain.
CERTAIN_INSTANCES, CERTAIN_SPREAD, CERTAIN_SHARE = 3, 0.25, 0.7


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of evidence: a template of the cause and what it is filled with. `source` is the file, if another."""

    key: str
    values: Mapping[str, Value] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a cause says of a scope: which cells and kernels it explains, and what must remain of them.

    `cells` and `kernels` map to the time claimed of each. `floor_ns` is the least of all that which must remain, None
    where it cannot be computed; `floor` names how it was. `traits` choose title and advice together with the
    program's. `order_ns` is the time that one change addresses, where that is not all that is claimed: the findings
    are ordered by it.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    cells: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)
    floor_ns: int | None = None
    floor: str | None = None
    title: str = "title"
    evidence: tuple[Fact, ...] = ()
    traits: frozenset[str] = frozenset()
    confidence: Confidence = "medium"
    caveat: str | None = None
    range_name: str | None = None
    also_ranges: tuple[str, ...] = ()
    is_one_time: bool = False
    order_ns: int | None = None
    # Where a claim is about memory or the measurement itself, there is no time to save.
    is_timeless: bool = False


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One line of what was seen, and the file it can be checked against."""

    text: str
    source: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Finding:
    """A claim as the answer shows it. Nothing changes it after it was made.

    `share` is the affected time on the critical path over the wall time of its scope, `capture_share` the same where
    the scope is a capture. `max_gain` is the speed-up of the scope if nothing but the lower bound remained; None where
    no lower bound is known, or the cost is a one-time cost. `saves_ms` is the time behind both, of one step where the
    scope is a phase. `cells` are those of the scope's ledger; `floor` says how the lower bound was computed.
    `refutes` is what would show that it is wrong; `experiments` are what `llm-perf optimize` can try.
    `source` is the file most of the evidence comes from, `sources` those of its lines.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    remedy: str
    max_gain: float | None
    confidence: Confidence
    source: str
    range_name: str | None = None
    capture_share: float | None = None
    is_one_time: bool = False
    hint: str | None = None
    caveat: str | None = None
    also_ranges: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    scope: str = "capture"
    phase: str | None = None
    share: float | None = None
    saves_ms: float | None = None
    stake_ns: int | None = None
    floor_ns: int | None = None
    floor: str | None = None
    cells: Mapping[str, int] = field(default_factory=dict)
    plain_words: str = ""
    refutes: str = ""
    doc: str | None = None
    experiments: tuple[str, ...] = ()
    is_idle: bool = False

    def __repr__(self) -> str:
        gain = "" if self.max_gain is None else f", up to {self.max_gain:.3g}x"
        return f"Finding({self.rule} in {self.scope}: {self.title}{gain}, confidence {self.confidence})"

    @property
    def fix(self) -> str:
        """The fix; the document calls it `remedy`."""
        return self.remedy

    @property
    def cited(self) -> tuple[Evidence, ...]:
        return tuple(
            Evidence(text=text, source=source) for text, source in zip(self.evidence, self.sources, strict=True)
        )


def confidence_of(instances: int, *, share: float, spread: float = 0.0) -> Confidence:
    """From how often it was seen, how much that differs, and how much of the time the evidence explains."""
    if instances >= CERTAIN_INSTANCES and spread <= CERTAIN_SPREAD and share >= CERTAIN_SHARE:
        return "high"
    return "low" if instances < CERTAIN_INSTANCES and share < CERTAIN_SHARE else "medium"


def kernel_fact(kernel: "KernelTime", *, source: str | None = None, **more: Value) -> Fact:
    """A line of evidence about one kernel: its name, time and launches, and what else is given."""
    values = {"kernel": kernel.short_name, "time": kernel.time_ns, "count": kernel.count, **more}
    return Fact(key="kernel", values=values, source=source)
