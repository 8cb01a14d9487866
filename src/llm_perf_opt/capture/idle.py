"""Why no kernel was running: the idle time of one process, split by cause.

Busy is the union of kernels and of graphs traced as a whole. All other time is idle, and each nanosecond of it has one
cause, tested in this order:

1. a copy or a set is running: waiting for a copy;
2. the launch of what runs next is not recorded: unattributed (page migrations have none: what the next call launches
   counts);
3. the call that launched what runs next has returned: launched and not yet started, the time between kernels (where
   that is long and the thread that launched it waits for the GPU meanwhile: waiting for a synchronisation);
4. the thread that launched what runs next was inside a synchronisation call: waiting for a synchronisation;
5. otherwise: waiting for the host to launch.

One gap may have several: up to the moment the launch call returns it waits for the host, after it for the device.
Three parts are also known by themselves: the time a GPU that waited for the host needs to start what it was given at
last (`starting`, of the time between kernels), host time in gaps too long for a launch to be their reason (`long`), and
waiting while launched work did not start (`held`, of the synchronisation: what both wait for is not in the capture).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llm_perf_opt.capture.intervals import (
    Flags,
    Intervals,
    Ints,
    expand,
    gaps_of,
    intersect,
    union,
    union_and_first,
    without,
)
from llm_perf_opt.capture.timeline import Activities, Calls, Timeline, distinct, join, take

# Between two launches an eager framework needs 5 to 200 µs, a profiler with stacks included; what takes longer is other
# work. Captures of many programs have hardly any idle time in gaps near this length.
LONG_GAP_NS = 500_000
# Where gaps longer than any launch takes hold most of the waiting for the host, and are far longer than most or follow
# on a wait, they have their own reason too: work of the program, not one launch.
SLOW_LAUNCH_NS = 200_000
FAR, MOST = 10, 0.5
# In the place of a launching call: the driver moved pages of unified memory by itself.
_DRIVER = -2
# Of the capture: less is not worth reporting.
WORTH = 0.01
# Calls that free memory wait for the GPU where it is busy. On an idle GPU they wait for nothing: the driver works.
_FREES = re.compile(r"^(cuda|hip)(Free|FreeHost|HostFree)(_|$)|^cuMemFree")
# A kernel launched on an idle GPU starts within 10 µs; one that takes longer waits for something else.
START_NS = 20_000


@dataclass(frozen=True, kw_only=True, eq=False)
class IdleMap:
    """Sets of intervals of one process from which the idle time inside any window can be read.

    `span` goes from the first to the last GPU activity, also where that took no time. Gaps are long from `long_from_ns`
    on.
    """

    span: tuple[int, int]
    long_from_ns: int
    busy: Intervals
    copying: Intervals
    queued: Intervals
    waiting: Intervals
    unknown: Intervals
    starting: Intervals
    long: Intervals
    held: Intervals

    def split(self, start: Ints, end: Ints) -> "IdleSplit":
        """The idle time inside each window, by cause."""

        idle = end - start - (self.busy.covered_before(end) - self.busy.covered_before(start))
        copying, between = self.copying.inside(start, end), self.queued.inside(start, end)
        waiting, unknown = self.waiting.inside(start, end), self.unknown.inside(start, end)
        return IdleSplit(
            idle_ns=idle,
            copy_ns=copying,
            sync_ns=waiting,
            between_ns=between,
            unattributed_ns=unknown,
            host_ns=idle - copying - between - waiting - unknown,
            starting_ns=self.starting.inside(start, end),
            long_ns=self.long.inside(start, end),
            held_ns=self.held.inside(start, end),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class IdleSplit:
    """Columns, one entry per window. The parts add up to `idle_ns`.

    `starting_ns` is a part of `between_ns`, `long_ns` one of `host_ns`, `held_ns` one of `sync_ns`.
    """

    idle_ns: Ints
    host_ns: Ints
    between_ns: Ints
    copy_ns: Ints
    sync_ns: Ints
    unattributed_ns: Ints
    starting_ns: Ints
    long_ns: Ints
    held_ns: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class _Gaps:
    """Times in which nothing ran, and the call that launched what ended each (-1: not recorded).

    `trailing`: nothing ended the last of them but the capture.
    """

    start: Ints
    end: Ints
    call: Ints
    trailing: bool

    def long_from(self, waiting: Intervals, wanted: Flags, span: tuple[int, int], launches: int) -> int:
        """The length from which the wanted gaps are long: `LONG_GAP_NS`, or less where shorter ones stand out.

        A launch without a gap is one with a gap of no length.
        """
        inside = wanted & (self.start >= span[0]) & (self.end <= span[1])
        length = (self.end - self.start)[inside]
        if not len(length):
            return LONG_GAP_NS
        middle = len(length) - launches // 2 - 1
        median = int(np.partition(length, middle)[middle]) if middle >= 0 else 0
        index = np.flatnonzero(inside & (self.end - self.start >= SLOW_LAUNCH_NS))
        rest = self._rest(index, waiting)
        waited = int(waiting.covered_before(np.array(span)) @ np.array([-1, 1]))
        short = int(length.sum()) - waited - int(rest[rest >= LONG_GAP_NS].sum())
        most = max(MOST * short, WORTH * (span[1] - span[0]))
        other = (rest >= SLOW_LAUNCH_NS) & (rest < LONG_GAP_NS)
        # What a thread does between a wait and its next launch, for longer than any launch takes, is other work.
        behind_wait = other & (rest < (self.end - self.start)[index])
        if behind_wait.any() and int(rest[behind_wait].sum()) >= most:
            return SLOW_LAUNCH_NS
        far = other & (rest >= FAR * median)
        return max(SLOW_LAUNCH_NS, FAR * median) if far.any() and int(rest[far].sum()) >= most else LONG_GAP_NS

    def long_beside(self, waiting: Intervals, wanted: Flags, from_ns: int) -> Ints:
        """Those of the wanted that are long also without the time in which the host waited."""
        index = np.flatnonzero(wanted & (self.end - self.start >= from_ns))
        return index[self._rest(index, waiting) >= from_ns]

    def _rest(self, index: Ints, waiting: Intervals) -> Ints:
        """Their lengths without the time in which the host waited."""
        start, end = self.start[index], self.end[index]
        return end - start - (waiting.covered_before(end) - waiting.covered_before(start))


def map_idle(timeline: Timeline) -> dict[int, IdleMap]:
    """The idle map of each process that appears in the capture."""
    window, calls = capture_window(timeline), _without_frees(timeline)
    compute = join([timeline.kernels, timeline.graphs])
    present = [distinct(compute.process), distinct(timeline.copies.process), distinct(timeline.thread_process)]
    processes = sorted({int(code) for codes in present for code in codes})
    if len(processes) < 2:
        return {code: _map(compute, timeline.copies, calls, window) for code in processes}
    return {
        code: _map(
            take(compute, np.flatnonzero(compute.process == code)),
            take(timeline.copies, np.flatnonzero(timeline.copies.process == code)),
            calls,
            window,
        )
        for code in processes
    }


def _without_frees(timeline: Timeline) -> Calls:
    """The calls, of which those that free memory are not waits."""
    calls = timeline.calls
    codes = [code for code, name in enumerate(timeline.names) if _FREES.match(name)]
    if not codes:
        return calls
    frees = np.zeros(len(timeline.names) + 1, np.bool_)
    frees[codes] = True
    return replace(calls, waits=calls.waits & ~frees[calls.name])


def _map(compute: Activities, copies: Activities, calls: Calls, window: tuple[int, int]) -> IdleMap:
    if copies.by_driver is not None:
        copies = replace(copies, call=np.where(copies.by_driver, _DRIVER, copies.call))
    kernels, moves = _lasting(compute), _lasting(copies)
    busy, first = union_and_first(kernels.start_ns, kernels.end_ns)
    parts = _Parts(start=busy.start, end=busy.end, opener=kernels.call[first])
    # Of a long capture each of these is large, and memory that was never used costs more time than what is done in it.
    del first
    copying, copy_opener = _copying(moves, busy)
    parts = parts.joined(copying.start, copying.end, copy_opener)
    for work, lasting in ((compute, kernels), (copies, moves)):
        if lasting is not work:
            empty = np.flatnonzero(work.end_ns == work.start_ns)
            parts = parts.marked(work.start_ns[empty], work.call[empty])
    last_launch = _last_launch((compute, copies), calls)
    gaps = _gaps(parts if copies.by_driver is None else parts.before_next_launch(), last_launch, window)
    del parts
    # What the driver moves after the last launch is moved for the host, which launches nothing more.
    for_host = np.flatnonzero(gaps.call == _DRIVER)
    gaps.call[for_host] = last_launch
    known = gaps.call >= 0
    if known.all():
        launched = calls.end_ns[gaps.call]
        np.clip(launched, gaps.start, gaps.end, out=launched)
    else:
        launched = gaps.end.copy()
        launched[known] = np.clip(calls.end_ns[gaps.call[known]], gaps.start[known], gaps.end[known])
    launched[for_host] = gaps.end[for_host]
    if gaps.trailing:
        # Nothing ran after the last gap, so nothing was queued; without any GPU work the host launched nothing.
        launched[-1] = gaps.end[-1]
        known[-1] = known[-1] or not (len(compute) or len(copies))
    before = _Gaps(start=gaps.start, end=launched, call=gaps.call, trailing=gaps.trailing)
    queued = launched < gaps.end
    waited = launched > gaps.start
    waiting = _waiting(before, known & waited, calls)
    span = _span((compute, copies))
    long_from_ns = before.long_from(waiting, known, span, len(compute) + len(copies))
    long = before.long_beside(waiting, known, long_from_ns)
    long_gaps = union(gaps.start[long], launched[long])
    unknown = union(gaps.start[~known], gaps.end[~known])
    after = _Gaps(start=launched, end=gaps.end, call=gaps.call, trailing=gaps.trailing)
    held = _waiting(after, known & (gaps.end - launched >= LONG_GAP_NS), calls)
    # Gaps are in order and apart, and so are parts of them.
    between = Intervals(start=launched[queued], end=gaps.end[queued])
    del before, after, gaps, launched
    starting = _start_of(between, waited[queued])
    if len(held.start):
        between, starting = without(between, held), without(starting, held)
        waiting = union(np.concatenate((waiting.start, held.start)), np.concatenate((waiting.end, held.end)))
    return IdleMap(
        span=span,
        long_from_ns=long_from_ns,
        busy=busy,
        copying=copying,
        queued=between,
        waiting=waiting,
        unknown=unknown,
        starting=starting,
        long=without(long_gaps, waiting),
        held=held,
    )


def _start_of(between: Intervals, waited: Flags) -> Intervals:
    """How long kernels launched on an idle GPU take to start: the beginning of the gaps that waited for the host."""
    start = between.start[waited]
    end = start + START_NS
    np.minimum(end, between.end[waited], out=end)
    return Intervals(start=start, end=end)


def _lasting(work: Activities) -> Activities:
    """What took any time: the rest covers nothing, and must not cut what does."""
    some = work.end_ns > work.start_ns
    return work if bool(some.all()) else take(work, np.flatnonzero(some))


def _span(tables: Sequence[Activities]) -> tuple[int, int]:
    some = [t for t in tables if len(t)]
    return (min(int(t.start_ns.min()) for t in some), max(int(t.end_ns.max()) for t in some)) if some else (0, 0)


def _last_launch(tables: Sequence[Activities], calls: Calls) -> int:
    """The latest call that launched any of this, or -1."""
    recorded = [t.call if int(t.call.min()) >= 0 else t.call[t.call >= 0] for t in tables if len(t)]
    found = [call[np.argmax(calls.start_ns[call])] for call in recorded if len(call)]
    return int(max(found, key=lambda call: calls.start_ns[call])) if found else -1


def _copying(copies: Activities, busy: Intervals) -> tuple[Intervals, Ints]:
    """When copies or sets run and no kernel does, and the call behind each such time."""
    merged, first = union_and_first(copies.start_ns, copies.end_ns)
    if not len(merged.start) or not len(busy.start):
        return merged, copies.call[first]
    low, high = min(merged.start[0], busy.start[0]), max(merged.end[-1], busy.end[-1])
    edges = Intervals(start=np.array([low, busy.end[-1]]), end=np.array([busy.start[0], high]))
    inner = intersect(merged.start, merged.end, gaps_of(busy))
    outer = intersect(merged.start, merged.end, edges)
    alone = union(np.concatenate((inner.start, outer.start)), np.concatenate((inner.end, outer.end)))
    behind = first[np.searchsorted(merged.start, alone.start, side="right") - 1]
    return alone, copies.call[behind]


def capture_window(timeline: Timeline) -> tuple[int, int]:
    """From the first to the last thing recorded."""
    tables = (timeline.kernels, timeline.graphs, timeline.copies, timeline.ranges, timeline.calls)
    spans = [(t.start_ns, t.end_ns) for t in tables if len(t)]
    if not spans:
        return 0, 0
    return min(int(s.min()) for s, _ in spans), max(int(e.max()) for _, e in spans)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parts:
    """Disjoint times in which something ran, in order, and the call behind each."""

    start: Ints
    end: Ints
    opener: Ints

    def joined(self, start: Ints, end: Ints, opener: Ints) -> "_Parts":
        """Together with others that overlap none of these."""
        if not len(start):
            return self
        place = np.searchsorted(self.start, start)
        return _Parts(
            start=np.insert(self.start, place, start),
            end=np.insert(self.end, place, end),
            opener=np.insert(self.opener, place, opener),
        )

    def before_next_launch(self) -> "_Parts":
        """With pages the driver moved counted for the next call that launched: the GPU waited for that one."""
        count = len(self.opener)
        place = np.where(self.opener == _DRIVER, count - 1, np.arange(count))
        follows = np.minimum.accumulate(place[::-1])[::-1]
        return _Parts(start=self.start, end=self.end, opener=self.opener[follows])

    def marked(self, at: Ints, opener: Ints) -> "_Parts":
        """With points in time that lie in none of these: work that took no time still ends a gap."""
        if not len(at):
            return self
        order = np.argsort(at, kind="stable")
        at, opener = at[order], opener[order]
        index = np.searchsorted(self.start, at, side="right") - 1
        free = index < 0
        free[~free] = at[~free] >= self.end[index[~free]]
        return self.joined(at[free], at[free], opener[free])


def _gaps(parts: _Parts, last_launch: int, window: tuple[int, int]) -> _Gaps:
    """Gaps before, between and after all activity. The last one belongs to the call that launched last."""
    opened = np.concatenate(([window[0]], parts.end))
    closed = np.concatenate((parts.start, [window[1]]))
    real = closed > opened
    call = np.concatenate((parts.opener, np.array([last_launch], np.int32)))
    # Mostly only the outermost are none: those are cut off without a copy of the rest.
    inner = slice(int(not real[0]), len(real) - int(not real[-1]))
    chosen = inner if real[inner].all() else real
    return _Gaps(start=opened[chosen], end=closed[chosen], call=call[chosen], trailing=bool(real[-1]))


def _waiting(gaps: _Gaps, open_: Flags, calls: Calls) -> Intervals:
    """The parts of the gaps in which the launching thread sat in a synchronisation call."""
    starts: list[Ints] = [np.zeros(0, np.int64)]
    ends: list[Ints] = [np.zeros(0, np.int64)]
    waits = np.flatnonzero(calls.waits)
    for thread in distinct(calls.thread[waits]):
        mine = waits[calls.thread[waits] == thread]
        inside = union(calls.start_ns[mine], calls.end_ns[mine])
        # Few waits are looked up in many gaps, not the other way round.
        first = np.searchsorted(gaps.end, inside.start, side="right")
        count = np.maximum(np.searchsorted(gaps.start, inside.end, side="left") - first, 0)
        wait, gap = np.repeat(np.arange(len(first)), count), expand(first, count)
        call = gaps.call[gap]
        # Without any GPU work the gap has no launching call, and every thread's waiting counts.
        here = open_[gap] & ((calls.thread[call] == thread) | (call < 0))
        wait, gap = wait[here], gap[here]
        starts.append(np.maximum(inside.start[wait], gaps.start[gap]))
        ends.append(np.minimum(inside.end[wait], gaps.end[gap]))
    return union(np.concatenate(starts), np.concatenate(ends))


def idle_in(timeline: Timeline, maps: Mapping[int, IdleMap], thread: Ints, start: Ints, end: Ints) -> Ints:
    """The part of each time of a thread in which its process has no kernel running."""
    found = end - start
    process = timeline.thread_process[thread]
    for owner in distinct(process).tolist():
        mine = process == owner
        busy = maps[owner].busy
        found[mine] -= busy.covered_before(end[mine]) - busy.covered_before(start[mine])
    return found
