"""Exclusive kernel time: every instant in which a GPU is busy belongs to one kernel.

Compute owns an instant before communication does, so the time of a communication kernel is its exposed time. Among
several of one kind the one that started first owns it, until it ends. The times of all kernels of a GPU add up to the
time in which it ran any of them, in whole nanoseconds: they can be the cells of a ledger. How much of that time decides
when the work ends is what no launch of the host hides.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from llm_perf_opt.capture.idle import IdleMap
from llm_perf_opt.capture.intervals import BLOCK_ROWS, Flags, Intervals, Ints, union
from llm_perf_opt.capture.kernels.names import classify_kernel, short_kernel_name
from llm_perf_opt.capture.tables import communication_kernels
from llm_perf_opt.capture.timeline import Activities, Calls, Timeline, distinct, join, take


def exclusive_ns(start: Ints, end: Ints, communication: Flags) -> Ints:
    """For each kernel of a GPU the time in which it owns it; `communication` marks the kernels that communicate."""
    if not communication.any():
        return owned_ns(start, end)
    out = np.zeros(len(start), np.int64)
    compute = ~communication
    out[compute] = owned_ns(start[compute], end[compute])
    busy = union(start[compute], end[compute])
    out[communication] = owned_ns(start[communication], end[communication], beside=busy)
    return out


def alone_ns(kernels: Activities) -> Ints:
    """For each kernel the time in which no other kernel ran on its GPU."""
    out = np.zeros(len(kernels), np.int64)
    gpu = gpu_of(kernels)
    for one in distinct(gpu).tolist():
        mine = np.flatnonzero(gpu == one)
        count, numbers = len(mine), np.arange(len(mine))
        at = np.concatenate((kernels.start_ns[mine], kernels.end_ns[mine]))
        order = np.argsort(at, kind="stable")
        change = np.concatenate((np.ones(count, np.int64), np.full(count, -1, np.int64)))[order]
        # Where one kernel runs, the sum of the numbers of those that run is its own.
        running = np.cumsum(np.concatenate((numbers, -numbers))[order])[:-1]
        single = np.flatnonzero(np.cumsum(change)[:-1] == 1)
        length = np.diff(at[order])[single]
        # Sums of whole numbers up to 2**53 are exact as floats: 104 days.
        out[mine] = np.bincount(running[single], weights=length, minlength=count).astype(np.int64)
    return out


def gpu_of(work: Activities) -> Ints:
    """One number for each GPU of each process: processes may number their GPUs differently."""
    numbers: Ints = (work.process.astype(np.int64) << 32) + work.device
    return numbers


def owned_ns(start: Ints, end: Ints, *, beside: Intervals | None = None) -> Ints:
    """What each interval covers that none before it does, nor the set `beside`.

    The owner of an instant is the first interval, by start, that covers it. So one interval owns what follows the
    latest end of all before it. Of those that start together the shortest comes first, regardless of their order.
    """
    if not len(start):
        return np.zeros(0, np.int64)
    order: Ints | None = None
    if not bool(np.all(start[1:] > start[:-1])):
        order = np.lexsort((end, start))
        start, end = start[order], end[order]
    begin = start.astype(np.int64)
    np.maximum(begin[1:], np.maximum.accumulate(end)[:-1], out=begin[1:])
    # One that lies inside those before it owns nothing.
    np.minimum(begin, end, out=begin)
    owned: Ints = end - begin
    if beside is not None:
        owned -= beside.covered_before(end) - beside.covered_before(begin)
    if order is None:
        return owned
    out = np.empty_like(owned)
    out[order] = owned
    return out


GRAPH = "CUDA graph traced as a whole"


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """One kernel name over a scope. `time_ns` adds up its launches, `own_ns` counts each moment of the GPU once."""

    name: str
    short_name: str
    kernel_class: str
    count: int
    time_ns: int
    own_ns: int


class DeviceTime:
    """The busy time of captures by kernel.

    Computation owns a moment before communication, and of several kernels the one that started first. The time by
    kernel sums to the busy time of each process exactly.
    """

    def __init__(self, captures: Sequence[tuple[Timeline, dict[int, IdleMap]]]) -> None:
        self._parts = [_Part(timeline, process) for timeline, maps in captures for process in maps]

    @cached_property
    def kernels(self) -> tuple[KernelTime, ...]:
        """By own time, the most first."""
        found: dict[str, list[int]] = {}
        for part in self._parts:
            for name, count, time_ns, own_ns in part.by_name():
                row = found.setdefault(name, [0, 0, 0])
                row[0] += count
                row[1] += time_ns
                row[2] += own_ns
        rows = [
            KernelTime(
                name=name,
                short_name=name if name == GRAPH else short_kernel_name(name),
                kernel_class="graph" if name == GRAPH else classify_kernel(name),
                count=count,
                time_ns=time_ns,
                own_ns=own_ns,
            )
            for name, (count, time_ns, own_ns) in found.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.own_ns, -row.time_ns, row.name)))

    @cached_property
    def critical(self) -> dict[str, float]:
        """By kernel name the part of its own time that no work of the host hides.

        A kernel that ends before the host has launched the next one saves no wall time if it gets shorter, unless the
        host waits for it.
        """
        hidden: dict[str, int] = {}
        for part in self._parts:
            for name, hidden_ns in part.hidden_by_name():
                hidden[name] = hidden.get(name, 0) + hidden_ns
        return {row.name: 1.0 - hidden[row.name] / row.own_ns for row in self.kernels if row.own_ns}


class _Part:
    """The kernels and whole graphs of one process of one capture, in the order of their starts."""

    def __init__(self, timeline: Timeline, process: int) -> None:
        kernels, graphs = timeline.kernels, timeline.graphs
        self._names = (*timeline.names, GRAPH)
        compute, name, talks = join([kernels, graphs]), kernels.name, communication_kernels(timeline)
        if len(graphs):
            name = np.concatenate((name, np.full(len(graphs), len(timeline.names), name.dtype)))
            talks = np.concatenate((talks, np.zeros(len(graphs), np.bool_)))
        mine = compute.process == process
        if not bool(mine.all()):
            compute, name, talks = take(compute, np.flatnonzero(mine)), name[mine], talks[mine]
        start = compute.start_ns
        if len(start) and not bool((start[1:] >= start[:-1]).all()):
            order = np.argsort(start, kind="stable")
            compute, name, talks = take(compute, order), name[order], talks[order]
        self._work, self._name, self._talks, self._calls = compute, name, talks, timeline.calls
        self._waits = timeline.calls.waits & (timeline.thread_process[timeline.calls.thread] == process)

    @property
    def _blocks(self) -> Iterator[slice]:
        """Of millions of kernels each step would be a column as large as those of the capture."""
        size = len(self._name)
        return (slice(first, min(first + BLOCK_ROWS, size)) for first in range(0, size, BLOCK_ROWS))

    def _summed(self, values: Callable[[slice], Ints]) -> Ints:
        """The sum of a time for each name."""
        out = np.zeros(len(self._names), np.int64)
        for block in self._blocks:
            # Sums of integers below 2**53 are exact as floats.
            sums = np.bincount(self._name[block], weights=values(block), minlength=len(out))
            out += sums.astype(np.int64)
        return out

    def by_name(self) -> list[tuple[str, int, int, int]]:
        """Name, launches, summed time and summed own time."""
        count = np.bincount(self._name, minlength=len(self._names))
        total = self._summed(lambda block: self._work.end_ns[block] - self._work.start_ns[block])
        own = self._summed(lambda block: self.own[block])
        return [
            (self._names[code], int(count[code]), int(total[code]), int(own[code]))
            for code in np.flatnonzero(count).tolist()
        ]

    def hidden_by_name(self) -> list[tuple[str, int]]:
        """Of each kernel's own time what passes while the host works to launch the next one, added up for each name."""
        calls = self._calls
        waiting = union(calls.start_ns[self._waits], calls.end_ns[self._waits])
        is_alone = len(self._work.start_ns) < 2
        hidden = self._summed(
            lambda block: (
                np.zeros(block.stop - block.start, np.int64)
                if is_alone
                else np.minimum(self._hidden_in(block, waiting), self.own[block])
            )
        )
        return [(self._names[code], int(hidden[code])) for code in distinct(self._name).tolist()]

    @cached_property
    def own(self) -> Ints:
        return exclusive_ns(self._work.start_ns, self._work.end_ns, self._talks)

    def _hidden_in(self, block: slice, waiting: Intervals) -> Ints:
        calls, work = self._calls, self._work
        start, end, call = work.start_ns[block], work.end_ns[block], work.call[block]
        following = np.append(call[1:], work.call[block.stop] if block.stop < len(work.call) else -1)
        launched = _ends_of(calls, following, start)
        # A launch that returns only when its kernel has ended waits for it.
        returned = _ends_of(calls, call, start)
        since, until = np.maximum(start, returned), np.minimum(end, launched)
        hidden = np.zeros(len(start), np.int64)
        some = np.flatnonzero(until > since)
        since, until = since[some], until[some]
        hidden[some] = until - since
        # Few of them hold a wait.
        waits = np.append(waiting.start, np.iinfo(np.int64).max)[np.searchsorted(waiting.end, since, side="right")]
        held = np.flatnonzero(waits < until)
        hidden[some[held]] -= waiting.covered_before(until[held]) - waiting.covered_before(since[held])
        return hidden


def _ends_of(calls: Calls, call: Ints, otherwise: Ints) -> Ints:
    """When calls returned; something else where the call is not recorded."""
    if not len(calls):
        return otherwise
    known = call >= 0
    return calls.end_ns[call] if bool(known.all()) else np.where(known, calls.end_ns[call], otherwise)
