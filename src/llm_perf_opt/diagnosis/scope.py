"""Scopes: stretches of time that are judged, each with its ledger.

Of captures there are two: `capture`, all of it, and `steady`, what follows start-up (the same where there is none to
speak of). Of a run the clean phases `prefill` and `decode`, one step each, and `request`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from llm_perf_opt.capture.exclusive import KernelTime
from llm_perf_opt.capture.kernels.ncu_records import NcuKernel
from llm_perf_opt.capture.rows import CopyRow, Idle, RangeRow
from llm_perf_opt.diagnosis import ledger as cells
from llm_perf_opt.diagnosis.evidence import CaptureEvidence, runs_on
from llm_perf_opt.diagnosis.gaps.gap_verdict import Verdict
from llm_perf_opt.diagnosis.gaps.host_alone import HostAlone
from llm_perf_opt.diagnosis.gaps.long_gaps import Reason
from llm_perf_opt.diagnosis.ledger import Cell, Ledger, balanced, fitted

if TYPE_CHECKING:
    # Captures have no phases of a run: what these are made of is loaded with the first.
    from llm_perf_opt.diagnosis.facts import GpuFacts, PhaseFacts, RunFacts

Kind = Literal["capture", "steady", "phase", "request", "program", "run"]
# A range that holds this part of a scope's wall time is the scope, under the name the program gives it.
HOLDS = 0.9
# From this part of a phase on that waits for launches, its kernels decide nothing.
LAUNCH_BOUND_IDLE = 0.5
CELL_OF: Mapping[Verdict, str] = {
    "compilation": cells.STARTUP,
    "single_instances": cells.STARTUP,
    "new_shapes": "idle.recompilation",
    "recompilation": "idle.recompilation",
    "stalls": "idle.stalls",
    "data_loading": "idle.data_loading",
    "allocation": cells.ALLOCATION,
    "rank_wait": "idle.rank_wait",
    "profiler": "idle.profiler",
    "host_wait": "idle.blocked",
    "host_work": "idle.host",
    "unknown": cells.UNRECORDED_HOST,
}
# These are distinguished by what they cost: kinds of start-up, and what a blocked thread waits for.
WITH_COSTS = (cells.STARTUP, "idle.blocked")
# New shapes that come this often come in every step.
FEW_GAPS = 10
# What lies inside all Python functions.
INNERMOST = ("runtime call", "operator", "system call", "kernel")
# Functions of C as torch's profiler writes them.
_BUILT_IN = re.compile(r"^<built-in (?:function|method) (\w+).*>$")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """One stretch of time. `place` names it in a sentence, `each` what one instance of it is called.

    `is_named`: the place is a phase, or a name of the program's own. `clean`: its wall time was measured without a
    profiler. `kernels` are those of its ledger's device side. `function_ns` is the time of a whole function, by the
    cell and the owner that most of it is in.
    """

    id: str
    kind: Kind
    place: str
    each: str
    wall_ns: int
    clean: bool
    ledger: Ledger
    source: str
    is_named: bool = True
    instances: int = 1
    spread: float = 0.0
    kernels: tuple[KernelTime, ...] = ()
    ncu: Mapping[str, NcuKernel] = field(default_factory=dict)
    ncu_source: str = ""
    evidence: CaptureEvidence | None = None
    phase: "PhaseFacts | None" = None
    run: "RunFacts | None" = None
    already: frozenset[str] = frozenset()
    function_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[Kind]:
        """What it is judged as: a capture without a start-up to speak of is its own steady state."""
        is_both = self.kind == "steady" and self.id == "capture"
        return frozenset({"capture", "steady"}) if is_both else frozenset({self.kind})

    @property
    def kernel_ns(self) -> int:
        return sum(kernel.time_ns for kernel in self.kernels)

    def critical(self, name: str) -> float:
        """The part of a kernel's time that no work of the host hides."""
        if self.evidence is not None:
            return self.evidence.device.critical.get(name, 1.0)
        return 0.0 if self.is_launch_bound else 1.0

    @cached_property
    def cell_of_kernel(self) -> Mapping[str, str]:
        return {kernel.name: cell_of_class(kernel.kernel_class) for kernel in self.kernels}

    def critical_of_cell(self, cell: str) -> float:
        """The same of a cell: that of its kernels by their time; idle time is always on the critical path."""
        if not cells.is_in(cell, cells.COMPUTE) and cell != cells.COMMUNICATION:
            return 1.0
        if cell not in self._critical_of_cells:
            return 0.0 if self.evidence is None and self.is_launch_bound else 1.0
        return self._critical_of_cells[cell]

    @cached_property
    def _critical_of_cells(self) -> Mapping[str, float]:
        """Of cells with kernels."""
        cells: dict[str, list[KernelTime]] = {}
        for kernel in self.kernels:
            if kernel.own_ns:
                cells.setdefault(self.cell_of_kernel[kernel.name], []).append(kernel)
        return {
            cell: sum(kernel.own_ns * self.critical(kernel.name) for kernel in mine)
            / sum(kernel.own_ns for kernel in mine)
            for cell, mine in cells.items()
        }

    def at_stake(self, prefixes: Sequence[str]) -> float:
        """The share of some cells that decides when the scope ends."""
        found = (cell for cell in self.ledger.cells if any(cells.is_in(cell.id, prefix) for prefix in prefixes))
        return sum(cell.time_ns * self.critical_of_cell(cell.id) for cell in found) / max(self.wall_ns, 1)

    @cached_property
    def has(self) -> frozenset[str]:
        """What some causes need to be judged at all."""
        evidence = self.evidence
        ranks = None if evidence is None else evidence.ranks
        report = evidence.report if evidence is not None and evidence.has_gpu_work else None
        known = {
            "ncu": bool(self.ncu),
            "shapes": evidence is not None and evidence.shapes is not None,
            "several_devices": ranks is not None and bool(ranks.devices),
            "several_ranks": ranks is not None and len(ranks.rows) > 1,
            "several_streams": evidence is not None and evidence.streams is not None,
            "blocking_launches": report is not None and report.launch_blocking is not None,
            "flushes": report is not None and report.flushes is not None,
            "gil_waits": report is not None and report.gil is not None,
        }
        return frozenset(name for name, is_there in known.items() if is_there)

    @cached_property
    def is_launch_bound(self) -> bool:
        return self.wall_ns > 0 and self.ledger.idle_ns >= LAUNCH_BOUND_IDLE * self.wall_ns

    def kernel_class_ns(self, kernel_class: str) -> int:
        return self.ledger.ns(f"{cells.COMPUTE}.{kernel_class}")


def capture_scope(
    evidence: CaptureEvidence, kind: Kind = "capture", ncu: Sequence[NcuKernel] = (), *, is_whole: bool = True
) -> Scope:
    """All of some captures (`is_whole`), or what follows start-up in them; `kind` says for which causes."""
    main = _main_range(evidence) if kind == "steady" else None
    place = main.name if main is not None else "the capture" if is_whole else "the steady state"
    return Scope(
        id="capture" if is_whole else "steady",
        kind=kind,
        place=place,
        each=f"each {place}" if main is not None and main.instances > 1 else place,
        is_named=main is not None,
        wall_ns=evidence.span_ns,
        clean=False,
        ledger=capture_ledger(evidence),
        source=evidence.source,
        kernels=evidence.device.kernels,
        evidence=evidence,
        ncu={kernel.kernel: kernel for kernel in ncu},
    )


def host_scope(evidence: CaptureEvidence, alone: HostAlone) -> Scope:
    """A capture without GPU work: operators of the main thread, and what the host was in outside of them."""
    named = sorted((*alone.ranges, *alone.frames), key=lambda row: -row.own_ns)
    outside = alone.span_ns - alone.operators_ns - alone.loading_ns
    found = [
        Cell(id=cells.OPERATORS, time_ns=alone.operators_ns),
        Cell(
            id=cells.HOST_LOADING,
            time_ns=alone.loading_ns,
            count=1,
            owner=tuple(_BUILT_IN.sub(r"\1", name) for name in alone.loading_owner),
        ),
    ]
    # Ranges and frames may lie in each other: one kind at a time is exclusive, the one that names more.
    kind = max((alone.ranges, alone.frames), key=lambda rows: sum(row.own_ns for row in rows))
    for row in (row for row in named if row in kind):
        time = min(row.own_ns, outside)
        found.append(Cell(id=f"{cells.OUTSIDE}.named", time_ns=time, owner=(row.name,)))
        outside -= time
    found.append(Cell(id=cells.OUTSIDE, time_ns=outside))
    return Scope(
        id="capture",
        kind="steady",
        place="the capture",
        each="the capture",
        is_named=False,
        wall_ns=alone.span_ns,
        clean=False,
        ledger=balanced(alone.span_ns, found),
        source=evidence.source,
        evidence=evidence,
    )


def _main_range(evidence: CaptureEvidence) -> RangeRow | None:
    """The innermost range that holds most of the time, if the capture has one with kernels."""
    span = evidence.span_ns
    rows = [
        row
        for row in evidence.ranges
        if row.kernel_count and row.wall_ns >= HOLDS * span and row.wall_ns <= 1.05 * span and not runs_on(row)
    ]
    # The one that is repeated most is the most informative.
    return max(rows, key=lambda row: (row.instances, -row.wall_ns), default=None)


def capture_ledger(evidence: CaptureEvidence) -> Ledger:
    """Busy time by class of kernel, exposed copies by kind, and idle time by what the host did."""
    idle = evidence.idle
    return balanced(
        evidence.span_ns,
        [
            *_device(evidence.device.kernels),
            *_copies(evidence.copies, idle.copy_ns),
            *_idle(evidence, idle),
            *_edges(evidence),
        ],
    )


def cell_of_class(kernel_class: str) -> str:
    """The cell that the time of a class of kernels is in."""
    return cells.COMMUNICATION if kernel_class == "communication" else f"{cells.COMPUTE}.{kernel_class}"


def _device(kernels: Sequence[KernelTime]) -> list[Cell]:
    time: dict[str, int] = {}
    count: dict[str, int] = {}
    for kernel in kernels:
        key = cell_of_class(kernel.kernel_class)
        time[key] = time.get(key, 0) + kernel.own_ns
        count[key] = count.get(key, 0) + kernel.count
    return [Cell(id=key, time_ns=time_ns, count=count[key]) for key, time_ns in time.items()]


def _copies(rows: Sequence[CopyRow], alone_ns: int) -> list[Cell]:
    """The time in which copies and no kernel ran, by the time of each kind."""
    time: dict[str, float] = {}
    for row in rows:
        time[row.way] = time.get(row.way, 0.0) + row.total_ns
    parts = fitted(time, alone_ns) or {"other": alone_ns}
    return [Cell(id=f"{cells.COPY}.{key}", time_ns=time_ns) for key, time_ns in parts.items()]


def _idle(evidence: CaptureEvidence, idle: Idle) -> list[Cell]:
    gaps = evidence.report.gaps
    late = min(gaps.held_ns, idle.between_kernels_ns - idle.starting_ns)
    long = _long(gaps.reasons, idle.long_gaps_ns)
    # The short gaps of a flush are its own, not the launches' that follow it.
    flushes = evidence.report.flushes
    in_long = sum(cell.time_ns for cell in long if cell.id == cells.ALLOCATION)
    flushed_ns = 0 if flushes is None else min(idle.launching_ns, max(0, flushes.gpu_idle_ns - in_long))
    found = [
        Cell(id=cells.LAUNCH, time_ns=idle.launching_ns - flushed_ns, count=gaps.short_count),
        Cell(id=cells.ALLOCATION, time_ns=flushed_ns, count=0 if flushes is None else flushes.flushes),
        Cell(id=cells.SYNC, time_ns=idle.sync_ns - idle.held_ns),
        Cell(id=cells.HELD_SYNC, time_ns=idle.held_ns),
        Cell(id=cells.LATE_STARTS, time_ns=late, count=gaps.held_count),
        Cell(id=cells.DEVICE_GAPS, time_ns=idle.between_kernels_ns - idle.starting_ns - late),
        Cell(id=cells.UNRECORDED_LAUNCH, time_ns=idle.unattributed_ns),
    ]
    return [*found, *long]


def _long(reasons: Sequence[Reason], total_ns: int) -> list[Cell]:
    """Long gaps by what the host did in them; of many a part was inspected, which stands for all."""
    if not total_ns:
        return []
    parts = fitted({str(index): float(reason.host_ns) for index, reason in enumerate(reasons)}, total_ns)
    if not parts:
        return [Cell(id=cells.UNRECORDED_HOST, time_ns=total_ns)]
    return [
        Cell(
            id=cell_of(reasons[int(key)], reasons),
            time_ns=time_ns,
            count=reasons[int(key)].gaps,
            owner=owner_of(reasons[int(key)]),
        )
        for key, time_ns in parts.items()
    ]


def cell_of(reason: Reason, reasons: Sequence[Reason]) -> str:
    """Where a reason's time belongs; shapes that are met for the first time a few times are start-up."""
    if reason.verdict == "new_shapes":
        often = sum(other.gaps for other in reasons if other.verdict == "new_shapes") > FEW_GAPS
        return "idle.recompilation" if often else cells.STARTUP
    cell = CELL_OF[reason.verdict]
    return f"{cell}.{reason.cost}" if cell in WITH_COSTS and reason.cost not in ("unknown", "wait") else cell


def owner_of(reason: Reason) -> tuple[str, ...]:
    """The innermost first: the call or operator, or the leaf of the Python stack, and the user's function around it."""
    names = tuple(_BUILT_IN.sub(r"\1", name) for name in reason.owner[: 1 if reason.user_code is not None else 2])
    if reason.name is not None and reason.kind in INNERMOST and reason.name not in reason.owner:
        names = (reason.name, *names[:1])
    if not names:
        return tuple(name for name in (reason.name, reason.where) if name is not None)
    return tuple(dict.fromkeys((*names, *(() if reason.user_code is None else (reason.user_code,)))))


def _edges(evidence: CaptureEvidence) -> list[Cell]:
    """What the host does before the first GPU work and after the last, by what it was in; waiting is not work."""
    found = []
    for edge in evidence.edges:
        side = cells.BEFORE if edge.when == "before" else cells.AFTER
        key = "host.startup" if edge.sets_up else "idle.blocked" if edge.verdict == "host_wait" else side
        left = edge.length_ns
        for part in edge.parts:
            time_ns = min(part.time_ns, left)
            found.append(Cell(id=key, time_ns=time_ns, count=1, owner=(part.name,)))
            left -= time_ns
        found.append(Cell(id=key, time_ns=left, count=0 if edge.parts else 1))
    return found


def phase_scope(phase: "PhaseFacts", run: "RunFacts", ncu: Mapping[str, NcuKernel]) -> Scope | None:
    """One step of a phase that was timed without a profiler; None where nothing says what happened inside it."""
    from llm_perf_opt.diagnosis.facts import GpuFacts, Known

    if not isinstance(phase.wall, Known) or phase.wall.value <= 0:
        return None
    wall_ns = round(phase.wall.value * 1e6)
    if isinstance(phase.gpu, GpuFacts):
        ledger, kernels = gpu_phase_ledger(phase.gpu, wall_ns)
        instances, source = phase.gpu.instances, phase.gpu.source
    elif phase.is_cpu and isinstance(phase.operators, Known):
        inside = min(wall_ns, round(phase.operators.value * 1e6))
        found = (Cell(id=cells.OPERATORS, time_ns=inside), Cell(id=cells.OUTSIDE, time_ns=wall_ns - inside))
        ledger, kernels = balanced(wall_ns, found), ()
        instances, source = 1, phase.operators.source or "manifest.json"
    else:
        return None
    return Scope(
        id=phase.name,
        kind="phase",
        place=phase.name,
        each="each step" if phase.name == "decode" else "each prompt",
        wall_ns=wall_ns,
        clean=True,
        ledger=ledger,
        source=source,
        instances=instances,
        kernels=kernels,
        ncu=ncu,
        ncu_source=run.ncu_source,
        phase=phase,
        run=run,
        already=run.already(phase.name),
    )


def gpu_phase_ledger(gpu: "GpuFacts", wall_ns: int) -> tuple[Ledger, tuple[KernelTime, ...]]:
    """The wall time of one instance of a phase, split as the capture of the phase is."""
    from llm_perf_opt.diagnosis.waterfall import split_idle

    busy_ns = min(round(gpu.busy_ms * 1e6), wall_ns)
    own = fitted({kernel.name: kernel.ms_per_step for kernel in gpu.kernels or ()}, busy_ns)
    kernels = tuple(
        KernelTime(
            name=kernel.name,
            short_name=kernel.short_name,
            kernel_class=kernel.kernel_class,
            count=round(kernel.per_step),
            time_ns=round(kernel.ms_per_step * 1e6),
            own_ns=own.get(kernel.name, 0),
        )
        for kernel in gpu.kernels or ()
    )
    device = _device(kernels) if own else [Cell(id=f"{cells.COMPUTE}.unknown", time_ns=busy_ns)]
    if wall_ns == busy_ns:
        return balanced(wall_ns, device), kernels
    idle = {key: ms for key, _, ms in split_idle(gpu.idle, (wall_ns - busy_ns) / 1e6)}
    launching = _launching_share(gpu.idle)
    weights = {
        cells.LAUNCH: idle.get("host", 0.0) * launching + idle.get("starting", 0.0),
        "idle.host": idle.get("host", 0.0) * (1 - launching),
        cells.SYNC: idle.get("sync", 0.0),
        f"{cells.COPY}.all": idle.get("copy", 0.0),
        cells.DEVICE_GAPS: idle.get("between", 0.0),
        cells.UNRECORDED_LAUNCH: idle.get("unexplained", 0.0),
    }
    found = [Cell(id=key, time_ns=time_ns) for key, time_ns in fitted(weights, wall_ns - busy_ns).items()]
    return balanced(wall_ns, [*device, *found]), kernels


def _launching_share(idle: Idle) -> float:
    """The part of the time waiting for the host that lies in gaps short enough to be a launch's."""
    host = idle.waiting_for_host_ns
    return (host - idle.long_gaps_ns) / host if host > 0 else 0.0
