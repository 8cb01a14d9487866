"""Operators of a torch trace: calls, own and whole time on the CPU and of the GPU work they launched, memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_perf_opt.analysis.intervals import Flags, Ints
from llm_perf_opt.analysis.nesting import Nesting, innermost, nest
from llm_perf_opt.analysis.timeline import Timeline, distinct
from llm_perf_opt.analysis.trace_memory import CPU_TYPE, MemoryEvents


@dataclass(frozen=True, kw_only=True)
class HostEvents:
    """Named host intervals; `name` and `thread` index the timeline's lists."""

    start_ns: Ints
    end_ns: Ints
    name: Ints
    thread: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


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


@dataclass(frozen=True, kw_only=True)
class TraceDetail:
    """What a detailed reading adds: each operator's `shape` (an index of `shapes`), the calls' names, and memory."""

    shapes: tuple[str, ...]
    shape: Ints
    call_name: Ints
    memory: MemoryEvents


def operator_rows(timeline: Timeline, operators: HostEvents) -> tuple[OperatorRow, ...]:
    """Operators by own CPU time."""
    if not len(operators):
        return ()
    # Runtime calls under no name: they are nobody's own time but theirs.
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
