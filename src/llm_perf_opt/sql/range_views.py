"""Named ranges of captures as rows of the view `ranges`, with the kernels they caused."""

import numpy as np

from llm_perf_opt.capture.intervals import Ints
from llm_perf_opt.capture.rows import PUSH_POP, START_END
from llm_perf_opt.sql.events import CaptureEvents, ViewRows, texts
from llm_perf_opt.sql.view_schema import MISSING


def range_rows(one: CaptureEvents) -> ViewRows:
    """Every range that ended, in the order of the capture; kernels count for all ranges around their launch."""
    timeline, ranges = one.timeline, one.timeline.ranges
    process = timeline.thread_process[ranges.thread]
    parent = one.ownership.parent
    depth = _depths(parent)
    owner, kernels = one.range_of(timeline.kernels), timeline.kernels
    owned = owner >= 0
    count = np.bincount(owner[owned], minlength=len(ranges)).astype(np.int64)
    time_ns = np.zeros(len(ranges), np.int64)
    np.add.at(time_ns, owner[owned], (kernels.end_ns - kernels.start_ns)[owned])
    for level in range(int(depth.max()) if len(depth) else 0, 0, -1):
        here = np.flatnonzero(depth == level)
        np.add.at(count, parent[here], count[here])
        np.add.at(time_ns, parent[here], time_ns[here])
    length = ranges.end_ns - ranges.start_ns
    idle_ns = np.full(len(ranges), MISSING)
    if timeline.has_gpu_work:
        idle_ns = length - one.busy_in(process, ranges.start_ns, ranges.end_ns)
    return {
        "id": np.arange(len(ranges)) + one.first_range,
        "name": one.names[ranges.name],
        "start_ns": ranges.start_ns,
        "end_ns": ranges.end_ns,
        "duration_ns": length,
        "gpu_idle_ns": idle_ns,
        "kernel_count": count,
        "kernel_ns": time_ns,
        "style": texts([PUSH_POP, START_END])[ranges.process_wide.astype(np.int64)],
        "parent": np.where(parent >= 0, parent + one.first_range, MISSING),
        "depth": depth,
        "thread": one.threads(ranges.thread),
        "process": one.processes(process),
        "capture": one.source(len(ranges)),
    }


def _depths(parent: Ints) -> Ints:
    """How many ranges are around each."""
    depth, above = np.zeros(len(parent), np.int64), parent
    while (inside := above >= 0).any():
        depth += inside
        above = np.where(inside, parent[np.maximum(above, 0)], -1)
    return depth
