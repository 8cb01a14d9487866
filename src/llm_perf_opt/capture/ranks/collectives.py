"""What each collective moved, how fast, and how late ranks came to it.

A collective's kernel runs on every rank of its group from the moment the rank arrives until all have finished, so ranks
end it together and the one that runs it longest arrived first. Kernels of several ranks are therefore one collective
where they end together, and arrivals are compared by length: clocks of different hosts need not agree, once what they
are apart is taken off.

Bandwidths are those of nccl-tests: the algorithm bandwidth is the message over the time, the bus bandwidth that times a
factor of the collective and its group. The time is that of the rank that arrived last, where several ranks were given:
it alone does not wait for others.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from llm_perf_opt.capture.exclusive import gpu_of
from llm_perf_opt.capture.intervals import Ints, innermost, nest, union
from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.operators import TraceDetail
from llm_perf_opt.capture.tables import communication_kernels
from llm_perf_opt.capture.timeline import HostEvents, Ranges, Timeline, distinct

if TYPE_CHECKING:
    # Every command that reads a capture would pay for the whole configuration otherwise.
    from llm_perf_opt.config.schema import HardwareSection

ITEM_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "int8_t": 1,
    "uint8_t": 1, "i8": 1, "u8": 1, "f8e4m3": 1, "f8e5m2": 1, "half": 2, "bfloat16": 2, "short": 2, "bf16": 2, "f16": 2,
    "__half": 2, "__nv_bfloat16": 2, "float": 4, "int": 4, "f32": 4, "u32": 4, "i32": 4, "uint32_t": 4, "double": 8,
    "long": 8, "f64": 8, "u64": 8, "i64": 8, "uint64_t": 8,
}  # fmt: skip
_TORCH_TYPES = {"signed char": "Char", "unsigned char": "Byte", "long int": "Long"}
# Ranks leave a collective within a few copies of each other; what lies further apart is another one.
END_SHARE, END_NS = 0.05, 20_000
# A message that takes this many times as long as most of its size is an outlier. Where sizes are not known, messages of
# one kind may differ by more, so only what is long for any of them counts, and only against the long ones.
OUTLIER_FACTOR, OUTLIER_NS, OUTLIER_OF_ANY_SIZE_NS = 10.0, 1_000_000, 100_000_000
ENOUGH_CALLS, LONG_ONES = 4, 75
ANNOTATION = "nccl:"
# What torch writes around every collective, for its arguments.
_BOOKKEEPING = "record_param_comms"
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all-reduce", "all-gather", "reduce-scatter", "all-to-all"
BROADCAST, REDUCE, SEND_RECEIVE, BARRIER = "broadcast", "reduce", "send/receive", "barrier"
UNNAMED = "communication"
# In this order: an all-reduce has "reduce" in its name, a reduce-scatter too.
_KINDS = (
    (ALL_REDUCE, re.compile(r"all[-_]?reduce|cross_device_reduce|quick_?reduce", re.IGNORECASE)),
    (REDUCE_SCATTER, re.compile(r"reduce[-_]?scatter", re.IGNORECASE)),
    (ALL_GATHER, re.compile(r"all[-_]?gather", re.IGNORECASE)),
    (ALL_TO_ALL, re.compile(r"all[-_]?to[-_]?all|\bdispatch\b|\bcombine\b|\bnotify", re.IGNORECASE)),
    (BROADCAST, re.compile(r"broadcast", re.IGNORECASE)),
    (BARRIER, re.compile(r"barrier", re.IGNORECASE)),
    (SEND_RECEIVE, re.compile(r"send_?recv|\bsend\b|\brecv\b|point_?to_?point|batch_isend", re.IGNORECASE)),
    (REDUCE, re.compile(r"reduce", re.IGNORECASE)),
)
# What one rank sends to another is not a matter of the whole group.
_OF_THE_GROUP = frozenset({ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE, BARRIER})


@dataclass(frozen=True, kw_only=True)
class CollectiveArgs:
    """What torch wrote alongside a collective's kernel; None where it did not."""

    name: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    group: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedArgs:
    """`args[code[k]]` belongs to kernel k; -1 where it has none."""

    code: Ints
    args: tuple[CollectiveArgs, ...]


def recorded_args(timeline: Timeline, detail: TraceDetail) -> RecordedArgs:
    """What a detailed reading kept alongside a kernel; where it kept nothing, the tensors of the operator around it."""
    code = detail.kernel_extra.astype(np.int64)
    used = {int(c) for c in distinct(code) if c >= 0}
    args = [_args(e) if i in used else CollectiveArgs() for i, e in enumerate(detail.extras)]
    pick = np.flatnonzero(communication_kernels(timeline) & (code < 0) & (timeline.kernels.call >= 0))
    if not len(pick):
        return RecordedArgs(code=code, args=tuple(args))
    sized, size = _sized_operators(timeline, detail)
    operators = timeline.operators
    columns = (operators.thread[sized], operators.start_ns[sized], operators.end_ns[sized])
    call = timeline.kernels.call[pick]
    owner = innermost(nest(*columns), *columns, timeline.calls.thread[call], timeline.calls.start_ns[call])
    known: dict[CollectiveArgs, int] = {}
    for kernel, at in zip(pick.tolist(), owner.tolist(), strict=True):
        if at >= 0:
            code[kernel] = len(args) + known.setdefault(size[at], len(known))
    return RecordedArgs(code=code, args=(*args, *known))


def _sized_operators(timeline: Timeline, detail: TraceDetail) -> tuple[Ints, list[CollectiveArgs]]:
    """The operators that start collectives and say how much they move."""
    operators = timeline.operators
    wanted = np.array([kind_of_collective(name) is not None and "::" in name for name in timeline.names], np.bool_)
    chosen: list[int] = []
    sizes: list[CollectiveArgs] = []
    for at in (np.flatnonzero(wanted[operators.name]) if len(operators) else np.zeros(0, np.int64)).tolist():
        types, _ = detail.extras[int(detail.operator_extra[at])]
        found = _tensor_args(timeline.names[int(operators.name[at])], detail.shapes[int(detail.shape[at])], types)
        if found is not None:
            chosen.append(at)
            sizes.append(found)
    return np.array(chosen, np.int64), sizes


def _tensor_args(name: str, dims: str, types: bytes) -> CollectiveArgs | None:
    """From an operator's inputs: `…_base_` takes the result and the input, others the input alone."""
    shapes, kinds = (msgspec.json.decode(text) if text else [] for text in (dims, types))
    counts = [math.prod(s) if s and all(type(n) is int for n in s) else None for s in shapes if isinstance(s, list)]
    place = 1 if name.endswith("_base_") else 0
    whole = counts[place] if place < len(counts) else None
    if not whole or place >= len(kinds) or not isinstance(kinds[place], str):
        return None
    out = counts[0] if place else None
    kind = kind_of_collective(name)
    large, small = (whole, out) if kind == REDUCE_SCATTER else (out, whole)
    ranks = large // small if kind in (REDUCE_SCATTER, ALL_GATHER) and large and small else None
    return CollectiveArgs(
        in_elements=whole,
        out_elements=whole if kind == BROADCAST else out,
        dtype=_TORCH_TYPES.get(kinds[place], kinds[place].removeprefix("c10::")),
        group_size=ranks,
    )


def _args(extra: Sequence[bytes]) -> CollectiveArgs:
    name, in_elements, out_elements, dtype, size, group = (msgspec.json.decode(e) if e else None for e in extra)
    return CollectiveArgs(
        name=name if isinstance(name, str) else None,
        in_elements=_whole(in_elements),
        out_elements=_whole(out_elements),
        dtype=dtype if isinstance(dtype, str) else None,
        group_size=_whole(size),
        group=group if isinstance(group, str) else None,
    )


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


@dataclass(frozen=True, kw_only=True)
class CollectiveRow:
    """One collective of one size in one group, over all ranks given.

    `message_bytes` is the size nccl-tests means: of the whole result of an all-gather, of the whole input of a
    reduce-scatter or an all-to-all. Bandwidths are of the median time. `skew_*` compare the ranks given: how much
    earlier the first came than the last, over the `matched` ones that ended together on all of them. `outliers` took
    many times the median of all these, `outliers_ns` more than it together; one rank alone does not show whether
    another was late, the link slow or the message large. `only_first_is_outlier`: no other than the first of each
    capture is.
    """

    collective: str
    group: str | None
    group_size: int | None
    dtype: str | None
    message_bytes: int | None
    ranks: int
    count: int
    total_ns: int
    median_ns: float
    min_ns: int
    max_ns: int
    algorithm_gb_s: float | None
    bus_gb_s: float | None
    matched: int
    skew_median_ns: float | None
    skew_max_ns: int | None
    kernels: tuple[str, ...]
    outliers: int = 0
    outliers_ns: int = 0
    only_first_is_outlier: bool = False


@dataclass(frozen=True, kw_only=True)
class LongestCollective:
    """The longest single collective of all captures given.

    `median_ns` is that of its row, `exposed_ns` the part of `length_ns` in which nothing else ran on its GPU. The range
    and the operator are the innermost around its launch, other than the library's own. `floor_ns` is what the link
    needs for the message, None where the size, the group or the link is not known; `how` says which.
    """

    collective: str
    kernel: str
    rank: int | None
    source: str
    start_ns: int
    length_ns: int
    exposed_ns: int
    median_ns: float
    message_bytes: int | None
    dtype: str | None
    group_size: int | None
    range_name: str | None
    operator: str | None
    floor_ns: int | None
    how: str


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """How one rank came to the collectives that could be matched.

    How long it waited in them for the last to come, how often it was the last itself, and how long the one that waited
    most waited for it then.
    """

    matched: int
    waited_ns: int
    came_last: int
    held_up_ns: int


@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    """The collectives of one capture in the order of their starts: each one's key, length and kernel name.

    `place` is the index of its kernel in the capture.
    """

    keys: tuple["_Key", ...]
    key: Ints
    place: Ints
    end_ns: Ints
    length_ns: Ints
    kernel: Ints
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Key:
    collective: str
    group: str | None
    group_size: int | None
    dtype: str | None
    message_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """Collectives by time, the longest single one, and the arrivals of each capture where they are ranks."""

    rows: tuple[CollectiveRow, ...]
    longest: LongestCollective | None
    arrivals: tuple[Arrivals | None, ...]


def find_collectives(
    timelines: Sequence[Timeline],
    recorded: Sequence[RecordedArgs | None],
    ranks: Sequence[int | None],
    *,
    as_ranks: bool = True,
    hardware: "HardwareSection | None" = None,
) -> Collectives:
    """The collectives of all captures, `ranks` being the rank of each; repetitions do not meet.

    `hardware` is the GPUs' entry of the catalogue.
    """
    found = [_find(t, args) for t, args in zip(timelines, recorded, strict=True)]
    apart = _clocks_apart(found)
    keys = dict.fromkeys(key for one in found for key in one.keys)
    matches = {key: _match(key, found, apart) for key in dict.fromkeys(map(_meeting, keys)) if as_ranks}
    rows = [_row(key, found, matches.get(key)) for key in keys]
    rows.sort(key=lambda r: (-r.total_ns, r.collective, r.message_bytes or 0))
    return Collectives(
        rows=tuple(rows),
        longest=_longest(timelines, found, ranks, hardware),
        arrivals=_arrivals(list(matches.values()), len(timelines)),
    )


def _longest(
    timelines: Sequence[Timeline],
    found: Sequence["_Found"],
    ranks: Sequence[int | None],
    hardware: "HardwareSection | None",
) -> LongestCollective | None:
    """The longest of all collectives, the earliest of equals; None where no kernel communicates."""
    candidates = [(int(one.length_ns.max()), source) for source, one in enumerate(found) if len(one.length_ns)]
    if not candidates:
        return None
    length_ns, source = max(candidates, key=lambda pair: (pair[0], -pair[1]))
    one, timeline = found[source], timelines[source]
    at = int(one.length_ns.argmax())
    key, kernel = one.keys[int(one.key[at])], int(one.place[at])
    same = np.concatenate([other.length_ns[_of(other, key)] for other in found])
    floor_ns, how = _link_ns(key, hardware)
    start_ns, end_ns = int(timeline.kernels.start_ns[kernel]), int(timeline.kernels.end_ns[kernel])
    return LongestCollective(
        collective=key.collective,
        kernel=short_kernel_name(timeline.names[int(timeline.kernels.name[kernel])]),
        rank=ranks[source],
        source=timeline.source,
        start_ns=start_ns,
        length_ns=length_ns,
        exposed_ns=_exposed_ns(timeline, kernel, start_ns, end_ns),
        median_ns=float(np.median(same)),
        message_bytes=key.message_bytes,
        dtype=key.dtype,
        group_size=key.group_size,
        range_name=_around(timeline, kernel, timeline.ranges),
        operator=_around(timeline, kernel, timeline.operators),
        floor_ns=None if floor_ns is None else min(floor_ns, length_ns),
        how=how,
    )


def _exposed_ns(timeline: Timeline, kernel: int, start_ns: int, end_ns: int) -> int:
    """The part of a collective's time in which no other kernel ran on its GPU."""
    kernels = timeline.kernels
    gpu = gpu_of(kernels)
    others = np.flatnonzero((gpu == gpu[kernel]) & (kernels.end_ns > start_ns) & (kernels.start_ns < end_ns))
    others = others[others != kernel]
    beside = union(kernels.start_ns[others], kernels.end_ns[others])
    inside = beside.covered_before(np.array([start_ns, end_ns]))
    return end_ns - start_ns - int(inside[1] - inside[0])


def _around(timeline: Timeline, kernel: int, intervals: Ranges | HostEvents) -> str | None:
    """The innermost interval around a kernel's launch on its thread, other than those the library writes itself."""
    call = int(timeline.kernels.call[kernel])
    if call < 0:
        return None
    at, thread = int(timeline.calls.start_ns[call]), int(timeline.calls.thread[call])
    inside = (intervals.thread == thread) & (intervals.start_ns <= at) & (intervals.end_ns > at)
    for index in sorted(np.flatnonzero(inside).tolist(), key=lambda i: -int(intervals.start_ns[i])):
        name = timeline.names[int(intervals.name[index])]
        if not name.startswith(ANNOTATION) and name != _BOOKKEEPING:
            return name
    return None


def _link_ns(key: "_Key", hardware: "HardwareSection | None") -> tuple[int | None, str]:
    """What the GPU's link needs for a message in one direction."""
    factor = bus_factor(key.collective, key.group_size)
    if key.message_bytes is None or factor is None:
        return None, "unknown: the size of the message or of its group was not recorded"
    if hardware is None or not hardware.link_gb_s:
        return None, "unknown: the link between these GPUs is not known"
    one_way = hardware.link_gb_s / 2
    return round(key.message_bytes * factor / one_way), (
        f"its bytes at {one_way:g} GB/s ({hardware.link} of {hardware.name}, one direction)"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Match:
    """The ranks of a group, and the lengths of their kernels: a row per rank, a column per collective."""

    ranks: tuple[int, ...]
    length_ns: Ints


def _meeting(key: _Key) -> _Key:
    """What ranks that meet in a collective agree on: in an all-to-all each may send another amount."""
    return replace(key, message_bytes=None, dtype=None) if key.collective == ALL_TO_ALL else key


def _of(one: _Found, key: _Key) -> Ints:
    """Which collectives of a capture have this key, or meet under it."""
    return np.flatnonzero(np.isin(one.key, [i for i, k in enumerate(one.keys) if key in (k, _meeting(k))]))


def _clocks_apart(found: Sequence[_Found]) -> list[int]:
    """How far each capture's clock is ahead of the first one's, where most collectives taken in order agree on it."""
    apart = [0]
    for one in found[1:]:
        gaps: list[Ints] = [np.zeros(0, np.int64)]
        lengths: list[Ints] = [np.zeros(0, np.int64)]
        for key in dict.fromkeys(map(_meeting, found[0].keys)):
            first, second = _of(found[0], key), _of(one, key)
            if key.collective in _OF_THE_GROUP and len(first) == len(second):
                gaps.append(one.end_ns[second] - found[0].end_ns[first])
                lengths.append(np.minimum(one.length_ns[second], found[0].length_ns[first]))
        gap, length = np.concatenate(gaps), np.concatenate(lengths)
        middle = int(np.median(gap)) if len(gap) else 0
        agree = np.abs(gap - middle) <= _tolerance(length)
        apart.append(middle if len(gap) and 2 * int(agree.sum()) > len(gap) else 0)
    return apart


def _tolerance(length_ns: Ints) -> Ints:
    """How far apart the ends of one collective may lie."""
    return np.maximum((END_SHARE * length_ns).astype(np.int64), END_NS)


def _match(key: _Key, found: Sequence[_Found], apart: Sequence[int]) -> _Match | None:
    """The collectives that ended together on all ranks that have this key."""
    ranks = tuple(rank for rank, one in enumerate(found) if len(_of(one, key)))
    if len(ranks) < 2 or key.collective not in _OF_THE_GROUP:
        return None
    columns = [_of(found[rank], key) for rank in ranks]
    ends = [np.sort(found[rank].end_ns[of]) - apart[rank] for rank, of in zip(ranks, columns, strict=True)]
    order = [of[np.argsort(found[rank].end_ns[of], kind="stable")] for rank, of in zip(ranks, columns, strict=True)]
    kept = np.ones(len(ends[0]), np.bool_)
    partner = [np.arange(len(ends[0]))]
    for end, of, rank in zip(ends[1:], order[1:], ranks[1:], strict=True):
        right = np.clip(np.searchsorted(end, ends[0]), 1, max(len(end) - 1, 1))
        left = right - 1
        right = np.minimum(right, len(end) - 1)
        nearest = np.where(np.abs(end[left] - ends[0]) <= np.abs(end[right] - ends[0]), left, right)
        shorter = np.minimum(found[rank].length_ns[of][nearest], found[ranks[0]].length_ns[order[0]])
        close = np.abs(end[nearest] - ends[0]) <= _tolerance(shorter)
        kept &= close & (np.bincount(nearest[close], minlength=len(end))[nearest] == 1)
        partner.append(nearest)
    lengths = [found[rank].length_ns[of][index[kept]] for rank, of, index in zip(ranks, order, partner, strict=True)]
    return _Match(ranks=ranks, length_ns=np.stack(lengths)) if kept.any() else None


def _arrivals(matches: Sequence[_Match | None], captures: int) -> tuple[Arrivals | None, ...]:
    known = [match for match in matches if match is not None]
    if not known:
        return (None,) * captures
    found = np.zeros((captures, 4), np.int64)
    for match in known:
        waits = match.length_ns - match.length_ns.min(axis=0)
        last, longest = match.length_ns.argmin(axis=0), waits.max(axis=0)
        for row, rank in enumerate(match.ranks):
            mine = last == row
            found[rank] += (waits.shape[1], waits[row].sum(), mine.sum(), longest[mine].sum())
    return tuple(
        Arrivals(matched=int(n), waited_ns=int(waited), came_last=int(last), held_up_ns=int(held))
        for n, waited, last, held in found
    )


def _row(key: _Key, found: Sequence[_Found], match: _Match | None) -> CollectiveRow:
    mine = [(one, _of(one, key)) for one in found if key in one.keys]
    every = np.concatenate([one.length_ns[of] for one, of in mine])
    kernels = {one.names[code] for one, of in mine for code in distinct(one.kernel[of]).tolist()}
    # Of ranks that wait for each other, the last one's time is that of the transfer.
    typical = float(np.median(every if match is None else match.length_ns.min(axis=0)))
    skew = None if match is None else match.length_ns.max(axis=0) - match.length_ns.min(axis=0)
    rate = key.message_bytes / typical if key.message_bytes is not None and typical > 0 else None
    factor = bus_factor(key.collective, key.group_size)
    usual = float(np.median(every) if key.message_bytes is not None else np.percentile(every, LONG_ONES))
    least = OUTLIER_NS if key.message_bytes is not None else OUTLIER_OF_ANY_SIZE_NS
    outliers = (every >= max(OUTLIER_FACTOR * usual, least)) & (len(every) >= ENOUGH_CALLS)
    # Each capture's are in the order of their starts.
    firsts = np.cumsum([0, *(len(of) for _, of in mine[:-1])])
    return CollectiveRow(
        collective=key.collective,
        group=key.group,
        group_size=key.group_size,
        dtype=key.dtype,
        message_bytes=key.message_bytes,
        ranks=len(mine),
        count=len(every),
        total_ns=int(every.sum()),
        median_ns=float(np.median(every)),
        min_ns=int(every.min()),
        max_ns=int(every.max()),
        algorithm_gb_s=rate,
        bus_gb_s=None if rate is None or factor is None else rate * factor,
        matched=0 if skew is None else len(skew),
        skew_median_ns=None if skew is None else float(np.median(skew)),
        skew_max_ns=None if skew is None else int(skew.max()),
        kernels=tuple(sorted(short_kernel_name(name) for name in kernels)),
        outliers=int(outliers.sum()),
        outliers_ns=round(float((every[outliers] - usual).sum())),
        only_first_is_outlier=bool(outliers.any()) and int(outliers[firsts].sum()) == int(outliers.sum()),
    )


def bus_factor(collective: str, ranks: int | None) -> float | None:
    """Bus over algorithm bandwidth, as nccl-tests define it; None where the group's size is needed and unknown."""
    if collective in (BROADCAST, REDUCE, SEND_RECEIVE):
        return 1.0
    if ranks is None or ranks < 1:
        return None
    shares = {ALL_REDUCE: 2.0, ALL_GATHER: 1.0, REDUCE_SCATTER: 1.0, ALL_TO_ALL: 1.0}
    return shares[collective] * (ranks - 1) / ranks if collective in shares else None


def _find(timeline: Timeline, recorded: RecordedArgs | None) -> _Found:
    pick = np.flatnonzero(communication_kernels(timeline))
    kernels = timeline.kernels
    pick = pick[np.argsort(kernels.start_ns[pick], kind="stable")]
    code = recorded.code[pick] if recorded is not None else np.full(len(pick), -1, np.int64)
    around = _annotations(timeline, pick)
    keys: dict[_Key, int] = {}
    places: dict[tuple[int, int, int], int] = {}
    index = np.zeros(len(pick), np.int64)
    rows = zip(code.tolist(), around.tolist(), kernels.name[pick].tolist(), strict=True)
    for at, place in enumerate(rows):
        if place not in places:
            args = recorded.args[place[0]] if recorded is not None and place[0] >= 0 else CollectiveArgs()
            annotation = timeline.names[place[1]] if place[1] >= 0 else None
            key = _key(args, annotation, timeline.names[place[2]])
            places[place] = keys.setdefault(key, len(keys))
        index[at] = places[place]
    return _Found(
        keys=tuple(keys),
        key=index,
        place=pick,
        end_ns=kernels.end_ns[pick] + timeline.origin.base_ns,
        length_ns=(kernels.end_ns - kernels.start_ns)[pick],
        kernel=kernels.name[pick],
        names=timeline.names,
    )


def _annotations(timeline: Timeline, pick: Ints) -> Ints:
    """The innermost `nccl:…` range around each kernel's launch, as a name's code, or -1."""
    out = np.full(len(pick), -1, np.int64)
    ranges, calls = timeline.ranges, timeline.calls
    wanted = [i for i, name in enumerate(timeline.names) if name.startswith(ANNOTATION)]
    mine = np.flatnonzero(np.isin(ranges.name, wanted))
    known = np.flatnonzero(timeline.kernels.call[pick] >= 0)
    if not len(mine) or not len(known):
        return out
    columns = (ranges.thread[mine], ranges.start_ns[mine], ranges.end_ns[mine])
    call = timeline.kernels.call[pick[known]]
    found = innermost(nest(*columns), *columns, calls.thread[call], calls.start_ns[call])
    out[known] = np.where(found >= 0, ranges.name[mine][np.maximum(found, 0)], -1)
    return out


def _key(args: CollectiveArgs, annotation: str | None, kernel: str) -> _Key:
    kinds_named = (kind_of_collective(text) for text in (args.name, annotation, kernel) if text)
    collective = next((kind for kind in kinds_named if kind is not None), UNNAMED)
    return _Key(
        collective=collective,
        group=args.group,
        group_size=args.group_size,
        dtype=args.dtype,
        message_bytes=_message_bytes(collective, args),
    )


def kind_of_collective(text: str) -> str | None:
    """The collective a name means, or None."""
    return next((kind for kind, pattern in _KINDS if pattern.search(text)), None)


def _message_bytes(collective: str, args: CollectiveArgs) -> int | None:
    item = ITEM_BYTES.get((args.dtype or "").lower())
    whole = args.out_elements if collective in (ALL_GATHER, BROADCAST) else args.in_elements
    if item is None or not whole:
        return None
    return whole * item
