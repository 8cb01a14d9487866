"""Cuts a torch profiler trace (.json or .json.gz) into pieces of whole events without holding the file in memory.

A piece is cut where the text looks like the border of two events. Whether it is one is decided when the piece is
decoded: a list of values that parses can only have been cut between values. If a piece does not parse, the caller asks
for `careful` cuts, which follow every bracket and string.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from gzip import GzipFile
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from isal import igzip, isal_zlib

from llm_perf_opt.errors import ParseError
from llm_perf_opt.system.files import open_regular, too_much, unpacked_limit_bytes

T = TypeVar("T")

HEAD_BYTES = 1 << 16
CHUNK_BYTES = 1 << 20
HEAD_LIMIT = 64 << 20
# Without a border in so much, one event would have to be held in memory several times.
EVENT_LIMIT = 128 << 20
# A head holds the key once; a few more would be odd, thousands are not trace.
HEAD_TRIES = 8
# The key with room for spaces, where a block ends inside it.
KEY_BYTES = 256
GZIP_MAGIC = b"\x1f\x8b"
_LIKELY_BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat)"\s*:)')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Possessive: for a string that does not end, every step back would be kept, two hundred bytes a letter.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]]', re.DOTALL)
_SPACE = b" \t\r\n"
_CLOSE = ord("]")
# The library has no types for the one and calls the other an instance.
open_gzip = cast(Callable[[Path, str], GzipFile], igzip.open)
_BAD_DATA = cast(type[Exception], isal_zlib.error)


@dataclass
class TraceText:
    """The file's text around the events, filled while the pieces are read."""

    head: dict[str, Any] = field(default_factory=dict)


def read_with_cuts(path: Path, read: Callable[[bool], T]) -> T:
    """What `read(careful)` makes of the file: with likely cuts, or with careful ones where a piece did not parse."""
    try:
        try:
            return read(False)
        except msgspec.DecodeError:
            return read(True)
    except RecursionError as error:
        raise ParseError(f"{path}: not a readable torch profiler trace (nested too deeply)") from error
    except (msgspec.DecodeError, OverflowError, UnicodeDecodeError) as error:
        raise ParseError(f"{path}: not a readable torch profiler trace ({error})") from error


def read_chunks(path: Path, text: TraceText, *, careful: bool = False) -> Iterator[memoryview]:
    """Pieces in order, each a JSON list of whole events; a piece is overwritten when the next is requested."""
    cut = _careful_cut if careful else _likely_cut
    with _opened(path) as file:
        rest = _skip_head(path, file, text)
        buffer = bytearray(max(CHUNK_BYTES, 2 * len(rest)))
        while True:
            size = 1 + len(rest)
            buffer[:size] = b"[" + rest
            size += file.readinto(memoryview(buffer)[size:])
            if size < len(buffer):
                break
            at = cut(buffer)
            if at is None and size > EVENT_LIMIT:
                if not careful:
                    raise msgspec.DecodeError("no border of two events was found")
                raise ParseError(f"{path}: holds an event of more than {EVENT_LIMIT >> 20} MiB, which no trace has")
            if at is None:
                rest = bytes(memoryview(buffer)[1:])
                buffer = bytearray(2 * size)
                continue
            rest = bytes(memoryview(buffer)[at:]).lstrip(b"," + _SPACE)
            # Closed in place: a copy of every piece would cost as much as unpacking it.
            buffer[at] = _CLOSE
            yield memoryview(buffer)[: at + 1]
        yield memoryview(_last_piece(path, bytes(memoryview(buffer)[:size]), text))


def _likely_cut(data: bytearray) -> int | None:
    """Just behind the last thing that looks like the end of an event."""
    window = 1 << 12
    while True:
        start = max(0, len(data) - window)
        borders = [match.start() for match in _LIKELY_BORDER.finditer(data, start)]
        if borders:
            return borders[-1] + 1
        if start == 0:
            return None
        window *= 16


def _careful_cut(data: bytearray) -> int | None:
    """Just behind the last event that is complete, following every bracket and string."""
    depth, last = 0, None
    for token in _TOKEN.finditer(data, 0, len(data) - 1):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 1:
                last = token.end()
            elif depth < 1:
                break
    return last


def _last_piece(path: Path, data: bytes, text: TraceText) -> bytes:
    """The events before the list's closing bracket; what follows it is kept with the head."""
    depth, end = 0, None
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth < 1:
                end = token.start() if mark == b"]" else None
                break
    if end is None:
        raise ParseError(f"{path}: truncated or damaged; the list of events does not end")
    tail = data[end + 1 :].strip(_SPACE)
    if "bare_list" not in text.head:
        try:
            more = json.loads(b'{"traceEvents": []' + tail)
        except ValueError as error:
            raise ParseError(f"{path}: what follows the events cannot be read ({error})") from error
        text.head.update({k: v for k, v in more.items() if k != "traceEvents"})
    return data[:end].rstrip(b"," + _SPACE) + b"]"


def _skip_head(path: Path, file: BufferedIOBase, text: TraceText) -> bytes:
    """Read up to the first event; what is before is kept as the head. Every byte is searched once."""
    data = bytearray()
    tries = tried = 0
    while len(data) <= HEAD_LIMIT and tries < HEAD_TRIES and (block := file.read(HEAD_BYTES)):
        data += block if data else block.lstrip(_SPACE)
        if data.startswith(b"["):
            text.head["bare_list"] = True
            return bytes(data[1:]).lstrip(_SPACE)
        tried = max(tried, len(data) - len(block) - KEY_BYTES)
        for match in islice(_EVENTS_KEY.finditer(data, tried), HEAD_TRIES - tries):
            tries, tried = tries + 1, match.end()
            try:
                head = json.loads(bytes(data[: match.end()]) + b"]}")
            except ValueError:
                # Not at the top: the key is inside something that is still open.
                continue
            if isinstance(head, dict):
                text.head.update({k: v for k, v in head.items() if k != "traceEvents"})
                return bytes(data[match.end() :]).lstrip(_SPACE)
    if not data:
        raise ParseError(f"{path}: the file is empty")
    raise ParseError(f"{path}: not a torch profiler trace (no list traceEvents at the top{_keys_of(bytes(data))})")


def _keys_of(data: bytes) -> str:
    """The keys at the top of an object, to name a file by; nothing where it is not a whole one."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    return f"; its keys are {', '.join(map(repr, list(found)[:8]))}" if isinstance(found, dict) and found else ""


def is_packed(path: Path) -> bool:
    """Whether the file is gzip."""
    try:
        with open_regular(path) as file:
            return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    except OSError as error:
        raise _unreadable(path, error) from error


class _Bounded(BufferedIOBase):
    """Unpacked bytes, as many as a file of this size may hold."""

    def __init__(self, file: GzipFile, path: Path) -> None:
        self._file, self._path = file, path
        self._left = self._limit = unpacked_limit_bytes(path.stat().st_size)

    def read(self, size: int | None = -1, /) -> bytes:
        return self._counted(self._file.read(-1 if size is None else size))

    def readinto(self, buffer: Any, /) -> int:
        number = self._file.readinto(buffer)
        self._take(number)
        return number

    def _counted(self, data: bytes) -> bytes:
        self._take(len(data))
        return data

    def _take(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise too_much(self._path, self._limit)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    """The file's bytes, unpacked where it is gzip (also several consecutive members)."""
    try:
        if not is_packed(path):
            with open_regular(path) as plain:
                yield plain
            return
        with open_gzip(path, "rb") as file:
            yield _Bounded(file, path)
    except EOFError as error:
        raise ParseError(f"{path}: truncated; the gzip data ends too early") from error
    except (igzip.BadGzipFile, _BAD_DATA) as error:
        raise ParseError(f"{path}: not readable as gzip ({error})") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ParseError:
    return ParseError(f"{path}: could not be read ({error.strerror or error})")
