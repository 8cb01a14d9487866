"""Kernels by phase: what each takes in one step, with what ncu knows of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.diagnosis.facts import GpuFacts, KernelFacts, Known, PhaseFacts, PhaseKernel, RunFacts
from llm_perf_opt.analysis.findings.finding import WHOLE_CAPTURE

LAUNCH_BOUND_IDLE = 0.5
HIDDEN = "the GPU waits for the host here: this saves wall time only once the launches keep up"
HIDDEN_IN_CAPTURE = "the GPU idles for most of the capture: this saves wall time only once that is less"


@dataclass(frozen=True, kw_only=True)
class Slice:
    """All kernels of one step of a phase, or of a whole capture that has no phases."""

    phase: str
    wall_ms: float | None
    busy_ms: float
    is_launch_bound: bool
    rows: tuple[tuple[PhaseKernel, KernelFacts | None], ...]

    @property
    def caveat(self) -> str | None:
        if not self.is_launch_bound:
            return None
        return HIDDEN_IN_CAPTURE if self.phase == WHOLE_CAPTURE else HIDDEN

    @property
    def where(self) -> str:
        return "the capture's kernel time" if self.phase == WHOLE_CAPTURE else f"{self.phase} kernel time"


def slices(facts: RunFacts) -> list[Slice]:
    """One per phase whose kernels are known; without any, the whole capture."""
    by_name = {k.name: k for k in facts.kernels}
    found = [
        _slice(phase, phase.gpu, by_name)
        for phase in facts.phases.values()
        if isinstance(phase.gpu, GpuFacts) and phase.gpu.kernels
    ]
    if found or not facts.kernels:
        return found
    rows = tuple((_whole(k), k) for k in facts.kernels)
    busy = sum(k.total_ns for k in facts.kernels) / 1e6
    idles = facts.capture_ms is not None and busy < (1 - LAUNCH_BOUND_IDLE) * facts.capture_ms
    return [Slice(phase=WHOLE_CAPTURE, wall_ms=None, busy_ms=busy, is_launch_bound=idles, rows=rows)]


def _slice(phase: PhaseFacts, gpu: GpuFacts, by_name: dict[str, KernelFacts]) -> Slice:
    wall = phase.wall.value if isinstance(phase.wall, Known) else None
    reference = wall if wall is not None else gpu.wall_ms
    return Slice(
        phase=phase.name,
        wall_ms=wall,
        busy_ms=gpu.busy_ms,
        is_launch_bound=gpu.busy_ms < (1 - LAUNCH_BOUND_IDLE) * reference,
        rows=tuple((k, _in_phase(by_name.get(k.name), phase.name)) for k in gpu.kernels or ()),
    )


def _in_phase(kernel: KernelFacts | None, phase: str) -> KernelFacts | None:
    """Without what ncu measured elsewhere: the same kernel on another phase's shapes is another matter."""
    if kernel is None or kernel.ncu is None or measured_in(kernel.ncu.ranges, phase):
        return kernel
    return replace(kernel, ncu=None)


def measured_in(ranges: Sequence[str], phase: str) -> bool:
    """Whether ncu's launches came from a phase; without ranges nobody knows, and the phase gets the benefit."""
    return not ranges or any(phase in text for text in ranges)


def _whole(kernel: KernelFacts) -> PhaseKernel:
    return PhaseKernel(
        name=kernel.name,
        short_name=kernel.short_name,
        kernel_class=kernel.kernel_class,
        per_step=kernel.instances,
        ms_per_step=kernel.total_ns / 1e6,
    )


def time_of(rows: Iterable[tuple[PhaseKernel, KernelFacts | None]]) -> float:
    return sum(kernel.ms_per_step for kernel, _ in rows)


def describe(kernel: PhaseKernel, extra: str) -> str:
    """One line of evidence about a kernel."""
    return f"`{kernel.short_name}`: {kernel.ms_per_step:.4g} ms in {kernel.per_step:.4g} launch(es){extra}"
