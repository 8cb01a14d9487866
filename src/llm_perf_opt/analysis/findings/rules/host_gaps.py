"""Rule launch_bound on clean times: the GPU waits for the host in most of a step."""

from llm_perf_opt.analysis.findings.diagnosis import Diagnosis, Evidence, amdahl
from llm_perf_opt.analysis.findings.facts import GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.rules.launch_bound import MIN_HOST_SHARE, MIN_IDLE_SHARE, MIN_KERNELS, REMEDY
from llm_perf_opt.analysis.findings.waterfall import split_idle

STEP = {"prefill": "the prefill", "decode": "each step"}


def find_host_gaps(facts: RunFacts) -> list[Diagnosis]:
    """One finding per phase that idles for at least half its clean time, mostly for want of launches."""
    return [found for phase in facts.timed_gpu_phases() for found in _check(*phase)]


def _check(phase: PhaseFacts, gpu: GpuFacts, wall: Known) -> list[Diagnosis]:
    idle_ms = wall.value - gpu.busy_ms
    if gpu.kernel_count < MIN_KERNELS or idle_ms < MIN_IDLE_SHARE * wall.value:
        return []
    causes = {key: ms for key, _, ms in split_idle(gpu.idle, idle_ms)}
    host_ms = causes.get("host", 0.0)
    if host_ms < MIN_HOST_SHARE * idle_ms:
        return []
    share = idle_ms / wall.value
    return [
        Diagnosis(
            rule="launch_bound",
            title=f"{phase.name.capitalize()} is launch-bound: the GPU idles {100 * share:.0f} % of {STEP[phase.name]}",
            phase=phase.name,
            evidence=_evidence(gpu, wall, idle_ms, host_ms),
            remedy=REMEDY,
            saves_ms=host_ms,
            gain=amdahl(wall.value, host_ms),
            confidence="high" if share >= 0.7 and host_ms >= 0.7 * idle_ms else "medium",
        )
    ]


def _evidence(gpu: GpuFacts, wall: Known, idle_ms: float, host_ms: float) -> tuple[Evidence, ...]:
    each_us = 1e3 * gpu.busy_ms / gpu.kernel_count
    return (
        Evidence(text=f"clean wall time {wall.value:.2f} ms ({wall.how})", source=wall.source or "manifest.json"),
        Evidence(
            text=f"kernels run for {gpu.busy_ms:.3f} ms of it, so the GPU idles for {idle_ms:.2f} ms; "
            f"{host_ms:.2f} ms of that is waiting for the host to launch (split as in the capture)",
            source=gpu.source,
        ),
        Evidence(
            text=f"{gpu.kernel_count:.0f} kernels of {each_us:.1f} µs on average, one launched every "
            f"{1e3 * wall.value / gpu.kernel_count:.1f} µs",
            source=gpu.source,
        ),
    )
