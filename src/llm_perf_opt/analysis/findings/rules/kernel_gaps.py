"""Rule kernel_gaps: many short kernels follow each other, and the device's own gaps between them add up."""

from llm_perf_opt.analysis.findings.facts import GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.waterfall import split_idle

MIN_SHARE = 0.1
REMEDY = (
    "run fewer, longer kernels: fuse with torch.compile, replay the step as a CUDA graph (gaps between graph nodes are "
    "shorter), or use programmatic dependent launch where a kernel library offers it"
)


def find_kernel_gaps(facts: RunFacts) -> list[Finding]:
    """One finding per phase whose gaps between queued kernels take a tenth of its clean time."""
    return [found for phase in facts.timed_gpu_phases() for found in _check(*phase)]


def _check(phase: PhaseFacts, gpu: GpuFacts, wall: Known) -> list[Finding]:
    """Of the clean idle time: kernels that overlap, or a slower host, leave longer gaps under the profiler."""
    idle_ms = wall.value - gpu.busy_ms
    if idle_ms <= 0 or gpu.kernel_count <= 0:
        return []
    gap_ms = {key: ms for key, _, ms in split_idle(gpu.idle, idle_ms)}.get("between", 0.0)
    if gap_ms < MIN_SHARE * wall.value:
        return []
    return [
        RULE.finding(
            title=f"{phase.name.capitalize()} loses {100 * gap_ms / wall.value:.0f} % in gaps between queued kernels",
            phase=phase.name,
            evidence=(
                Evidence(
                    text=f"{gap_ms:.3f} ms of {idle_ms:.3f} ms idle time lie between kernels whose launch had already "
                    f"returned (split as in the capture), "
                    f"{1e3 * gap_ms / gpu.kernel_count:.2f} µs per kernel over {gpu.kernel_count:.0f} kernels",
                    source=gpu.source,
                ),
            ),
            saves_ms=gap_ms,
            gain=amdahl(wall.value, gap_ms),
            confidence="medium",
        )
    ]


RULE = Rule(
    id="kernel_gaps",
    find=find_kernel_gaps,
    plain_words="Work is cut into so many small pieces that the pauses between them add up.",
    remedy=REMEDY,
    hint="Fewer, longer kernels",
)
