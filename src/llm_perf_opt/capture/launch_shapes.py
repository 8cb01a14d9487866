"""Launch shapes that leave most of a GPU empty: few blocks, one block, blocks smaller than a warp.

And the hottest kernel, which every answer can name.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from llm_perf_opt.capture.exclusive import alone_ns, gpu_of
from llm_perf_opt.capture.intervals import Flags, Ints, union, without
from llm_perf_opt.capture.kernels.copies import COLLIDING, copy_kind
from llm_perf_opt.capture.kernels.gemm_names import gemm_traits
from llm_perf_opt.capture.kernels.names import classify_kernel, distinct_short_names, short_kernel_name
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.capture.shapes import ShapeRow
from llm_perf_opt.capture.timeline import LaunchShape, Timeline, distinct
from llm_perf_opt.core.units import count_of

COMMUNICATION = "communication"
# A kernel on a quarter of the SMs can use neither the GPU's units nor its memory; a short one has no work for more.
FEW_BLOCKS_SHARE, LONG_KERNEL_NS = 0.25, 20_000
WARP = 32
# A kernel of one block may well be one because each of its steps needs the one before.
ONE_BLOCK = (None, "unknown: whether other SMs could do a part of the work depends on the algorithm")
# The blocks and the threads an SM can hold at once (CUDA C++ Programming Guide, compute capabilities).
_RESIDENT = {
    "6.0": (32, 2048), "6.1": (32, 2048), "7.0": (32, 2048), "7.2": (32, 2048), "7.5": (16, 1024), "8.0": (32, 2048),
    "8.6": (16, 1536), "8.7": (16, 1536), "8.9": (24, 1536), "9.0": (32, 2048), "10.0": (32, 2048), "10.3": (32, 2048),
    "12.0": (24, 1536), "12.1": (24, 1536),
}  # fmt: skip
# These do nothing on purpose.
_WAITING_KERNELS = re.compile(r"spin|sleep|wait|poll|barrier|delay_?kernel", re.IGNORECASE)
Shape = Literal["smaller than a warp", "one block"]


@dataclass(frozen=True, kw_only=True)
class FewBlocksRow:
    """Long launches of one kernel with few blocks; `blocks` and `threads` (of a block) are those of the longest."""

    short_name: str
    kernel_class: str
    instances: int
    total_ns: int
    blocks: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class FewBlocks:
    """Long kernels whose grids leave most of a GPU's `sm_count` SMs without a block.

    `alone_ns` is when only such kernels ran, `floor_ns` how long they would take if all SMs shared the same work, but
    no longer than they did alone.
    """

    sm_count: int
    alone_ns: int
    floor_ns: int
    how: str
    rows: tuple[FewBlocksRow, ...]


def few_blocks(timelines: Sequence[Timeline]) -> FewBlocks | None:
    """Of all captures that say how kernels were launched, and on what; None where there are no such kernels."""
    known = [
        (t, min(d.sm_count for d in t.devices if d.sm_count)) for t in timelines if any(d.sm_count for d in t.devices)
    ]
    alone = filled_ns = 0
    found: dict[str, list[tuple[int, int, LaunchShape]]] = {}
    for timeline, sm_count in known:
        kernels = timeline.kernels
        blocks = _blocks(timeline, sm_count)
        if blocks is None or kernels.shape is None:
            continue
        length = kernels.end_ns - kernels.start_ns
        chosen = _long_with_few(timeline, blocks, sm_count)
        filled_ns += int((blocks * length)[chosen].sum()) // sm_count
        gpu = gpu_of(kernels)
        for one in distinct(gpu[chosen]).tolist():
            own, others = (gpu == one) & chosen, (gpu == one) & ~chosen
            beside = union(kernels.start_ns[others], kernels.end_ns[others])
            alone += without(union(kernels.start_ns[own], kernels.end_ns[own]), beside).total
        for code in distinct(kernels.name[chosen]).tolist():
            mine = np.flatnonzero(chosen & (kernels.name == code))
            longest = timeline.launch_shapes[kernels.shape[mine[length[mine].argmax()]]]
            found.setdefault(timeline.names[code], []).append((len(mine), int(length[mine].sum()), longest))
    rows = [
        FewBlocksRow(
            short_name=short_kernel_name(name),
            kernel_class=classify_kernel(name),
            instances=sum(count for count, _, _ in parts),
            total_ns=sum(time_ns for _, time_ns, _ in parts),
            blocks=math.prod(parts[0][2].grid),
            threads=math.prod(parts[0][2].block),
        )
        for name, parts in found.items()
    ]
    rows.sort(key=lambda row: (-row.total_ns, row.short_name))
    if not rows:
        return None
    least = min(sm_count for _, sm_count in known)
    return FewBlocks(
        sm_count=least,
        alone_ns=alone,
        floor_ns=min(filled_ns, alone),
        how=f"the same work shared evenly by all {least} SMs",
        rows=tuple(rows),
    )


def _blocks(timeline: Timeline, unknown: int) -> Ints | None:
    return _per_shape(timeline, [math.prod(shape.grid) for shape in timeline.launch_shapes], unknown)


def _long_with_few(timeline: Timeline, blocks: Ints, sm_count: int) -> Flags:
    kernels = timeline.kernels
    chosen: Flags = (blocks <= FEW_BLOCKS_SHARE * sm_count) & (kernels.end_ns - kernels.start_ns >= LONG_KERNEL_NS)
    return chosen & _works(timeline, chosen)


@dataclass(frozen=True, kw_only=True)
class LaunchShapeRow:
    """Launches of one kernel that leave most of the GPU empty; `grid` and `block` are those with most time.

    `alone_ns` is the time in which no other kernel ran on the GPU. `floor_ns` is what of `time_ns` must remain, None
    where that is not known; `how` says why.
    """

    why: Shape
    name: str
    short_name: str
    kernel_class: str
    instances: int
    time_ns: int
    alone_ns: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    floor_ns: int | None
    how: str


def small_launches(timelines: Sequence[Timeline]) -> tuple[LaunchShapeRow, ...]:
    """Kernels in blocks smaller than a warp, and those in one block, by time; a small block in one is the latter."""
    rows: list[LaunchShapeRow] = []
    for timeline in timelines:
        kernels = timeline.kernels
        threads = _per_shape(timeline, [math.prod(shape.block) for shape in timeline.launch_shapes], WARP)
        blocks = _blocks(timeline, 2)
        if threads is None or blocks is None:
            continue
        is_one = (blocks == 1) & (kernels.end_ns > kernels.start_ns)
        is_small = (threads < WARP) & ~is_one
        chosen = (is_one | is_small) & _works(timeline, is_one | is_small)
        if not chosen.any():
            continue
        alone = alone_ns(kernels)
        parts: tuple[tuple[Shape, Flags], ...] = (("smaller than a warp", is_small), ("one block", is_one))
        for why, part in parts:
            for code in distinct(kernels.name[chosen & part]).tolist():
                mine = np.flatnonzero(chosen & part & (kernels.name == code))
                rows.append(_row(timeline, why, mine, alone))
    return tuple(_merged(rows))


def _row(timeline: Timeline, why: Shape, mine: Ints, alone: Ints) -> LaunchShapeRow:
    kernels, name = timeline.kernels, timeline.names[int(timeline.kernels.name[mine[0]])]
    length = (kernels.end_ns - kernels.start_ns)[mine]
    shapes = np.zeros(0, np.int64) if kernels.shape is None else kernels.shape[mine]
    by_shape = np.bincount(shapes, weights=length)
    most = timeline.launch_shapes[int(by_shape.argmax())]
    time_ns = int(length.sum())
    floor_ns, how = ONE_BLOCK if why == "one block" else _small_blocks(timeline, most, time_ns)
    return LaunchShapeRow(
        why=why,
        name=name,
        short_name=short_kernel_name(name),
        kernel_class=classify_kernel(name),
        instances=len(mine),
        time_ns=time_ns,
        alone_ns=int(alone[mine].sum()),
        grid=most.grid,
        block=most.block,
        floor_ns=floor_ns,
        how=how,
    )


def _small_blocks(timeline: Timeline, shape: LaunchShape, time_ns: int) -> tuple[int | None, str]:
    """Blocks of fewer threads than a warp fill neither its lanes nor, since an SM holds few blocks, its warps."""
    limits = [_RESIDENT[d.compute_capability] for d in timeline.devices if d.compute_capability in _RESIDENT]
    if not limits:
        return None, "unknown: the capture does not give the GPU's compute capability"
    blocks, threads = limits[0]
    resident = blocks * math.prod(shape.block)
    floor_ns = time_ns * min(resident, threads) // threads
    return floor_ns, f"an SM holds {blocks} blocks, so {resident:,} of its {threads:,} threads are in use"


def _merged(rows: Sequence[LaunchShapeRow]) -> Iterator[LaunchShapeRow]:
    """One row for each kernel and shape over all captures, by time."""
    groups: dict[tuple[str, str], list[LaunchShapeRow]] = {}
    for row in rows:
        groups.setdefault((row.why, row.name), []).append(row)
    merged = []
    for same in groups.values():
        most = max(same, key=lambda row: row.time_ns)
        floors = [row.floor_ns for row in same if row.floor_ns is not None]
        merged.append(
            LaunchShapeRow(
                why=most.why,
                name=most.name,
                short_name=most.short_name,
                kernel_class=most.kernel_class,
                instances=sum(row.instances for row in same),
                time_ns=sum(row.time_ns for row in same),
                alone_ns=sum(row.alone_ns for row in same),
                grid=most.grid,
                block=most.block,
                floor_ns=sum(floors) if len(floors) == len(same) else None,
                how=most.how,
            )
        )
    short = dict(zip(merged, distinct_short_names([row.name for row in merged]), strict=True))
    for row in sorted(merged, key=lambda row: (-row.time_ns, row.name)):
        yield replace(row, short_name=short[row])


@dataclass(frozen=True, kw_only=True)
class HottestKernel:
    """The kernel with most time; `grid` and `block` are those of its launches with most time, None where not known.

    `limit` is what bounds it, None where neither its name, its input shapes or its launch shape say; `how` says
    which did.
    """

    name: str
    short_name: str
    kernel_class: str
    instances: int
    total_ns: int
    mean_ns: float
    share: float
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    limit: str | None
    how: str | None


def hottest_kernel(
    timelines: Sequence[Timeline],
    rows: Sequence[KernelRow],
    *,
    shapes: Sequence[ShapeRow] = (),
) -> HottestKernel | None:
    """The kernel with most time, by name where two have the same; None where no kernel ran."""
    row = min(rows, key=lambda r: (-r.total_ns, r.name), default=None)
    if row is None:
        return None
    shape = _heaviest_shape(timelines, row.name)
    limit, how = _limit(timelines, row, shape, shapes)
    whole = sum(r.total_ns for r in rows)
    return HottestKernel(
        name=row.name,
        short_name=row.short_name,
        kernel_class=row.kernel_class,
        instances=row.instances,
        total_ns=row.total_ns,
        mean_ns=row.avg_ns,
        share=row.total_ns / whole if whole else 0.0,
        grid=None if shape is None else shape.grid,
        block=None if shape is None else shape.block,
        limit=limit,
        how=how,
    )


def _heaviest_shape(timelines: Sequence[Timeline], name: str) -> LaunchShape | None:
    times: dict[LaunchShape, int] = {}
    for timeline in timelines:
        kernels = timeline.kernels
        if kernels.shape is None or not timeline.launch_shapes or name not in timeline.names:
            continue
        mine = np.flatnonzero((kernels.name == timeline.names.index(name)) & (kernels.shape >= 0))
        for code in distinct(kernels.shape[mine]).tolist():
            here = mine[kernels.shape[mine] == code]
            shape = timeline.launch_shapes[code]
            times[shape] = times.get(shape, 0) + int((kernels.end_ns - kernels.start_ns)[here].sum())
    return max(times, key=lambda shape: times[shape], default=None)


def _limit(
    timelines: Sequence[Timeline],
    row: KernelRow,
    shape: LaunchShape | None,
    shapes: Sequence[ShapeRow],
) -> tuple[str | None, str | None]:
    """What the name says, what follows from sizes, or what a launch shape leaves empty."""
    if copy_kind(row.name) == COLLIDING:
        return "colliding indices", "its name: rows added to the same row wait for each other"
    traits = gemm_traits(row.name)
    if traits is not None and traits.is_misaligned:
        return (
            "misaligned operands",
            f"its name: a kernel for {traits.precision} rows aligned to {count_of(traits.alignment or 0, 'element')}",
        )
    worked = [s for s in shapes if s.bound is not None and short_kernel_name(row.name) in s.kernels]
    if worked:
        most = max(worked, key=lambda s: s.time_ns)
        return most.bound, f"{most.operator} {most.shape}, {most.roof_pct or 0.0:.0f} % of the {most.bound} peak"
    if row.kernel_class == COMMUNICATION:
        return None, None
    sm_count = min((d.sm_count for t in timelines for d in t.devices if d.sm_count), default=None)
    if shape is not None and math.prod(shape.block) < WARP:
        return "blocks smaller than a warp", f"its blocks have {math.prod(shape.block)} threads, a warp has {WARP}"
    if shape is not None and sm_count is not None and math.prod(shape.grid) <= FEW_BLOCKS_SHARE * sm_count:
        return "grid too small to fill the GPU", f"{count_of(math.prod(shape.grid), 'block')} for {sm_count} SMs"
    return None, None


def _per_shape(timeline: Timeline, values: Sequence[int], unknown: int) -> Ints | None:
    """A value of each kernel's launch shape; `unknown` for those without one, None where no shapes were read."""
    kernels = timeline.kernels
    if kernels.shape is None or not timeline.launch_shapes:
        return None
    # The last place is that of kernels without a shape, which have -1.
    found: Ints = np.array([*values, unknown], np.int64)[kernels.shape]
    return found


def _works(timeline: Timeline, chosen: Flags) -> Flags:
    """Which kernels neither communicate nor wait on purpose; those not chosen need not be inspected."""
    works = np.zeros(len(timeline.names), np.bool_)
    for code in distinct(timeline.kernels.name[chosen]).tolist():
        name = timeline.names[code]
        works[code] = classify_kernel(name) != COMMUNICATION and not _WAITING_KERNELS.search(name)
    found: Flags = works[timeline.kernels.name]
    return found
