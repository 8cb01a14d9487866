"""Operators of a torch trace: calls, own and whole time on the CPU and of the GPU work they launched."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_perf_opt.analysis.intervals import Flags, Ints
from llm_perf_opt.analysis.nesting import Nesting, innermost, nest
from llm_perf_opt.analysis.timeline import Calls, Timeline, distinct


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


def operator_rows(timeline: Timeline, operators: HostEvents) -> tuple[OperatorRow, ...]:
    """Operators by own CPU time."""
    count = len(operators)
    if not count:
        return ()
    host = _with_calls(operators, timeline.calls)
    tree = nest(host.thread, host.start_ns, host.end_ns)
    owner = _launching_operators(host, tree, count)
    device = _device_time(timeline, owner, len(host))
    repeats = _repeats(host.name, tree)
    outermost = ~tree.repeats_ancestor(host.name)
    found, index = _groups(operators.name)

    def total(values: "np.ndarray[tuple[int, ...], np.dtype[Any]]") -> list[int]:
        # Sums of whole nanoseconds stay exact in float64 up to 104 days.
        return [int(v) for v in np.bincount(index, weights=values[:count], minlength=len(found))]

    columns = zip(
        found.tolist(),
        total(~repeats),
        total(_own_time(host, tree, owner)),
        total((host.end_ns - host.start_ns) * outermost),
        total(device),
        total(tree.sum_up(device) * outermost),
        strict=True,
    )
    rows = [
        OperatorRow(
            name=timeline.names[code],
            calls=calls,
            self_cpu_ns=self_cpu,
            total_cpu_ns=total_cpu,
            self_device_ns=self_device,
            total_device_ns=total_device,
        )
        for code, calls, self_cpu, total_cpu, self_device, total_device in columns
    ]
    return tuple(sorted(rows, key=lambda r: (-r.self_cpu_ns, r.name)))


def _with_calls(operators: HostEvents, calls: Calls) -> HostEvents:
    """The operators, and behind them the runtime calls under no name: they are nobody's own time but theirs."""
    none = np.full(len(calls), -1, np.int32)
    return HostEvents(
        start_ns=np.concatenate((operators.start_ns, calls.start_ns)),
        end_ns=np.concatenate((operators.end_ns, calls.end_ns)),
        name=np.concatenate((operators.name, none)),
        thread=np.concatenate((operators.thread, calls.thread)),
    )


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
