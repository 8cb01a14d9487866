"""Rule wait_bound: the GPU stands idle while copies run or the host waits in a synchronisation call."""

from collections.abc import Sequence

from llm_perf_opt.analysis.findings.finding import Finding
from llm_perf_opt.analysis.range_table import PUSH_POP, RangeRow

MIN_SHARE = 0.2
REMEDY = (
    "keep results on the device between steps: avoid .item(), .cpu() and torch.cuda.synchronize() in the loop, copy "
    "with non_blocking=True from pinned memory, and read tokens back one step late"
)


def find_wait_bound(rows: Sequence[RangeRow], *, source: str) -> list[Finding]:
    """One finding per range whose typical instance is idle behind copies or synchronisation for a fifth of its time."""
    bound = [
        row
        for row in rows
        if row.typical.kernel_count
        and row.typical.idle.waiting_for_copy_or_sync_ns >= MIN_SHARE * row.typical.wall_ns > 0
    ]
    # Only push/pop ranges have a parent, and it is of their kind.
    named = {row.name for row in bound if row.style == PUSH_POP}
    return [_finding(row, source) for row in bound if row.parent not in named]


def _finding(row: RangeRow, source: str) -> Finding:
    one = row.typical
    wait = one.idle.waiting_for_copy_or_sync_ns
    return Finding(
        rule="wait_bound",
        title=f"{row.name} waits for copies or synchronisation for {wait / one.wall_ns:.0%} of it",
        evidence=(
            f"{wait / 1e6:.2f} ms of {one.wall_ns / 1e6:.2f} ms wall time "
            f"(median of {row.instances} instance(s), under the profiler)",
            f"of that {one.idle.copy_ns / 1e6:.2f} ms while a copy or set ran and {one.idle.sync_ns / 1e6:.2f} ms "
            "while the launching thread sat in a synchronisation call",
        ),
        remedy=REMEDY,
        max_gain=one.wall_ns / (one.wall_ns - wait) if wait < one.wall_ns else None,
        confidence="medium",
        source=source,
        range_name=row.name,
    )
