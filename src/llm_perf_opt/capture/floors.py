"""The least time of an optimizer's passes over all parameters, and of copies between host and device."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.capture.rows import CopyRow, KernelRow
from llm_perf_opt.model.hardware.gpu_generation import GpuGeneration

if TYPE_CHECKING:
    # A capture without a named GPU needs no catalogue.
    from llm_perf_opt.config.schema import HardwareSection

# Torch's foreach functions: the functor's type, how many lists of tensors it is given, how many it reads, which it
# writes. Fused optimizers, torch's and those of Apex and Megatron, are given by their own functor.
_FOREACH = re.compile(
    r"multi_tensor_apply_kernel<.*\b(?:Unary|Binary|Pointwise|Ternary)Op\w*Functor<"
    r"(?:[^<>]*?, ?(?:\(int\))?(\d+), ?(?:\(int\))?(\d+), ?(?:\(int\))?(\d+))?"
)
_FUSED = re.compile(r"multi_tensor_apply_kernel<.*\b(Fused\w+|(Adam|SGD|LAMB|Novograd)\w*)Functor", re.IGNORECASE)
_MOVES_DATA = re.compile(r"\bCopy<|CopyFunctor")
# Numbers read and written for each parameter by one pass: parameter and gradient, the state read and written.
ONE_PASS: Mapping[str, int] = {
    "Adam": 7, "AdamW": 7, "NAdam": 7, "RAdam": 7, "Adamax": 7, "LAMB": 7, "SGD": 5, "Adagrad": 5, "RMSprop": 5,
    "Lion": 5,
}  # fmt: skip
LEAST_PASS = 3


@dataclass(frozen=True, kw_only=True)
class OptimizerPasses:
    """Passes of an optimizer over all parameters, one for each operation.

    `moved` counts the numbers all kinds of passes read and write for each parameter, `least_moved` those of one pass
    that does it all; `floor_ns` is the part of `time_ns` that follows.
    """

    optimizer: str | None
    kinds: int
    instances: int
    time_ns: int
    names: tuple[str, ...]
    moved: int
    least_moved: int
    floor_ns: int
    how: str


def optimizer_passes(rows: Sequence[KernelRow], optimizer: str | None = None) -> OptimizerPasses | None:
    """The foreach kernels among some rows; None where there are none, or where a fused optimizer runs.

    `optimizer` is the name of torch's class where a range gives it. Whether they are an optimizer at all is not said:
    clipping and averages of weights are foreach kernels too.
    """
    if any(_FUSED.search(row.name) for row in rows):
        return None
    found = [(row, match) for row in rows if (match := _FOREACH.search(row.name)) and not _MOVES_DATA.search(row.name)]
    if not found:
        return None
    found.sort(key=lambda pair: (-pair[0].total_ns, pair[0].name))
    # What a functor whose numbers are not in its name does: at least read one list and write one.
    moved = sum(int(match[2]) + 1 if match[2] else 2 for _, match in found)
    least = min(ONE_PASS.get(optimizer or "", LEAST_PASS), moved)
    time_ns = sum(row.total_ns for row, _ in found)
    named = optimizer if optimizer in ONE_PASS else "any optimizer"
    return OptimizerPasses(
        optimizer=optimizer,
        kinds=len(found),
        instances=sum(row.instances for row, _ in found),
        time_ns=time_ns,
        names=tuple(row.name for row, _ in found),
        moved=moved,
        least_moved=least,
        floor_ns=round(time_ns * least / moved),
        how=f"one pass of {named} moves {least} numbers for each parameter, these kinds of passes {moved}",
    )


@dataclass(frozen=True, kw_only=True)
class CopyFloor:
    """The least time of all copies of one kind; None where sizes or the peak of the way they take are not known."""

    kind: str
    instances: int
    total_ns: int
    size_bytes: int | None
    floor_ns: int | None
    how: str


def copy_floors(
    copies: Sequence[CopyRow], generation: GpuGeneration | None, hardware: "HardwareSection | None" = None
) -> tuple[CopyFloor, ...]:
    """Bytes over the peak of the link to the host in one direction, or of the memory for copies on the device."""
    return tuple(_copy_floor(row, generation, hardware) for row in copies)


def _copy_floor(row: CopyRow, generation: GpuGeneration | None, hardware: "HardwareSection | None") -> CopyFloor:
    gb_s, how = _way(row.way.split(".")[0], generation, hardware)
    floor_ns = None if gb_s is None or row.size_bytes is None else min(round(row.size_bytes / gb_s), row.total_ns)
    if gb_s is not None and row.size_bytes is None:
        how = "unknown: the capture does not say how many bytes"
    return CopyFloor(
        kind=row.kind,
        instances=row.instances,
        total_ns=row.total_ns,
        size_bytes=row.size_bytes,
        floor_ns=floor_ns,
        how=how,
    )


def _way(way: str, generation: GpuGeneration | None, hardware: "HardwareSection | None") -> tuple[float | None, str]:
    """The peak of the way a copy takes, in GB/s of its size, and from where it is known."""
    if way in ("h2d", "d2h"):
        if hardware is not None and hardware.link_gb_s and (hardware.link or "").startswith("PCIe"):
            # The catalogue has the sum of both directions.
            one_way = hardware.link_gb_s / 2
            return one_way, f"bytes at {one_way:g} GB/s ({hardware.link} of {hardware.name}, one direction)"
        if generation is not None and not generation.is_oldest:
            one_way = generation.host_link_gb_s
            return one_way, f"bytes at {one_way:g} GB/s (the fastest host link of {generation.name}, one direction)"
        return None, "unknown: the link of this GPU to the host is not known"
    if hardware is not None and hardware.memory_bandwidth_gb_s:
        if way == "d2d":
            at_once = hardware.memory_bandwidth_gb_s / 2
            return at_once, f"bytes read and written at the memory bandwidth of {hardware.name}"
        if way == "set":
            return hardware.memory_bandwidth_gb_s, f"bytes written at the memory bandwidth of {hardware.name}"
    return None, "unknown: the peak of the way these copies take is not known"
