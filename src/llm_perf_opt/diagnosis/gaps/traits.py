"""What the timing of a whole program shows: launches that block, memory given back in the loop, a GPU that is shared,
threads that wait for the interpreter; how far launches run ahead of the GPU; the steps of a loop.

Each is a record of counts and times, None where the capture does not show it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.idle import IdleMap
from llm_perf_opt.capture.intervals import Flags, Intervals, Ints, in_order, union, without
from llm_perf_opt.capture.kernels.names import classify_kernel, short_kernel_name
from llm_perf_opt.capture.rows import summed
from llm_perf_opt.capture.timeline import Activities, Timeline, distinct, grouped, int_percentile, join
from llm_perf_opt.diagnosis.gaps.gap_verdict import flags_of
from llm_perf_opt.diagnosis.gaps.startup_gaps import StartUp, goes_on

# Launches inspected, evenly over the capture: enough for every percentile, and a bound on the time it takes.
SAMPLE = 50_000
# With CUDA_LAUNCH_BLOCKING=1 all launches end after their kernel; without it those of long kernels do not.
BLOCKING_SHARE, MIN_LAUNCHES = 0.98, 20
LONG_KERNEL_NS = 5_000
# A launch with so much work before it shows that the host is ahead again.
AHEAD = 2
# At most this many launches after a free are inspected.
AFTER_FREE = 64
# The slice that another process gets of a GPU: 1.5 to 4 ms on what is sold for data centres, by default.
SLICE_NS = (1_200_000, 6_000_000)
# Shorter waiting is not a part of one.
PART_NS = 100_000
# A kernel that takes this many times its median was stopped in between; of at least this many of one name and shape.
STRETCHED, MIN_KERNELS = 2.0, 3
# Slices are all about as long, and there are at least this many of each kind: stopped kernels, and queued work that
# waits.
ALIKE, MIN_SLICES = 0.25, 2
NONE: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class LaunchBlocking:
    """Launches whose calls return only when their kernel has ended (`CUDA_LAUNCH_BLOCKING=1`).

    `covering` of the `launches` inspected do. `call_ns` is the time in these calls, `kernel_ns` that of their kernels.
    """

    launches: int
    covering: int
    call_ns: int
    kernel_ns: int


@dataclass(frozen=True, kw_only=True)
class AllocatorFlushes:
    """Memory of the device that is freed and allocated again and again to the end of a capture.

    `calls_ns` is the host's time in these calls. `gpu_idle_ns` is what they cost: the time in which no kernel runs from
    each free to the launch that finds work queued again, and during and after each allocation, without copies and
    synchronisation in it. `flushes` counts frees with no kernel launched between them as one.
    """

    flushes: int
    frees: int
    allocations: int
    calls_ns: int
    gpu_idle_ns: int


@dataclass(frozen=True, kw_only=True)
class TimeSlices:
    """Signs of another process that uses the GPU interleaved.

    `stretched` kernels took about `slice_ns` more than others of their name and shape, and `held` times of about that
    length no kernel ran while work was queued. `lost_ns` is all of it together.
    """

    stretched: int
    held: int
    slice_ns: int
    lost_ns: int


@dataclass(frozen=True, kw_only=True)
class GilWaits:
    """Waiting of launching threads for the lock of the Python interpreter, while no kernel of their process ran.

    `gpu_idle_ns` of `wait_ns` no kernel ran, in `count` waits. `holder` is the thread that held the lock most of that
    time, for `held_ns`.
    """

    count: int
    wait_ns: int
    gpu_idle_ns: int
    holder: str
    held_ns: int


def find_gil_waits(captures: Sequence[tuple[Timeline, Mapping[int, IdleMap]]]) -> GilWaits | None:
    """The time that the GIL cost the GPU, where a capture recorded who holds it."""
    count = wait_ns = idle_ns = 0
    held: dict[str, int] = {}
    for timeline, maps in captures:
        launching = np.zeros(len(timeline.thread_process), np.bool_)
        launching[timeline.calls.thread[timeline.calls.launches]] = True
        named = flags_of(timeline.names, "waits_for_gil")[timeline.system.name]
        mine = timeline.system.take(named & launching[timeline.system.thread])
        for code, one in maps.items():
            inside_span = (mine.start_ns < one.span[1]) & (mine.end_ns > one.span[0])
            own = mine.take(inside_span & (timeline.thread_process[mine.thread] == code))
            waits = union(np.maximum(own.start_ns, one.span[0]), np.minimum(own.end_ns, one.span[1]))
            idle = without(waits, one.busy)
            count += len(waits.start)
            wait_ns += waits.total
            idle_ns += idle.total
            holds = timeline.gil_held
            inside = idle.covered_before(holds.end_ns) - idle.covered_before(holds.start_ns)
            for thread in distinct(holds.thread[inside > 0]).tolist():
                name = timeline.thread_names[thread] if timeline.thread_names else ""
                key = f"{name or 'thread'} ({thread})"
                held[key] = held.get(key, 0) + int(inside[holds.thread == thread].sum())
    if not idle_ns:
        return None
    holder = max(held, key=lambda name: (held[name], name), default="another thread")
    return GilWaits(count=count, wait_ns=wait_ns, gpu_idle_ns=idle_ns, holder=holder, held_ns=held.get(holder, 0))


def find_launch_blocking(timelines: Sequence[Timeline]) -> LaunchBlocking | None:
    """Whether all launches of a program block."""
    if not timelines:
        return None
    found = summed([_blocking(timeline) for timeline in timelines])
    is_blocking = found.launches >= MIN_LAUNCHES and found.covering >= BLOCKING_SHARE * found.launches
    return found if is_blocking else None


def _blocking(timeline: Timeline) -> LaunchBlocking:
    """Of launches of kernels that are not mere blink: a short one may end before any call returns."""
    kernels, calls = timeline.kernels, timeline.calls
    some = slice(None, None, max(1, len(kernels) // SAMPLE))
    is_long = kernels.end_ns[some] - kernels.start_ns[some] >= LONG_KERNEL_NS
    known = np.arange(len(kernels))[some][is_long & (kernels.call[some] >= 0)]
    call = kernels.call[known]
    covers = (calls.start_ns[call] <= kernels.start_ns[known]) & (calls.end_ns[call] >= kernels.end_ns[known])
    return LaunchBlocking(
        launches=len(known),
        covering=int(covers.sum()),
        call_ns=int((calls.end_ns - calls.start_ns)[call].sum()),
        kernel_ns=int((kernels.end_ns - kernels.start_ns)[known].sum()),
    )


def find_allocator_flushes(
    captures: Sequence[tuple[Timeline, Mapping[int, IdleMap], StartUp]],
) -> AllocatorFlushes | None:
    """Frees and allocations of the device's memory that recur."""
    parts = [
        part
        for timeline, maps, startup in captures
        for code, one in maps.items()
        if (part := _flushes(timeline, one, startup, timeline.thread_process == code)) is not None
    ]
    return summed(parts) if parts else None


def _flushes(timeline: Timeline, one: IdleMap, startup: StartUp, own: Flags) -> AllocatorFlushes | None:
    calls = timeline.calls
    frees = _calls_of(timeline, "frees_device", own, startup)
    allocations = _calls_of(timeline, "allocates_device", own, startup)
    if not len(frees) or not len(one.busy.start):
        return None
    if not goes_on(np.searchsorted(one.busy.start, calls.end_ns[frees]), len(one.busy.start)):
        return None
    work = [(table, _own_work(timeline, table, own)) for table in (timeline.kernels, timeline.graphs) if len(table)]
    launches = in_order(_end_to_end([calls.start_ns[table.call[rows]] for table, rows in work]))
    ended = in_order(_end_to_end([table.end_ns[rows] for table, rows in work]))
    # The first of the next launches that finds the host ahead again, or none before the next free.
    after_free = np.searchsorted(launches, calls.end_ns[frees])
    place = np.minimum(after_free[:, None] + np.arange(AFTER_FREE), len(launches) - 1)
    ahead = place - np.searchsorted(ended, launches[place], side="right") >= AHEAD
    found = launches[place[np.arange(len(frees)), np.argmax(ahead, axis=1)]]
    refilled = np.where(ahead.any(axis=1) & (found >= calls.end_ns[frees]), found, np.iinfo(np.int64).max)
    limit = np.append(calls.start_ns[frees[1:]], one.span[1])
    to_next = _next_kernel(one.busy, calls.end_ns[frees])
    until = np.where(refilled < limit, refilled, np.minimum(np.maximum(to_next, calls.end_ns[frees]), limit))
    after = _next_kernel(one.busy, calls.end_ns[allocations])
    costs = union(
        np.concatenate((calls.start_ns[frees], calls.start_ns[allocations])),
        np.concatenate((until, np.maximum(after, calls.end_ns[allocations]))),
    )
    # Only what lies in the span of the GPU's work counts as idle.
    idle = one.split(np.clip(costs.start, *one.span), np.clip(costs.end, *one.span))
    memory = np.concatenate((frees, allocations))
    between = np.searchsorted(launches, calls.start_ns[frees])
    return AllocatorFlushes(
        flushes=len(distinct(between)),
        frees=len(frees),
        allocations=len(allocations),
        calls_ns=int((calls.end_ns - calls.start_ns)[memory].sum()),
        gpu_idle_ns=int((idle.idle_ns - idle.copy_ns - idle.sync_ns).sum()),
    )


def _end_to_end(columns: Sequence[Ints]) -> Ints:
    """Columns as one; a single one is not copied."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _next_kernel(busy: Intervals, at: Ints) -> Ints:
    """When a kernel runs next from each moment on, the moment itself where one runs or none follows."""
    place = np.searchsorted(busy.start, at)
    runs = (place > 0) & (busy.end[np.maximum(place - 1, 0)] > at)
    following = np.where(
        place < len(busy.start), busy.start[np.minimum(place, len(busy.start) - 1)], at.max() if len(at) else 0
    )
    found: Ints = np.where(runs, at, np.maximum(following, at))
    return found


def _calls_of(timeline: Timeline, kind: str, own: Flags, startup: StartUp) -> Ints:
    """The calls of one kind that allocate or free, by some threads, in time; without start-up."""
    calls = timeline.calls
    memory = startup.memory
    found = memory[flags_of(timeline.names, kind)[calls.name[memory]] & own[calls.thread[memory]]]
    return found[np.argsort(calls.start_ns[found], kind="stable")]


def _own_work(timeline: Timeline, work: Activities, own: Flags) -> Ints | slice:
    """The rows of the work that some threads launched."""
    if own.all() and int(work.call.min()) >= 0:
        return slice(None)
    known = np.flatnonzero(work.call >= 0)
    found: Ints = known[own[timeline.calls.thread[work.call[known]]]]
    return found


def find_time_slices(captures: Sequence[tuple[Timeline, Mapping[int, IdleMap]]]) -> TimeSlices | None:
    """Kernels that were stopped, and queued work that waited, for about the same time each."""
    more = np.concatenate([NONE, *(_stretches(timeline) for timeline, _ in captures)])
    waited = np.concatenate([NONE, *(_held(one) for _, maps in captures for one in maps.values())])
    if len(more) < MIN_SLICES or len(waited) < MIN_SLICES:
        return None
    # Waiting that is stopped by nothing else lasts one slice; what stretches a kernel may be several.
    slice_ns = int(np.median(waited))
    alike = np.abs(waited - slice_ns) <= ALIKE * slice_ns
    near = np.abs(more - slice_ns) <= ALIKE * slice_ns
    if int(alike.sum()) < max(MIN_SLICES, len(waited) / 2) or int(near.sum()) < max(MIN_SLICES, len(more) / 2):
        return None
    return TimeSlices(
        stretched=int(near.sum()),
        held=int(alike.sum()),
        slice_ns=slice_ns,
        lost_ns=int(more[near].sum() + waited[alike].sum()),
    )


def _stretches(timeline: Timeline) -> Ints:
    """By how much single kernels took longer than others of their name and shape, where that is about a slice."""
    kernels = timeline.kernels
    length = kernels.end_ns - kernels.start_ns
    long = np.flatnonzero(length >= SLICE_NS[0])
    found = []
    for name in distinct(kernels.name[long]).tolist():
        # Communication waits for others by itself.
        if classify_kernel(timeline.names[name]) == "communication":
            continue
        same = np.flatnonzero(kernels.name == name)
        shapes = kernels.shape[same] if kernels.shape is not None else np.zeros(len(same), np.int64)
        for shape in distinct(shapes).tolist():
            alike = length[same[shapes == shape]]
            median = float(np.median(alike))
            more = alike[alike >= STRETCHED * median] - median
            if len(alike) >= MIN_KERNELS:
                found.append(more[(more >= SLICE_NS[0]) & (more <= SLICE_NS[1])])
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)


def _held(one: IdleMap) -> Ints:
    """How long queued work waited while nothing ran, where that is about a slice."""
    long = one.queued.end - one.queued.start >= PART_NS
    waits = union(
        np.concatenate((one.queued.start[long], one.held.start)), np.concatenate((one.queued.end[long], one.held.end))
    )
    length: Ints = waits.end - waits.start
    return length[(length >= SLICE_NS[0]) & (length <= SLICE_NS[1])]


SHORT_KERNEL_NS = 10_000


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Launches of kernels and graphs whose call is recorded.

    The delay goes from the return of the call to the start on the GPU, 0 where the start came first. The depth is the
    work launched before and not yet done when a launch begins; an empty queue means that the GPU waits for this launch.
    `short_share` is the share of kernels under 10 µs, `short_time_share` that of their time, `call_ns` the time inside
    the calls that launched a kernel or a graph. `graph_share` is the share of work that graphs launched,
    `graph_time_share` that of its time: a graph traced as a whole is one piece of work, however many kernels it has.
    """

    launches: int
    call_ns: int
    delay_median_ns: int
    delay_p90_ns: int
    depth_median: float
    empty_share: float
    short_share: float
    graph_share: float
    short_time_share: float = 0.0
    graph_time_share: float = 0.0


def measure_queue(timelines: Sequence[Timeline]) -> Queue | None:
    """The queue over whole captures, one after the other; None where no launch is recorded."""
    parts = [part for part in (_launches(timeline) for timeline in timelines) if part is not None]
    if not parts:
        return None
    delay, depth = np.concatenate([part.delay for part in parts]), np.concatenate([part.depth for part in parts])
    return Queue(
        launches=sum(part.calls for part in parts),
        call_ns=sum(part.call_ns for part in parts),
        delay_median_ns=int(np.median(delay)),
        delay_p90_ns=int(int_percentile(delay, 90)),
        depth_median=float(np.median(depth)),
        empty_share=float((depth == 0).mean()),
        short_share=sum(part.short for part in parts) / sum(part.work for part in parts),
        graph_share=sum(part.by_graph for part in parts) / sum(part.known for part in parts),
        short_time_share=sum(part.short_ns for part in parts) / max(sum(part.work_ns for part in parts), 1),
        graph_time_share=sum(part.by_graph_ns for part in parts) / max(sum(part.work_ns for part in parts), 1),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Launches:
    """One capture: delay and depth of launches over all of it, and its totals; `known` work has its call recorded."""

    delay: Ints
    depth: Ints
    by_graph: int
    by_graph_ns: int
    known: int
    calls: int
    call_ns: int
    work: int
    short: int
    work_ns: int
    short_ns: int


def _launches(timeline: Timeline) -> _Launches | None:
    calls, compute = timeline.calls, join([timeline.kernels, timeline.graphs])
    all_recorded = len(compute) > 0 and int(compute.call.min()) >= 0
    known: Ints = np.arange(len(compute), dtype=np.int32) if all_recorded else np.flatnonzero(compute.call >= 0)
    if not len(known):
        return None
    # Copies are not launches: one from pageable memory blocks regardless of the call's name.
    launches = np.zeros(len(calls), np.bool_)
    call = compute.call if all_recorded else compute.call[known]
    launches[call] = True
    graphs = timeline.names_of_replays
    by_graph = known[graphs[calls.name[call]]] if graphs.any() else known[:0]
    all_known = len(known)
    if int(launches.sum()) < len(known):
        # A graph is one launch of many kernels: the first of them shows when it began.
        known = known[np.lexsort((compute.start_ns[known], compute.call[known]))]
        known = np.sort(known[np.concatenate(([True], np.diff(compute.call[known]) != 0))])
    step = max(1, len(known) // SAMPLE)
    every = len(known) == len(compute)
    launched = in_order(calls.start_ns[compute.call if every else compute.call[known]])
    ended = in_order(compute.end_ns if every else compute.end_ns[known])
    at = launched[::step]
    before = np.searchsorted(launched, at, side="left")
    some = known[::step]
    delay = np.maximum(compute.start_ns[some] - calls.end_ns[compute.call[some]], 0)
    depth = np.maximum(before - np.searchsorted(ended, at, side="right"), 0)
    # Of a long capture each of these is large.
    del known, some, launched, ended, at
    call_ns = int(np.sum(calls.end_ns - calls.start_ns, where=launches))
    length = compute.end_ns - compute.start_ns
    short = length < SHORT_KERNEL_NS
    return _Launches(
        delay=delay,
        depth=depth,
        by_graph=len(by_graph),
        by_graph_ns=int(length[by_graph].sum()),
        known=all_known,
        calls=int(launches.sum()),
        call_ns=call_ns,
        work=len(compute),
        short=int(short.sum()),
        work_ns=int(length.sum()),
        short_ns=int(np.sum(length, where=short)),
    )


MIN_ITERATIONS = 3
# A loop shows in the first kernels of a capture; more of them only take time.
LOOKED_AT = 200_000
# A kernel marks the steps when the number of kernels from one of it to the next is the same this often.
REGULAR = 0.6
# Steps found must hold this part of all kernels: what repeats only at the edge is not a loop of the program.
COVERED = 0.5
# An outlier is this many robust standard deviations from the median, and this part of it.
OUTLIER_DEVIATIONS, OUTLIER_SHARE = 5.0, 0.2
MAD_TO_DEVIATION = 1.4826
SHOWN = 10
_PROFILER_STEP = re.compile(r"^ProfilerStep\b")


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A step that took much longer or shorter than the others, counted from 0 in its capture."""

    index: int
    length_ns: int
    source: int = 0


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The steps of a capture. `how` says by what they were distinguished; quartiles say how much they spread."""

    how: str
    count: int
    kernels_each: int | None
    median_ns: int
    p25_ns: int
    p75_ns: int
    outliers: tuple[Outlier, ...]

    @property
    def spread(self) -> float:
        return (self.p75_ns - self.p25_ns) / self.median_ns if self.median_ns else 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Steps:
    """The steps of one capture: how they were distinguished, kernels in each, and their lengths in order."""

    how: str
    kernels_each: int | None
    length: Ints


def find_iterations(timelines: Sequence[Timeline]) -> Iterations | None:
    """The steps of all captures in which they are distinguished the same way, the way that finds most of them."""
    found: dict[tuple[str, int | None], list[tuple[int, Ints]]] = {}
    for source, timeline in enumerate(timelines):
        steps = _steps(timeline)
        if steps is not None:
            found.setdefault((steps.how, steps.kernels_each), []).append((source, steps.length))
    if not found:
        return None
    (how, kernels_each), parts = max(found.items(), key=lambda item: sum(len(length) for _, length in item[1]))
    return _describe(how, kernels_each, parts)


def _steps(timeline: Timeline) -> _Steps | None:
    """Marked steps where there are three of them, else a repeated sequence of kernels, else None."""
    ranges = timeline.ranges
    codes = [code for code in distinct(ranges.name).tolist() if _PROFILER_STEP.match(timeline.names[code])]
    marked = np.flatnonzero(np.isin(ranges.name, codes))
    if len(marked) >= MIN_ITERATIONS:
        marked = marked[np.argsort(ranges.start_ns[marked], kind="stable")]
        length = ranges.end_ns[marked] - ranges.start_ns[marked]
        return _Steps(how="marked as ProfilerStep", kernels_each=None, length=length)
    return _repeated(timeline)


def _repeated(timeline: Timeline) -> _Steps | None:
    """Steps from one of a regular kernel to the next, of the regular kernel that is rarest."""
    kernels = timeline.kernels
    if len(kernels) < 2 * MIN_ITERATIONS or len(distinct(kernels.process)) > 1:
        return None
    start: Ints = kernels.start_ns[:LOOKED_AT]
    name: Ints = kernels.name[:LOOKED_AT]
    if not bool(np.all(start[1:] >= start[:-1])):
        in_time = np.argsort(start, kind="stable")
        start, name = start[in_time], name[in_time]
    # Numbers of 16 bits are sorted by their digits, several times as fast.
    by_name = np.argsort(name.astype(np.int16) if len(timeline.names) <= 2**15 else name, kind="stable")
    groups = np.split(by_name, np.flatnonzero(np.diff(name[by_name])) + 1)
    for positions in sorted(groups, key=len):
        if len(positions) <= MIN_ITERATIONS:
            continue
        steps = np.diff(positions)
        values, index = grouped(steps)
        counts = np.bincount(index)
        usual = int(values[np.argmax(counts)])
        # One kernel after the other is a loop only where there is no other kernel.
        if (usual < 2 and len(groups) > 1) or counts.max() < max(REGULAR * len(steps), MIN_ITERATIONS):
            continue
        if usual * counts.max() >= COVERED * len(name):
            length = np.diff(start[positions])[steps == usual]
            repeated = short_kernel_name(timeline.names[int(name[positions[0]])])
            return _Steps(how=f"by the repeated kernel {repeated}", kernels_each=usual, length=length)
    return None


def _describe(how: str, kernels_each: int | None, parts: Sequence[tuple[int, Ints]]) -> Iterations:
    length = np.concatenate([one for _, one in parts])
    source = np.concatenate([np.full(len(one), number) for number, one in parts])
    index = np.concatenate([np.arange(len(one)) for _, one in parts])
    low, median, high = (int(value) for value in (int_percentile(length, percent) for percent in (25, 50, 75)))
    deviation = MAD_TO_DEVIATION * float(np.median(np.abs(length - median)))
    far = np.flatnonzero(np.abs(length - median) > max(OUTLIER_DEVIATIONS * deviation, OUTLIER_SHARE * median))
    far = far[np.argsort(-np.abs(length[far] - median), kind="stable")]
    return Iterations(
        how=how,
        count=len(length),
        kernels_each=kernels_each,
        median_ns=median,
        p25_ns=low,
        p75_ns=high,
        outliers=tuple(
            Outlier(index=int(index[i]), length_ns=int(length[i]), source=int(source[i])) for i in far[:SHOWN]
        ),
    )
