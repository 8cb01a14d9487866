"""The pickle of `torch.cuda.memory._dump_snapshot`, read without running anything that is in it.

A pickle is a program. Only the instructions that build numbers, texts, lists and dictionaries are known here: every
other one (a global, a call, an object, an extension) ends the reading. The unpickler is Python's own in Python, because
the one in C reserves as much memory as a file of a few bytes asks for.
"""

import pickle
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from llm_perf_opt.capture.allocations import (
    AllocationSite,
    DeviceSnapshot,
    MemorySnapshot,
    SnapshotBlock,
    SnapshotEvent,
    measure_device,
)
from llm_perf_opt.capture.kernels.names import as_utf8
from llm_perf_opt.errors import ParseError
from llm_perf_opt.system.files import open_regular

# 150,000 events in 19 MiB took 3.4 s, and in 62 MiB (frames not shared) 12 s and 0.9 GB.
MOST_BYTES = 512 << 20
# More than any machine has; sums of a few million of them fit into 64 bits.
MOST_ALLOCATED = 1 << 42
MOST_FRAMES = 256
LONGEST_NAME = 300
_ALLOWED = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.POP, pickle.POP_MARK, pickle.MARK, pickle.NONE, pickle.NEWTRUE,
    pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG, pickle.LONG1, pickle.LONG4,
    pickle.FLOAT, pickle.BINFLOAT, pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8,
    pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.LIST,
    pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_DICT, pickle.DICT,
    pickle.SETITEM, pickle.SETITEMS, pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.PUT, pickle.BINPUT,
    pickle.LONG_BINPUT, pickle.MEMOIZE,
)  # fmt: skip
# Of libraries and of Python itself: no line of the user's.
_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages)/|/lib/python\d|^<|(^|/)torch/(nn|optim|utils|autograd|cuda|_\w+)/"
)
_MALFORMED = (
    pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError,
    RecursionError, MemoryError, struct.error,
)  # fmt: skip
_VIEWER = "torch's own viewer (https://pytorch.org/memory_viz) may open it"


class _DataUnpickler(pickle._Unpickler):
    """Builds plain data only."""

    dispatch: ClassVar[dict[int, Any]] = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _ALLOWED}

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it names an object outside of it")


def read_memory_snapshot(path: Path) -> MemorySnapshot:
    """The figures of a snapshot, or a ParseError that says what the file is."""
    segments, traces = _load(path)
    sites = _Sites()
    try:
        devices = list(_devices(segments, traces, sites, limit=path.stat().st_size))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ParseError(
            f"{path}: a memory snapshot with something in it that torch does not write ({error!r:.200})"
        ) from error
    measured = [measure_device(device, sites.listed) for device in devices]
    notes = [note for _, said in measured for note in said]
    if not any(device.events for device, _ in measured):
        notes.append(
            "no allocation was recorded, so there is no history and no owner; call "
            "torch.cuda.memory._record_memory_history() before the work"
        )
    elif not sites.listed:
        notes.append("no stack was recorded; call torch.cuda.memory._record_memory_history(stacks='python')")
    return MemorySnapshot(path=str(path), devices=tuple(device for device, _ in measured), notes=tuple(notes))


def _load(path: Path) -> tuple[list[Any], list[Any]]:
    """The segments, and the events of each device."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ParseError(
            f"{path}: a pickle of {size >> 20:,} MiB, more than {MOST_BYTES >> 20:,} are not read; {_VIEWER}"
        )
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise ParseError(f"{path}: could not be read ({error.strerror or error})") from error
    stream = BytesIO(content)
    try:
        found = _DataUnpickler(stream).load()
    except _MALFORMED as error:
        if isinstance(error, KeyError) and (code := _forbidden(error)) is not None:
            raise ParseError(
                f"{path}: a pickle that would build objects or run code when opened (instruction {code}), which no "
                "snapshot of torch's memory does; nothing of it was run"
            ) from error
        raise ParseError(f"{path}: not a readable pickle ({error!r:.200})") from error
    if isinstance(found, list):
        # What torch.cuda.memory_snapshot() returns: the segments alone.
        return found, []
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise ParseError(f"{path}: a pickle, but not a snapshot of torch's memory (no list 'segments')")
    traces = found.get("device_traces")
    return found["segments"], traces if isinstance(traces, list) else []


def _forbidden(error: KeyError) -> str | None:
    """The name of an instruction that is not known here."""
    code = error.args[0] if error.args else None
    if type(code) is not int:
        return None
    names = {
        value[0]: name
        for name, value in vars(pickle).items()
        if name.isupper() and type(value) is bytes and len(value) == 1
    }
    return names.get(code)


class _Sites:
    """Stacks as places, each once."""

    def __init__(self) -> None:
        self.listed: list[AllocationSite] = []
        self._codes: dict[AllocationSite, int] = {}

    def code(self, frames: Any) -> int:
        """-1 where there is no stack."""
        listed = frames[:MOST_FRAMES] if isinstance(frames, list) else []
        leaf: Mapping[str, Any] | None = None
        own: Mapping[str, Any] | None = None
        for frame in listed:
            file = _text(frame["filename"])
            if not file.endswith(".py"):
                continue
            leaf = leaf or frame
            if _LIBRARY.search(file) is None:
                own = frame
                break
        leaf = leaf or (listed[0] if listed else None)
        if leaf is None:
            return -1
        site = AllocationSite(owner=_place(own or leaf), leaf=_place(leaf))
        code = self._codes.setdefault(site, len(self.listed))
        if code == len(self.listed):
            self.listed.append(site)
        return code


def _place(frame: Mapping[str, Any]) -> str:
    """`function (folder/file.py:12)`; of frames without a file the function."""
    name, file, line = (_text(frame.get(key)) for key in ("name", "filename", "line"))
    if not file.endswith(".py"):
        return name or "(unknown)"
    return f"{name} ({'/'.join(PurePosixPath(file.replace(chr(92), '/')).parts[-2:])}:{line})"


def _text(value: Any) -> str:
    """A text or a number as text. Of anything else nothing: a list may hold itself many times over."""
    return as_utf8(str(value)[:LONGEST_NAME]) if type(value) in (str, int) else ""


def _devices(listed: list[Any], traces: list[Any], sites: _Sites, *, limit: int) -> Iterator[DeviceSnapshot]:
    """`limit` bounds how many rows there may be: each takes some bytes, unless a file repeats one list endlessly."""
    segments: dict[int, list[Mapping[str, Any]]] = {}
    for segment in _bounded(listed, limit):
        segments.setdefault(_whole_number(segment["device"]) if "device" in segment else 0, []).append(segment)
    left = limit
    for device in sorted({*segments, *(n for n, trace in enumerate(traces) if trace)}):
        events = tuple(_event(e, sites) for e in _bounded(traces[device] if device < len(traces) else [], left))
        left -= len(events)
        live, free, reserved = [], [], 0
        for segment in segments.get(device, ()):
            reserved += _size(segment["total_size"])
            address = _whole_number(segment.get("address", 0))
            for block in _bounded(segment["blocks"], left):
                left -= 1
                size = _size(block["size"])
                if block["state"] == "active_allocated":
                    requested = _size(block["requested_size"]) if "requested_size" in block else size
                    at = _whole_number(block["address"]) if "address" in block else address
                    site = sites.code(block.get("frames") or _history(block))
                    live.append(SnapshotBlock(address=at, requested_bytes=requested, size_bytes=size, site=site))
                elif block["state"] == "inactive":
                    free.append(size)
                address += size
        yield DeviceSnapshot(
            device=device, events=events, live=tuple(live), reserved_bytes=reserved, free_bytes=tuple(free)
        )


def _history(block: Mapping[str, Any]) -> Any:
    """Frames as torch 2.0 kept them."""
    history = block.get("history")
    return history[0].get("frames") if isinstance(history, list) and history and isinstance(history[0], dict) else None


def _event(entry: Mapping[str, Any], sites: _Sites) -> SnapshotEvent:
    time = entry.get("time_us")
    action = _text(entry["action"])
    # Only what begins or fails names its owner.
    site = sites.code(entry.get("frames")) if action in ("alloc", "oom") else -1
    address = entry.get("addr", 0)
    return SnapshotEvent(
        action=action,
        address=_whole_number(address),
        size_bytes=_size(entry.get("size", 0)),
        site=site,
        time_us=None if time is None else _whole_number(time),
    )


def _bounded(rows: Iterable[Any], limit: int) -> Sequence[Any]:
    if not isinstance(rows, list):
        raise TypeError("something else where a list belongs")
    if len(rows) > limit:
        raise ValueError("more rows than bytes")
    return rows


def _size(value: Any) -> int:
    if not 0 <= _whole_number(value) < MOST_ALLOCATED:
        raise ValueError(f"a size of {value} bytes")
    return int(value)


def _whole_number(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise ValueError(f"{type(value).__name__} where a number belongs")
    return value
