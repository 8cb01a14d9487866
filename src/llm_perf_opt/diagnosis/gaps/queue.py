"""How far launches run ahead of the GPU: delay of the start, and depth of the queue."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Ints
from llm_perf_opt.capture.timeline import Timeline, int_percentile, join

# Launches inspected, evenly over the capture: enough for every int_percentile, and a bound on the time it takes.
SAMPLE = 50_000
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


@dataclass(frozen=True, kw_only=True)
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
    # Copies are not launches: one from pageable memory blocks whatever its call is named.
    launches = np.zeros(len(calls), np.bool_)
    call = compute.call if all_recorded else compute.call[known]
    launches[call] = True
    # The last entry is of the code -1, an unknown name.
    graphs = np.array([*("GraphLaunch" in name for name in timeline.names), False])
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
    length = compute.end_ns - compute.start_ns
    short = length < SHORT_KERNEL_NS
    return _Launches(
        delay=np.maximum(compute.start_ns[some] - calls.end_ns[compute.call[some]], 0),
        depth=np.maximum(before - np.searchsorted(ended, at, side="right"), 0),
        by_graph=len(by_graph),
        by_graph_ns=int(length[by_graph].sum()),
        known=all_known,
        calls=int(launches.sum()),
        call_ns=int(((calls.end_ns - calls.start_ns) * launches).sum()),
        work=len(compute),
        short=int(short.sum()),
        work_ns=int(length.sum()),
        short_ns=int((length * short).sum()),
    )


def in_order(times: Ints) -> Ints:
    """Sorted; captures mostly list them so already."""
    return times if bool((times[1:] >= times[:-1]).all()) else np.sort(times, kind="stable")
