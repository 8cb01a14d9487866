"""GEMMs and convolutions of a capture by the precision they run in, and those whose operands are not aligned."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.capture.kernels.gemm_names import GemmTraits, gemm_traits
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.capture.shapes import ShapeRow
from llm_perf_opt.model.hardware.gpu_generation import GpuGeneration

NAMED = 3


@dataclass(frozen=True, kw_only=True)
class GemmPrecisionRow:
    """All kernels of one class that multiply in one precision on the same units; None where names do not say it.

    `floor_ns` is what of `time_ns` remains in a 16-bit precision, `tf32_floor_ns` in TF32: None where the GPU has no
    such units, where their speed is not known, and for what is as fast already. `how` says from where it is known.
    """

    kernel_class: str
    precision: str | None
    tensor_cores: bool | None
    instances: int
    time_ns: int
    kernels: tuple[str, ...]
    floor_ns: int | None
    tf32_floor_ns: int | None
    how: str


@dataclass(frozen=True, kw_only=True)
class MisalignedKernel:
    """One kernel for operands whose rows start anywhere; `alignment` is in elements of `precision`."""

    short_name: str
    precision: str
    alignment: int
    instances: int
    time_ns: int


@dataclass(frozen=True, kw_only=True)
class MisalignedGemms:
    """Kernels of matrix units for operands that are not aligned to 16 bytes.

    `shapes` are those of the operators that ran them, by time, where shapes were recorded. `floor_ns` is what of
    `time_ns` the work needs at the GPU's peaks, None where shapes or peaks are not known; `how` says which.
    """

    instances: int
    time_ns: int
    kernels: tuple[MisalignedKernel, ...]
    shapes: tuple[str, ...]
    floor_ns: int | None
    how: str


def gemm_precisions(rows: Sequence[KernelRow], generation: GpuGeneration | None = None) -> tuple[GemmPrecisionRow, ...]:
    """In what precision GEMMs and convolutions run, by time; `generation` is that of the GPU."""
    found: dict[tuple[str, str | None, bool | None], list[KernelRow]] = {}
    for row in rows:
        traits = gemm_traits(row.name)
        if traits is not None:
            found.setdefault((row.kernel_class, traits.precision, traits.tensor_cores), []).append(row)
    out = []
    for (kernel_class, precision, tensor_cores), mine in found.items():
        time_ns = sum(row.total_ns for row in mine)
        faster_16, faster_tf32, how = _faster(precision, tensor_cores, generation)
        out.append(
            GemmPrecisionRow(
                kernel_class=kernel_class,
                precision=precision,
                tensor_cores=tensor_cores,
                instances=sum(row.instances for row in mine),
                time_ns=time_ns,
                kernels=tuple(row.short_name for row in _by_time(mine)[:NAMED]),
                floor_ns=None if faster_16 is None else round(time_ns / faster_16),
                tf32_floor_ns=None if faster_tf32 is None else round(time_ns / faster_tf32),
                how=how,
            )
        )
    return tuple(sorted(out, key=lambda row: (-row.time_ns, row.kernel_class, row.precision or "")))


def _faster(
    precision: str | None, tensor_cores: bool | None, generation: GpuGeneration | None
) -> tuple[float | None, float | None, str]:
    """How many times as fast 16-bit and TF32 products are at their peaks as products in this precision."""
    if generation is None or generation.ratio_16 is None:
        return None, None, "unknown: the peaks of this GPU are not known"
    ratio_16, ratio_tf32, how = generation.ratio_16, generation.ratio_tf32, generation.ratio_how or ""
    if precision == "fp32" and tensor_cores is False and ratio_16 > 1:
        return ratio_16, ratio_tf32 if ratio_tf32 is not None and ratio_tf32 > 1 else None, how
    if precision == "tf32" and ratio_tf32 and ratio_16 > ratio_tf32:
        return ratio_16 / ratio_tf32, None, how
    if precision in ("fp16", "bf16") and tensor_cores is False and ratio_16 > 1:
        return ratio_16, None, how
    return None, None, f"no faster format is known: {how}"


def misaligned_gemms(rows: Sequence[KernelRow], shapes: Sequence[ShapeRow] = ()) -> MisalignedGemms | None:
    """The misaligned kernels among some rows; None where there are none."""
    known = [(row, traits) for row in _by_time(rows) if (traits := gemm_traits(row.name)) is not None]
    found = [_kernel(row, traits) for row, traits in known if traits.is_misaligned]
    if not found:
        return None
    time_ns = sum(kernel.time_ns for kernel in found)
    ran = sorted((row for row in shapes if "misaligned" in row.reasons), key=lambda row: -row.time_ns)
    covered = [row for row in ran if row.floor_ns is not None]
    in_shapes = sum(row.time_ns for row in covered)
    floor_ns, how = None, "unknown: no input shapes were recorded, or the peaks of the GPU are not in the catalogue"
    if in_shapes:
        # Shapes of some calls only stand for all of them.
        floor_ns = round(time_ns * sum(row.floor_ns or 0 for row in covered) / in_shapes)
        how = covered[0].how
    return MisalignedGemms(
        instances=sum(kernel.instances for kernel in found),
        time_ns=time_ns,
        kernels=tuple(found),
        shapes=tuple(dict.fromkeys(f"{row.operator} {row.shape} ({row.dtype})" for row in ran)),
        floor_ns=floor_ns,
        how=how,
    )


def _kernel(row: KernelRow, traits: GemmTraits) -> MisalignedKernel:
    return MisalignedKernel(
        short_name=row.short_name,
        precision=traits.precision or "unknown",
        alignment=traits.alignment or 1,
        instances=row.instances,
        time_ns=row.total_ns,
    )


def _by_time(rows: Sequence[KernelRow]) -> list[KernelRow]:
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))
