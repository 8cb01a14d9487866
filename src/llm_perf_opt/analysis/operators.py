"""Operators of a torch trace: calls, own and whole time on the CPU and of the GPU work they launched."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.intervals import Ints
from llm_perf_opt.analysis.nesting import Nesting, innermost, nest
from llm_perf_opt.analysis.timeline import Timeline, distinct


@dataclass(frozen=True, kw_only=True)
class HostEvents:
    """Named host intervals; `name` and `thread` index the timeline's lists."""

    start_ns: Ints
    end_ns: Ints
    name: Ints
    thread: Ints
    shape: Ints | None = None

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """One operator, or one operator with one set of input shapes.

    Totals count an operator inside itself once, as torch does; own times leave out what is inside other operators.
    """

    name: str
    input_shapes: str | None
    calls: int
    self_cpu_ns: int
    total_cpu_ns: int
    self_device_ns: int
    total_device_ns: int


def operator_rows(
    timeline: Timeline, operators: HostEvents, shapes: Sequence[str] = (), *, by_shape: bool = False
) -> tuple[OperatorRow, ...]:
    """Operators by own CPU time."""
    if not len(operators):
        return ()
    tree = nest(operators.thread, operators.start_ns, operators.end_ns)
    device = _device_time(timeline, operators, tree)
    outermost = ~tree.repeats_ancestor(operators.name)
    shape = operators.shape if by_shape else None
    groups, index = _groups(operators.name, shape, len(shapes) + 1)

    def total(values: Ints) -> list[int]:
        # Sums of whole nanoseconds stay exact in float64 up to 104 days.
        return [int(v) for v in np.bincount(index, weights=values, minlength=len(groups))]

    columns = zip(
        [divmod(int(g), len(shapes) + 1) for g in groups],
        np.bincount(index, minlength=len(groups)).tolist(),
        total(_own_time(operators, tree)),
        total(np.where(outermost, operators.end_ns - operators.start_ns, 0)),
        total(device),
        total(np.where(outermost, tree.sum_up(device), 0)),
        strict=True,
    )
    rows = [
        OperatorRow(
            name=timeline.names[name],
            input_shapes=shapes[of_shape] if shape is not None else None,
            calls=calls,
            self_cpu_ns=self_cpu,
            total_cpu_ns=total_cpu,
            self_device_ns=self_device,
            total_device_ns=total_device,
        )
        for (name, of_shape), calls, self_cpu, total_cpu, self_device, total_device in columns
    ]
    return tuple(sorted(rows, key=lambda r: (-r.self_cpu_ns, r.name, r.input_shapes or "")))


def _groups(name: Ints, shape: Ints | None, shapes: int) -> tuple[Ints, Ints]:
    """The distinct pairs of name and shape as one number, and for each operator the index of its pair."""
    if shape is not None:
        return np.unique(name.astype(np.int64) * shapes + shape, return_inverse=True)
    found = distinct(name)
    place = np.zeros(int(found[-1]) + 1, np.int64)
    place[found] = np.arange(len(found))
    return found * shapes, place[name]


def _own_time(operators: HostEvents, tree: Nesting) -> Ints:
    """Each operator's time without that of the operators directly inside it."""
    own = operators.end_ns - operators.start_ns
    child = np.flatnonzero(tree.parent >= 0)
    parent = tree.parent[child]
    inside = np.minimum(operators.end_ns[child], operators.end_ns[parent]) - operators.start_ns[child]
    np.subtract.at(own, parent, np.maximum(inside, 0))
    return own


def _device_time(timeline: Timeline, operators: HostEvents, tree: Nesting) -> Ints:
    """The GPU time launched directly by each operator."""
    device = np.zeros(len(operators), np.int64)
    if not len(timeline.calls):
        return device
    per_call = np.zeros(len(timeline.calls), np.int64)
    for work in (timeline.kernels, timeline.copies):
        known = work.call >= 0
        np.add.at(per_call, work.call[known], (work.end_ns - work.start_ns)[known])
    busy = np.flatnonzero(per_call)
    calls = timeline.calls
    owner = innermost(
        tree, operators.thread, operators.start_ns, operators.end_ns, calls.thread[busy], calls.start_ns[busy]
    )
    found = owner >= 0
    np.add.at(device, owner[found], per_call[busy[found]])
    return device


def merge_operators(tables: Sequence[Sequence[OperatorRow]]) -> tuple[OperatorRow, ...]:
    """The operators of several traces together."""
    if len(tables) == 1:
        return tuple(tables[0])
    found: dict[tuple[str, str | None], list[OperatorRow]] = {}
    for row in (row for table in tables for row in table):
        found.setdefault((row.name, row.input_shapes), []).append(row)
    merged = [
        OperatorRow(
            name=name,
            input_shapes=shapes,
            calls=sum(r.calls for r in rows),
            self_cpu_ns=sum(r.self_cpu_ns for r in rows),
            total_cpu_ns=sum(r.total_cpu_ns for r in rows),
            self_device_ns=sum(r.self_device_ns for r in rows),
            total_device_ns=sum(r.total_device_ns for r in rows),
        )
        for (name, shapes), rows in found.items()
    ]
    return tuple(sorted(merged, key=lambda r: (-r.self_cpu_ns, r.name, r.input_shapes or "")))
