"""Rule wait_bound: the GPU stands idle while copies run or the host waits in a synchronisation call."""

from collections.abc import Sequence

from llm_perf_opt.analysis.findings.facts import GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.waterfall import split_idle
from llm_perf_opt.analysis.timeline.tables import PUSH_POP, RangeRow

# Of a phase's clean time, and of a range's time under the profiler.
MIN_CLEAN_SHARE = 0.1
MIN_RANGE_SHARE = 0.2
REMEDY = (
    "keep results on the device between steps: avoid .item(), .cpu() and torch.cuda.synchronize() in the loop, copy "
    "with non_blocking=True from pinned memory, and read tokens back one step late"
)


def find_wait_bound(facts: RunFacts) -> list[Finding]:
    """One finding per phase that spends a tenth of its clean time idle behind copies or synchronisation."""
    return [found for phase in facts.timed_gpu_phases() for found in _check(*phase)]


def find_wait_bound_ranges(rows: Sequence[RangeRow], source: str) -> list[Finding]:
    """One finding per range whose typical instance is idle behind copies or synchronisation for a fifth of its time."""
    bound = [(row, finding) for row in rows if (finding := _of_range(row, source)) is not None]
    # Only push/pop ranges have a parent, and it is of their kind.
    named = {row.name for row, _ in bound if row.style == PUSH_POP}
    return [finding for row, finding in bound if row.parent not in named]


def _check(phase: PhaseFacts, gpu: GpuFacts, wall: Known) -> list[Finding]:
    idle_ms = wall.value - gpu.busy_ms
    if idle_ms <= 0:
        return []
    causes = {key: ms for key, _, ms in split_idle(gpu.idle, idle_ms)}
    copy_ms, sync_ms = causes.get("copy", 0.0), causes.get("sync", 0.0)
    wait_ms = copy_ms + sync_ms
    share = wait_ms / wall.value
    if share < MIN_CLEAN_SHARE:
        return []
    return [
        RULE.finding(
            title=f"{phase.name.capitalize()} waits for copies or synchronisation, {100 * share:.0f} % of it",
            phase=phase.name,
            evidence=(
                Evidence(
                    text=f"{wait_ms:.2f} ms of {wall.value:.2f} ms: {copy_ms:.2f} ms while a copy or set runs, "
                    f"{sync_ms:.2f} ms while the launching thread sits in a synchronisation call",
                    source=gpu.source,
                ),
            ),
            saves_ms=wait_ms,
            gain=amdahl(wall.value, wait_ms),
            confidence="medium",
        )
    ]


def _of_range(row: RangeRow, source: str) -> Finding | None:
    one = row.typical
    if one.idle is None or not one.kernel_count or one.wall_ns <= 0:
        return None
    wait = one.idle.waiting_for_copy_or_sync_ns
    if wait < MIN_RANGE_SHARE * one.wall_ns:
        return None
    return RULE.finding_of_range(
        row.name,
        title=f"{row.name} waits for copies or synchronisation for {wait / one.wall_ns:.0%} of it",
        evidence=(
            f"{wait / 1e6:.2f} ms of {one.wall_ns / 1e6:.2f} ms wall time "
            f"(median of {row.instances} instance(s), under the profiler)",
            f"of that {one.idle.copy_ns / 1e6:.2f} ms while a copy or set ran and {one.idle.sync_ns / 1e6:.2f} ms "
            "while the launching thread sat in a synchronisation call",
        ),
        source=source,
        gain=one.wall_ns / (one.wall_ns - wait) if wait < one.wall_ns else None,
        confidence="medium",
    )


RULE = Rule(
    id="wait_bound",
    find=find_wait_bound,
    find_in_ranges=find_wait_bound_ranges,
    plain_words="The GPU waits while data is copied or while the program checks on it.",
    remedy=REMEDY,
    hint="Removing synchronisation and copies from the loop",
)
