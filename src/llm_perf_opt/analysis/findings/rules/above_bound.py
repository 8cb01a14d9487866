"""Rules above_bound and below_roof: kernels that take much longer than the hardware needs for their work.

The first compares a phase (on a CPU its operators) with the bound of the model, the second the operators of a trace
with what their shapes need at the GPU's peaks.
"""

import re
from collections.abc import Sequence

from llm_perf_opt.diagnosis.facts import COMPILED, TUNED, GpuFacts, Known, PhaseFacts, RunFacts, value_of
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, Suggestion, advise, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import HIDDEN, LAUNCH_BOUND_IDLE
from llm_perf_opt.diagnosis.experiments import (
    BFLOAT16,
    COMPILE,
    FLASH_ATTENTION,
    FLEX_ATTENTION,
    JOINED_PROJECTIONS,
    MAX_AUTOTUNE,
    ONE_THREAD,
    REDUCE_OVERHEAD,
    SDPA,
)
from llm_perf_opt.analysis.timeline.shapes import ShapeRow

MIN_FACTOR = 1.5
SHOWN = 4
# Sizes that are multiples of this fit the units that multiply 16-bit numbers.
FITTING = 8
KINDS = {"GEMM": "matrix products", "attention": "attention", "convolution": "convolutions"}
START = "start with the classes that take the time: "
KERNELS = (
    Suggestion(text="torch.compile(mode='max-autotune') for products and elementwise chains", done=TUNED),
    "FlashAttention for attention",
)
# Good kernels of large products reach two thirds of the data sheet: what is under this share of it is far from it.
FAR_PCT = 50.0
# What is far from its roof must be this part of the kernel time, and could save this part of the capture.
MIN_FAR_SHARE, MIN_FAR_SAVED = 0.2, 0.05
# Calls shorter than this are too small to fill a large GPU.
SMALL_CALL_NS = 20_000
PAD = "pad sizes that are no multiple of 8: they keep products off the fast kernels; "
OTHER_KERNELS = (
    "other kernels may suit the shapes named better (torch.compile(mode='max-autotune'), the tuning of the BLAS "
    "library), and a lower precision raises the roof where the model bears it"
)
ROOF_REMEDY = PAD + OTHER_KERNELS
# A size inside a shape; those of one are vectors, not sizes to pad.
_SIZE = re.compile(r"\b[mnk] (\d+)|size (\d+)")
SMALL_REMEDY = (
    "give each call more to do: a larger batch, several small products in one (merged projections, batched products), "
    "or fewer ranks to split the model over; products this small cannot fill the GPU"
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


def find_below_roof(
    rows: Sequence[ShapeRow], *, kernel_ns: int, busy_ns: int, span_ns: int, source: str, told: frozenset[str]
) -> list[Finding]:
    """One finding of a trace in which work far from the GPU's peaks takes much of the kernel time.

    `told` are operators another finding speaks of already.
    """
    far = [row for row in rows if row.roof_pct is not None and row.roof_pct < FAR_PCT and row.operator not in told]
    far = [row for row in far if row.kind != "norm"]
    spent = sum(row.time_ns for row in far)
    saved = min(sum(row.time_ns * (1 - (row.roof_pct or 0.0) / 100) for row in far), busy_ns)
    if not spent or spent < MIN_FAR_SHARE * kernel_ns or saved < MIN_FAR_SAVED * span_ns:
        return []
    reached = 100 * (1 - sum(row.time_ns * (1 - (row.roof_pct or 0.0) / 100) for row in far) / spent)
    kinds = " and ".join(sorted({KINDS[row.kind] for row in far}))
    small = sum(row.time_ns for row in far if row.mean_ns < SMALL_CALL_NS) > spent / 2
    evidence = (
        f"{len(far)} shape(s), {spent / 1e6:.3f} of {kernel_ns / 1e6:.3f} ms kernel time; at the peaks of the data "
        f"sheet they would take {(spent - saved) / 1e6:.3f} ms",
        *(_describe(row) for row in far[:SHOWN]),
    )
    return [
        Finding(
            rule=ROOF.id,
            title=f"{kinds[0].upper()}{kinds[1:]} reach {reached:.0f}% of the GPU's roof, {spent / kernel_ns:.0%} of "
            "the capture's kernel time",
            phase=None,
            evidence=tuple(Evidence(text=text, source=source) for text in evidence),
            remedy=SMALL_REMEDY if small else ROOF_REMEDY if any(map(_is_odd, far)) else OTHER_KERNELS,
            saves_ms=None,
            gain=amdahl(span_ns, saved),
            # No kernel reaches the data sheet: how near these could come is not known.
            confidence="low",
            caveat="an upper bound: peaks of a data sheet are never reached, good kernels come to two thirds of them",
            share=saved / span_ns,
        )
    ]


def _is_odd(row: ShapeRow) -> bool:
    """Whether a product has a size that does not fit the units that multiply."""
    sizes = [int(part) for found in _SIZE.findall(row.shape) for part in found if part]
    return row.kind != "convolution" and any(size > 1 and size % FITTING for size in sizes)


def _describe(row: ShapeRow) -> str:
    rate = (
        f"{row.tflops:,.0f} TFLOP/s"
        if row.bound == "compute" and row.tflops is not None
        else f"{row.gb_per_s:,.0f} GB/s"
    )
    return (
        f"{row.operator.removeprefix('aten::')} {row.shape}, {row.dtype}: {row.time_ns / 1e6:.3f} ms in {row.calls:,} "
        f"call(s), {rate}, {row.roof_pct or 0.0:.0f}% of the roof ({row.bound})"
    )


def find_none(facts: RunFacts) -> list[Finding]:
    """A run's figures have no shapes; traces do."""
    del facts
    return []


RULE = Rule(
    id="above_bound",
    find=find_above_bound,
    plain_words="The work itself takes much longer than this hardware would need for it.",
    remedy=REMEDY,
    hint="Better kernels",
    experiments=(
        REDUCE_OVERHEAD,
        COMPILE,
        MAX_AUTOTUNE,
        SDPA,
        FLASH_ATTENTION,
        FLEX_ATTENTION,
        ONE_THREAD,
        BFLOAT16,
        JOINED_PROJECTIONS,
    ),
)
ROOF = Rule(
    id="below_roof",
    find=find_none,
    plain_words="The GPU is busy, and does its sums much more slowly than it could.",
    remedy=ROOF_REMEDY,
    hint="Better kernels for these shapes",
    experiments=(MAX_AUTOTUNE,),
)
