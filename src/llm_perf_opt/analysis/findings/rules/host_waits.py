"""Rule wait_bound on clean times: the GPU stands idle behind copies or while the host waits in a synchronisation."""

from llm_perf_opt.analysis.findings.diagnosis import Diagnosis, Evidence, amdahl
from llm_perf_opt.analysis.findings.facts import GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.rules.wait_bound import REMEDY
from llm_perf_opt.analysis.findings.waterfall import split_idle

MIN_SHARE = 0.1


def find_host_waits(facts: RunFacts) -> list[Diagnosis]:
    """One finding per phase that spends a tenth of its clean time idle behind copies or synchronisation."""
    return [found for phase in facts.timed_gpu_phases() for found in _check(*phase)]


def _check(phase: PhaseFacts, gpu: GpuFacts, wall: Known) -> list[Diagnosis]:
    idle_ms = wall.value - gpu.busy_ms
    if idle_ms <= 0:
        return []
    causes = {key: ms for key, _, ms in split_idle(gpu.idle, idle_ms)}
    copy_ms, sync_ms = causes.get("copy", 0.0), causes.get("sync", 0.0)
    wait_ms = copy_ms + sync_ms
    share = wait_ms / wall.value
    if share < MIN_SHARE:
        return []
    return [
        Diagnosis(
            rule="wait_bound",
            title=f"{phase.name.capitalize()} waits for copies or synchronisation, {100 * share:.0f} % of it",
            phase=phase.name,
            evidence=(
                Evidence(
                    text=f"{wait_ms:.2f} ms of {wall.value:.2f} ms: {copy_ms:.2f} ms while a copy or set runs, "
                    f"{sync_ms:.2f} ms while the launching thread sits in a synchronisation call",
                    source=gpu.source,
                ),
            ),
            remedy=REMEDY,
            saves_ms=wait_ms,
            gain=amdahl(wall.value, wait_ms),
            confidence="medium",
        )
    ]
