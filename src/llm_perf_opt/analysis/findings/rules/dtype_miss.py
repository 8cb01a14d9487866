"""Rules dtype_miss: matrix products in fp32 or TF32, or off the tensor cores, where a 16-bit format was meant; and
wide_format: a whole model in fp32.
"""

import re
from dataclasses import replace

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts
from llm_perf_opt.diagnosis.facts import KernelFacts, PhaseKernel, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import Slice, describe, slices, time_of
from llm_perf_opt.diagnosis.experiments import BFLOAT16

MEANT = ("bf16", "fp16", "bfloat16", "float16")
WIDE = ("fp32", "float32")
MIN_SHARE = 0.01
# A model of float32 that need not be: products at the ratio of an H100's tensor cores to its CUDA cores, half of all
# other bytes.
MOST_RATIO, HALF = 16.0, 0.5
SHOWN = 3
# Names of cuBLAS, cuDNN and CUTLASS kernels say what they multiply. Since Ampere `ffma` is the instruction of the CUDA
# cores; a tensor core's has its shape (`tensor16x8x8`).
_FFMA = r"f32f32_f32f32_f32_\w*_ffma_"
MISSES = (
    ("fp32 on CUDA cores", re.compile(rf"(?<![a-z])sgemm|sgemv|gemv2?[NT]?_kernel<.*\bfloat\b|{_FFMA}")),
    ("TF32", re.compile(r"tf32|s1688gemm(?!_bf16|_fp16)|tst_.*_f32f32_tf32")),
    ("fp32", re.compile(r"(?:s16816|s884|s161616)?gemm_f32f32|f32f32_f32f32")),
    ("fp64", re.compile(r"(?<![a-z])dgemm|f64f64")),
)
# Speed of a dense product in 16 bits over this one on data-centre GPUs since Ampere, at least.
LEAST_RATIO = {"fp32 on CUDA cores": 8.0, "TF32": 2.0, "fp32": 2.0, "fp64": 8.0}
REMEDY = (
    "keep the operands in the model's format: look for .float(), float32 buffers (rotary tables, logits, norms) and "
    "autocast regions that end too early; where fp32 is meant, "
    "torch.set_float32_matmul_precision('high') at least uses TF32"
)
# Of a capture, whose program may mean fp32: products by a name that says so, from this part of the kernel time on.
PRODUCTS, MIN_CAPTURE_SHARE = ("GEMM", "convolution"), 0.15
SIMT = re.compile(rf"(?<![a-z])s(gemm(?!v)|cudnn_)|{_FFMA}")
# GPUs before Volta, and those whose tensor cores (Volta, Turing) take no TF32 and no bfloat16.
WITHOUT_TENSOR_CORES = re.compile(r"\b(P100|P40|P4|K80|K40m?|M60|M40|GTX|TITAN Xp?)\b", re.IGNORECASE)
HALF_ONLY = re.compile(r"\b(V100\w*|T4|TITAN (V|RTX)|Quadro (GV100|RTX)|RTX 20\d0)\b", re.IGNORECASE)
TENSOR_CORES_IN_HALF = (
    "multiply on the tensor cores where the result bears it: those of this GPU take float16 and no TF32 (autocast to "
    "float16, with loss scaling where it trains)"
)
TENSOR_CORES = (
    "multiply on the tensor cores: torch.set_float32_matmul_precision('high') rounds the operands of fp32 products to "
    "TF32, autocast or a model in bfloat16 halves the bytes as well"
)
TENSOR_CORES_OF_CONVOLUTIONS = (
    "convolve on the tensor cores: torch.backends.cudnn.allow_tf32 = True (torch's default, so look for what turns it "
    "off) rounds the operands to TF32, autocast or a model in bfloat16 halves the bytes as well"
)
TENSOR_CORES_OF_OTHERS = (
    "multiply on the tensor cores where the result bears it: allow TF32 in the library or framework that multiplies "
    "(NVIDIA_TF32_OVERRIDE=1 tries it without a change), or store operands in a 16-bit format"
)
WIDE_REMEDY = "run it in bfloat16 (model.dtype=bfloat16): half the bytes, and products on the tensor cores"
Row = tuple[PhaseKernel, KernelFacts | None]


def find_dtype_misses(facts: RunFacts) -> list[Finding]:
    """One finding per phase of a 16-bit model that multiplies in a wider format."""
    if facts.dtype not in MEANT:
        return []
    found = []
    for part in slices(facts):
        rows = [(row, kind) for row in part.rows if (kind := miss_of(row[0])) is not None]
        spent = time_of(row for row, _ in rows)
        if rows and spent >= MIN_SHARE * part.busy_ms:
            found.append(_finding(part, rows, spent, facts))
    return found


def find_misses_in(facts: CaptureFacts) -> list[Finding]:
    """One finding where products of a capture run in fp32 on CUDA cores; what format was meant is not known."""
    total = sum(row.total_ns for row in facts.kernels)
    rows = [row for row in facts.kernels if row.kernel_class in PRODUCTS and SIMT.search(row.name)]
    spent = min(sum(row.total_ns for row in rows), facts.busy_ns)
    if not rows or spent < MIN_CAPTURE_SHARE * total or WITHOUT_TENSOR_CORES.search(facts.gpu_name or ""):
        return []
    finding = RULE.finding_of_capture(
        facts,
        title=f"Products in fp32 on CUDA cores take {spent / total:.0%} of the capture's kernel time",
        evidence=tuple(
            f"`{row.short_name}`: {row.total_ns / 1e6:.3f} ms in {row.instances:,} launch(es)" for row in rows[:SHOWN]
        ),
        saved_ns=0,
        confidence="medium",
        remedy=_tensor_cores(facts, rows[0].kernel_class),
    )
    saved = spent * (1 - 1 / MOST_RATIO)
    return [
        replace(
            finding,
            share=saved / facts.span_ns,
            gain=amdahl(facts.span_ns, saved),
            caveat="an upper bound, for a GPU with tensor cores (Volta and later); outputs change with the format",
        )
    ]


def _tensor_cores(facts: CaptureFacts, kernel_class: str) -> str:
    if HALF_ONLY.search(facts.gpu_name or ""):
        return TENSOR_CORES_IN_HALF
    if facts.report.framework != "torch":
        return TENSOR_CORES_OF_OTHERS
    return TENSOR_CORES_OF_CONVOLUTIONS if kernel_class == "convolution" else TENSOR_CORES


def find_wide_format(facts: RunFacts) -> list[Finding]:
    """One finding per phase of a model that runs in 32 bits on a GPU."""
    return [_wide(part, facts) for part in slices(facts)] if facts.dtype in WIDE and not facts.is_cpu else []


def _wide(part: Slice, facts: RunFacts) -> Finding:
    products = time_of(row for row in part.rows if row[0].kernel_class == "GEMM")
    saved = products * (1 - 1 / MOST_RATIO) + (part.busy_ms - products) * HALF
    return WIDE_FORMAT.finding(
        title=f"The model runs in float32: {100 * products / part.busy_ms:.0f} % of {part.where} are its products",
        phase=part.phase,
        evidence=(Evidence(text=f"kernels {part.busy_ms:.4g} ms", source=facts.kernel_source),),
        saves_ms=saved,
        gain=amdahl(part.wall_ms, saved),
        confidence="low",
        caveat=part.caveat or "outputs change with the format: check them",
    )


def miss_of(kernel: PhaseKernel) -> str | None:
    """The wider format a product ran in, or None."""
    if kernel.kernel_class != "GEMM":
        return None
    return next((kind for kind, pattern in MISSES if pattern.search(kernel.name)), None)


def _finding(part: Slice, rows: list[tuple[Row, str]], spent: float, facts: RunFacts) -> Finding:
    rows = sorted(rows, key=lambda item: -item[0][0].ms_per_step)
    saved = sum(row[0].ms_per_step * (1 - 1 / LEAST_RATIO[kind]) for row, kind in rows)
    return RULE.finding(
        title=f"Products in {rows[0][1]}, not {facts.dtype}, take {100 * spent / part.busy_ms:.1f} % of {part.where}",
        phase=part.phase,
        evidence=tuple(
            Evidence(text=describe(row[0], f", by its name {kind}"), source=facts.kernel_source)
            for row, kind in rows[:SHOWN]
        ),
        saves_ms=saved,
        gain=amdahl(part.wall_ms, saved),
        confidence="medium",
        caveat=part.caveat,
    )


RULE = Rule(
    id="dtype_miss",
    find=find_dtype_misses,
    find_in_capture=find_misses_in,
    plain_words="Some calculations run in a slower number format than intended.",
    remedy=REMEDY,
    hint="A format of the tensor cores",
)
WIDE_FORMAT = Rule(
    id="wide_format",
    find=find_wide_format,
    plain_words="The model calculates with more digits than it may need, which takes longer.",
    remedy=WIDE_REMEDY,
    hint="bfloat16",
    experiments=(BFLOAT16,),
)
