"""Cuts a torch profiler trace (.json or .json.gz) into pieces of whole events without holding the file in memory.

A piece is cut where the text looks like the border of two events. Whether it is one is decided when the piece is
decoded: a list of values that parses can only have been cut between values. If a piece does not parse, the caller asks
for `careful` cuts, which follow every bracket and string.
"""

import json
import queue
import re
import sys
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ParseError

READ_BYTES = 1 << 18
CHUNK_BYTES = 1 << 20
# The reading thread needs the interpreter a moment per block; at Python's default of 5 ms it would mostly wait for it.
SWITCH_INTERVAL_S = 0.0005
HEAD_LIMIT = 64 << 20
GZIP_MAGIC = b"\x1f\x8b"
_LIKELY_BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat)"\s*:)')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_SPACE = b" \t\r\n"


@dataclass
class TraceText:
    """The file's text around the events, filled while the pieces are read."""

    head: dict[str, Any] = field(default_factory=dict)
    event_bytes: int = 0


def read_chunks(path: Path, text: TraceText, *, careful: bool = False) -> Iterator[bytes]:
    """Pieces of whole events, separated by commas inside a piece, in order."""
    source = _prefetched(_plain_bytes(path))
    rest = _skip_head(path, source, text)
    cut = _careful_cut if careful else _likely_cut
    need, blocks, size = CHUNK_BYTES, [rest], len(rest)
    for block in source:
        blocks.append(block)
        size += len(block)
        if size < need:
            continue
        # Joined only when there is enough for a piece: adding block to block would copy the piece many times.
        rest = b"".join(blocks)
        at = cut(rest)
        if at is None:
            need, blocks = 2 * size, [rest]
            continue
        piece, rest = rest[:at], rest[at:].lstrip(b"," + _SPACE)
        need, blocks, size = CHUNK_BYTES, [rest], len(rest)
        text.event_bytes += len(piece)
        yield piece
    rest = b"".join(blocks)
    piece = _last_piece(path, rest, text)
    if piece:
        text.event_bytes += len(piece)
        yield piece


def _likely_cut(data: bytes) -> int | None:
    """Just behind the last thing that looks like the end of an event."""
    window = 1 << 16
    while True:
        start = max(0, len(data) - window)
        borders = [match.start() for match in _LIKELY_BORDER.finditer(data, start)]
        if borders:
            return borders[-1] + 1
        if start == 0:
            return None
        window *= 8


def _careful_cut(data: bytes) -> int | None:
    """Just behind the last event that is complete, following every bracket and string."""
    depth, last = 0, None
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                last = token.end()
            elif depth < 0:
                break
    return last


def _last_piece(path: Path, rest: bytes, text: TraceText) -> bytes:
    """The events before the array's closing bracket; what follows it is kept with the head."""
    depth, end = 0, None
    for token in _TOKEN.finditer(rest):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                end = token.start() if mark == b"]" else None
                break
    if end is None:
        raise ParseError(f"{path}: truncated or damaged; the list of events does not end")
    tail = rest[end + 1 :].strip(_SPACE)
    if "bare_list" not in text.head:
        try:
            more = json.loads(b'{"traceEvents": []' + tail)
        except ValueError as error:
            raise ParseError(f"{path}: what follows the events cannot be read ({error})") from error
        text.head.update({k: v for k, v in more.items() if k != "traceEvents"})
    return rest[:end].rstrip(b"," + _SPACE)


def _skip_head(path: Path, source: Iterator[bytes], text: TraceText) -> bytes:
    """Read up to the first event; what stands before is kept as the head."""
    data = b""
    for block in source:
        data += block
        if data.lstrip(_SPACE).startswith(b"["):
            text.head["bare_list"] = True
            return data.lstrip(_SPACE)[1:].lstrip(_SPACE)
        for match in _EVENTS_KEY.finditer(data):
            try:
                head = json.loads(data[: match.end()] + b"]}")
            except ValueError:
                continue
            if isinstance(head, dict):
                text.head.update({k: v for k, v in head.items() if k != "traceEvents"})
                return data[match.end() :].lstrip(_SPACE)
        if len(data) > HEAD_LIMIT:
            break
    if not data.strip(_SPACE):
        raise ParseError(f"{path}: the file is empty")
    raise ParseError(f"{path}: not a torch profiler trace (no list traceEvents at the top)")


def _plain_bytes(path: Path) -> Iterator[bytes]:
    """The file's bytes, unpacked where it is gzip (also several members in a row)."""
    try:
        with path.open("rb") as file:
            first = file.read(2)
            file.seek(0)
            if first != GZIP_MAGIC:
                while block := file.read(4 * READ_BYTES):
                    yield block
                return
            unpacker = zlib.decompressobj(wbits=31)
            while block := file.read(READ_BYTES):
                while block:
                    yield unpacker.decompress(block)
                    block = unpacker.unused_data
                    if block:
                        unpacker = zlib.decompressobj(wbits=31)
            if not unpacker.eof:
                raise ParseError(f"{path}: truncated; the gzip data ends too early")
    except zlib.error as error:
        raise ParseError(f"{path}: not readable as gzip ({error})") from error
    except OSError as error:
        raise ParseError(f"{path}: could not be read ({error.strerror or error})") from error


def _prefetched(source: Iterator[bytes]) -> Iterator[bytes]:
    """Read ahead in a thread: unpacking releases the interpreter and runs beside the decoding."""
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=4)
    stop = threading.Event()

    def fill() -> None:
        try:
            for block in source:
                if stop.is_set():
                    return
                ready.put(block)
            ready.put(None)
        except ParseError as error:
            ready.put(error)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, SWITCH_INTERVAL_S))
    threading.Thread(target=fill, daemon=True).start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        sys.setswitchinterval(usual)
        stop.set()
        while not ready.empty():
            ready.get_nowait()
