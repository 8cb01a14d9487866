"""Decodes one piece of a torch profiler trace into columns, exact to the nanosecond.

Times in a trace are microseconds with decimals. A float64 holds them to the nanosecond below 2**43 µs; traces whose
times count from 1970 lie above, and their digits are read instead.
"""

import re
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import compress
from typing import Any, ClassVar, Union

import msgspec
import numpy as np

from llm_perf_opt.capture.intervals import Ints
from llm_perf_opt.capture.timeline import Codes

EXACT_BELOW_US = float(2**43)
LATEST_NS = 2**62
MOST_STREAMS = 2**31
MOST_DIGITS = 18
KERNEL, COPY, CALL, OPERATOR, ANNOTATION, MODULE, MEMORY, FRAME, COUNTED, PAUSE = KINDS = range(10)
MEMORY_EVENT = "[memory]"
_KINDS = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": COPY,
    "Kernel": KERNEL,
    "Memcpy": COPY,
    "Memset": COPY,
    "Runtime": CALL,
    "Operator": OPERATOR,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "xpu_runtime": CALL,
    "xpu_driver": CALL,
    "mtia_runtime": CALL,
    "privateuse1_runtime": CALL,
    "privateuse1_driver": CALL,
    "cpu_op": OPERATOR,
    "user_annotation": ANNOTATION,
    "python_function": MODULE,
    "cuda_profiler_range": COUNTED,
    "overhead": PAUSE,
    MEMORY_EVENT: MEMORY,
}
CATEGORIES = frozenset(_KINDS)
MODULE_PREFIX = "nn.Module: "
# Shorter frames of Python explain no gap, and there are a hundred times as many of them.
MIN_FRAME_US = 100.0
NO_DIGITS = msgspec.Raw(b"")
COMPLETE, INSTANT = "X", "i"
# Every phase the trace event format defines, besides the complete one.
OTHER_PHASES = "BEbenSTpFstfiIMCPONDRcvVGgLl(),wW"


class Other(msgspec.Struct, gc=False):
    """An event of another phase: a flow, a counter, a name."""

    cat: ClassVar[str] = ""


class Instant(msgspec.Struct, gc=False):
    """An event without a length; the only ones used are changes of memory."""

    cat: ClassVar[str] = MEMORY_EVENT
    dur: ClassVar[float] = 0.0


class Args(msgspec.Struct, gc=False):
    """The arguments that are used; all others are skipped while decoding. ROCm writes sizes as text.

    Host calls may say something else under `stream`; only that of GPU work is inspected.
    """

    correlation: int = -1
    device: int = 0
    bytes: int | str = -1
    stream: Any = -1


class DetailedArgs(Args, gc=False):
    """Those, an operator's number and inputs, what a collective's kernel moves, and what a memory event says."""

    external: msgspec.Raw = msgspec.field(name="External id", default=NO_DIGITS)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_DIGITS)
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=NO_DIGITS)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NO_DIGITS)
    collective: msgspec.Raw = msgspec.field(name="Collective name", default=NO_DIGITS)
    in_elements: msgspec.Raw = msgspec.field(name="In msg nelems", default=NO_DIGITS)
    out_elements: msgspec.Raw = msgspec.field(name="Out msg nelems", default=NO_DIGITS)
    element: msgspec.Raw = msgspec.field(name="dtype", default=NO_DIGITS)
    group_size: msgspec.Raw = msgspec.field(name="Group size", default=NO_DIGITS)
    group: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=NO_DIGITS)
    grid: msgspec.Raw = NO_DIGITS
    block: msgspec.Raw = NO_DIGITS
    registers: msgspec.Raw = msgspec.field(name="registers per thread", default=NO_DIGITS)
    shared: msgspec.Raw = msgspec.field(name="shared memory", default=NO_DIGITS)
    bytes_changed: int = msgspec.field(name="Bytes", default=0)
    device_type: int = msgspec.field(name="Device Type", default=-1)
    allocated: int = msgspec.field(name="Total Allocated", default=-1)


NO_MEMORY = DetailedArgs()
# Operators whose work depends on more than shapes and types: strides of a convolution, the mask of an attention.
_NEEDS_INPUTS = re.compile("conv|attention|attn", re.IGNORECASE)


class EventDecoder:
    """Complete events (`X`) of a list, distinguished from the others while decoding; these are skipped.

    An undefined phase, or none, makes that fail; such a list is decoded again and sorted out afterwards. With
    `detailed`, input shapes and memory events are kept too.
    """

    def __init__(self, time: type[Any], *, detailed: bool) -> None:
        args: Any = DetailedArgs if detailed else Args
        fields = [
            ("cat", str, ""),
            ("name", str, ""),
            ("pid", int | str | None, None),
            ("tid", int | str | None, None),
            ("ts", time, None if time is not msgspec.Raw else NO_DIGITS),
            ("dur", float | None, None),
            ("args", args | None, None),
        ]
        complete = msgspec.defstruct("Complete", fields, tag_field="ph", tag=COMPLETE, gc=False)
        timeless = [field for field in fields if field[0] not in ("cat", "dur")]
        kinds: list[type] = [complete]
        if detailed:
            kinds += [msgspec.defstruct("M", timeless, bases=(Instant,), tag_field="ph", tag=INSTANT, gc=False)]
        kinds += [
            msgspec.defstruct(f"Other{i}", [], bases=(Other,), tag_field="ph", tag=phase, gc=False)
            for i, phase in enumerate(OTHER_PHASES)
            if not (detailed and phase == INSTANT)
        ]
        any_phase = msgspec.defstruct("AnyPhase", [("ph", Any, ""), *fields], gc=False)
        # Types made at run time mean nothing to a type checker.
        either: Any = Union[(*kinds,)]
        self._known: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[either])
        self._lenient: msgspec.json.Decoder[Any] = msgspec.json.Decoder(list[any_phase])  # type: ignore[valid-type]
        self._phases = (COMPLETE, INSTANT) if detailed else (COMPLETE,)

    def decode(self, text: bytes | memoryview) -> list[Any]:
        """Complete events, instant ones where asked for, and others with an empty category."""
        try:
            found: list[Any] = self._known.decode(text)
        except msgspec.ValidationError:
            found = [event for event in self._lenient.decode(text) if event.ph in self._phases]
            for event in found:
                if event.ph == INSTANT:
                    event.cat, event.dur = Instant.cat, Instant.dur
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows of one kind. `name`, `thread`, `shape` and `extra` index the piece's own lists.

    The `shape` of an operator is that of its inputs, of a kernel that of its launch; where asked for detail, the
    `correlation` of an operator is its number among all that ran.
    Of a memory event, `device` is the type of device and `size_bytes` what was allocated (freed: below 0).
    """

    start_ns: Ints
    end_ns: Ints
    name: Ints
    thread: Ints
    correlation: Ints
    device: Ints
    stream: Ints
    size_bytes: Ints
    shape: Ints
    allocated_bytes: Ints
    extra: Ints


_NONE: Ints = np.zeros(0, np.int64)
_NO_CODES: Ints = np.zeros(0, np.int32)
# Of the types a table with rows has: one wide empty column would widen all it is joined with.
NO_ROWS = Table(
    start_ns=_NONE,
    end_ns=_NONE,
    name=_NO_CODES,
    thread=_NO_CODES,
    correlation=_NONE,
    device=_NO_CODES,
    stream=_NO_CODES,
    size_bytes=_NONE,
    shape=_NO_CODES,
    allocated_bytes=_NONE,
    extra=_NO_CODES,
)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one piece held: a table per kind, the names they index, and how many events could not be used.

    An extra is, as JSON, an operator's input types and inputs, or what a collective's kernel says of itself.
    """

    tables: tuple[Table, ...]
    names: tuple[str, ...]
    threads: tuple[tuple[Any, Any], ...]
    shapes: tuple[bytes, ...]
    extras: tuple[tuple[bytes, ...], ...]
    events: int
    without_time: int
    backwards: int


class PieceDecoder:
    """Decodes pieces. `detailed`: with input shapes and memory events."""

    def __init__(self, *, detailed: bool) -> None:
        self._detailed = detailed
        self._digits = False

    def decode(self, text: bytes | memoryview) -> Piece:
        """Raises msgspec.DecodeError where the piece is not a list of events."""
        if not self._digits:
            try:
                fast = _event_decoder(is_exact=False, detailed=self._detailed)
                return _piece(fast.decode(text), _from_floats, detailed=self._detailed)
            except _TooLarge:
                self._digits = True
        exact = _event_decoder(is_exact=True, detailed=self._detailed)
        return _piece(exact.decode(text), _from_digits, detailed=self._detailed)


@cache
def _event_decoder(*, is_exact: bool, detailed: bool) -> EventDecoder:
    """One of each for the whole process: types made at run time are never freed, and making them takes its time."""
    time: Any = msgspec.Raw if is_exact else float | None
    return EventDecoder(time, detailed=detailed)


def _piece(events: list[Any], to_ns: Callable[[list[Any]], Ints], *, detailed: bool) -> Piece:
    buckets: tuple[list[Any], ...] = tuple([] for _ in KINDS)
    by_category = defaultdict[str, list[Any]](list, {category: buckets[kind] for category, kind in _KINDS.items()})
    for event in events:
        by_category[event.cat].append(event)
    frames = buckets[MODULE]
    buckets[FRAME].extend(e for e in frames if detailed or (e.dur is not None and e.dur >= MIN_FRAME_US))
    names: Codes[Any] = Codes()
    threads: Codes[Any] = Codes()
    shapes: Codes[Any] = Codes()
    extras: Codes[Any] = Codes()
    tables, unusable, backwards = [], 0, 0
    for kind, rows in enumerate(buckets):
        table, bad, negative = _rows_of_kind(kind, rows, to_ns, names, threads, shapes, extras if detailed else None)
        tables.append(table)
        unusable += bad
        backwards += negative
    return Piece(
        tables=tuple(tables),
        names=tuple(names),
        threads=tuple(threads),
        shapes=tuple(shapes),
        extras=tuple(extras),
        events=len(events),
        without_time=unusable,
        backwards=backwards,
    )


def _rows_of_kind(
    kind: int,
    rows: list[Any],
    to_ns: Callable[[list[Any]], Ints],
    names: Codes[Any],
    threads: Codes[Any],
    shapes: Codes[Any],
    extras: Codes[Any] | None,
) -> tuple[Table, int, int]:
    """The columns of one kind, and how many events had no time or a negative one. `extras`: where asked for detail."""
    if kind == MODULE:
        rows = [e for e in rows if e.name.startswith(MODULE_PREFIX)]
    elif kind == MEMORY:
        rows = [e for e in rows if e.name == MEMORY_EVENT]
    if not rows:
        return NO_ROWS, 0, 0
    rows, start, length, unusable, negative = _times(rows, to_ns)
    on_gpu = kind in (KERNEL, COPY)
    arguments = [e.args for e in rows] if on_gpu or kind == CALL else []
    correlation = [-1 if a is None else a.correlation for a in arguments]
    device = [0 if a is None else a.device for a in arguments] if on_gpu else []
    # A stream has a number; what else is there is none.
    stream = (
        [-1 if a is None or type(n := a.stream) is not int or not 0 <= n < MOST_STREAMS else n for a in arguments]
        if on_gpu
        else []
    )
    size = [-1 if a is None else _size(a.bytes) for a in arguments] if kind == COPY else []
    shape: list[int] = []
    allocated: list[int] = []
    extra: list[int] = []
    if extras is not None and kind == OPERATOR:
        shape = [shapes[b"" if e.args is None else bytes(e.args.input_dims)] for e in rows]
        correlation = [-1 if e.args is None else _id_number(e.args.external) for e in rows]
        extra = [extras[_inputs(e)] for e in rows]
    elif extras is not None and kind == KERNEL:
        extra = [-1 if a is None or not bytes(a.collective) else extras[_collective(a)] for a in arguments]
        shape = [shapes[b"" if a is None else _launch(a)] for a in arguments]
    elif extras is not None and kind == MEMORY:
        memory = [NO_MEMORY if e.args is None else e.args for e in rows]
        device = [a.device_type for a in memory]
        size = [a.bytes_changed for a in memory]
        allocated = [a.allocated for a in memory]
    return (
        Table(
            start_ns=start,
            end_ns=start + length,
            name=_codes([names[e.name] for e in rows]),
            thread=_NO_CODES if on_gpu or kind in (COUNTED, PAUSE) else _threads(rows, threads),
            correlation=np.array(correlation, np.int64) if correlation else _NONE,
            device=np.array(device, np.int32) if device else _NO_CODES,
            stream=np.array(stream, np.int32) if stream else _NO_CODES,
            size_bytes=np.array(size, np.int64) if size else _NONE,
            shape=_codes(shape) if shape else _NO_CODES,
            allocated_bytes=np.array(allocated, np.int64) if allocated else _NONE,
            extra=_codes(extra) if extra else _NO_CODES,
        ),
        unusable,
        negative,
    )


def _id_number(value: msgspec.Raw) -> int:
    """An id, written as a number or as text; -1 where there is none."""
    digits = bytes(value).strip(b'"')
    return int(digits) if digits.isdigit() and len(digits) <= MOST_DIGITS else -1


def _size(value: int | str) -> int:
    if isinstance(value, int):
        return value
    return int(value) if value.isdecimal() else -1


def _inputs(event: Any) -> tuple[bytes, ...]:
    """Types of an operator's inputs, and the inputs where its work depends on them."""
    if event.args is None:
        return (b"", b"")
    wanted = _NEEDS_INPUTS.search(event.name) is not None
    return (bytes(event.args.input_types), bytes(event.args.inputs) if wanted else b"")


def _collective(args: Any) -> tuple[bytes, ...]:
    said = (args.collective, args.in_elements, args.out_elements, args.element, args.group_size, args.group)
    return tuple(bytes(value) for value in said)


def _launch(args: Any) -> bytes:
    """How a kernel was launched, as a JSON list; empty where the trace does not say."""
    grid, block = bytes(args.grid), bytes(args.block)
    if not grid or not block:
        return b""
    return b"[" + b",".join((grid, block, bytes(args.registers) or b"null", bytes(args.shared) or b"null")) + b"]"


class _NoTime(Exception):
    """An event has no start or no duration."""


class _TooLarge(Exception):
    """A time is too large for a float64 to hold its nanoseconds."""


def _times(rows: list[Any], to_ns: Callable[[list[Any]], Ints]) -> tuple[list[Any], Ints, Ints, int, int]:
    """The usable events, their starts and lengths, and how many had no time or a negative length."""
    # One mask decides over rows and columns.
    length_us = _floats([e.dur for e in rows])
    usable = (length_us >= 0.0) & (length_us < EXACT_BELOW_US)
    negative = unusable = 0
    if not usable.all():
        negative = int((length_us < 0.0).sum())
        unusable = len(rows) - int(usable.sum()) - negative
        rows, length_us = list(compress(rows, usable.tolist())), length_us[usable]
    try:
        start = to_ns(rows)
    except _NoTime:
        # Rare enough to look at every event only then.
        good = [_has_start(e) for e in rows]
        unusable += good.count(False)
        rows, length_us = list(compress(rows, good)), length_us[np.array(good, np.bool_)]
        start = to_ns(rows)
    return rows, start, _to_ns(length_us), unusable, negative


def _has_start(event: Any) -> bool:
    return event.ts is not None and (not isinstance(event.ts, msgspec.Raw) or _start_of(event) is not None)


def _floats(values: list[float | None]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """A column; NaN where there is no value. `struct` takes a list three times as fast as numpy."""
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values), np.float64)
    except struct.error:
        return np.array(values, np.float64)


def _codes(values: list[int]) -> Ints:
    return np.frombuffer(struct.pack(f"{len(values)}i", *values), np.int32)


def _threads(rows: list[Any], codes: Codes[Any]) -> Ints:
    """Most pieces hold one thread: then one code serves all rows."""
    if len({e.tid for e in rows}) <= 1 and len({e.pid for e in rows}) <= 1:
        return np.full(len(rows), codes[(rows[0].pid, rows[0].tid)] if rows else 0, np.int32)
    return np.array([codes[(e.pid, e.tid)] for e in rows], np.int32)


def _from_floats(rows: list[Any]) -> Ints:
    time = _floats([e.ts for e in rows])
    # None became NaN, and JSON knows no NaN.
    if np.isnan(time).any():
        raise _NoTime
    if len(time) and float(np.abs(time).max()) >= EXACT_BELOW_US:
        raise _TooLarge
    return _to_ns(time)


def _to_ns(time_us: "np.ndarray[Any, np.dtype[np.float64]]") -> Ints:
    """Whole microseconds and the rest are converted apart: neither loses a digit."""
    whole = np.floor(time_us)
    out: Ints = whole.astype(np.int64) * 1000 + np.rint((time_us - whole) * 1000.0).astype(np.int64)
    return out


def _from_digits(rows: list[Any]) -> Ints:
    found = [_start_of(e) for e in rows]
    if None in found:
        raise _NoTime
    return np.array(found, np.int64)


def _start_of(event: Any) -> int | None:
    """The start in nanoseconds, or None where there is none or it is not a time a clock can have."""
    digits = bytes(event.ts)
    ns = None if digits in (b"", b"null") else digits_to_ns(digits)
    return ns if ns is not None and abs(ns) < LATEST_NS else None


def digits_to_ns(text: bytes) -> int:
    """`1790857026123456.789` µs as whole nanoseconds, rounded half up."""
    whole, _, part = text.partition(b".")
    if not text or not (whole.lstrip(b"-").isdigit() and (part == b"" or part.isdigit())):
        raise msgspec.DecodeError(f"{text[:40]!r} is not a time in microseconds")
    digits = (part + b"0000")[:4]
    ns = int(whole.lstrip(b"-")) * 1000 + int(digits[:3]) + (digits[3] >= ord("5"))
    return -ns if whole.startswith(b"-") else ns
