"""GEMMs and convolutions of a capture by the precision they run in, and those whose operands are not aligned."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.capture.kernels.gemm_names import GemmTraits, gemm_traits
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.capture.shapes import ShapeRow

NAMED = 3


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
