"""Reads the events of a Chrome trace piece by piece, so that memory does not grow with the file."""

import re
from collections.abc import Iterable, Iterator

import msgspec

from llm_perf_opt.errors import ParseError

CHUNK_BYTES = 4 << 20
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
# In JSON a quote inside a string is escaped, so these bytes can only stand between two events.
_BOUNDARY = re.compile(rb"\}\s*,\s*\{\s*\Z")
_KEY = b'"ph"'
_LOOK_BACK = 64


class EventArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments we use of those an event may carry; -1 stands for an id that is not there."""

    external_id: int = msgspec.field(name="External id", default=-1)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    correlation: int = -1
    bytes_changed: int = msgspec.field(name="Bytes", default=0)
    device_type: int = msgspec.field(name="Device Type", default=-1)


NO_ARGS = EventArgs()


class TraceEvent(msgspec.Struct, gc=False, frozen=True):
    """One event; times in microseconds with three decimals, as torch writes them."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: EventArgs = NO_ARGS


class _Tail(msgspec.Struct):
    events: list[TraceEvent] = msgspec.field(name="traceEvents")


_PIECE = msgspec.json.Decoder(list[TraceEvent])
_END = msgspec.json.Decoder(_Tail)


def read_events(chunks: Iterable[bytes], *, source: str) -> Iterator[list[TraceEvent]]:
    """The trace's events in the file's order, some thousands at a time. `source` names the file in errors."""
    held = b""
    started = False
    for chunk in chunks:
        held += chunk
        if not started:
            found = _START.search(held)
            if found is None:
                continue
            held, started = held[found.end() :], True
        cut = _last_boundary(held)
        if cut is not None:
            yield _decode_piece(held[: cut[0]], source)
            held = held[cut[1] :]
    if not started:
        raise ParseError(f"{source}: has no traceEvents, so it is not a Chrome trace")
    try:
        yield _END.decode(b'{"traceEvents":[' + held).events
    except msgspec.DecodeError as error:
        raise ParseError(f"{source}: its end is not valid JSON ({error}); the trace may be cut off") from error


def _decode_piece(piece: bytes, source: str) -> list[TraceEvent]:
    try:
        return _PIECE.decode(b"[" + piece + b"]")
    except msgspec.DecodeError as error:
        raise ParseError(f"{source}: an event cannot be read ({error})") from error


def _last_boundary(data: bytes) -> tuple[int, int] | None:
    """Where the last whole event ends, and where the one after it starts."""
    place = len(data)
    while (place := data.rfind(_KEY, 0, place)) != -1:
        start = max(0, place - _LOOK_BACK)
        found = _BOUNDARY.search(data[start:place])
        if found is not None:
            end = start + found.start() + 1
            return end, data.index(b"{", end)
    return None
