"""Matrix products, attention, convolutions and normalisations of a trace by shape and type, against the GPU's roof.

A kernel belongs to the innermost operator around its launch whose work is known from its inputs. The time of a call is
that of all its kernels; FLOPs and bytes are what the call needs (`kernels/operator_work.py`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llm_perf_opt.analysis.kernels.names import short_kernel_name
from llm_perf_opt.analysis.kernels.operator_work import OperatorWork, has_formula, operator_work
from llm_perf_opt.analysis.timeline.intervals import Ints, innermost, nest
from llm_perf_opt.analysis.timeline.operators import TraceDetail
from llm_perf_opt.analysis.timeline.timeline import Timeline, distinct

if TYPE_CHECKING:
    # Every command that reads a capture would pay for the whole configuration otherwise.
    from llm_perf_opt.config.schema import HardwareSection

# Kernels that round fp32 inputs to TF32: they say so, or are named after the instruction that does it.
_TF32 = re.compile(r"tf32|s1688|tensorop_s\d", re.IGNORECASE)
KERNELS_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class ShapeRow:
    """All calls of one operator with one shape and type.

    Rates are work over the time of the kernels. `roof_pct` is the time the work needs at the GPU's peaks over the time
    it took; `bound` says which peak that is. Above 100 % a cache held what was read.
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


def sum_shapes(timeline: Timeline, detail: TraceDetail) -> ShapeSums:
    """Add up calls and kernel time by operator, shape and type."""
    operators, kernels = timeline.operators, timeline.kernels
    length = kernels.end_ns - kernels.start_ns
    kernel_ns = int(length.sum())
    works, work = _works(timeline, detail)
    if not works or not len(kernels):
        return ShapeSums(found={}, kernel_ns=kernel_ns)
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
    of = work[owner]
    found = {}
    for code in distinct(of).tolist():
        mine = of == code
        used = known[mine]
        names, times = np.unique(kernels.name[used], return_inverse=True)
        by_name = np.bincount(times, weights=length[used])
        order = np.argsort(-by_name, kind="stable")
        found[works[code]] = _Sum(
            calls=len(distinct(owner[mine])),
            kernel_count=int(mine.sum()),
            time_ns=int(length[used].sum()),
            names={timeline.names[int(names[i])]: int(by_name[i]) for i in order},
        )
    return ShapeSums(found=found, kernel_ns=kernel_ns)


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
    """The catalogue's entry of a GPU as roofs."""
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
    rows = [_row(name, work, value, roof) for (name, work), value in found.items() if value.time_ns > 0]
    if not rows:
        return None
    rows.sort(key=lambda r: (-r.time_ns, r.operator, r.shape))
    return ShapesAnalysis(
        roof=roof,
        rows=tuple(rows),
        covered_ns=sum(row.time_ns for row in rows),
        kernel_ns=sum(one.kernel_ns for one in sums),
    )


def _row(name: str, work: OperatorWork, value: _Sum, roof: GpuPeaks) -> ShapeRow:
    is_tf32 = work.dtype == "fp32" and any(_TF32.search(kernel) for kernel in value.names)
    dtype = "tf32" if is_tf32 else work.dtype
    mean_ns = value.time_ns / value.calls
    bound, needed_ns = _needed(work, dtype, roof)
    heaviest = sorted(value.names, key=lambda kernel: -value.names[kernel])[:KERNELS_NAMED]
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
        kernels=tuple(dict.fromkeys(short_kernel_name(kernel) for kernel in heaviest)),
    )


def _needed(work: OperatorWork, dtype: str, roof: GpuPeaks) -> tuple[str | None, float | None]:
    """The peak that limits the work and the time it needs there; both are needed unless only bytes count."""
    memory_ns = work.size_bytes / roof.bandwidth_gb_s if roof.bandwidth_gb_s else None
    if work.flops is None:
        return ("memory" if memory_ns is not None else None), memory_ns
    if memory_ns is None or dtype not in roof.peak_tflops:
        return None, None
    compute_ns = work.flops / roof.peak_tflops[dtype] / 1e3
    return ("compute", compute_ns) if compute_ns >= memory_ns else ("memory", memory_ns)
