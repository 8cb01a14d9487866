"""A memory-bound decode step that moves 16- or 32-bit weights and little else."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.facts import Known, value_of
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_WEIGHT_SHARE = 0.7
# What eight bits leave of the bytes of a weight.
LEFT_BY_8_BITS = {"fp32": 0.25, "bf16": 0.5, "fp16": 0.5}


def judge(scope: Scope, _: Program) -> Claim | None:
    phase, run = scope.phase, scope.run
    if phase is None or run is None or phase.name != "decode" or phase.limit != "memory":
        return None
    dtype = run.memory.weight_dtype
    total, cache = value_of(phase.bytes), value_of(run.memory.kv_read_per_step)
    if dtype not in LEFT_BY_8_BITS or not total or cache is None:
        return None
    part = max(0.0, 1 - cache / total)
    if part < MIN_WEIGHT_SHARE:
        return None
    kernels = {kernel.name: kernel.own_ns for kernel in scope.kernels if kernel.kernel_class == "GEMM"}
    wanted = sum(kernels.values())
    source = phase.bytes.source if isinstance(phase.bytes, Known) else None
    return Claim(
        values={"bytes": part * total, "dtype": dtype, "part": part},
        kernels=kernels,
        floor_ns=round(wanted * LEFT_BY_8_BITS[dtype]),
        floor="bits",
        evidence=(
            Fact(key="bytes", values={"total": total}, source=source or "static_analysis/static.json"),
            Fact(key="kernels", values={"time": wanted}),
        ),
        confidence="low",
        caveat="outputs",
    )
