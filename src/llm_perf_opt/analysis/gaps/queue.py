"""How far launches run ahead of the GPU: delay of the start, and depth of the queue."""

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.timeline.timeline import Timeline, join

# Launches looked at, evenly over the capture: enough for every percentile, and a bound on the time it takes.
SAMPLE = 50_000
SHORT_KERNEL_NS = 10_000


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Launches of kernels and graphs whose call is recorded.

    The delay goes from the return of the call to the start on the GPU, 0 where the start came first. The depth is the
    work launched before and not yet done when a launch begins; an empty queue means that the GPU waits for this launch.
    `short_share` is the share of kernels under 10 µs, `call_ns` the time inside launch calls, each counted once.
    """

    launches: int
    call_ns: int
    delay_median_ns: int
    delay_p90_ns: int
    depth_median: float
    empty_share: float
    short_share: float
    graph_share: float


def measure_queue(timeline: Timeline) -> Queue | None:
    """The queue over the whole capture; None where no launch is recorded."""
    calls, compute = timeline.calls, join([timeline.kernels, timeline.graphs])
    known = np.flatnonzero(compute.call >= 0)
    if not len(known):
        return None
    step = max(1, len(known) // SAMPLE)
    every = len(known) == len(compute)
    launched = np.sort(calls.start_ns[compute.call if every else compute.call[known]], kind="stable")
    ended = np.sort(compute.end_ns if every else compute.end_ns[known], kind="stable")
    at = launched[::step]
    # Several kernels of one graph launch begin together: those before it count, its own do not.
    before = np.searchsorted(launched, at, side="left")
    depth = np.maximum(before - np.searchsorted(ended, at, side="right"), 0)
    some = known[::step]
    delay = np.maximum(compute.start_ns[some] - calls.end_ns[compute.call[some]], 0)
    length = compute.end_ns - compute.start_ns
    launches = calls.launches
    graphs = np.array([code for code, name in enumerate(timeline.names) if "GraphLaunch" in name], np.int64)
    by_graph = np.isin(calls.name[compute.call[some]], graphs) if len(graphs) else np.zeros(len(some), np.bool_)
    return Queue(
        launches=int(launches.sum()),
        call_ns=int((calls.end_ns - calls.start_ns)[launches].sum()),
        delay_median_ns=int(np.median(delay)),
        delay_p90_ns=int(np.percentile(delay, 90)),
        depth_median=float(np.median(depth)),
        empty_share=float((depth == 0).mean()),
        short_share=float((length < SHORT_KERNEL_NS).mean()),
        graph_share=float(by_graph.mean()),
    )
