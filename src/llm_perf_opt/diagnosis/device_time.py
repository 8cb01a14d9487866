"""Which kernel owns the GPU at each moment, and how much of its time decides when the work ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from llm_perf_opt.capture.exclusive import exclusive_ns
from llm_perf_opt.capture.idle import IdleMap
from llm_perf_opt.capture.intervals import Intervals, Ints, union
from llm_perf_opt.capture.kernels.names import classify_kernel, short_kernel_name
from llm_perf_opt.capture.tables import communication_kernels
from llm_perf_opt.capture.timeline import Calls, Timeline, join, take
from llm_perf_opt.diagnosis.claim import Fact, Value

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


# What fits into the cache of a core with all that is worked out from it.
BLOCK_ROWS = 1 << 16


def kernel_fact(kernel: KernelTime, *, source: str | None = None, **more: Value) -> Fact:
    """A line of evidence about one kernel: its name, time and launches, and what else is given."""
    values = {"kernel": kernel.short_name, "time": kernel.time_ns, "count": kernel.count, **more}
    return Fact(key="kernel", values=values, source=source)


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
            for name, count, time_ns, own_ns in part.by_name(part.own):
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
            for name, hidden_ns in part.sums(part.hidden):
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

    def by_name(self, time_ns: Ints) -> list[tuple[str, int, int, int]]:
        """Name, launches, summed time and the sum of another time."""
        size = len(self._names)
        count = np.bincount(self._name, minlength=size)
        length = self._work.end_ns - self._work.start_ns
        # Sums of integers below 2**53 are exact as floats.
        total = np.bincount(self._name, weights=length, minlength=size)
        other = np.bincount(self._name, weights=time_ns, minlength=size)
        return [
            (self._names[code], int(count[code]), int(total[code]), int(other[code]))
            for code in np.flatnonzero(count).tolist()
        ]

    def sums(self, time_ns: Ints) -> list[tuple[str, int]]:
        """Name and the sum of a time."""
        size = len(self._names)
        total = np.bincount(self._name, weights=time_ns, minlength=size)
        count = np.bincount(self._name, minlength=size)
        return [(self._names[code], int(total[code])) for code in np.flatnonzero(count).tolist()]

    @cached_property
    def own(self) -> Ints:
        return exclusive_ns(self._work.start_ns, self._work.end_ns, self._talks)

    @cached_property
    def hidden(self) -> Ints:
        """Of each kernel's own time what passes while the host works to launch the next one."""
        size, calls = len(self._work.start_ns), self._calls
        hidden = np.zeros(size, np.int64)
        if size < 2:
            return hidden
        waiting = union(calls.start_ns[self._waits], calls.end_ns[self._waits])
        # Block by block: of millions of kernels each step would be a column as large as those of the capture.
        for first in range(0, size, BLOCK_ROWS):
            block = slice(first, min(first + BLOCK_ROWS, size))
            hidden[block] = self._hidden_in(block, waiting)
        return np.minimum(hidden, self.own, out=hidden)

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
