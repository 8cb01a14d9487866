"""What the tables of the torch profiler stage need of a trace's events."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from llm_perf_opt.profiling.parsers.trace_chunks import TraceText, read_chunks


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


_PIECE = msgspec.json.Decoder(list[TraceEvent])


def read_events(path: Path, *, careful: bool) -> Iterator[list[TraceEvent]]:
    """The trace's events in the file's order, some thousands at a time; done with before the next are asked for."""
    return map(_PIECE.decode, read_chunks(path, TraceText(), careful=careful))
