"""Rule weight_reads: a decode step moves weights and little else, each of them for one token of each sequence."""

from llm_perf_opt.analysis.findings.facts import GpuFacts, Known, PhaseFacts, RunFacts, value_of
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import HIDDEN, LAUNCH_BOUND_IDLE
from llm_perf_opt.analysis.findings.remedies import FP8_WEIGHTS, INT8_WEIGHTS, LARGER_BATCH, LARGEST_BATCH
from llm_perf_opt.core.names import DECODE
from llm_perf_opt.core.units import format_bytes

MIN_SHARE = 0.7
# What eight bits leave of the bytes of a weight.
LEFT = {"fp32": 0.25, "bf16": 0.5, "fp16": 0.5}
REMEDY = (
    "move fewer bytes for each token: weights in eight bits or less (fp8, int8, int4), or more sequences at once, so "
    "that one read of the weights serves all of them"
)


def find_weight_reads(facts: RunFacts) -> list[Finding]:
    """A finding when decode on a GPU is limited by memory and most of what it must move is weights in 16 bits or 32."""
    phase, memory = facts.phases.get(DECODE), facts.memory
    if phase is None or phase.limit != "memory" or memory.weight_dtype not in LEFT:
        return []
    total, cache = value_of(phase.bytes), value_of(memory.kv_read_per_step)
    if not isinstance(phase.gpu, GpuFacts) or not isinstance(phase.wall, Known) or not total or cache is None:
        return []
    share = max(0.0, 1 - cache / total)
    return [_finding(phase, phase.gpu, phase.wall, share, total, memory.weight_dtype)] if share >= MIN_SHARE else []


def _finding(phase: PhaseFacts, gpu: GpuFacts, wall: Known, share: float, total: float, dtype: str) -> Finding:
    # Kernels that wait for memory shrink as the bytes do; what is not a read of weights stays.
    saved = gpu.busy_ms * share * (1 - LEFT[dtype])
    source = phase.bytes.source if isinstance(phase.bytes, Known) else None
    return RULE.finding(
        title=f"Decode reads {format_bytes(share * total)} of {dtype} weights in each step, {100 * share:.0f} % of its "
        "bytes",
        phase=phase.name,
        evidence=(
            Evidence(
                text=f"a step has to move {format_bytes(total)}; the hardware's limit is its memory, not its products",
                source=source or "static_analysis/static.json",
            ),
            Evidence(text=f"kernels {gpu.busy_ms:.3f} ms in each step", source=gpu.source),
        ),
        saves_ms=saved,
        gain=amdahl(wall.value, saved),
        confidence="low",
        caveat=HIDDEN
        if gpu.busy_ms < (1 - LAUNCH_BOUND_IDLE) * wall.value
        else "outputs change with the format: check them",
    )


RULE = Rule(
    id="weight_reads",
    find=find_weight_reads,
    plain_words="For every word the whole model is read from memory again; smaller numbers would be read faster.",
    remedy=REMEDY,
    hint="Weights in eight bits",
    experiments=(FP8_WEIGHTS, INT8_WEIGHTS, LARGER_BATCH, LARGEST_BATCH),
)
