"""Kernels that one kernel would do: chains of small ones, and unfused attention. What remains of each when fused.

Kernels of a chain pass tensors on through memory, and unfused attention does so with all its scores.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from llm_perf_opt.capture.idle import LONG_GAP_NS
from llm_perf_opt.capture.intervals import Flags, Ints, innermost, nest
from llm_perf_opt.capture.kernels.names import classify_kernel
from llm_perf_opt.capture.rows import copy_way
from llm_perf_opt.capture.timeline import Activities, Timeline, distinct

# Chains of kernels that take less than this part of the kernel time are not cut at waits.
MIN_CHAIN_SHARE = 0.1
# A chain repeats itself where this part of it is the same one period later; shorter ones have no room for two periods.
REPEATED, MIN_REPEATED, MOST_PERIODS = 0.95, 4, 100
_SPREAD = 0x9E3779B97F4A7C15
# Kernels of unfused attention: none of these, a GEMM, a softmax, elementwise work; and the largest span.
# Attention that is one kernel already is the fourth kind.
PRODUCT, SOFTMAX, PASSING, FUSED = 1, 2, 3, 4
MOST_PIECES = 12
# The softmax of attention reads and writes all that the GEMMs around it write and read, so it takes a good part of
# their time: less is a router's or a classifier's, between layers with weights.
LEAST_SOFTMAX = 0.1
# Torch multiplies by weights in these operators, and what belongs to each head or row of a batch in those.
_WITH_WEIGHTS = frozenset({"aten::linear", "aten::addmm", "aten::_addmm_activation", "aten::_grouped_mm"})
_IN_BATCHES = frozenset({"aten::bmm", "aten::baddbmm"})
_SOFTMAX = re.compile(r"soft_?max", re.IGNORECASE)
# The softmax of a loss.
_LOSS = re.compile(r"log_?soft_?max|loss|entropy", re.IGNORECASE)
_COPY = "copy"


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Runs of kernels that belong together, each on one stream: how many, and their times.

    `floor_ns` is what of `time_ns` remains when each run is one kernel; `how` says why.
    """

    count: int
    kernel_count: int
    time_ns: int
    floor_ns: int
    how: str


FUSED_FLOOR = (
    "two kernels as one save writing what goes between them and reading it again: no more than the shorter of them "
    "takes; steps that repeat are not fused with each other"
)


def chains_of(timeline: Timeline, wanted: Callable[[str], bool]) -> Chains:
    """Two or more consecutive wanted kernels on one stream, one of which computes something.

    Nothing can be fused over a call that waits for the GPU, nor over a long time in which the stream was idle.
    """
    rows = _rows_of(timeline, wanted)
    if rows is None:
        return Chains(count=0, kernel_count=0, time_ns=0, floor_ns=0, how=FUSED_FLOOR)
    inside, joined = rows.inside()
    time_ns = int(rows.time_ns[inside].sum())
    return Chains(
        count=len(rows.lengths()),
        kernel_count=int(rows.lengths().sum()),
        time_ns=time_ns,
        floor_ns=time_ns - int(rows.passed_on()[joined].sum()),
        how=FUSED_FLOOR,
    )


def _rows_of(timeline: Timeline, wanted: Callable[[str], bool]) -> "_Rows | None":
    kernels = timeline.kernels
    is_wanted, computes = (np.zeros(len(timeline.names), np.bool_) for _ in range(2))
    for code in kernels.distinct_names.tolist():
        is_wanted[code] = wanted(timeline.names[code])
        computes[code] = classify_kernel(timeline.names[code]) != _COPY
    if not len(kernels) or not is_wanted.any():
        return None
    order, lane = _by_stream(kernels)
    name = kernels.name[order]
    flag, time_ns = is_wanted[name], (kernels.end_ns - kernels.start_ns)[order]
    first = np.concatenate(([True], (flag[1:] != flag[:-1]) | (lane[1:] != lane[:-1])))
    if int(time_ns[flag].sum()) >= MIN_CHAIN_SHARE * int(time_ns.sum()):
        first[1:] |= _apart(timeline, order)
    return _Rows(order=order, name=name, wanted=flag, computes=computes[name], time_ns=time_ns, first=first)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """Kernels in the order in which they ran, stream by stream; `first` marks those that begin a run."""

    order: Ints | slice
    name: Ints
    wanted: Flags
    computes: Flags
    time_ns: Ints
    first: Flags

    @cached_property
    def _length(self) -> Ints:
        """The length of each run."""
        length: Ints = np.diff(np.append(np.flatnonzero(self.first), len(self.first)))
        return length

    @cached_property
    def _chosen(self) -> Flags:
        """Which runs are chains."""
        starts = np.flatnonzero(self.first)
        computing: Flags = np.logical_or.reduceat(self.computes, starts)
        return self.wanted[starts] & (self._length > 1) & computing

    def lengths(self) -> Ints:
        """The lengths of the chains."""
        return self._length[self._chosen]

    def inside(self) -> tuple[Flags, Flags]:
        """Which kernels lie in chains, and which but the first could be one with the kernel before."""
        chained = np.repeat(self._chosen, self._length)
        begins = _begins_a_step(self.name, np.flatnonzero(self.first)[self._chosen], self.lengths())
        return chained, chained[1:] & ~self.first[1:] & ~begins[1:]

    def passed_on(self) -> Ints:
        """What fusing a kernel with the one before saves at most, without the first."""
        shorter: Ints = np.minimum(self.time_ns[1:], self.time_ns[:-1])
        return shorter


def _begins_a_step(name: Ints, starts: Ints, length: Ints) -> Flags:
    """Where a chain that repeats a sequence of kernels begins with it again: a loop's next step, or another tensor.

    Equal chains are inspected once: a model repeats them in each of its layers.
    """
    begins = np.zeros(len(name), np.bool_)
    long = np.flatnonzero(length >= MIN_REPEATED)
    if not len(long):
        return begins
    starts, length = starts[long], length[long]
    # Chains of as many of the same kernels, three of them at the same places, are equal. Sums of large numbers in place
    # of names, modulo 2**64, identify their kernels.
    codes = (np.arange(1, int(name.max()) + 2, dtype=np.uint64) * np.uint64(_SPREAD)) ** 3
    sums = np.concatenate(([np.uint64(0)], np.cumsum(codes[name])))
    columns = (sums[starts + length] - sums[starts], name[starts], name[starts + 1], name[starts + length // 2], length)
    order = np.lexsort(columns)
    other = np.zeros(len(order) - 1, np.bool_)
    for column in columns:
        other |= column[order][1:] != column[order][:-1]
    for group in np.split(order, np.flatnonzero(other) + 1):
        at, count = int(starts[group[0]]), int(length[group[0]])
        period = _period(name[at : at + count])
        if period is not None:
            steps = np.arange(period, count, period)
            begins[(starts[group][:, np.newaxis] + steps).reshape(-1)] = True
    return begins


def _period(name: Ints) -> int | None:
    """After how many kernels a sequence repeats itself, nearly everywhere; None where it does not."""
    middle = len(name) // 2
    for period in (np.flatnonzero(name[middle + 1 :] == name[middle]) + 1)[:MOST_PERIODS].tolist():
        same = name[period:] == name[:-period]
        if np.count_nonzero(same) >= REPEATED * len(same):
            return int(period)
    return None


def _apart(timeline: Timeline, order: Ints | slice) -> Flags:
    """Whether something lies between a kernel and the next: a wait of the host, or a long time without work."""
    kernels, calls = timeline.kernels, timeline.calls
    start, end, call = kernels.start_ns[order], kernels.end_ns[order], kernels.call[order]
    apart: Flags = start[1:] - end[:-1] >= LONG_GAP_NS
    waits = np.sort(calls.start_ns[calls.waits])
    if len(waits):
        launched = np.where(call >= 0, calls.start_ns[call], start)
        waited = np.searchsorted(waits, launched)
        apart |= waited[1:] != waited[:-1]
    return apart


@dataclass(frozen=True, kw_only=True)
class AttentionInPieces:
    """Attention as a product, a softmax and a product: how often, and the time of the parts.

    `floor_ns` is what remains of them in one kernel: the work of the GEMMs. `how` states how it was obtained.
    """

    count: int
    product_ns: int
    softmax_ns: int
    between_ns: int
    floor_ns: int
    how: str

    @property
    def time_ns(self) -> int:
        return self.product_ns + self.softmax_ns + self.between_ns


PRODUCTS_REMAIN = "the GEMMs remain, at most in the time they took"
FLOPS_REMAIN = "FLOPs and operands of the GEMMs remain, at three quarters of the data-sheet peak"


def attention_in_pieces(timeline: Timeline, least_ns: Ints | None = None) -> AttentionInPieces:
    """Softmax kernels between two products on one stream, with nothing but elementwise work and copies in between.

    Where operators were recorded, they say which products are attention's. Where not, it is not attention if the
    softmax is next to nothing compared with the GEMMs, or if fused attention runs before each of them: a router's.
    `least_ns` is what remains of each product in one kernel, -1 where that is not known (`shapes.least_fused_ns`).
    """
    pieces = _pieces_of(timeline)
    if pieces is None:
        return AttentionInPieces(count=0, product_ns=0, softmax_ns=0, between_ns=0, floor_ns=0, how=PRODUCTS_REMAIN)
    time_ns, kind, floor_ns = pieces.time_ns, pieces.kind, pieces.floor_ns(least_ns)
    product_ns = int(time_ns[kind == PRODUCT].sum())
    return AttentionInPieces(
        count=pieces.count,
        product_ns=product_ns,
        softmax_ns=int(time_ns[kind == SOFTMAX].sum()),
        between_ns=int(time_ns[kind == PASSING].sum()),
        floor_ns=int(floor_ns.sum()),
        how=PRODUCTS_REMAIN if int(floor_ns.sum()) == product_ns else FLOPS_REMAIN,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pieces:
    """Kernels in the order in which they ran, stream by stream, and which of them are attention's."""

    order: Ints | slice
    kind: Ints
    length_ns: Ints
    inside: Flags
    count: int

    @property
    def time_ns(self) -> Ints:
        return np.where(self.inside, self.length_ns, 0)

    def floor_ns(self, least_ns: Ints | None) -> Ints:
        products = np.where(self.inside & (self.kind == PRODUCT), self.length_ns, 0)
        if least_ns is None:
            return products
        least = least_ns[self.order]
        return np.minimum(products, np.where(least < 0, self.length_ns, least))


def _pieces_of(timeline: Timeline) -> _Pieces | None:
    kernels = timeline.kernels
    kinds = np.zeros(len(timeline.names), np.int8)
    for code in kernels.distinct_names.tolist():
        kinds[code] = _piece(timeline.names[code])
    if not len(kernels) or not (kinds == SOFTMAX).any():
        return None
    order, lane = _by_stream(kernels)
    kind, index = kinds[kernels.name[order]], np.arange(len(kernels))
    is_step = kind != PASSING
    before = np.concatenate(([-1], np.maximum.accumulate(np.where(is_step, index, -1))[:-1]))
    after = np.minimum.accumulate(np.where(is_step, index, len(index))[::-1])[::-1]
    after = np.append(after[1:], len(index))
    middle = np.flatnonzero((kind == SOFTMAX) & (before >= 0) & (after < len(index)))
    first, last = before[middle], after[middle]
    fits = (kind[first] == PRODUCT) & (kind[last] == PRODUCT) & (lane[first] == lane[last])
    fits &= (last - first) <= MOST_PIECES
    first, middle, last = first[fits], middle[fits], last[fits]
    kept = _belongs_together(timeline, order, lane, first, last)
    call, length = kernels.call[order], (kernels.end_ns - kernels.start_ns)[order]
    in_batches = _launched_in(timeline, _IN_BATCHES, call[first]) & _launched_in(timeline, _IN_BATCHES, call[last])
    with_weights = _launched_in(timeline, _WITH_WEIGHTS, call[first])
    with_weights |= _launched_in(timeline, _WITH_WEIGHTS, call[last])
    until = np.concatenate(([0], np.cumsum(length)))
    fused = np.concatenate(([0], np.cumsum(kind == FUSED)))
    after_fused = np.diff(fused[last], prepend=0) > 0
    looks_like = (length[middle] >= LEAST_SOFTMAX * (until[last + 1] - until[first])) & ~after_fused
    kept &= in_batches | (looks_like & ~with_weights)
    first, last = first[kept], last[kept]
    change = np.bincount(first, minlength=len(index) + 1) - np.bincount(last + 1, minlength=len(index) + 1)
    inside = np.cumsum(change)[: len(index)] > 0
    return _Pieces(order=order, kind=kind, length_ns=length, inside=inside, count=len(first))


def _belongs_together(timeline: Timeline, order: Ints | slice, lane: Ints, first: Ints, last: Ints) -> Flags:
    """Whether neither a wait, nor a long gap, nor a copy from or to the host lies between two kernels of a stream."""
    apart = np.concatenate(([0], np.cumsum(_apart(timeline, order))))
    together: Flags = apart[first] == apart[last]
    copies, start = timeline.copies, timeline.kernels.start_ns[order]
    codes = [
        code for code in distinct(copies.name).tolist() if copy_way(timeline.names[code]).startswith(("h2d", "d2h"))
    ]
    crossing = np.flatnonzero(np.isin(copies.name, codes))
    # A stream alone is its own lane: see `_by_stream`.
    lanes = copies.stream if isinstance(order, slice) else _lanes(copies)
    for one in distinct(lane[first]).tolist():
        mine = np.flatnonzero(lane[first] == one)
        moved = np.sort(copies.start_ns[crossing[lanes[crossing] == one]])
        together[mine] &= np.searchsorted(moved, start[first[mine]]) == np.searchsorted(moved, start[last[mine]])
    return together


def _launched_in(timeline: Timeline, names: frozenset[str], call: Ints) -> Flags:
    """Whether the calls lie inside operators of these names, at any depth."""
    operators, calls = timeline.operators, timeline.calls
    inside = np.zeros(len(call), np.bool_)
    codes = [code for code, name in enumerate(timeline.names) if name in names]
    mine, known = np.flatnonzero(np.isin(operators.name, codes)), np.flatnonzero(call >= 0)
    if len(mine) and len(known):
        columns = (operators.thread[mine], operators.start_ns[mine], operators.end_ns[mine])
        at = call[known]
        inside[known] = innermost(nest(*columns), *columns, calls.thread[at], calls.start_ns[at]) >= 0
    return inside


def _piece(name: str) -> int:
    kernel_class = classify_kernel(name)
    if kernel_class == "reduction" and _SOFTMAX.search(name) and not _LOSS.search(name):
        return SOFTMAX
    return {"GEMM": PRODUCT, "elementwise": PASSING, "copy": PASSING, "attention": FUSED}.get(kernel_class, 0)


def _by_stream(kernels: Activities) -> tuple[Ints | slice, Ints]:
    """The order in which kernels ran, stream by stream, and the stream of each in that order."""
    in_time = bool((kernels.start_ns[1:] >= kernels.start_ns[:-1]).all())
    if in_time and all(int(c.min()) == int(c.max()) for c in (kernels.process, kernels.device, kernels.stream)):
        return slice(None), kernels.stream
    lane = _lanes(kernels)
    # Captures mostly list kernels in time: then only streams are to be distinguished.
    order = np.argsort(lane, kind="stable") if in_time else np.lexsort((kernels.start_ns, lane))
    return order, lane[order]


def _lanes(work: Activities) -> Ints:
    """One number for each stream of each GPU of each process."""
    return (work.process.astype(np.int64) << 40) + (work.device.astype(np.int64) << 24) + work.stream
