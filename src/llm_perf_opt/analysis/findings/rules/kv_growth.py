"""Rules about bytes. kv_growth: the KV cache decides how much a step reads or how much fits; weight_reads: a step moves
weights and little else, each of them for one token of each sequence; fragmentation: memory is kept that holds nothing.
"""

from llm_perf_opt.diagnosis.facts import GpuFacts, Known, PhaseFacts, RunFacts, value_of
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import HIDDEN, LAUNCH_BOUND_IDLE
from llm_perf_opt.diagnosis.experiments import (
    EXPANDABLE_SEGMENTS,
    FP8_WEIGHTS,
    INT8_WEIGHTS,
    LARGER_BATCH,
    LARGEST_BATCH,
)
from llm_perf_opt.core.names import DECODE
from llm_perf_opt.core.units import format_bytes

MIN_READ_SHARE = 0.25
MIN_MEMORY_SHARE = 0.4
REMEDY = (
    "shrink the cache: {format}a model with fewer KV heads or a latent cache, a sliding window, or paged attention so "
    "that unused room is not reserved"
)
# What halves the bytes of an element.
HALVED = {"fp32": "bf16", "bf16": "fp8 or int8", "fp16": "fp8 or int8"}


def find_kv_growth(facts: RunFacts) -> list[Finding]:
    """A finding when the cache is a quarter of what a step reads, or fills much of the memory."""
    memory = facts.memory
    read, total = value_of(memory.kv_read_per_step), _step_bytes(facts)
    share = read / total if read is not None and total else 0.0
    held, room = value_of(memory.kv_cache), value_of(memory.capacity)
    filled = held / room if held is not None and room else 0.0
    if share < MIN_READ_SHARE and filled < MIN_MEMORY_SHARE:
        return []
    return [_finding(facts, share, filled)]


def _step_bytes(facts: RunFacts) -> float | None:
    decode = facts.phases.get("decode")
    return value_of(decode.bytes) if decode is not None else None


def _finding(facts: RunFacts, share: float, filled: float) -> Finding:
    memory, decode = facts.memory, facts.phases.get("decode")
    source = memory.kv_cache.source if isinstance(memory.kv_cache, Known) else None
    read = value_of(memory.kv_read_per_step)
    now = memory.kv_dtype
    target = HALVED.get(now or "")
    saved = None
    if read is not None and facts.bytes_per_s and target is not None:
        saved = 1e3 * (read / 2) / facts.bytes_per_s
    wall = value_of(decode.wall) if decode is not None else None
    per_token = value_of(memory.kv_per_token)
    texts = [f"reading the cache is {100 * share:.0f} % of the bytes a decode step needs"] if share else []
    texts += (
        [f"the cache of {facts.context} tokens and batch {facts.batch} fills {100 * filled:.0f} % of the memory"]
        if filled
        else []
    )
    texts += [f"each token adds {per_token:,.0f} bytes"] if per_token is not None else []
    return RULE.finding(
        title="The KV cache decides: " + (texts[0] if share >= MIN_READ_SHARE else texts[-2 if per_token else -1]),
        phase="decode",
        evidence=tuple(Evidence(text=text, source=source or "static_analysis/static.json") for text in texts),
        remedy=REMEDY.format(format=f"keep it in {target} instead of {now} (half the bytes), " if target else ""),
        saves_ms=saved,
        gain=None if saved is None else amdahl(wall, saved),
        confidence="medium",
    )


RULE = Rule(
    id="kv_growth",
    find=find_kv_growth,
    plain_words="The memory of the conversation so far has become the largest thing to read.",
    remedy=REMEDY.format(format=""),
)


MIN_WEIGHT_SHARE = 0.7
# What eight bits leave of the bytes of a weight.
LEFT_BY_8_BITS = {"fp32": 0.25, "bf16": 0.5, "fp16": 0.5}
WEIGHT_REMEDY = (
    "move fewer bytes for each token: weights in eight bits or less (fp8, int8, int4), or more sequences at once, so "
    "that one read of the weights serves all of them"
)


def find_weight_reads(facts: RunFacts) -> list[Finding]:
    """A finding when decode on a GPU is limited by memory and most of what it must move is weights in 16 bits or 32."""
    phase, memory = facts.phases.get(DECODE), facts.memory
    if phase is None or phase.limit != "memory" or memory.weight_dtype not in LEFT_BY_8_BITS:
        return []
    total, cache = value_of(phase.bytes), value_of(memory.kv_read_per_step)
    if not isinstance(phase.gpu, GpuFacts) or not isinstance(phase.wall, Known) or not total or cache is None:
        return []
    share = max(0.0, 1 - cache / total)
    return (
        [_weights(phase, phase.gpu, phase.wall, share, total, memory.weight_dtype)] if share >= MIN_WEIGHT_SHARE else []
    )


def _weights(phase: PhaseFacts, gpu: GpuFacts, wall: Known, share: float, total: float, dtype: str) -> Finding:
    # Kernels that wait for memory shrink as the bytes do; what is not a read of weights stays.
    saved = gpu.busy_ms * share * (1 - LEFT_BY_8_BITS[dtype])
    source = phase.bytes.source if isinstance(phase.bytes, Known) else None
    return WEIGHT_READS.finding(
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


WEIGHT_READS = Rule(
    id="weight_reads",
    find=find_weight_reads,
    plain_words="For every word the whole model is read from memory again; smaller numbers would be read faster.",
    remedy=WEIGHT_REMEDY,
    hint="Weights in eight bits",
    experiments=(FP8_WEIGHTS, INT8_WEIGHTS, LARGER_BATCH, LARGEST_BATCH),
)

# Of what is kept, and in bytes: less is the allocator's rounding.
MIN_UNUSED_SHARE, MIN_UNUSED_BYTES = 0.2, 1e9
ALLOCATOR_REMEDY = (
    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that freed pieces of other sizes can be used again, "
    "and keep sizes alike (a static cache, batches of one length); a larger batch or context fits then, nothing gets "
    "faster by it"
)


def find_fragmentation(facts: RunFacts) -> list[Finding]:
    """A finding when the allocator keeps a gigabyte, and a fifth, more than was ever in use."""
    kept, used = facts.memory.reserved, facts.memory.allocated
    if not isinstance(kept, Known) or not isinstance(used, Known):
        return []
    unused = kept.value - used.value
    if unused < MIN_UNUSED_BYTES or unused < MIN_UNUSED_SHARE * kept.value:
        return []
    return [
        FRAGMENTATION.finding(
            title=f"The allocator keeps {format_bytes(unused)} of GPU memory that holds nothing",
            phase=None,
            evidence=tuple(
                Evidence(text=f"{word} at most {format_bytes(one.value)} ({one.how})", source=one.source or "")
                for word, one in (("kept", kept), ("in use", used))
            ),
            saves_ms=None,
            gain=None,
            confidence="high",
        )
    ]


FRAGMENTATION = Rule(
    id="fragmentation",
    find=find_fragmentation,
    plain_words="Part of the GPU's memory is set aside in pieces into which nothing fits.",
    remedy=ALLOCATOR_REMEDY,
    experiments=(EXPANDABLE_SEGMENTS,),
)
