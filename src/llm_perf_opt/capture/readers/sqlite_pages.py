"""The integers of a SQLite table, read from its pages: several times faster than fetching row after row.

A table's rows lie on leaf pages: a list of places, and at each the row's id, the types of its columns and their values
(https://www.sqlite.org/fileformat2.html). Rows of one table mostly have the same types, so of some hundred pages all
rows of the same types are read at once. What is not plain (an odd page, text or a fraction where an integer is wanted,
rows of many types) raises `NotPlain`, and whoever asked has SQLite itself read on from there.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from io import RawIOBase
from itertools import pairwise
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_perf_opt.capture.intervals import Flags, Ints
from llm_perf_opt.system.arrays import usable_cores

# Larger blocks leave the caches, smaller ones have two threads wait for the interpreter more than they read.
BLOCK_BYTES = 4 << 20
# More kinds of rows than this in one block are not table of events.
MOST_KINDS = 512
LEAF, INTERIOR = 13, 5
LEAF_HEADER, INTERIOR_HEADER = 8, 12
# The first page holds the list of tables.
FIRST_PAGE = 2
WORD = 8
MORE = 0x80
NULL, FRACTION, ZERO, ONE = 0, 7, 8, 9
# Bytes of a value by its type: none, integers of 1 to 8 bytes, a fraction, and the integers 0 and 1.
SIZES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, FRACTION: 8, ZERO: 0, ONE: 0}
FIRST_TEXT = 12
# Of a cell: sizes and ids of up to nine bytes, and a header of less than 128.
CELL_HEAD_BYTES = 160

# Two threads share a table of more than this many blocks: their work is in numpy, which releases the GIL.
MANY_BLOCKS = 4
WORKERS = 2
# Not on every system. Without it threads would share one place in the file.
HAS_PREADV = hasattr(os, "preadv")

Bytes = npt.NDArray[np.uint8]
Block = tuple[list[Ints], list[Flags | None], Ints]


class NotPlain(Exception):
    """These rows are not laid out as those of events are."""


class OutOfOrder(Exception):
    """A row's id is not larger than that of the row before it; `before` of those read together are."""

    def __init__(self, before: int) -> None:
        super().__init__(before)
        self.before = before


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Some rows of a table in order: the columns asked for, and where each is NULL (None: nowhere).

    `last_id` is that of the last row.
    """

    values: tuple[Ints, ...]
    null: tuple[Flags | None, ...]
    last_id: int

    def __len__(self) -> int:
        return len(self.values[0])


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a value lies: it ends `end` bytes behind the start of its cell. Without bytes it is `constant`, or NULL."""

    end: int
    size: int
    constant: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Rows of the same types: each of `marks` (offset, mask, bits) holds for their cells, `places` are their values.

    Their ids have `id_bytes` bytes and end at `id_end`, the values up to the last one asked for at `values_end`.
    """

    marks: tuple[tuple[int, int, int], ...]
    places: tuple[_Place, ...]
    id_end: int
    id_bytes: int
    values_end: int
    end: int


class PageReader:
    """Reads tables of a database file that no process writes to meanwhile."""

    def __init__(self, file: RawIOBase) -> None:
        """Raises NotPlain where changes may lie in a file alongside it."""
        file.seek(0)
        head = file.read(100) or b""
        if head[18:20] != b"\1\1":
            raise NotPlain("a write-ahead log")
        self._file = file
        self._page = 65536 if head[16:18] == b"\0\1" else int.from_bytes(head[16:18], "big")
        self._usable = self._page - head[20]
        self._pages = file.seek(0, 2) // self._page
        self._at_once = max(BLOCK_BYTES // self._page, 1)
        # Room before and behind the pages: words are read that end in their first bytes, or begin in their last.
        self._block = np.zeros(WORD + self._at_once * self._page + CELL_HEAD_BYTES, np.uint8)

    def read(self, root: int, columns: Sequence[int]) -> Iterator[Rows]:
        """All rows of a table, by the page its tree begins with and the numbers of the columns.

        Raises OutOfOrder where ids do not ascend, and NotPlain where the rest has to be read otherwise.
        """
        last = None
        for values, null, ids in self._blocks(self._leaves(root), columns):
            if not len(ids):
                continue
            ascends = ids[1:] > ids[:-1]
            if last is not None and ids[0] <= last:
                raise OutOfOrder(0)
            if not bool(ascends.all()):
                raise OutOfOrder(int(np.argmin(ascends)) + 1)
            last = ids[-1]
            yield Rows(values=tuple(values), null=tuple(null), last_id=_id_of(int(last)))

    def _blocks(self, leaves: Ints, columns: Sequence[int]) -> Iterator[Block]:
        """What `_rows` gives for one block of leaves after the other, read by two cores where there are many."""
        parts = [leaves[first : first + self._at_once] for first in range(0, len(leaves), self._at_once)]
        if len(parts) < MANY_BLOCKS or usable_cores() < WORKERS or not HAS_PREADV:
            yield from (self._block_of(part, columns) for part in parts)
            return
        # They take turns, and each is at most two blocks ahead.
        ready: list[Queue[Block | Exception]] = [Queue(maxsize=2) for _ in range(WORKERS)]
        is_over = Event()

        def read(number: int, reader: PageReader) -> None:
            for part in parts[number::WORKERS]:
                found: Block | Exception = NotPlain("a reader that ended early")
                try:
                    found = reader._block_of(part, columns)
                except (NotPlain, OSError, MemoryError) as error:
                    # Raised where the block is requested.
                    found = error
                finally:
                    ready[number].put(found)
                if is_over.is_set() or isinstance(found, Exception):
                    return

        readers = [PageReader(self._file) for _ in range(WORKERS)]
        threads = [Thread(target=read, args=pair, daemon=True) for pair in enumerate(readers)]
        for thread in threads:
            thread.start()
        try:
            for number in range(len(parts)):
                block = ready[number % WORKERS].get()
                if isinstance(block, Exception):
                    raise block
                yield block
        finally:
            is_over.set()
            for queue, thread in zip(ready, threads, strict=True):
                # One that waits for room gets it.
                with suppress(Empty):
                    queue.get_nowait()
                thread.join()

    def _block_of(self, pages: Ints, columns: Sequence[int]) -> Block:
        cells = self._load(pages, LEAF)
        return self._rows(cells, columns) if len(cells) else ([], [], cells)

    def _leaves(self, root: int) -> Ints:
        """The leaf pages of a table in order; all are equally far from its root."""
        level = np.array([root], np.int64)
        for _ in range(self._pages):
            if self._pages_at(level[:1])[0, 0] == LEAF:
                return level
            level = np.concatenate([self._children(level[i : i + 1]) for i in range(len(level))])
            if len(level) > self._pages:
                break
        raise NotPlain("pages in a circle")

    def _children(self, page: Ints) -> Ints:
        cells = self._load(page, INTERIOR)
        last = int.from_bytes(self._block[WORD + 8 : WORD + 12].tobytes(), "big")
        return np.append((self._words(4, cells) & 0xFFFFFFFF).astype(np.int64), last)

    def _load(self, pages: Ints, kind: int) -> Ints:
        """Put pages into the block, one after the other; where their cells lie, in order."""
        data = self._pages_at(pages)
        if not bool((data[:, 0] == kind).all()):
            raise NotPlain("a page of another kind")
        header = LEAF_HEADER if kind == LEAF else INTERIOR_HEADER
        count = (data[:, 3].astype(np.int64) << 8) | data[:, 4]
        if header + 2 * int(count.max()) > self._usable:
            raise NotPlain("more cells than fit a page")
        base = np.arange(0, len(pages) * self._page, self._page)
        listed = np.arange(int(count.sum()))
        listed += np.repeat((base + header) // 2 - (np.cumsum(count) - count), count)
        cells = data.reshape(-1).view(">u2")[listed].astype(np.int64)
        if len(cells) and (int(cells.min()) < header or int(cells.max()) >= self._usable):
            raise NotPlain("a cell outside of its page")
        cells += np.repeat(base, count)
        return cells

    def _pages_at(self, pages: Ints) -> Bytes:
        if int(pages.min()) < FIRST_PAGE or int(pages.max()) > self._pages:
            raise NotPlain("a page outside of the file")
        block = self._block.data[WORD:]
        # Consecutive pages are read together.
        for start, stop in pairwise([0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(pages)]):
            part = block[start * self._page : stop * self._page]
            if self._read_at((int(pages[start]) - 1) * self._page, part) != len(part):
                raise NotPlain("a file that ends early")
        return self._block[WORD : WORD + len(pages) * self._page].reshape(-1, self._page)

    def _read_at(self, place: int, part: memoryview) -> int | None:
        if HAS_PREADV:
            return os.preadv(self._file.fileno(), [part], place)
        self._file.seek(place)
        return self._file.readinto(part)

    def _rows(self, cells: Ints, columns: Sequence[int]) -> Block:
        """Values, where they are NULL, and the ids as they are written: in bytes of seven bits, in the same order."""
        values: list[Ints] = [np.empty(len(cells), np.int64) for _ in columns]
        null: list[Flags | None] = [None for _ in columns]
        ids = np.empty(len(cells), np.uint64)
        left: Any = slice(None)
        for _ in range(MOST_KINDS):
            kind = self._kind(int(cells[0]), columns)
            fits, first = self._fit(kind, cells)
            every = bool(fits.all())
            here, rows = (cells, left) if every else (cells[fits], _among(left, fits))
            if int((here & (self._page - 1)).max()) + kind.end > self._usable:
                raise NotPlain("a row that does not end on its page")
            ids[rows] = _ids(kind, first if every else first[fits])
            for i, found in self._integers(kind.places, here):
                values[i][rows] = found
                place = kind.places[i]
                if not place.size and place.constant is None:
                    null[i] = _flagged(null[i], rows, len(ids))
            if every:
                return values, null, ids
            cells, left = cells[~fits], _among(left, ~fits)
        raise NotPlain("rows of many types")

    def _fit(self, kind: _Kind, cells: Ints) -> tuple[Flags, Ints]:
        """Which cells are of a kind, and the first word of all."""
        first = self._raw_words(WORD, cells)
        fits = np.ones(len(cells), np.bool_)
        for offset, mask, bits in kind.marks:
            word = self._raw_words(offset + WORD, cells) if offset else first
            fits &= (word & np.uint64(mask)) == np.uint64(bits)
        return fits, first

    def _integers(self, places: Sequence[_Place], cells: Ints) -> Iterator[tuple[int, Any]]:
        """The values at each place of cells, by its index; -1 for NULL. Places near each other are in one word."""
        end, word = 0, cells
        for i in sorted(range(len(places)), key=lambda i: -places[i].end):
            place = places[i]
            if not place.size:
                yield i, -1 if place.constant is None else place.constant
                continue
            if end < place.end or end - place.end + place.size > WORD:
                end, word = place.end, self._words(place.end, cells).view(np.int64)
            unused = 8 * (WORD - place.size)
            behind = 8 * (end - place.end)
            found = word << (unused - behind) if unused > behind else word
            yield i, found >> unused if unused else found

    def _words(self, end: int, cells: Ints) -> Ints:
        """The eight bytes that end so far behind the start of each cell, as one number."""
        return _as_number(self._raw_words(end, cells))

    def _raw_words(self, end: int, cells: Ints) -> Ints:
        size = len(self._block) - end - WORD
        at_every_byte: Ints = np.ndarray((size,), np.uint64, self._block.data, end, (1,))
        return at_every_byte[cells]

    def _kind(self, cell: int, columns: Sequence[int]) -> _Kind:
        """The kind of the row in a cell: what it begins with, up to the types of the columns asked for."""
        data = self._block[WORD + cell : WORD + cell + CELL_HEAD_BYTES].tobytes()
        size_bytes = _number_bytes(data, 0)
        id_bytes = _number_bytes(data, size_bytes)
        at = size_bytes + id_bytes
        kind = _kind_of(size_bytes, id_bytes, data[at : at + 2 + max(columns)], tuple(columns))
        if size_bytes > 1 and kind.values_end - at > (self._usable - 12) * 32 // 255 - 23:
            raise NotPlain("a row that continues elsewhere")
        return kind


@lru_cache(maxsize=1 << 12)
def _kind_of(size_bytes: int, id_bytes: int, head: bytes, columns: tuple[int, ...]) -> _Kind:
    """The kind of rows by the lengths of their sizes and ids and by their headers: the same few block after block."""
    at, header, types, last = size_bytes + id_bytes, head[0], head[1:], max(columns)
    if at > WORD or header >= MORE or header < last + 2 or max(types) >= MORE:
        raise NotPlain("a header of another form")
    end, places = at + header, {}
    for column, of_type in enumerate(types):
        size = (of_type - FIRST_TEXT) // 2 if of_type >= FIRST_TEXT else SIZES.get(of_type, -1)
        if size < 0 or (column in columns and of_type in (FRACTION, *range(FIRST_TEXT, MORE))):
            raise NotPlain("a value that is not an integer")
        end += size
        constant = {ZERO: 0, ONE: 1}.get(of_type)
        places[column] = _Place(end=end, size=size, constant=constant)
    # Of sizes and ids only their length is the same in all rows, and that is in the first bit of each byte.
    lengths = [MORE if more else 0 for size in (size_bytes, id_bytes) for more in range(size - 1, -1, -1)]
    alike = [(MORE, bit) for bit in lengths] + [(0xFF, byte) for byte in head]
    alike += [(0, 0)] * (-len(alike) % WORD)
    marks = []
    for offset in range(0, len(alike), WORD):
        mask, bits = (bytes(part) for part in zip(*alike[offset : offset + WORD], strict=True))
        marks.append((offset, int.from_bytes(mask, sys.byteorder), int.from_bytes(bits, sys.byteorder)))
    return _Kind(
        marks=tuple(marks),
        places=tuple(places[column] for column in columns),
        id_end=at,
        id_bytes=id_bytes,
        values_end=end,
        end=max(end, len(alike)),
    )


def _as_number(words: Ints) -> Ints:
    """Bytes in memory as the number they are in the file, in place."""
    return words.byteswap(inplace=True) if sys.byteorder == "little" else words


def _ids(kind: _Kind, first: Ints) -> Ints:
    """The ids, as they are written, in the first words of cells of a kind."""
    return (_as_number(first) >> np.uint64(8 * (WORD - kind.id_end))) & np.uint64((1 << 8 * kind.id_bytes) - 1)


def _flagged(flags: Flags | None, rows: Any, count: int) -> Flags:
    found = np.zeros(count, np.bool_) if flags is None else flags
    found[rows] = True
    return found


def _among(chosen: Any, flags: Flags) -> Ints:
    """The flagged ones of some rows: of all, or of those listed."""
    found = np.flatnonzero(flags)
    return found if isinstance(chosen, slice) else chosen[found]


def _number_bytes(data: bytes, at: int) -> int:
    """How many bytes a number of variable length has: each but the last has its first bit set."""
    for size in range(1, 9):
        if data[at + size - 1] < MORE:
            return size
    return 9


def _id_of(written: int) -> int:
    """The row id of its written form."""
    found, shift = 0, 0
    while written:
        found |= (written & 0x7F) << shift
        written, shift = written >> 8, shift + 7
    return found
