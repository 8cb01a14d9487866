"""GEMMs and convolutions in a wider format than the GPU computes fast, or than the model means."""

from llm_perf_opt.capture.exclusive import KernelTime
from llm_perf_opt.capture.kernels.gemm_names import gemm_traits
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Fact, Value, kernel_fact
from llm_perf_opt.diagnosis.scope import Scope
from llm_perf_opt.model.hardware.gpu_generation import GpuGeneration, gpu_generation

# Of a capture, whose program may mean fp32, from this part of the kernel time on; where another dtype was meant, less.
MIN_CAPTURE_SHARE, MIN_MEANT_SHARE, SHOWN = 0.15, 0.01, 3
MEANT = ("bf16", "fp16", "bfloat16", "float16")
WIDE = ("fp32", "tf32", "fp64")
KINDS = {"GEMM": "GEMMs", "convolution": "convolutions"}


def judge(scope: Scope, program: Program) -> Claim | None:
    meant = scope.run.dtype if scope.run is not None and scope.run.dtype in MEANT else None
    # Programs for other purposes than learning mean the fp64 they compute in.
    by_accident = meant is None and "torch" in program.traits
    precisions = {
        k.name: p
        for k in scope.kernels
        if (p := _wide(k, is_meant=meant is not None, by_accident=by_accident)) is not None
    }
    rows = [kernel for kernel in scope.kernels if kernel.name in precisions]
    spent = sum(kernel.time_ns for kernel in rows)
    least = MIN_MEANT_SHARE if meant is not None else MIN_CAPTURE_SHARE
    if not rows or spent < least * scope.kernel_ns:
        return None
    generation = _generation(scope, program)
    tf32 = None if generation is None else generation.ratio_tf32
    wide = None if generation is None else generation.ratio_16
    is_double = precisions[rows[0].name] == "fp64"
    has_faster = generation is None or generation.has_tensor_cores or (wide or 0.0) > 1.2
    if not has_faster and meant is None and not is_double:
        # There is no faster format on this GPU.
        return None
    # The cheaper change where it helps: TF32 keeps the operands as they are.
    target, ratio = ("TF32", tf32) if tf32 is not None and tf32 > 1.2 and meant is None else ("16 bits", wide)
    only_fp32 = all(precisions[kernel.name] == "fp32" for kernel in rows)
    kernels = {kernel.name: kernel.own_ns for kernel in rows}
    wanted = sum(kernels.values())
    has_floor = ratio is not None and ratio > 1.2 and only_fp32
    values: dict[str, Value] = {
        "kinds": " and ".join(dict.fromkeys(KINDS[kernel.kernel_class] for kernel in rows)),
        "precision": precisions[rows[0].name],
        "meant": meant or "",
        "kernel_share": spent / scope.kernel_ns,
        "target": target,
        "ratio": ratio or 1.0,
    }
    facts = [kernel_fact(kernel, precision=precisions[kernel.name]) for kernel in rows[:SHOWN]]
    if generation is not None and has_floor:
        how = generation.ratio_how or ""
        facts.append(Fact(key="gpu", values={"generation": generation.name, "how": how}))
    traits = _traits(generation, tf32) | ({"meant"} if meant is not None else {"double"} if is_double else set())
    return Claim(
        title="tensor" if meant is not None else "double" if is_double else "title",
        values=values,
        kernels=kernels,
        floor_ns=round(wanted / (ratio or 1.0)) if has_floor else None,
        floor="ratio" if has_floor else None,
        evidence=tuple(facts),
        traits=frozenset(traits | ({"convolution_kernel"} if rows[0].kernel_class == "convolution" else set())),
        caveat="outputs",
    )


def _wide(kernel: KernelTime, *, is_meant: bool, by_accident: bool) -> str | None:
    """The wide precision a kernel computes in; of a capture only fp32 off the tensor cores, and fp64 `by_accident`."""
    if kernel.kernel_class not in KINDS:
        return None
    traits = gemm_traits(kernel.name)
    if traits is None or traits.precision not in WIDE:
        return None
    is_slow = traits.precision == "fp32" and traits.tensor_cores is False
    return traits.precision if is_meant or is_slow or (by_accident and traits.precision == "fp64") else None


def _generation(scope: Scope, program: Program) -> GpuGeneration | None:
    if scope.evidence is not None:
        return scope.evidence.generation
    return gpu_generation(program.gpu_name, None, [kernel.name for kernel in scope.kernels])


def _traits(generation: GpuGeneration | None, tf32: float | None) -> set[str]:
    if generation is None:
        return {"tf32_helps"}
    if not generation.has_tensor_cores:
        return {"no_tensor_cores"}
    found = {"has_fp16"} if generation.supports("fp16") else set()
    if not generation.supports("tf32"):
        return found | {"no_tf32"}
    return found | ({"tf32_helps"} if tf32 is None or tf32 > 1.2 else set())
