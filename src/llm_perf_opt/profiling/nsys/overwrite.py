"""Finds and overwrites many values in a large binary file, in one pass over it however many there are.

An environment of another machine can hold a thousand values of some thousand characters, and a report some hundred
megabytes. A search for one value after the other took minutes there; here the first eight bytes of each are compared
at every place of the file.
"""

import mmap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# nsys cannot read a report whose own first bytes changed; a part of a value may be a word in them.
HEADER_BYTES = 256
PIECE_BYTES = 8
# Places looked at together.
_AT_ONCE = 1 << 24
# A table of one byte for each remainder keeps the exact search to a few places.
_TABLE_BITS = 20
_MIX = np.uint64(0x9E3779B97F4A7C15)


def overwrite_values(file: Path, values: Iterable[str]) -> None:
    """Overwrite these values wherever they are plain bytes; of one that does not occur whole, parts of eight bytes."""
    whole = sorted({_bytes(value) for value in values if value}, key=len, reverse=True)
    if not whole or not file.stat().st_size:
        return
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as data:
        found = set()
        for at, value in sorted(_places(data, whole), key=lambda place: -len(place[1])):
            # A longer value that was overwritten may have held it.
            found.add(value)
            data[at : at + len(value)] = b"x" * len(value)
        missing = [value for value in whole if value not in found]
        pieces = {value[at : at + PIECE_BYTES] for value in missing for at in range(len(value) - PIECE_BYTES + 1)}
        for at, piece in list(_places(data, pieces)):
            data[at : at + len(piece)] = b"x" * len(piece)
        data.flush()


def holds_any(file: Path, values: Iterable[str]) -> bool:
    """Whether any of the values is in a file in plain bytes."""
    if not file.stat().st_size:
        return False
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return next(_places(data, {_bytes(value) for value in values if value}, first=0), None) is not None


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _places(data: mmap.mmap, values: Collection[bytes], *, first: int = HEADER_BYTES) -> Iterator[tuple[int, bytes]]:
    """Where each value begins, behind the first bytes of the file."""
    for short in (value for value in values if len(value) < PIECE_BYTES):
        at = data.find(short, first)
        while at >= 0:
            yield at, short
            at = data.find(short, at + len(short))
    by_start: dict[int, list[bytes]] = defaultdict(list)
    for value in values:
        if len(value) >= PIECE_BYTES:
            by_start[int.from_bytes(value[:PIECE_BYTES], "little")].append(value)
    if not by_start:
        return
    starts = np.sort(np.fromiter(by_start, dtype=np.uint64, count=len(by_start)))
    table = np.zeros(1 << _TABLE_BITS, dtype=np.bool_)
    table[_remainders(starts)] = True
    for begin in range(first, len(data), _AT_ONCE):
        block = data[begin : begin + _AT_ONCE + PIECE_BYTES - 1]
        for at in _starts_in(block, starts, table):
            place = begin + int(at)
            key = int.from_bytes(block[at : at + PIECE_BYTES], "little")
            yield from ((place, value) for value in by_start[key] if data[place : place + len(value)] == value)


def _starts_in(block: bytes, starts: NDArray[np.uint64], table: NDArray[np.bool_]) -> list[int]:
    """The places of a block at which eight bytes are one of `starts`."""
    found: list[int] = []
    for shift in range(PIECE_BYTES):
        count = (len(block) - shift) // PIECE_BYTES
        if count <= 0:
            break
        words = np.frombuffer(block, dtype="<u8", count=count, offset=shift)
        maybe = np.flatnonzero(table[_remainders(words)])
        found += (maybe[np.isin(words[maybe], starts)] * PIECE_BYTES + shift).tolist()
    return sorted(found)


def _remainders(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    return ((words * _MIX) >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)
