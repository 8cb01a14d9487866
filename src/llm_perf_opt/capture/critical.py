"""The critical path of a range: what decides when its work is done, walked back from its end.

The walk begins where the range ends on the host or where the last GPU work launched inside it ends, whichever is later.
From the host it goes back along the thread to the last wait for the GPU, and from there to the GPU work that ended the
wait; from a piece of GPU work to the work before it, if that was still running when the launch call had returned, and
otherwise to the launch call, and so back to the host. Calls that other threads made for the range while its thread was
blocked (autograd's backward, data-parallel workers: see `ownership`) count as calls of its thread, so the path leads
through the same work that the row of the range counts. Every nanosecond belongs to one part, so the parts say what
would have to shrink: making anything that is not on the path faster changes nothing. Nor does a faster host where the
GPU never idles: what host, launch and delay could save is at most the GPU's idle time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Intervals, Ints, union
from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.ownership import Ownership, Unlaunched, find_ownership, place_unlaunched
from llm_perf_opt.capture.rows import START_END, RangeRow
from llm_perf_opt.capture.tables import communication_kernels
from llm_perf_opt.capture.timeline import Activities, Timeline, join, take

RANGES = 10
# A range with more work than this is not walked: it would take seconds.
MOST_WORK = 100_000
KERNELS_NAMED = 3
BLOCKING_NS = 50_000
HOST, LAUNCH, DELAY, WAIT, COMPUTE, COMMUNICATION, COPY, BETWEEN = range(8)


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """One instance of a range, that of median wall time; the parts add up to `length_ns`.

    On the host: its own work, launch calls, and returning from waits. Between host and GPU: the delay from the return
    of a launch to the start. On the GPU: computation, communication, copies, and the time between one and the next.
    `gpu_idle_ns` is when no kernel ran, on the path or not. `shrink` names what could save most: host, launch, start
    delay, GPU, communication or copies.
    """

    range_name: str
    length_ns: int
    host_ns: int
    launch_ns: int
    start_delay_ns: int
    wait_return_ns: int
    computation_ns: int
    communication_ns: int
    copy_ns: int
    between_ns: int
    gpu_idle_ns: int
    shrink: str
    kernels: tuple[str, ...]


def critical_paths(timelines: Sequence[Timeline], rows: Sequence[RangeRow]) -> tuple[CriticalPath, ...]:
    """Of the ranges with GPU work that take most time."""
    wanted = [row for row in rows if row.kernel_count and row.typical.kernel_count <= MOST_WORK][:RANGES]
    found = []
    captures: dict[int, _Capture] = {}
    for row in wanted:
        timeline = timelines[row.typical.source]
        start_ns, end_ns = row.typical.start_ns, row.typical.start_ns + row.typical.wall_ns
        ranges = timeline.ranges
        same = (ranges.start_ns == start_ns) & (ranges.end_ns == end_ns)
        same &= ranges.process_wide == (row.style == START_END)
        at = [i for i in np.flatnonzero(same).tolist() if timeline.names[ranges.name[i]] == row.name]
        if at:
            if row.typical.source not in captures:
                captures[row.typical.source] = _capture(timeline)
            found.append(_path(row.name, _Walk(captures[row.typical.source], at[0])))
    return tuple(found)


def _path(name: str, walk: "_Walk") -> CriticalPath:
    part = walk.walk()
    idle = walk.idle_ns()
    groups = {
        "host": min(part[HOST] + part[WAIT], idle),
        "launch": min(part[LAUNCH], idle),
        "start delay": min(part[DELAY], idle),
        "GPU": part[COMPUTE] + part[BETWEEN],
        "communication": part[COMMUNICATION],
        "copies": part[COPY],
    }
    return CriticalPath(
        range_name=name,
        length_ns=walk.end_ns - walk.start_ns,
        host_ns=part[HOST],
        launch_ns=part[LAUNCH],
        start_delay_ns=part[DELAY],
        wait_return_ns=part[WAIT],
        computation_ns=part[COMPUTE],
        communication_ns=part[COMMUNICATION],
        copy_ns=part[COPY],
        between_ns=part[BETWEEN],
        gpu_idle_ns=idle,
        shrink=max(groups, key=lambda key: groups[key]),
        kernels=walk.heaviest(),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Capture:
    """A timeline with its tables of GPU work, the kind of each piece of them, and the calls that wait.

    `thread` is the one for which each call was made; `caused_range` is a range of another thread that owns
    `caused_call`. `unlaunched_end_ns` is when each piece of unlaunched work ended. A long launch call that returns
    after its own work has ended waited for it: a copy to memory that is not pinned.
    """

    timeline: Timeline
    tables: tuple[Activities, ...]
    kinds: tuple[Ints, ...]
    waits: Flags
    ownership: Ownership
    thread: Ints
    caused_call: Ints
    caused_range: Ints
    unlaunched: Unlaunched | None
    unlaunched_end_ns: Ints

    def last_end_ns(self, index: int, least: int) -> int:
        """When the last GPU work of a range ends, as its row counts it, or `least` if that is later."""
        ranges, calls = self.timeline.ranges, self.timeline.calls
        start_ns, end_ns, thread = (int(c[index]) for c in (ranges.start_ns, ranges.end_ns, ranges.thread))
        # The last place is that of work without a call, which has -1.
        made = np.zeros(len(calls) + 1, np.bool_)
        known = made[:-1]
        np.logical_and(calls.start_ns >= start_ns, calls.start_ns < end_ns, out=known)
        if ranges.process_wide[index]:
            process = self.timeline.thread_process
            known &= process[calls.thread] == process[thread]
        else:
            known &= calls.thread == thread
            known[self.caused_call[self.caused_range == index]] = True
        ends = [table.end_ns[made[table.call]] for table in self.tables]
        if self.unlaunched is not None and self.unlaunched.placed and not ranges.process_wide[index]:
            position, owner = self.ownership.with_ancestors(self.unlaunched.owner)
            ends.append(self.unlaunched_end_ns[position[owner == index]])
        return max(int(end.max(initial=least)) for end in ends)

    def works_for(self, index: int) -> int:
        """The thread on which a range is waited for: its own, or the one for which that works."""
        while (parent := int(self.ownership.parent[index])) >= 0:
            index = parent
        return int(self.timeline.ranges.thread[index])


def _capture(timeline: Timeline) -> _Capture:
    tables, calls = (timeline.kernels, timeline.graphs, timeline.copies), timeline.calls
    waits = calls.waits.copy()
    blocks = np.append(calls.end_ns - calls.start_ns >= BLOCKING_NS, False)
    for table in tables:
        blocking = np.flatnonzero(blocks[table.call])
        blocking = blocking[table.end_ns[blocking] <= calls.end_ns[table.call[blocking]]]
        waits[table.call[blocking]] = True
    kinds = tuple(
        np.full(len(table), kind, np.int8) for table, kind in zip(tables, (COMPUTE, COMPUTE, COPY), strict=True)
    )
    kinds[0][communication_kernels(timeline)] = COMMUNICATION
    ownership = find_ownership(timeline)
    none = np.zeros(0, np.int64)
    unlaunched: Unlaunched | None = None
    ends: Ints = none
    if any(bool((table.call < 0).any()) for table in tables):
        # Only then all of it is needed in one table.
        work = join(list(tables))
        unlaunched = place_unlaunched(timeline, work, ownership)
        ends = work.end_ns[unlaunched.index]
    caused, owner = (none, none) if ownership.cause is None else ownership.with_ancestors(ownership.cause)
    return _Capture(
        timeline=timeline,
        tables=tables,
        kinds=kinds,
        waits=waits,
        ownership=ownership,
        thread=ownership.working_thread(timeline),
        caused_call=caused,
        caused_range=owner,
        unlaunched=unlaunched,
        unlaunched_end_ns=ends,
    )


class _Walk:
    """The work and calls around one window, in the order the walk needs them."""

    def __init__(self, capture: _Capture, index: int) -> None:
        ranges = capture.timeline.ranges
        self.start_ns = start_ns = int(ranges.start_ns[index])
        self._host_end_ns = end_ns = int(ranges.end_ns[index])
        self._timeline, self._calls_wait = capture.timeline, capture.waits
        self._made_for, self._thread = capture.thread, capture.works_for(index)
        self.end_ns = capture.last_end_ns(index, end_ns)
        process = capture.timeline.thread_process[self._thread]
        picks = [
            np.flatnonzero((w.process == process) & (w.end_ns > start_ns) & (w.start_ns < self.end_ns))
            for w in capture.tables
        ]
        work = join([take(table, pick) for table, pick in zip(capture.tables, picks, strict=True)])
        kind = np.concatenate([kinds[pick] for kinds, pick in zip(capture.kinds, picks, strict=True)])
        order = np.argsort(work.end_ns, kind="stable")
        self._start, self._end = work.start_ns[order], work.end_ns[order]
        self._call, self._kind, self._name = work.call[order], kind[order], work.name[order]
        # No other calls can matter.
        calls = capture.timeline.calls
        self._near = np.flatnonzero((calls.end_ns > start_ns) & (calls.start_ns < self.end_ns))
        self._launches: dict[int, Intervals] = {}
        self._waits: dict[int, tuple[Ints, Ints]] = {}
        self._part = [0] * 8
        self._on_path: dict[int, int] = {}

    def walk(self) -> list[int]:
        """Nanoseconds of each part."""
        at, thread, work = self.end_ns, self._thread, -1
        if self.end_ns > self._host_end_ns:
            work = int(np.searchsorted(self._end, self.end_ns, side="right")) - 1
        # Each turn ends one piece of work or one wait, or goes from the GPU to the host.
        for _ in range(3 * len(self._start) + 3 * len(self._timeline.calls) + 3):
            if at <= self.start_ns:
                break
            if work >= 0:
                at, thread, work = self._from_work(work, at, thread)
            else:
                at, work = self._from_host(at, thread)
        return self._part

    def idle_ns(self) -> int:
        """When no kernel or graph ran."""
        runs = self._kind != COPY
        busy = union(self._start[runs], self._end[runs])
        inside = busy.covered_before(np.array([self.start_ns, self.end_ns]))
        return self.end_ns - self.start_ns - int(inside[1] - inside[0])

    def heaviest(self) -> tuple[str, ...]:
        """The kernels that take most of the path."""
        names = sorted(self._on_path, key=lambda name: -self._on_path[name])[:KERNELS_NAMED]
        return tuple(dict.fromkeys(short_kernel_name(self._timeline.names[name]) for name in names))

    def _add(self, part: int, start: int, end: int) -> int:
        """Count a stretch, cut at the range's start, and go to where it began."""
        start = max(start, self.start_ns)
        self._part[part] += max(end - start, 0)
        return min(start, end)

    def _from_host(self, at: int, thread: int) -> tuple[int, int]:
        """Back to the last wait on the thread, and to the work it waited for."""
        starts, ends = self._waits_of(thread)
        index = int(np.searchsorted(ends, at, side="right")) - 1
        if index < 0 or ends[index] <= self.start_ns:
            return self._host(self.start_ns, at, thread), -1
        begin, end = int(starts[index]), int(ends[index])
        at = self._host(end, at, thread)
        work = int(np.searchsorted(self._end, at, side="right")) - 1
        if work >= 0 and self._end[work] > begin:
            return self._add(WAIT, int(self._end[work]), at), work
        # It found nothing to wait for, and is a call like others.
        return self._add(HOST, begin, at), -1

    def _host(self, start: int, end: int, thread: int) -> int:
        """Count host time, launch calls apart."""
        start = max(start, self.start_ns)
        inside = self._launches_of(thread).covered_before(np.array([start, end]))
        launch = int(inside[1] - inside[0])
        self._part[LAUNCH] += launch
        self._part[HOST] += max(end - start, 0) - launch
        return min(start, end)

    def _from_work(self, work: int, at: int, thread: int) -> tuple[int, int, int]:
        """Back to the start of a piece of work, then to the work before it or to its launch."""
        before_at, begin = at, int(self._start[work])
        at = self._add(int(self._kind[work]), begin, at)
        name = int(self._name[work])
        self._on_path[name] = self._on_path.get(name, 0) + before_at - at
        if at <= self.start_ns:
            return at, thread, -1
        call = int(self._call[work])
        calls = self._timeline.calls
        # A call that waits for its own work can start it as soon as it is made.
        ready = int((calls.start_ns if self._calls_wait[call] else calls.end_ns)[call]) if call >= 0 else self.start_ns
        before = int(np.searchsorted(self._end, at, side="right")) - 1
        while before >= 0 and (before == work or self._start[before] >= begin):
            before -= 1
        if before >= 0 and (call < 0 or self._end[before] >= ready):
            return self._add(BETWEEN, int(self._end[before]), at), thread, before
        if call < 0:
            return self._add(BETWEEN, self.start_ns, at), thread, -1
        at = self._add(DELAY, ready, at) if ready < at else at
        began = int(calls.start_ns[call])
        return (self._add(LAUNCH, began, at) if began < at else at), int(self._made_for[call]), -1

    def _launches_of(self, thread: int) -> Intervals:
        if thread not in self._launches:
            calls = self._timeline.calls
            near = self._near
            mine = near[(self._made_for[near] == thread) & calls.launches[near] & ~self._calls_wait[near]]
            self._launches[thread] = union(calls.start_ns[mine], calls.end_ns[mine])
        return self._launches[thread]

    def _waits_of(self, thread: int) -> tuple[Ints, Ints]:
        """Starts and ends of the waits of a thread, by end."""
        if thread not in self._waits:
            calls = self._timeline.calls
            near = self._near
            # What took no time waited for nothing: a trace in whole microseconds has such calls.
            waited = self._calls_wait[near] & (calls.end_ns[near] > calls.start_ns[near])
            mine = near[(self._made_for[near] == thread) & waited]
            mine = mine[np.argsort(calls.end_ns[mine], kind="stable")]
            self._waits[thread] = (calls.start_ns[mine], calls.end_ns[mine])
        return self._waits[thread]
