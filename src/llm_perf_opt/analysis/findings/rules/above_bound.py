"""Rule above_bound: the kernels of a phase (on a CPU its operators) take much longer than the hardware needs."""

from llm_perf_opt.analysis.findings.facts import COMPILED, TUNED, GpuFacts, Known, PhaseFacts, RunFacts, value_of
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, Suggestion, advise, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import HIDDEN, LAUNCH_BOUND_IDLE
from llm_perf_opt.analysis.findings.remedies import (
    BFLOAT16,
    COMPILE,
    FLASH_ATTENTION,
    FLEX_ATTENTION,
    MAX_AUTOTUNE,
    ONE_THREAD,
    REDUCE_OVERHEAD,
    SDPA,
)

MIN_FACTOR = 1.5
SHOWN = 4
START = "start with the classes that take the time: "
KERNELS = (
    Suggestion(text="torch.compile(mode='max-autotune') for products and elementwise chains", done=TUNED),
    "FlashAttention for attention",
)
LOOK = "; then look at single kernels with pipeline.ncu.enable=true"
REMEDY = advise(START, KERNELS) + LOOK
CPU_START = "let each operator do more and use the cores: "
OPERATORS = (
    Suggestion(text="torch.compile", done=COMPILED),
    "bfloat16 where the CPU has units for it",
    "a larger batch",
    "and as many threads as there are cores (OMP_NUM_THREADS); operators.md names the ones that take the time",
)


def find_above_bound(facts: RunFacts) -> list[Finding]:
    """One finding per phase whose kernel time is at least one and a half times the best known bound."""
    found = []
    for phase in facts.phases.values():
        floor = phase.achievable if isinstance(phase.achievable, Known) else phase.datasheet
        if isinstance(phase.gpu, GpuFacts) and isinstance(floor, Known):
            found += _check(phase, phase.gpu, floor, facts)
        elif phase.is_cpu and isinstance(phase.operators, Known) and isinstance(floor, Known):
            found += _check_cpu(phase, phase.operators, floor, facts.already(phase.name))
    return found


def _check_cpu(phase: PhaseFacts, operators: Known, floor: Known, already: frozenset[str]) -> list[Finding]:
    if floor.value <= 0 or operators.value < MIN_FACTOR * floor.value:
        return []
    saved = operators.value - floor.value
    where = floor.source or "static_analysis/static.json"
    return [
        RULE.finding(
            title=f"{phase.name.capitalize()} operators take {operators.value / floor.value:.1f}× what the CPU needs",
            phase=phase.name,
            evidence=(
                Evidence(text=f"bound {floor.value:.4g} ms ({floor.how})", source=where),
                Evidence(text=operators.how, source=operators.source or "manifest.json"),
            ),
            remedy=advise(CPU_START, OPERATORS, already),
            saves_ms=saved,
            gain=amdahl(value_of(phase.wall), saved),
            confidence="low",
            caveat="small operators have a fixed cost, so a tiny model never comes near this bound",
        )
    ]


def _check(phase: PhaseFacts, gpu: GpuFacts, floor: Known, facts: RunFacts) -> list[Finding]:
    if floor.value <= 0 or gpu.busy_ms < MIN_FACTOR * floor.value:
        return []
    saved = gpu.busy_ms - floor.value
    wall = value_of(phase.wall)
    is_hidden = gpu.busy_ms < (1 - LAUNCH_BOUND_IDLE) * (wall if wall is not None else gpu.wall_ms)
    by_class: dict[str, float] = {}
    for kernel in gpu.kernels or ():
        by_class[kernel.kernel_class] = by_class.get(kernel.kernel_class, 0.0) + kernel.ms_per_step
    top = sorted(by_class.items(), key=lambda item: -item[1])[:SHOWN]
    classes = ", ".join(f"{name} {ms:.3f} ms" for name, ms in top)
    evidence = [
        Evidence(
            text=f"bound {floor.value:.3f} ms ({floor.how})", source=floor.source or "static_analysis/static.json"
        ),
        Evidence(text=f"kernels {gpu.busy_ms:.3f} ms" + (f": {classes}" if classes else ""), source=gpu.source),
    ]
    return [
        RULE.finding(
            title=f"{phase.name.capitalize()} kernels take {gpu.busy_ms / floor.value:.1f}× what the hardware needs",
            phase=phase.name,
            evidence=tuple(evidence),
            saves_ms=saved,
            gain=amdahl(wall, saved),
            confidence="medium",
            remedy=advise(START, KERNELS, facts.already(phase.name)) + ("" if facts.ncu_source else LOOK),
            caveat=HIDDEN if is_hidden else None,
        )
    ]


RULE = Rule(
    id="above_bound",
    find=find_above_bound,
    plain_words="The work itself takes much longer than this hardware would need for it.",
    remedy=REMEDY,
    hint="Better kernels",
    experiments=(REDUCE_OVERHEAD, COMPILE, MAX_AUTOTUNE, SDPA, FLASH_ATTENTION, FLEX_ATTENTION, ONE_THREAD, BFLOAT16),
)
