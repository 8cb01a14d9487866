"""Matrix products, attention, convolutions and normalisations of a trace by shape and type, against the GPU's roofline.

A kernel belongs to the innermost operator around its launch whose work is known from its inputs. The time of a call is
that of all its kernels; FLOPs and bytes are what the call needs (`kernels/operator_work.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from llm_perf_opt.capture.intervals import Ints, innermost, nest
from llm_perf_opt.capture.kernels.gemm_names import ACCESS_BYTES, ITEM_BYTES, gemm_traits
from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.kernels.operator_work import GemmSizes, OperatorWork, has_formula, operator_work
from llm_perf_opt.capture.operators import TraceDetail
from llm_perf_opt.capture.timeline import Timeline, distinct

if TYPE_CHECKING:
    # Every command that reads a capture would pay for the whole configuration otherwise.
    from llm_perf_opt.config.schema import HardwareSection

KERNELS_NAMED = 3
# Good kernels of large products reach two thirds of the data sheet: what is under this share of it is far from it.
FAR_PCT = 50.0
# The smallest tile libraries still give to matrix units, and the side from which on a product is a matrix: one with
# fewer rows reads its weights for too little work, regardless of its kernel.
TILE, SKINNY = 64, 32
# The part of the data-sheet peak that the best attention kernels reach (published for FlashAttention 2 on A100 and 3 on
# H100: 72 and 75 %).
BEST_ATTENTION = 0.75
# Kernels of this name load their operands in whole accesses only (by TMA).
_ALIGNED = "nvjet"
Reason = Literal["misaligned", "CUDA cores", "skinny", "too small to fill"]
_WHY: Mapping[Reason, str] = {
    "misaligned": "rows of the operands are not aligned to 16 bytes, which needs slower kernels",
    "CUDA cores": "a kernel of the CUDA cores multiplies, not one of the matrix units",
    "skinny": f"a side of the GEMM is under {SKINNY}: reading the other operand takes the time",
    "too small to fill": f"fewer tiles of {TILE} × {TILE} than SMs",
}


@dataclass(frozen=True, kw_only=True)
class ShapeRow:
    """All calls of one operator with one shape and type.

    Rates are work over the time of the kernels. `roof_pct` is the time the work needs at the GPU's peaks over the time
    it took; `bound` says which peak that is. Above 100 % a cache held what was read. `floor_ns` is the time all calls
    need at the peaks, None where these are not known; `how` says of which. `sizes` are those of a GEMM, `reasons` what
    keeps it from its peak, the heaviest first.
    """

    kind: str
    operator: str
    shape: str
    dtype: str
    calls: int
    kernel_count: int
    time_ns: int
    mean_ns: float
    flops: float | None
    size_bytes: float
    flop_per_byte: float | None
    tflops: float | None
    gb_per_s: float
    bound: str | None
    roof_pct: float | None
    kernels: tuple[str, ...]
    sizes: GemmSizes | None
    reasons: tuple[Reason, ...]
    floor_ns: int | None
    how: str


@dataclass(frozen=True, kw_only=True)
class GpuPeaks:
    """Peaks of the GPU by number format, as the catalogue has them; `how` says from where, or why there are none."""

    gpu: str | None
    peak_tflops: Mapping[str, float]
    bandwidth_gb_s: float | None
    how: str


@dataclass(frozen=True, kw_only=True)
class ShapesAnalysis:
    """`covered_ns` is the time of the rows' kernels, of `kernel_ns` of all kernels."""

    roof: GpuPeaks
    rows: tuple[ShapeRow, ...]
    covered_ns: int
    kernel_ns: int


@dataclass
class _Sum:
    """What has been added up for one operator, shape and type."""

    calls: int
    kernel_count: int
    time_ns: int
    names: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class ShapeSums:
    """The work known in one trace: for each operator and its inputs the calls, kernels and time."""

    found: Mapping[tuple[str, OperatorWork], _Sum]
    kernel_ns: int
    sm_count: int | None = None


def sum_shapes(timeline: Timeline, detail: TraceDetail) -> ShapeSums:
    """Add up calls and kernel time by operator, shape and type."""
    kernels = timeline.kernels
    length = kernels.end_ns - kernels.start_ns
    kernel_ns = int(length.sum())
    sm_count = min((d.sm_count for d in timeline.devices if d.sm_count), default=None)
    calls = calls_with_work(timeline, detail)
    known, owner, of = calls.kernel, calls.operator, calls.work
    found = {}
    for code in distinct(of).tolist():
        mine = of == code
        used = known[mine]
        names, times = np.unique(kernels.name[used], return_inverse=True)
        by_name = np.bincount(times, weights=length[used])
        order = np.argsort(-by_name, kind="stable")
        found[calls.works[code]] = _Sum(
            calls=len(distinct(owner[mine])),
            kernel_count=int(mine.sum()),
            time_ns=int(length[used].sum()),
            names={timeline.names[int(names[i])]: int(by_name[i]) for i in order},
        )
    return ShapeSums(found=found, kernel_ns=kernel_ns, sm_count=sm_count)


@dataclass(frozen=True, kw_only=True, eq=False)
class CallsWithWork:
    """Columns, one entry for each kernel whose call's work is known: the kernel, its operator, an index of `works`."""

    works: tuple[tuple[str, OperatorWork], ...]
    kernel: Ints
    operator: Ints
    work: Ints


def calls_with_work(timeline: Timeline, detail: TraceDetail) -> CallsWithWork:
    """The kernels of operators whose inputs say what they compute."""
    operators, kernels = timeline.operators, timeline.kernels
    works, work = _works(timeline, detail)
    if not works or not len(kernels):
        none = np.zeros(0, np.int64)
        return CallsWithWork(works=(), kernel=none, operator=none, work=none)
    tree = nest(operators.thread, operators.start_ns, operators.end_ns)
    # Each operator, or the innermost around it whose work is known.
    target = np.where(work >= 0, np.arange(len(operators)), -1)
    for level in tree.levels[1:]:
        target[level] = np.where(target[level] >= 0, target[level], target[tree.parent[level]])
    known = np.flatnonzero(kernels.call >= 0)
    call = kernels.call[known]
    columns = (operators.thread, operators.start_ns, operators.end_ns)
    owner = innermost(tree, *columns, timeline.calls.thread[call], timeline.calls.start_ns[call])
    owner = np.where(owner >= 0, target[np.maximum(owner, 0)], -1)
    known, owner = known[owner >= 0], owner[owner >= 0]
    return CallsWithWork(works=tuple(works), kernel=known, operator=owner, work=work[owner])


def least_fused_ns(timeline: Timeline, detail: TraceDetail, roof: GpuPeaks) -> Ints:
    """For each kernel of a GEMM the least time its work takes inside a fused attention kernel; -1: not known.

    That is the longer of its FLOPs at what the best attention kernels reach, and of its operands without the largest,
    the scores, which are never written, at the memory bandwidth. Kernels of one call share it by their time.
    """
    calls, kernels = calls_with_work(timeline, detail), timeline.kernels
    out = np.full(len(kernels), -1, np.int64)
    if not len(calls.kernel):
        return out
    length = (kernels.end_ns - kernels.start_ns)[calls.kernel]
    total = np.bincount(calls.operator, weights=length)[calls.operator]
    least = np.array([_fused_ns(work, roof) for _, work in calls.works])[calls.work]
    out[calls.kernel] = np.where(least >= 0, least * length / np.maximum(total, 1), -1).astype(np.int64)
    return out


def _fused_ns(work: OperatorWork, roof: GpuPeaks) -> float:
    peak, sizes = roof.peak_tflops.get(work.dtype), work.sizes
    if sizes is None or work.flops is None or not peak or not roof.bandwidth_gb_s:
        return -1.0
    parts = (sizes.m * sizes.k, sizes.k * sizes.n, sizes.m * sizes.n)
    moved = work.size_bytes * (sum(parts) - max(parts)) / sum(parts)
    return max(work.flops / (BEST_ATTENTION * peak) / 1e3, moved / roof.bandwidth_gb_s)


def _works(timeline: Timeline, detail: TraceDetail) -> tuple[list[tuple[str, OperatorWork]], Ints]:
    """The different pieces of work, and for each operator the index of its own or -1."""
    operators = timeline.operators
    wanted = np.array([has_formula(name) for name in timeline.names], np.bool_)
    pick = np.flatnonzero(wanted[operators.name]) if len(operators) else np.zeros(0, np.int64)
    out = np.full(len(operators), -1, np.int64)
    columns = (operators.name[pick], detail.shape[pick], detail.operator_extra[pick])
    keys, index = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    works: dict[tuple[str, OperatorWork], int] = {}
    codes = np.full(len(keys), -1, np.int64)
    for i, (name, shape, extra) in enumerate(keys.tolist()):
        types, values = detail.extras[extra]
        work = operator_work(timeline.names[name], detail.shapes[shape], types, values)
        if work is not None:
            codes[i] = works.setdefault((timeline.names[name], work), len(works))
    out[pick] = codes[index.reshape(-1)] if len(keys) else -1
    return list(works), out


def roof_of(gpu: str | None, hardware: "HardwareSection | None") -> GpuPeaks:
    """The catalogue's entry of a GPU as rooflines."""
    if gpu is None or hardware is None:
        why = "the capture does not name its GPU" if gpu is None else f"the peaks of {gpu} are not in the catalogue"
        return GpuPeaks(gpu=gpu, peak_tflops={}, bandwidth_gb_s=None, how=why)
    return GpuPeaks(
        gpu=gpu,
        peak_tflops=hardware.peak_tflops,
        bandwidth_gb_s=hardware.memory_bandwidth_gb_s,
        how=f"data-sheet peaks of {gpu}",
    )


def shape_rows(sums: Sequence[ShapeSums], roof: GpuPeaks) -> ShapesAnalysis | None:
    """The work of several traces together, by time; None where none is known."""
    found: dict[tuple[str, OperatorWork], _Sum] = {}
    for one in sums:
        for key, value in one.found.items():
            total = found.setdefault(key, _Sum(calls=0, kernel_count=0, time_ns=0, names={}))
            total.calls += value.calls
            total.kernel_count += value.kernel_count
            total.time_ns += value.time_ns
            for name, time_ns in value.names.items():
                total.names[name] = total.names.get(name, 0) + time_ns
    sm_count = min((one.sm_count for one in sums if one.sm_count), default=None)
    rows = [_row(name, work, value, roof, sm_count) for (name, work), value in found.items() if value.time_ns > 0]
    if not rows:
        return None
    rows.sort(key=lambda r: (-r.time_ns, r.operator, r.shape))
    return ShapesAnalysis(
        roof=roof,
        rows=tuple(rows),
        covered_ns=sum(row.time_ns for row in rows),
        kernel_ns=sum(one.kernel_ns for one in sums),
    )


def _row(name: str, work: OperatorWork, value: _Sum, roof: GpuPeaks, sm_count: int | None) -> ShapeRow:
    heaviest = sorted(value.names, key=lambda kernel: -value.names[kernel])
    ran = [traits for kernel in heaviest if (traits := gemm_traits(kernel)) is not None]
    dtype = "tf32" if work.dtype == "fp32" and any(traits.precision == "tf32" for traits in ran) else work.dtype
    mean_ns = value.time_ns / value.calls
    bound, needed_ns = _needed(work, dtype, roof)
    return ShapeRow(
        kind=work.kind,
        operator=name,
        shape=work.shape,
        dtype=dtype,
        calls=value.calls,
        kernel_count=value.kernel_count,
        time_ns=value.time_ns,
        mean_ns=mean_ns,
        flops=work.flops,
        size_bytes=work.size_bytes,
        flop_per_byte=None if work.flops is None or not work.size_bytes else work.flops / work.size_bytes,
        tflops=None if work.flops is None else work.flops / mean_ns / 1e3,
        gb_per_s=work.size_bytes / mean_ns,
        bound=bound,
        roof_pct=None if needed_ns is None else 100.0 * needed_ns / mean_ns,
        kernels=tuple(dict.fromkeys(short_kernel_name(kernel) for kernel in heaviest[:KERNELS_NAMED])),
        sizes=work.sizes,
        reasons=_reasons(work, dtype, heaviest, sm_count),
        floor_ns=None if needed_ns is None else min(round(needed_ns * value.calls), value.time_ns),
        how=roof.how if bound is None else f"its {'FLOPs' if bound == 'compute' else 'bytes'} at the {roof.how}",
    )


def _reasons(work: OperatorWork, dtype: str, kernels: Sequence[str], sm_count: int | None) -> tuple[Reason, ...]:
    """What the sizes of a GEMM and the names of its kernels say against its speed."""
    sizes = work.sizes
    if sizes is None:
        return ()
    found: list[Reason] = []
    traits = next((traits for kernel in kernels if (traits := gemm_traits(kernel)) is not None), None)
    if traits is not None and traits.tensor_cores is False and min(sizes.m, sizes.n) >= SKINNY:
        found.append("CUDA cores")
    elif _is_misaligned(sizes, dtype, kernels):
        found.append("misaligned")
    tiles = sizes.batch * math.ceil(sizes.m / TILE) * math.ceil(sizes.n / TILE)
    if min(sizes.m, sizes.n) < SKINNY:
        found.append("skinny")
    elif sm_count is not None and tiles < sm_count:
        found.append("too small to fill")
    return tuple(found)


def _is_misaligned(sizes: GemmSizes, dtype: str, kernels: Sequence[str]) -> bool:
    """By the kernel's own name where that says so, else by the sizes that lie next to each other in memory."""
    names = [name for name in kernels if (traits := gemm_traits(name)) is not None and traits.alignment is not None]
    if names or any(_ALIGNED in name for name in kernels):
        return any((traits := gemm_traits(name)) is not None and traits.is_misaligned for name in names)
    step = ACCESS_BYTES / ITEM_BYTES[dtype] if dtype in ITEM_BYTES else 1
    return dtype != "fp32" and any(size > 1 and size % step for size in (sizes.n, sizes.k))


def _needed(work: OperatorWork, dtype: str, roof: GpuPeaks) -> tuple[str | None, float | None]:
    """The peak that limits the work and the time it needs there; both are needed unless only bytes count."""
    memory_ns = work.size_bytes / roof.bandwidth_gb_s if roof.bandwidth_gb_s else None
    if work.flops is None:
        return ("memory" if memory_ns is not None else None), memory_ns
    if memory_ns is None or dtype not in roof.peak_tflops:
        return None, None
    compute_ns = work.flops / roof.peak_tflops[dtype] / 1e3
    return ("compute", compute_ns) if compute_ns >= memory_ns else ("memory", memory_ns)
