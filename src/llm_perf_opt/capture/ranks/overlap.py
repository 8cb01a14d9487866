"""How each rank's time splits into computation, communication, copies and idle time, and the part that overlaps.

Two measures of overlap are given. HolisticTraceAnalysis divides the communication time during which a computation
kernel ran by the communication time. That says nothing of what the communication costs: a rank that communicates little
but never overlaps looks as bad as one that does nothing else. Ours is the exposed time: communication while neither a
kernel nor a copy ran alongside it, as a share of the time from the rank's first GPU work to its last.
"""

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Intervals, intersect, union, without
from llm_perf_opt.capture.timeline import Activities, Timeline


@dataclass(frozen=True, kw_only=True)
class Split:
    """Times of one process or one of its GPUs, from its first GPU work to its last; every part is a union.

    Busy is a kernel or a graph that runs, and idle the rest, as everywhere in an analysis; a copy does not make a GPU
    busy here, while HolisticTraceAnalysis counts it as work that is not a computation. `communication_ns` is
    `overlapped_ns` (a computation kernel ran meanwhile), `exposed_ns` (nothing did) and what ran alongside copies
    alone. `hta_*` are shares as HolisticTraceAnalysis defines them; `exposed_pct` is of `span_ns`.
    """

    kernel_count: int
    kernel_ns: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    computation_ns: int
    communication_ns: int
    overlapped_ns: int
    exposed_ns: int
    copy_ns: int
    exposed_pct: float
    hta_idle_pct: float
    hta_compute_pct: float
    hta_non_compute_pct: float
    hta_overlap_pct: float | None


def split_time(
    timeline: Timeline, communicates: Flags, *, process: int | None = None, device: int | None = None
) -> Split:
    """The times of a whole capture, of a process or of one of its devices; it must have GPU work."""
    kernels = timeline.kernels
    mine = _mine(kernels, process, device)
    length = kernels.end_ns - kernels.start_ns
    communication = _union(kernels, mine & communicates)
    graphs = _mine(timeline.graphs, process, device)
    computes = mine & ~communicates
    computation = union(
        np.concatenate((kernels.start_ns[computes], timeline.graphs.start_ns[graphs])),
        np.concatenate((kernels.end_ns[computes], timeline.graphs.end_ns[graphs])),
    )
    copies = _union(timeline.copies, _mine(timeline.copies, process, device))
    busy = _together(communication, computation)
    active = _together(busy, copies)
    span_ns = int(active.end[-1] - active.start[0])
    overlapped_ns = intersect(communication.start, communication.end, computation).total
    exposed_ns = without(without(communication, computation), copies).total
    share = 100.0 / span_ns if span_ns else 0.0
    return Split(
        kernel_count=int(mine.sum()),
        kernel_ns=int(length[mine].sum()),
        span_ns=span_ns,
        busy_ns=busy.total,
        idle_ns=span_ns - busy.total,
        computation_ns=computation.total,
        communication_ns=communication.total,
        overlapped_ns=overlapped_ns,
        exposed_ns=exposed_ns,
        copy_ns=copies.total,
        exposed_pct=share * exposed_ns,
        hta_idle_pct=share * (span_ns - active.total),
        hta_compute_pct=share * computation.total,
        hta_non_compute_pct=share * (active.total - computation.total),
        hta_overlap_pct=100.0 * overlapped_ns / communication.total if communication.total else None,
    )


def _together(a: Intervals, b: Intervals) -> Intervals:
    return union(np.concatenate((a.start, b.start)), np.concatenate((a.end, b.end)))


def _mine(work: Activities, process: int | None, device: int | None) -> Flags:
    mine = np.ones(len(work), np.bool_)
    if process is not None:
        mine &= work.process == process
    if device is not None:
        mine &= work.device == device
    return mine


def _union(work: Activities, chosen: Flags) -> Intervals:
    return union(work.start_ns[chosen], work.end_ns[chosen])
