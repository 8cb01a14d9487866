"""Kernels that only move data, by what they do: layout, dtype cast, gather, cat, scatter, plain copy.

Where operators were recorded, the innermost one that says what it copies counts; where their input shapes were, a `cat`
that appends to a growing tensor (a cache of keys and values) is distinguished from any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from llm_perf_opt.capture.intervals import Ints, innermost, nest
from llm_perf_opt.capture.kernels.copies import (
    CAST,
    CAT,
    COLLIDING,
    COPY_KINDS,
    GATHER,
    LAYOUT,
    PLAIN,
    SCATTER,
    copy_kind,
    kind_of_operator,
)
from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.operators import TraceDetail
from llm_perf_opt.capture.timeline import Timeline, distinct

NAMED = 3
# A `cat` of two tensors appends where one is at least this many times as long as the other.
APPENDS = 4
HOW = {
    LAYOUT: "nothing remains where the kernels around it read and write the other layout",
    CAST: "nothing remains where the kernels around it read and write the other dtype",
    PLAIN: "nothing remains where what writes the source writes the target",
    CAT: "unknown: its parts have to be written, to their place or by the copy",
    GATHER: "unknown: the rows have to be read once, by this kernel or by the next",
    SCATTER: "unknown: the rows have to be written once",
    COLLIDING: "unknown: the least time depends on how many indices collide",
}
# The layout, the dtype and the place of data can be chosen so that these are not needed.
_AVOIDABLE = frozenset({LAYOUT, CAST, PLAIN})


@dataclass(frozen=True, kw_only=True)
class CopyKernelRow:
    """All kernels of one kind. `kernels` and `operators` are those with most time.

    `appending_ns` is the time of what appends to a growing tensor, None where no input shapes were recorded.
    `floor_ns` is what must remain of `time_ns`, None where that is not known; `how` says why.
    """

    kind: str
    kernel_count: int
    time_ns: int
    kernels: tuple[str, ...]
    operators: tuple[str, ...]
    appending_ns: int | None
    floor_ns: int | None
    how: str


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyKinds:
    """Columns, one entry per kernel: `kind` indexes `COPY_KINDS` (-1: it computes), `operator` the names (-1: none)."""

    kind: Ints
    operator: Ints


def copy_kinds(timeline: Timeline) -> CopyKinds:
    """What each kernel of a timeline copies."""
    kernels = timeline.kernels
    codes = {kind: code for code, kind in enumerate(COPY_KINDS)}
    by_name = np.full(len(timeline.names), -1, np.int8)
    for code in kernels.distinct_names.tolist():
        by_name[code] = codes.get(copy_kind(timeline.names[code]) or "", -1)
    kind = by_name[kernels.name] if len(kernels) else np.zeros(0, np.int8)
    operator = np.full(len(kernels), -1, np.int64)
    pick = np.flatnonzero((kind >= 0) & (kernels.call >= 0))
    if len(timeline.operators) and len(pick):
        operator[pick] = _operators(timeline, pick)
        known = pick[operator[pick] >= 0]
        for name in distinct(kernels.name[known]).tolist():
            mine = known[kernels.name[known] == name]
            for at in distinct(operator[mine]).tolist():
                found = codes[copy_kind(timeline.names[name], timeline.names[at]) or PLAIN]
                kind[mine[operator[mine] == at]] = found
    return CopyKinds(kind=kind, operator=operator)


def _operators(timeline: Timeline, pick: Ints) -> Ints:
    """The innermost operator around each kernel's launch that says what it copies, else the innermost copy of all."""
    operators, calls = timeline.operators, timeline.calls
    call = timeline.kernels.call[pick]
    decides, copies = (np.zeros(len(timeline.names), np.bool_) for _ in range(2))
    for code in distinct(operators.name).tolist():
        decides[code] = kind_of_operator(timeline.names[code]) is not None
        copies[code] = "copy" in timeline.names[code]
    out = np.full(len(pick), -1, np.int64)
    # Only these: the operators of a long trace are many, and who lies in whom costs time.
    for wanted in (decides, copies):
        mine, left = np.flatnonzero(wanted[operators.name]), np.flatnonzero(out < 0)
        columns = (operators.thread[mine], operators.start_ns[mine], operators.end_ns[mine])
        at = innermost(nest(*columns), *columns, calls.thread[call[left]], calls.start_ns[call[left]])
        out[left[at >= 0]] = operators.name[mine[at[at >= 0]]]
    return out


def copy_kernel_rows(
    timelines: Sequence[Timeline], details: Sequence[TraceDetail | None] = ()
) -> tuple[CopyKernelRow, ...]:
    """The kinds of all captures together, by time."""
    sums: dict[str, _Sum] = {}
    for timeline, detail in zip(timelines, details or [None] * len(timelines), strict=True):
        found = copy_kinds(timeline)
        length = timeline.kernels.end_ns - timeline.kernels.start_ns
        for code in distinct(found.kind[found.kind >= 0]).tolist():
            mine = np.flatnonzero(found.kind == code)
            total = sums.setdefault(COPY_KINDS[code], _Sum())
            total.count += len(mine)
            total.time_ns += int(length[mine].sum())
            for names, column in ((total.kernels, timeline.kernels.name), (total.operators, found.operator)):
                for name in distinct(column[mine]).tolist():
                    text = timeline.names[name] if name >= 0 else ""
                    names[text] = names.get(text, 0) + int(length[mine][column[mine] == name].sum())
            if COPY_KINDS[code] == CAT and detail is not None:
                appending, left = _appended(timeline, detail, mine)
                total.appending_ns = (total.appending_ns or 0) + appending
                total.left_ns += left
    rows = [_row(kind, total) for kind, total in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.kind)))


class _Sum:
    def __init__(self) -> None:
        self.count = self.time_ns = self.left_ns = 0
        self.appending_ns: int | None = None
        self.kernels: dict[str, int] = {}
        self.operators: dict[str, int] = {}


def _row(kind: str, total: _Sum) -> CopyKernelRow:
    floor_ns, how = (0 if kind in _AVOIDABLE else None), HOW[kind]
    if kind == CAT and total.appending_ns and 2 * total.appending_ns > total.time_ns:
        floor_ns = total.time_ns - total.appending_ns + total.left_ns
        how = "what is new has to be written once; the rest of a tensor of fixed size stays where it is"
    operators = {name: time_ns for name, time_ns in total.operators.items() if name}
    return CopyKernelRow(
        kind=kind,
        kernel_count=total.count,
        time_ns=total.time_ns,
        kernels=tuple(dict.fromkeys(short_kernel_name(name) for name in _heaviest(total.kernels)))[:NAMED],
        operators=tuple(_heaviest(operators))[:NAMED],
        appending_ns=total.appending_ns,
        floor_ns=floor_ns,
        how=how,
    )


def _heaviest(names: dict[str, int]) -> list[str]:
    return sorted(names, key=lambda name: (-names[name], name))


def _appended(timeline: Timeline, detail: TraceDetail, pick: Ints) -> tuple[int, int]:
    """The time of the `cat` kernels that append to a tensor that grows, and the part of it that writes what is new."""
    operators, calls, kernels = timeline.operators, timeline.calls, timeline.kernels
    codes = [code for code, name in enumerate(timeline.names) if name == "aten::cat"]
    mine, known = np.flatnonzero(np.isin(operators.name, codes)), pick[kernels.call[pick] >= 0]
    if not len(mine) or not len(known):
        return 0, 0
    columns = (operators.thread[mine], operators.start_ns[mine], operators.end_ns[mine])
    call = kernels.call[known]
    at = innermost(nest(*columns), *columns, calls.thread[call], calls.start_ns[call])
    known, at = known[at >= 0], at[at >= 0]
    return _split_growing(detail, detail.shape[mine[at]], kernels.end_ns[known] - kernels.start_ns[known])


def _split_growing(detail: TraceDetail, shape: Ints, length_ns: Ints) -> tuple[int, int]:
    """The time of the calls that append to a tensor that grows, and their new part of it.

    A tensor grows where calls append to several lengths of otherwise equal shapes.
    """
    appends = {code: _append(detail.shapes[code]) for code in distinct(shape).tolist()}
    lengths: dict[tuple[object, ...], set[int]] = {}
    for one in appends.values():
        if one is not None:
            lengths.setdefault(one[0], set()).add(one[1])
    appending, left = 0, 0.0
    for code, one in appends.items():
        if one is not None and len(lengths[one[0]]) > 1:
            time_ns = int(length_ns[shape == code].sum())
            appending += time_ns
            left += time_ns * one[2] / (one[1] + one[2])
    return appending, round(left)


def _append(dims: str) -> tuple[tuple[object, ...], int, int] | None:
    """What stays the same of two tensors put together, the length of the long one, and that of what is appended."""
    try:
        tensors = msgspec.json.decode(dims or "[]", type=list[list[list[int]]], strict=True)[0]
    except (msgspec.DecodeError, IndexError):
        # The dimension of a `cat` by position is a second input with no shape, or the list is none of tensors.
        return None
    if len(tensors) != 2 or len(tensors[0]) != len(tensors[1]) or len(tensors[0]) < 2:
        return None
    differ = [place for place, (a, b) in enumerate(zip(*tensors, strict=True)) if a != b]
    if len(differ) != 1:
        return None
    long, short = sorted((tensors[0][differ[0]], tensors[1][differ[0]]), reverse=True)
    if not short or long < APPENDS * short:
        return None
    rest = tuple(n for place, n in enumerate(tensors[0]) if place != differ[0])
    return (*rest, differ[0], short), long, short
