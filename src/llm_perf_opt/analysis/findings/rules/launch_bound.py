"""Rule launch_bound: the GPU stands idle because the host does not launch fast enough."""

from collections.abc import Sequence

from llm_perf_opt.analysis.findings.finding import Finding
from llm_perf_opt.analysis.range_table import PUSH_POP, RangeInstance, RangeRow

MIN_IDLE_SHARE = 0.5
MIN_HOST_SHARE = 0.5
MIN_KERNELS = 20
REMEDY = (
    "launch fewer kernels from the host: capture the step in a CUDA graph (torch.compile(mode='reduce-overhead') with "
    "a static KV cache, or torch.cuda.graph), fuse elementwise kernels with torch.compile, or decode a larger batch so "
    "that each launch does more work"
)


def find_launch_bound(rows: Sequence[RangeRow], *, source: str) -> list[Finding]:
    """One finding per range whose typical instance idles for at least half its wall time, mostly for want of launches.

    A range inside one that is already named is not named again.
    """
    bound = [row for row in rows if _is_bound(row.typical)]
    # Only push/pop ranges have a parent, and it is of their kind.
    named = {row.name for row in bound if row.style == PUSH_POP}
    return [_finding(row, source) for row in bound if row.parent not in named]


def _is_bound(one: RangeInstance) -> bool:
    return (
        one.wall_ns > 0
        and one.kernel_count >= MIN_KERNELS
        and one.gpu_idle_ns >= MIN_IDLE_SHARE * one.wall_ns
        and one.idle.waiting_for_host_ns >= MIN_HOST_SHARE * one.gpu_idle_ns
    )


def _finding(row: RangeRow, source: str) -> Finding:
    one = row.typical
    idle, host = one.gpu_idle_ns / one.wall_ns, one.idle.waiting_for_host_ns
    left = one.wall_ns - host
    return Finding(
        rule="launch_bound",
        title=f"{row.name} is launch-bound: the GPU idles for {idle:.0%} of it",
        evidence=(
            f"GPU busy {one.gpu_busy_ns / 1e6:.3f} ms of {one.wall_ns / 1e6:.2f} ms wall time "
            f"(median of {row.instances} instance(s), under the profiler)",
            f"{host / 1e6:.2f} ms of the {one.gpu_idle_ns / 1e6:.2f} ms idle time is waiting for the host to launch",
            f"{one.kernel_count} kernels of {one.gpu_busy_ns / one.kernel_count / 1e3:.1f} µs on average, "
            f"one launched every {one.wall_ns / one.kernel_count / 1e3:.1f} µs",
            f"launch calls take {one.launch_ns / 1e6:.2f} ms of CPU time "
            f"({one.launch_ns / one.wall_ns:.0%} of the wall time)",
        ),
        remedy=REMEDY,
        max_gain=one.wall_ns / left if left > 0 else None,
        confidence="high" if idle >= 0.7 and host >= 0.7 * one.gpu_idle_ns else "medium",
        source=source,
        range_name=row.name,
    )
