"""Operators of a torch trace: calls, own and whole time on the CPU and of the GPU work they launched, memory.

Module ranges of a torch trace (`nn.Module: …`): calls, host time, and the kernels launched inside them.

Phase, module, operator and kernel of every piece of work in a torch trace, and each module's share of its phase.

The kernels launched inside chosen ranges of a timeline, warm-ups left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llm_perf_opt.capture.allocator_memory import CPU_TYPE, MemoryEvents
from llm_perf_opt.capture.idle import map_idle
from llm_perf_opt.capture.intervals import Flags, Ints, Nesting, innermost, nest
from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.kernels.ncu_records import NsysKernel
from llm_perf_opt.capture.ownership import find_ownership
from llm_perf_opt.capture.ranges import measure_ranges, warmup_ranges
from llm_perf_opt.capture.tables import range_rows
from llm_perf_opt.capture.timeline import HostEvents, Ranges, Timeline, distinct
from llm_perf_opt.core.names import MODULE_PREFIX, PHASE_RANGE, PHASES


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """One operator.

    As torch has it: totals count an operator inside itself once, own times leave out the operators and runtime calls
    inside, and an operator that does nothing but call itself is one call.
    """

    name: str
    calls: int
    self_cpu_ns: int
    total_cpu_ns: int
    self_device_ns: int
    total_device_ns: int


@dataclass(frozen=True, kw_only=True)
class ProfiledRow(OperatorRow):
    """An operator or a runtime call, with memory. `input_shapes` is None where rows are by name alone."""

    input_shapes: str | None
    self_cpu_memory_bytes: int
    self_device_memory_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceDetail:
    """What a detailed reading adds: each operator's `shape` (an index of `shapes`), the calls' names, and memory.

    `extras[operator_extra[i]]` are an operator's input types and inputs, as JSON; `extras[kernel_extra[k]]` is what a
    collective's kernel says of itself (-1: nothing). `frames` are all of Python's, however short.
    """

    shapes: tuple[str, ...]
    shape: Ints
    call_name: Ints
    memory: MemoryEvents
    extras: tuple[tuple[bytes, ...], ...]
    operator_extra: Ints
    kernel_extra: Ints
    frames: HostEvents


def operator_rows(timeline: Timeline, operators: HostEvents) -> tuple[OperatorRow, ...]:
    """Operators by own CPU time."""
    if not len(operators):
        return ()
    # Runtime calls outside operators: their time belongs to themselves.
    work = _HostWork(timeline, operators, np.full(len(timeline.calls), -1, np.int32))
    found = work.sums(work.host.name, len(operators))
    rows = [
        OperatorRow(
            name=timeline.names[code],
            calls=found.calls[i],
            self_cpu_ns=found.self_cpu_ns[i],
            total_cpu_ns=found.total_cpu_ns[i],
            self_device_ns=found.self_device_ns[i],
            total_device_ns=found.total_device_ns[i],
        )
        for i, code in enumerate(found.group)
    ]
    return tuple(sorted(rows, key=lambda r: (-r.self_cpu_ns, r.name)))


class ProfiledOperators:
    """The tables of a profiled pass: operators and runtime calls, as torch's own table has them."""

    def __init__(self, timeline: Timeline, operators: HostEvents, detail: TraceDetail) -> None:
        self._names = timeline.names
        # A runtime call has no shapes.
        self._shapes = (*detail.shapes, "")
        none = np.full(len(detail.call_name), self._shapes.index(""), np.int32)
        self._shape = np.concatenate((detail.shape, none))
        self._work = _HostWork(timeline, operators, detail.call_name, detail.memory)

    def rows(self, *, by_shape: bool) -> tuple[ProfiledRow, ...]:
        """One row per name (and input shapes): by own device time, then by own CPU time."""
        name = self._work.host.name.astype(np.int64)
        if not len(name):
            return ()
        keys = self._work.with_parents(name * len(self._shapes) + self._shape) if by_shape else name
        keys, index = np.unique(keys, return_inverse=True)
        found = self._work.sums(index, len(name))
        rows = [
            ProfiledRow(
                name=self._names[key // len(self._shapes) if by_shape else key],
                input_shapes=self._shapes[key % len(self._shapes)] if by_shape else None,
                calls=found.calls[i],
                self_cpu_ns=found.self_cpu_ns[i],
                total_cpu_ns=found.total_cpu_ns[i],
                self_device_ns=found.self_device_ns[i],
                total_device_ns=found.total_device_ns[i],
                self_cpu_memory_bytes=found.self_cpu_memory_bytes[i],
                self_device_memory_bytes=found.self_device_memory_bytes[i],
            )
            for i, key in enumerate(keys.tolist())
        ]
        rows.sort(key=lambda r: (-r.self_device_ns, -r.self_cpu_ns, r.name, r.input_shapes or ""))
        return tuple(rows)


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Sums by group, one entry per group present."""

    group: list[int]
    calls: list[int]
    self_cpu_ns: list[int]
    total_cpu_ns: list[int]
    self_device_ns: list[int]
    total_device_ns: list[int]
    self_cpu_memory_bytes: list[int]
    self_device_memory_bytes: list[int]


class _HostWork:
    """Operators, and behind them the runtime calls: who is inside whom, and what each did itself."""

    def __init__(
        self, timeline: Timeline, operators: HostEvents, call_name: Ints, memory: MemoryEvents | None = None
    ) -> None:
        calls = timeline.calls
        self.host = host = HostEvents(
            start_ns=np.concatenate((operators.start_ns, calls.start_ns)),
            end_ns=np.concatenate((operators.end_ns, calls.end_ns)),
            name=np.concatenate((operators.name, call_name)),
            thread=np.concatenate((operators.thread, calls.thread)),
        )
        self._tree = nest(host.thread, host.start_ns, host.end_ns)
        owner = _launching_operators(host, self._tree, len(operators))
        self._own_ns = _own_time(host, self._tree, owner)
        self._device_ns = _device_time(timeline, owner, len(host))
        self._repeats = _repeats(host.name, self._tree)
        self._memory = None if memory is None else self._own_memory(memory)

    def with_parents(self, key: Ints) -> Ints:
        """The keys, where one that is all its parent of the same name does has its parent's."""
        key = key.copy()
        for level in self._tree.levels[1:]:
            same = level[self._repeats[level]]
            key[same] = key[self._tree.parent[same]]
        return key

    def sums(self, key: Ints, count: int) -> _Sums:
        """The first `count` by key; a key inside itself adds to the totals once."""
        outermost = ~self._tree.repeats_ancestor(key)
        found, index = _groups(key[:count])

        def total(values: "np.ndarray[tuple[int, ...], np.dtype[Any]]") -> list[int]:
            # Sums of whole numbers stay exact in float64 up to 2**53: 104 days in nanoseconds.
            return [int(v) for v in np.bincount(index, weights=values[:count], minlength=len(found))]

        none = [0] * len(found)
        return _Sums(
            group=found.tolist(),
            calls=total(~self._repeats),
            self_cpu_ns=total(self._own_ns),
            total_cpu_ns=total((self.host.end_ns - self.host.start_ns) * outermost),
            self_device_ns=total(self._device_ns),
            total_device_ns=total(self._tree.sum_up(self._device_ns) * outermost),
            self_cpu_memory_bytes=none if self._memory is None else total(self._memory[0]),
            self_device_memory_bytes=none if self._memory is None else total(self._memory[1]),
        )

    def _own_memory(self, memory: MemoryEvents) -> tuple[Ints, Ints]:
        """Bytes allocated less bytes freed while each was the innermost: on the CPU, and on other devices."""
        host = self.host
        owner = innermost(self._tree, host.thread, host.start_ns, host.end_ns, memory.thread, memory.at_ns)
        cpu, device = np.zeros(len(host), np.int64), np.zeros(len(host), np.int64)
        for held, wanted in ((cpu, memory.device_type == CPU_TYPE), (device, memory.device_type != CPU_TYPE)):
            of = np.flatnonzero((owner >= 0) & wanted)
            np.add.at(held, owner[of], memory.changed_bytes[of])
        return cpu, device


def _repeats(name: Ints, tree: Nesting) -> Flags:
    """Whether an operator is all that one of the same name does: torch counts the two as one call."""
    inner = np.flatnonzero(tree.parent >= 0)
    outer = tree.parent[inner]
    children = np.bincount(outer, minlength=len(name))
    out = np.zeros(len(name), np.bool_)
    out[inner] = (name[inner] == name[outer]) & (children[outer] == 1) & (name[inner] >= 0)
    return out


def _groups(name: Ints) -> tuple[Ints, Ints]:
    """The distinct names, and for each operator the index of its own."""
    found = distinct(name)
    place = np.zeros(int(found[-1]) + 1, np.int32)
    place[found] = np.arange(len(found))
    return found, place[name]


def _launching_operators(host: HostEvents, tree: Nesting, operators: int) -> Ints:
    """Of each runtime call the innermost operator open when it began, or -1; the call may end after it."""
    if not tree.strict:
        columns = (host.thread[:operators], host.start_ns[:operators], host.end_ns[:operators])
        return innermost(nest(*columns), *columns, host.thread[operators:], host.start_ns[operators:])
    owner = tree.parent[operators:].copy()
    while (inner := owner >= operators).any():
        owner[inner] = tree.parent[owner[inner]]
    return owner


def _own_time(host: HostEvents, tree: Nesting, owner: Ints) -> Ints:
    """Each one's time without that of what is directly inside it."""
    own = host.end_ns - host.start_ns
    child = np.flatnonzero(tree.parent >= 0)
    np.subtract.at(own, tree.parent[child], own[child].copy())
    if not tree.strict:
        # A call that ends after its operator is not inside it, but its first part is.
        operators = len(host) - len(owner)
        over = np.flatnonzero((owner >= 0) & (tree.parent[operators:] < operators))
        over = over[host.end_ns[operators + over] > host.end_ns[owner[over]]]
        np.subtract.at(own, owner[over], host.end_ns[owner[over]] - host.start_ns[operators + over])
    return own


def _device_time(timeline: Timeline, owner: Ints, count: int) -> Ints:
    """The GPU time launched directly by each operator."""
    device = np.zeros(count, np.int64)
    for work in (timeline.kernels, timeline.copies):
        known = work.call >= 0
        of = owner[work.call[known]]
        np.add.at(device, of[of >= 0], (work.end_ns - work.start_ns)[known][of >= 0])
    return device


def merge_operators(tables: Sequence[Sequence[OperatorRow]]) -> tuple[OperatorRow, ...]:
    """The operators of several traces together."""
    if len(tables) == 1:
        return tuple(tables[0])
    found: dict[str, list[OperatorRow]] = {}
    for row in (row for table in tables for row in table):
        found.setdefault(row.name, []).append(row)
    merged = [
        OperatorRow(
            name=name,
            calls=sum(r.calls for r in rows),
            self_cpu_ns=sum(r.self_cpu_ns for r in rows),
            total_cpu_ns=sum(r.total_cpu_ns for r in rows),
            self_device_ns=sum(r.self_device_ns for r in rows),
            total_device_ns=sum(r.total_device_ns for r in rows),
        )
        for name, rows in found.items()
    ]
    return tuple(sorted(merged, key=lambda r: (-r.self_cpu_ns, r.name)))


@dataclass(frozen=True, kw_only=True)
class ModuleRow:
    """One module by the name the profiler gave it. Times of a module contain those of the modules inside it."""

    name: str
    calls: int
    wall_ns: int
    kernel_count: int
    kernel_ns: int
    gpu_busy_ns: int


def module_rows(timeline: Timeline, modules: HostEvents) -> tuple[ModuleRow, ...]:
    """Modules by host time; calls inside warm-up ranges are left out."""
    if not len(modules):
        return ()
    both = Ranges(
        start_ns=np.concatenate((modules.start_ns, timeline.ranges.start_ns)),
        end_ns=np.concatenate((modules.end_ns, timeline.ranges.end_ns)),
        name=np.concatenate((modules.name.astype(np.int64), timeline.ranges.name)),
        thread=np.concatenate((modules.thread, timeline.ranges.thread)),
        process_wide=np.zeros(len(modules) + len(timeline.ranges), np.bool_),
    )
    named = set(distinct(modules.name).tolist())
    wanted = {timeline.names[code] for code in named}
    with_modules = replace(timeline, ranges=both)
    rows = range_rows([(with_modules, measure_ranges(with_modules, map_idle(with_modules), detailed_names=0))])
    return tuple(
        ModuleRow(
            name=row.name,
            calls=row.instances,
            wall_ns=row.wall_ns,
            kernel_count=row.kernel_count,
            kernel_ns=row.kernel_ns,
            gpu_busy_ns=row.gpu_busy_ns or 0,
        )
        for row in rows
        if row.name in wanted
    )


def merge_modules(tables: Sequence[Sequence[ModuleRow]]) -> tuple[ModuleRow, ...]:
    """The modules of several traces together, by host time."""
    found: dict[str, list[ModuleRow]] = {}
    for row in (row for table in tables for row in table):
        found.setdefault(row.name, []).append(row)
    merged = [
        ModuleRow(
            name=name,
            calls=sum(r.calls for r in rows),
            wall_ns=sum(r.wall_ns for r in rows),
            kernel_count=sum(r.kernel_count for r in rows),
            kernel_ns=sum(r.kernel_ns for r in rows),
            gpu_busy_ns=sum(r.gpu_busy_ns for r in rows),
        )
        for name, rows in found.items()
    ]
    return tuple(sorted(merged, key=lambda r: (-r.wall_ns, r.name)))


OTHER = "other"
NO_OPERATOR = "(no operator)"
MAX_ROWS = 400

Shares = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class TreeRow:
    """One leaf. `kernel` is None where the operator itself is the work: on a CPU."""

    phase: str
    module: str
    operator: str
    kernel: str | None
    count: int
    time_ns: int


@dataclass(frozen=True, kw_only=True)
class ModuleTree:
    """`by` says which time the rows hold. `phase_ns` and `operator_ns`: the phases' time, and the part in operators."""

    by: str
    rows: tuple[TreeRow, ...]
    left_out: int
    phase_ns: dict[str, int]
    operator_ns: dict[str, int]


def module_tree(timeline: Timeline, operators: HostEvents, *, max_rows: int = MAX_ROWS) -> ModuleTree:
    """Kernels by the operator that launched them; without kernels, the outermost operators themselves."""
    places = _Places(timeline, operators)
    tops = places.outermost_operators()
    top_phase = places.phase(operators.thread[tops], operators.start_ns[tops])
    length = (operators.end_ns - operators.start_ns)[tops]
    operator_ns = {
        phase: int(length[top_phase == index].sum()) for index, phase in enumerate(PHASES) if phase in places.phase_ns
    }
    if len(timeline.kernels):
        rows = _kernel_rows(timeline, places)
    else:
        module = places.module(operators.thread[tops], operators.start_ns[tops])
        rows = _rows(timeline, top_phase, module, operators.name[tops], None, length)
    kept = tuple(rows[:max_rows])
    return ModuleTree(
        by="device_time" if len(timeline.kernels) else "cpu_time",
        rows=kept,
        left_out=len(rows) - len(kept),
        phase_ns=places.phase_ns,
        operator_ns=operator_ns,
    )


@dataclass(frozen=True, kw_only=True)
class ModuleShares:
    """By phase and module. `cpu` is of the phase's wall time, `device` of the GPU time launched in the phase."""

    cpu: Shares | None
    device: Shares | None


def module_shares(timeline: Timeline, operators: HostEvents) -> ModuleShares:
    """Exclusive: time inside a nested module is the inner one's alone, and `other` is the rest of the phase."""
    places = _Places(timeline, operators)
    device: dict[str, dict[str, int]] = {}
    for work in (timeline.kernels, timeline.copies):
        known = np.flatnonzero(work.call >= 0)
        phase_of, module_of = places.around_calls(work.call[known])
        length = (work.end_ns - work.start_ns)[known]
        for phase, group, time_ns in places.by_module(phase_of, module_of, length):
            groups = device.setdefault(phase, {OTHER: 0})
            groups[group] = groups.get(group, 0) + time_ns
    return ModuleShares(cpu=_parts(places.wall_by_module()), device=_parts(device))


def _parts(amounts: Mapping[str, Mapping[str, int]]) -> Shares | None:
    """Each module's part of its phase, phases in their order; None where there is nothing to share."""
    totals = {phase: sum(amounts[phase].values()) for phase in PHASES if phase in amounts}
    found = {
        phase: {group: time_ns / total for group, time_ns in amounts[phase].items()}
        for phase, total in totals.items()
        if total > 0
    }
    return found or None


class _Places:
    """Answers in which phase, module and operator a moment on a thread lies."""

    def __init__(self, timeline: Timeline, operators: HostEvents) -> None:
        ranges = timeline.ranges
        measured = ~warmup_ranges(timeline)
        codes = {name: i for i, name in enumerate(timeline.names)}
        self._names = timeline.names
        self._operators = operators
        self._calls = timeline.calls
        self._made_for = find_ownership(timeline).working_thread(timeline)
        # A program may name its steps and not the loop around them.
        phases = np.array([codes.get(name, codes.get(PHASE_RANGE[name], -1)) for name in PHASES])
        modules = np.array([i for i, name in enumerate(timeline.names) if name.startswith(MODULE_PREFIX)])
        self._phases = ranges.as_events.take(np.isin(ranges.name, phases) & measured)
        self._modules = ranges.as_events.take(np.isin(ranges.name, modules) & measured)
        self._phase_codes = phases
        self._tree = nest(operators.thread, operators.start_ns, operators.end_ns)
        lengths = self._phases.end_ns - self._phases.start_ns
        self.phase_ns = {
            phase: int(lengths[self._phases.name == code].sum())
            for phase, code in zip(PHASES, phases.tolist(), strict=True)
            if bool((self._phases.name == code).any())
        }

    def phase(self, thread: Ints, at: Ints) -> Ints:
        """The index of the phase around each moment, or -1."""
        name = self._phases.name_around(thread, at)
        out = np.full(len(name), -1, np.int64)
        for index, code in enumerate(self._phase_codes):
            # A phase the trace does not name has no code, and neither has a moment outside all ranges.
            if code >= 0:
                out[name == code] = index
        return out

    def module(self, thread: Ints, at: Ints) -> Ints:
        """The name of the innermost module range, or -1."""
        return self._modules.name_around(thread, at)

    def around_calls(self, call: Ints) -> tuple[Ints, Ints]:
        """Phase and module of calls, as ranges own them: of their thread, else of the one for which that works."""
        thread, at = self._calls.thread[call], self._calls.start_ns[call]
        phase, module = self.phase(thread, at), self.module(thread, at)
        made_for = self._made_for[call]
        helped = np.flatnonzero(made_for != thread)
        for found, name_of in ((phase, self.phase), (module, self.module)):
            outside = helped[found[helped] < 0]
            found[outside] = name_of(made_for[outside], at[outside])
        return phase, module

    def by_module(self, phase: Ints, module: Ints, length: Ints) -> list[tuple[str, str, int]]:
        """Phase, module and summed length of what lies inside a phase; modules in the order of their first names."""
        found = []
        for index, name in enumerate(PHASES):
            inside = phase == index
            for code in distinct(module[inside]).tolist():
                group = self._names[code].removeprefix(MODULE_PREFIX) if code >= 0 else OTHER
                found.append((name, group, int(length[inside & (module == code)].sum())))
        return found

    def wall_by_module(self) -> dict[str, dict[str, int]]:
        """Each phase's time by module: that of a module's ranges without the module ranges inside them."""
        events = self._modules
        own = events.end_ns - events.start_ns
        parent = nest(events.thread, events.start_ns, events.end_ns).parent
        inner = np.flatnonzero(parent >= 0)
        np.subtract.at(own, parent[inner], (events.end_ns - events.start_ns)[inner])
        found: dict[str, dict[str, int]] = {phase: {} for phase in self.phase_ns}
        for phase, group, time_ns in self.by_module(self.phase(events.thread, events.start_ns), events.name, own):
            found[phase][group] = time_ns
        for phase, groups in found.items():
            rest = self.phase_ns[phase] - sum(groups.values())
            groups[OTHER] = groups.get(OTHER, 0) + max(0, rest)
        return found

    def outermost_operators(self) -> Ints:
        return np.flatnonzero(self._tree.parent < 0)

    def operator(self, thread: Ints, at: Ints) -> Ints:
        """The name of the outermost operator around each moment, or -1."""
        events = self._operators
        if not len(events):
            return np.full(len(at), -1, np.int64)
        root = np.arange(len(events))
        for level in self._tree.levels[1:]:
            root[level] = root[self._tree.parent[level]]
        found = innermost(self._tree, events.thread, events.start_ns, events.end_ns, thread, at)
        return np.where(found >= 0, events.name[root[np.maximum(found, 0)]], -1)


def _kernel_rows(timeline: Timeline, places: _Places) -> list[TreeRow]:
    kernels, calls = timeline.kernels, timeline.calls
    known = np.flatnonzero(kernels.call >= 0)
    call = kernels.call[known]
    thread, at = calls.thread[call], calls.start_ns[call]
    length = (kernels.end_ns - kernels.start_ns)[known]
    phase, module = places.around_calls(call)
    operator = places.operator(thread, at)
    return _rows(timeline, phase, module, operator, kernels.name[known], length)


def _rows(
    timeline: Timeline, phase: Ints, module: Ints, operator: Ints, kernel: Ints | None, length: Ints
) -> list[TreeRow]:
    """One row per different place inside a phase, the most time first."""
    inside = np.flatnonzero(phase >= 0)
    names = kernel if kernel is not None else np.full(len(phase), -1, np.int64)
    keys = np.stack([phase, module, operator, names], axis=1)[inside]
    if not len(keys):
        return []
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    index = index.reshape(-1)
    count = np.bincount(index, minlength=len(unique))
    time = np.zeros(len(unique), np.int64)
    np.add.at(time, index, length[inside])
    rows = [
        TreeRow(
            phase=PHASES[p],
            module=timeline.names[m].removeprefix(MODULE_PREFIX) if m >= 0 else OTHER,
            operator=timeline.names[o] if o >= 0 else NO_OPERATOR,
            kernel=short_kernel_name(timeline.names[k]) if k >= 0 else None,
            count=int(n),
            time_ns=int(t),
        )
        for (p, m, o, k), n, t in zip(unique.tolist(), count, time, strict=True)
    ]
    return sorted(rows, key=lambda r: (-r.time_ns, r.phase, r.module, r.operator, r.kernel or ""))


def range_kernels(timeline: Timeline, wanted: Callable[[str], bool]) -> list[NsysKernel]:
    """Kernels by name, heaviest first, whose launching call lies in a range with a wanted name on its own thread.

    That is how ncu filters by NVTX ranges; the rows of ranges also count what other threads launch for them.
    """
    chosen = np.array([wanted(timeline.names[i]) for i in timeline.ranges.name], np.bool_)
    chosen &= ~warmup_ranges(timeline)
    call = timeline.kernels.call
    inside = np.zeros(len(timeline.kernels), np.bool_)
    inside[call >= 0] = _calls_inside(timeline, chosen)[call[call >= 0]]
    return _by_name(timeline, inside)


def first_range_sequence(timeline: Timeline, wanted: Callable[[str], bool]) -> list[str]:
    """Kernel names in the order of their launches inside the first range with a wanted name, warm-ups left out."""
    ranges, calls = timeline.ranges, timeline.calls
    chosen = np.array([wanted(timeline.names[i]) for i in ranges.name], np.bool_) & ~warmup_ranges(timeline)
    if not chosen.any():
        return []
    first = np.flatnonzero(chosen)[np.argmin(ranges.start_ns[chosen])]
    inside = (calls.start_ns >= ranges.start_ns[first]) & (calls.start_ns < ranges.end_ns[first])
    inside &= calls.thread == ranges.thread[first]
    call = timeline.kernels.call
    mine = np.flatnonzero((call >= 0) & inside[np.maximum(call, 0)])
    order = mine[np.argsort(calls.start_ns[call[mine]], kind="stable")]
    return [timeline.names[int(i)] for i in timeline.kernels.name[order]]


def all_kernels(timeline: Timeline) -> list[NsysKernel]:
    """All kernels by name, heaviest first."""
    return _by_name(timeline, np.ones(len(timeline.kernels), np.bool_))


def _by_name(timeline: Timeline, keep: Flags) -> list[NsysKernel]:
    kernels = timeline.kernels
    time_ns = (kernels.end_ns - kernels.start_ns)[keep]
    name, index, count = np.unique(kernels.name[keep], return_inverse=True, return_counts=True)
    total = np.zeros(len(name), np.int64)
    np.add.at(total, index, time_ns)
    rows = [
        NsysKernel(name=timeline.names[int(n)], instances=int(c), total_ns=int(t))
        for n, c, t in zip(name, count, total, strict=True)
    ]
    return sorted(rows, key=lambda row: -row.total_ns)


def _calls_inside(timeline: Timeline, chosen: Flags) -> Flags:
    """Which host calls start inside a chosen range of their own thread, or of their process for process-wide ranges."""
    calls, ranges = timeline.calls, timeline.ranges
    inside = np.zeros(len(calls), np.bool_)
    for wide, owner_of_call, owner_of_range in (
        (False, calls.thread, ranges.thread),
        (True, timeline.thread_process[calls.thread], timeline.thread_process[ranges.thread]),
    ):
        mine = chosen & (ranges.process_wide == wide)
        for owner in distinct(owner_of_range[mine]):
            pick = mine & (owner_of_range == owner)
            start, end = _union(ranges.start_ns[pick], ranges.end_ns[pick])
            here = np.flatnonzero(owner_of_call == owner)
            position = np.searchsorted(start, calls.start_ns[here], side="right") - 1
            hit = (position >= 0) & (calls.start_ns[here] < end[np.maximum(position, 0)])
            inside[here[hit]] = True
    return inside


def _union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Intervals sorted and merged, so that nested ranges count once."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]
