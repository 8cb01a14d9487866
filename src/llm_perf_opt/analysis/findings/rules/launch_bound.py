"""Rule launch_bound: the GPU stands idle because the host does not launch fast enough."""

from collections.abc import Sequence

from llm_perf_opt.analysis.findings.facts import GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import Confidence, Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.waterfall import split_idle
from llm_perf_opt.analysis.timeline.tables import PUSH_POP, Idle, RangeRow

MIN_IDLE_SHARE = 0.5
MIN_HOST_SHARE = 0.5
MIN_KERNELS = 20
# From here on, idle time and the host's part in it leave no doubt.
CERTAIN_SHARE = 0.7
STEP = {"prefill": "the prefill", "decode": "each step"}
REMEDY = (
    "launch fewer kernels from the host: capture the step in a CUDA graph (torch.compile(mode='reduce-overhead') with "
    "a static KV cache, or torch.cuda.graph), fuse elementwise kernels with torch.compile, or decode a larger batch so "
    "that each launch does more work"
)


def find_launch_bound(facts: RunFacts) -> list[Finding]:
    """One finding per phase that idles for at least half its clean time, mostly for want of launches."""
    return [found for phase in facts.timed_gpu_phases() for found in _check(*phase)]


def find_launch_bound_ranges(rows: Sequence[RangeRow], source: str) -> list[Finding]:
    """One finding per range whose typical instance idles for at least half its wall time, mostly for want of launches.

    A range inside one that is already named is not named again.
    """
    bound = [(row, finding) for row in rows if (finding := _of_range(row, source)) is not None]
    # Only push/pop ranges have a parent, and it is of their kind.
    named = {row.name for row, _ in bound if row.style == PUSH_POP}
    return [finding for row, finding in bound if row.parent not in named]


def _check(phase: PhaseFacts, gpu: GpuFacts, wall: Known) -> list[Finding]:
    idle_ms = wall.value - gpu.busy_ms
    if gpu.kernel_count < MIN_KERNELS or idle_ms < MIN_IDLE_SHARE * wall.value:
        return []
    causes = {key: ms for key, _, ms in split_idle(gpu.idle, idle_ms)}
    # What is launched in time has started in time, too; a long gap is not a launch's.
    launching = launching_share(gpu.idle)
    host_ms = causes.get("host", 0.0) * launching + causes.get("starting", 0.0)
    if host_ms < MIN_HOST_SHARE * idle_ms:
        return []
    share = idle_ms / wall.value
    return [
        RULE.finding(
            title=f"{phase.name.capitalize()} is launch-bound: the GPU idles {100 * share:.0f} % of {STEP[phase.name]}",
            phase=phase.name,
            evidence=_evidence(gpu, wall, idle_ms, host_ms),
            saves_ms=host_ms,
            gain=amdahl(wall.value, host_ms),
            confidence=_confidence(share, host_ms, idle_ms),
        )
    ]


def _evidence(gpu: GpuFacts, wall: Known, idle_ms: float, host_ms: float) -> tuple[Evidence, ...]:
    each_us = 1e3 * gpu.busy_ms / gpu.kernel_count
    return (
        Evidence(text=f"clean wall time {wall.value:.2f} ms ({wall.how})", source=wall.source or "manifest.json"),
        Evidence(
            text=f"kernels run for {gpu.busy_ms:.3f} ms of it, so the GPU idles for {idle_ms:.2f} ms; "
            f"{host_ms:.2f} ms of that is waiting for launches (split as in the capture)",
            source=gpu.source,
        ),
        Evidence(
            text=f"{gpu.kernel_count:.0f} kernels of {each_us:.1f} µs on average, one launched every "
            f"{1e3 * wall.value / gpu.kernel_count:.1f} µs",
            source=gpu.source,
        ),
    )


def launching_share(idle: Idle) -> float:
    """The part of the time waiting for the host that lies in gaps short enough to be a launch's."""
    host = idle.waiting_for_host_ns
    return (host - idle.long_gaps_ns) / host if host > 0 else 0.0


def _of_range(row: RangeRow, source: str) -> Finding | None:
    one = row.typical
    busy_ns, idle_ns = one.gpu_busy_ns, one.gpu_idle_ns
    if one.idle is None or busy_ns is None or idle_ns is None or one.wall_ns <= 0 or one.kernel_count < MIN_KERNELS:
        return None
    share = idle_ns / one.wall_ns
    host = one.idle.waiting_for_host_ns - one.idle.long_gaps_ns + one.idle.starting_ns
    if share < MIN_IDLE_SHARE or host < MIN_HOST_SHARE * idle_ns:
        return None
    left = one.wall_ns - host
    return RULE.finding_of_range(
        row.name,
        title=f"{row.name} is launch-bound: the GPU idles for {share:.0%} of it",
        evidence=(
            f"GPU busy {busy_ns / 1e6:.3f} ms of {one.wall_ns / 1e6:.2f} ms wall time "
            f"(median of {row.instances} instance(s), under the profiler)",
            f"{host / 1e6:.2f} ms of the {idle_ns / 1e6:.2f} ms idle time is waiting for launches",
            f"{one.kernel_count} kernels of {busy_ns / one.kernel_count / 1e3:.1f} µs on average, "
            f"one launched every {one.wall_ns / one.kernel_count / 1e3:.1f} µs",
            f"launch calls take {one.launch_ns / 1e6:.2f} ms of CPU time "
            f"({one.launch_ns / one.wall_ns:.0%} of the wall time)",
        ),
        source=source,
        gain=one.wall_ns / left if left > 0 else None,
        confidence=_confidence(share, host, idle_ns),
    )


def _confidence(idle_share: float, host: float, idle: float) -> Confidence:
    return "high" if idle_share >= CERTAIN_SHARE and host >= CERTAIN_SHARE * idle else "medium"


RULE = Rule(
    id="launch_bound",
    find=find_launch_bound,
    find_in_ranges=find_launch_bound_ranges,
    plain_words="The processor that feeds the GPU is the bottleneck: the GPU mostly waits for its next order.",
    remedy=REMEDY,
    hint="CUDA graphs or torch.compile",
)
