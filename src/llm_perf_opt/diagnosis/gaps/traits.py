"""What the timing of a whole program shows: launches that block, memory given back in the loop, a GPU that is shared,
threads that wait for the interpreter.

Each is a record of counts and times, None where the capture does not show it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.idle import IdleMap
from llm_perf_opt.capture.intervals import Flags, Intervals, Ints, union, without
from llm_perf_opt.capture.kernels.names import classify_kernel
from llm_perf_opt.capture.rows import summed
from llm_perf_opt.capture.timeline import Activities, Timeline, distinct
from llm_perf_opt.diagnosis.gaps.gap_verdict import flags_of
from llm_perf_opt.diagnosis.gaps.queue import in_order
from llm_perf_opt.diagnosis.gaps.startup_gaps import StartUp, goes_on

# Launches inspected, evenly over the capture.
SAMPLE = 50_000
# With CUDA_LAUNCH_BLOCKING=1 all launches end after their kernel; without it those of long kernels do not.
BLOCKING_SHARE, MIN_LAUNCHES = 0.98, 20
LONG_KERNEL_NS = 5_000
# A launch with so much work before it shows that the host is ahead again.
AHEAD = 2
# At most this many launches after a free are inspected.
LOOKED_AT = 64
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
    launches = in_order(np.concatenate([calls.start_ns[table.call[rows]] for table, rows in work]))
    ended = in_order(np.concatenate([table.end_ns[rows] for table, rows in work]))
    # The first of the next launches that finds the host ahead again, or none before the next free.
    after_free = np.searchsorted(launches, calls.end_ns[frees])
    place = np.minimum(after_free[:, None] + np.arange(LOOKED_AT), len(launches) - 1)
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


def _next_kernel(busy: Intervals, at: Ints) -> Ints:
    """When a kernel runs next from each moment on, the moment itself where one runs or none follows."""
    place = np.searchsorted(busy.start, at)
    runs = (place > 0) & (busy.end[np.maximum(place - 1, 0)] > at)
    following = np.append(busy.start, at.max() if len(at) else 0)[place]
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
