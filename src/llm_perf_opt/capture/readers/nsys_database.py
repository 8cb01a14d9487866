"""Opens an nsys export read-only and hands out its columns; every defect in it becomes a ParseError.

Columns are made fit for analysis: broken rows dropped, names coded, GPU work joined to its launch.
"""

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Ints
from llm_perf_opt.capture.kernels.names import MAX_NAME
from llm_perf_opt.capture.readers.sqlite_pages import NotPlain, OutOfOrder, PageReader, Rows
from llm_perf_opt.capture.timeline import Codes, distinct, grouped
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import ParseError
from llm_perf_opt.system.arrays import keep_freed_memory
from llm_perf_opt.system.files import real_path

MAGIC = b"SQLite format 3\x00"
# Above this many ids the whole string table is read instead of asking for each.
MANY_IDS = 20_000
# A century and a half from 1970; the difference of two such times still is a 64-bit number.
LATEST_NS = 2**62
# The first letters of a table or view only their databases have.
_OTHER_TOOLS = {
    "CUPTI_ACTIVITY_KIND_DRIVER": "nvprof, which is not read: capture the program with nsys",
    "StringTable": "nvprof, which is not read: capture the program with nsys",
    "rocpd_op": "rocmProfileData (RPD), which is not read: record with `rocprofv3 --sys-trace`, or with torch.profiler",
    "rocpd_": "rocprofv3 (rocpd), which is not an export of nsys: give it to `llm-perf analyze`",
    "CANN_API": "torch_npu's or msprof's for Ascend, which is not read: give its trace_view.json",
    "NPU_INFO": "torch_npu's or msprof's for Ascend, which is not read: give its trace_view.json",
}
ROWS_AT_ONCE = 20_000
# Less than any id of a row.
ROW_ID_NAMES = ("rowid", "_rowid_", "oid")
BEFORE_ALL = -(2**63) - 1


class NsysDatabase:
    """An open export. Small questions go to sqlite3, large tables of integers are read from the file's pages."""

    def __init__(self, path: Path, connection: sqlite3.Connection, file: FileIO) -> None:
        self.path = path
        self._connection = connection
        # Held until it is closed: no process may write while pages are read.
        self.query("BEGIN")
        rows = self.query("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'")
        self._roots = {str(name): int(root) for name, root in rows}
        self._columns: dict[str, tuple[str, ...]] = {}
        keep_freed_memory()
        try:
            self._pages: PageReader | None = PageReader(file)
        except NotPlain:
            self._pages = None

    def has(self, table: str) -> bool:
        return table in self._roots

    def columns(self, table: str) -> tuple[str, ...]:
        if table not in self._columns:
            self._columns[table] = tuple(str(row[1]) for row in self.query(f"PRAGMA table_info({quoted(table)})"))
        return self._columns[table]

    def require(self, table: str, columns: Sequence[str]) -> None:
        missing = [c for c in columns if c not in self.columns(table)]
        if missing:
            raise ParseError(
                f"{self.path}: table {table} has no column {', '.join(missing)} (it has "
                f"{', '.join(self.columns(table))}); export the report again with the nsys that made it"
            )

    def column_or(self, table: str, column: str, other: str) -> str:
        """The column where the table has it, otherwise the SQL given."""
        return quoted(column) if column in self.columns(table) else other

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """A small question."""
        return [row for part in self.select(sql, values) for row in part]

    def select(self, sql: str, values: Sequence[Any] = ()) -> Iterator[list[tuple[Any, ...]]]:
        """A question with a long answer, some rows at a time."""
        try:
            cursor = self._connection.execute(sql, values)
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield rows
        except (sqlite3.Error, UnicodeDecodeError) as error:  # its message may quote a damaged schema
            raise broken(self.path, str(error)) from error

    def strings(self, ids: Sequence[int]) -> list[str]:
        """The strings behind ids of StringIds; one that is missing is named by its id."""
        found: dict[int, str] = {}
        if self.has("StringIds"):
            sql = f"SELECT id, substr(value, 1, {MAX_NAME}), length(value) FROM StringIds"
            if len(ids) > MANY_IDS:
                rows = self.query(sql)
            else:
                rows = [row for i in ids for row in self.query(sql + " WHERE id = ?", [int(i)])]
            # Of a damaged export a column may hold anything.
            rows = [row for row in rows if isinstance(row[0], int) and row[1] is not None]
            found = {i: str(value) + ("…" if size > MAX_NAME else "") for i, value, size in rows}
        return [found[int(i)] if int(i) in found else f"(no name, string {int(i)})" for i in ids]

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Rows]:
        """Integer columns of all rows in their order, some at a time; NULL is -1 and flagged."""
        done = 0
        try:
            for rows in self._all_rows(table, columns):
                yield rows
                done += len(rows)
        except OutOfOrder as error:
            why = f"table {table} is damaged: only {done + error.before} of its rows are in order"
            raise broken(self.path, why) from error

    def _all_rows(self, table: str, columns: Sequence[str]) -> Iterator[Rows]:
        left_after = yield from self._from_pages(table, columns)
        if left_after is not None:
            yield from self._fetched(table, columns, left_after)

    def _from_pages(self, table: str, columns: Sequence[str]) -> Generator[Rows, None, int | None]:
        """Read the rows the pages plainly hold; return the id after which SQLite continues, None where it need not."""
        after, places = BEFORE_ALL, self._places(table, columns)
        if self._pages is None or places is None:
            return after
        try:
            for rows in self._pages.read(self._roots[table], places):
                yield rows
                after = rows.last_id
        except NotPlain:
            return after
        return None

    def _places(self, table: str, columns: Sequence[str]) -> list[int] | None:
        """The positions of columns within a row, or None where one may be kept elsewhere or as something else."""
        rows = self.query(f"PRAGMA table_xinfo({quoted(table)})")
        plain = {str(name): int(n) for n, name, kind, _, _, key, _ in rows if "INT" in str(kind).upper() and not key}
        if any(hidden for *_, hidden in rows) or not set(columns) <= plain.keys():
            return None
        return [plain[name] for name in columns]

    def _fetched(self, table: str, columns: Sequence[str], after: int) -> Iterator[Rows]:
        """The rows behind an id, from SQLite itself."""
        wanted = ", ".join(quoted(name) for name in columns)
        hidden = {name.lower() for name in self.columns(table)}
        row_id = next((name for name in ROW_ID_NAMES if name not in hidden), None)
        if row_id is None:
            raise broken(self.path, f"table {table} has columns in the place of its row ids")
        # SQLite takes the number before all ids for a fraction, which equals the first of them.
        behind = "" if after == BEFORE_ALL else f" WHERE {row_id} > {after}"
        for rows in self.select(f"SELECT {row_id}, {wanted} FROM {quoted(table)}{behind}"):
            ids, *found = zip(*rows, strict=True)
            for before, (one, other) in enumerate(pairwise((after, *ids))):
                if other <= one:
                    raise OutOfOrder(before)
            after = ids[-1]
            columns_found = [self.integers(table, values) for values in found]
            values, null = zip(*columns_found, strict=True)
            yield Rows(values=values, null=null, last_id=after)

    def integers(self, table: str, values: Sequence[Any]) -> tuple[Ints, Flags | None]:
        """A column of what must be integers, -1 for NULL, and where it is NULL (None: nowhere)."""
        kinds = set(map(type, values))
        if not kinds <= {int, type(None)}:
            raise broken(self.path, f"table {table} holds something else where an integer belongs")
        if type(None) not in kinds:
            return np.array(values, np.int64), None
        null = np.array([value is None for value in values], np.bool_)
        return np.array([-1 if value is None else value for value in values], np.int64), null


@contextmanager
def open_nsys_database(path: Path) -> Iterator[NsysDatabase]:
    """Check that a file is a readable export of nsys and open it."""
    with open_database(path) as database:
        _require_export(path, database)
        yield database


@contextmanager
def open_database(path: Path) -> Iterator[NsysDatabase]:
    """Open a readable SQLite file of any tool."""
    _check_header(path)
    real = real_path(path)
    try:
        connection = sqlite3.connect(f"{real.as_uri()}?mode=ro", uri=True, timeout=2.0)
    except sqlite3.Error as error:
        raise broken(path, str(error)) from error
    # nsys on Windows writes names of zones and paths in the code page of the machine.
    connection.text_factory = as_text
    try:
        with FileIO(real) as file:
            yield NsysDatabase(real, connection, file)
    finally:
        connection.close()


def _require_export(path: Path, database: NsysDatabase) -> None:
    """Refuse the databases of other tools by their names."""
    if any(database.has(table) for table in ("StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA")):
        return
    names = [str(name) for (name,) in database.query("SELECT name FROM sqlite_master")]
    made_by = next((tool for mark, tool in _OTHER_TOOLS.items() if any(n.startswith(mark) for n in names)), None)
    if made_by is not None:
        raise ParseError(f"{path}: a SQLite file of {made_by}")
    raise ParseError(
        f"{path}: a SQLite file, but not an export of nsys (no table StringIds); make one with "
        "`nsys export --type sqlite REPORT.nsys-rep`"
    )


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(100)
            file.seek(0, 2)
            size = file.tell()
    except OSError as error:
        raise ParseError(f"{path}: could not be read ({error.strerror or error})") from error
    if not head:
        raise ParseError(f"{path}: the file is empty; export the report again")
    if not head.startswith(MAGIC):
        raise ParseError(
            f"{path}: not a SQLite file; make one with `nsys export --type sqlite REPORT.nsys-rep` and give that"
        )
    page = int.from_bytes(head[16:18], "big") or 0
    expected = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    if size < expected:
        raise ParseError(f"{path}: truncated ({size} of {expected} bytes); copy or export it again")


def broken(path: Path, why: str) -> ParseError:
    """What sqlite or duckdb said, as an error for the user."""
    if "locked" in why:
        return ParseError(f"{path}: locked by another program ({why}); wait until it has finished writing")
    return ParseError(f"{path}: could not be read ({why}); the file may be damaged, export the report again")


def as_text(data: bytes) -> str:
    """A text of an export; what is not UTF-8 in it becomes a replacement character."""
    return data.decode("utf-8", "replace")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Ids below this are looked up in a plain table.
DENSE_IDS = 1 << 20


@dataclass(kw_only=True)
class LeftOut:
    """How many rows of a table could not be used."""

    missing: int = 0
    backwards: int = 0

    def notes(self, table: str) -> list[str]:
        """What to say about them."""
        why = (("without a start or an end", self.missing), ("with an end before the start", self.backwards))
        return [f"left out: {count_of(count, 'row')} of {table} {words}" for words, count in why if count]


def read_events(
    db: NsysDatabase,
    table: str,
    columns: Mapping[str, str],
    left_out: LeftOut,
    *,
    keep: Callable[[dict[str, Ints], Ints], Flags] | None = None,
) -> Iterator[dict[str, Ints]]:
    """Columns of a table of events, some rows at a time, NULL as -1; columns the table lacks are missing.

    Rows without a start or an end, or ending before they start, are left out and counted. Before that `keep` chooses
    among the rows by their columns, which it may change, and lengths; a length is -1 where it is not known.
    """
    there = {key: name for key, name in columns.items() if name in db.columns(table)}
    for rows in db.rows(table, list(there.values())):
        found = dict(zip(there, rows.values, strict=True))
        missing = _either(*(rows.null[list(there).index(key)] for key in ("start", "end")))
        if keep is not None:
            length = found["end"] - found["start"]
            if missing is not None:
                length[missing] = -1
            kept = keep(found, length)
            if not bool(kept.all()):
                index = np.flatnonzero(kept)
                found = {key: column[index] for key, column in found.items()}
                missing = None if missing is None else missing[kept]
        bad = found["end"] < found["start"]
        if missing is not None:
            left_out.missing += int(missing.sum())
            left_out.backwards += int((bad & ~missing).sum())
            bad |= missing
        else:
            left_out.backwards += int(bad.sum())
        if bool(bad.any()):
            found = {key: column[~bad] for key, column in found.items()}
        check_times(db, table, found["start"], found["end"])
        yield found


def check_times(db: NsysDatabase, table: str, start: Ints, end: Ints) -> None:
    """Refuse times whose differences a 64-bit number may not hold."""
    if len(start) and max(-int(start.min()), int(end.max())) > LATEST_NS:
        raise broken(db.path, f"table {table} holds times that no clock can have")


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    if one is None or other is None:
        return one if other is None else other
    return one | other


def joined(parts: Sequence[dict[str, Ints]]) -> dict[str, Ints]:
    """Columns read in parts, which are given up as they are joined; none where there are no parts."""
    return {key: np.concatenate([part.pop(key) for part in parts]) for key in tuple(parts[0])} if parts else {}


def narrow(numbers: Ints) -> Ints:
    """The numbers in 32 bits where all of them fit."""
    limit = 2**31
    fits = not len(numbers) or (int(numbers.min()) >= -limit and int(numbers.max()) < limit)
    return numbers.astype(np.int32) if fits else numbers


def one_for_all(column: Ints) -> Ints:
    """A column, read-only and of one number in memory where all of its numbers are that one."""
    alike = len(column) > 1 and bool((column == column[0]).all())
    return np.broadcast_to(column[:1].copy(), column.shape) if alike else column


class Ids:
    """Codes for the ids of a long column, in the order they are met."""

    def __init__(self) -> None:
        self._codes: Codes[int] = Codes()
        self._dense = np.full(0, -1, np.int32)

    def __iter__(self) -> Iterator[int]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def codes(self, ids: Ints) -> Ints:
        if not len(ids):
            return np.zeros(0, np.int32)
        low, high = int(ids.min()), int(ids.max())
        if low == high:
            return np.full(len(ids), self._codes[low], np.int32)
        if low < 0 or high >= DENSE_IDS:
            unique, inverse = grouped(ids)
            return np.array([self._codes[i] for i in unique.tolist()], np.int32)[inverse]
        if high >= len(self._dense):
            more = np.full(high + 1 - len(self._dense), -1, np.int32)
            self._dense = np.concatenate((self._dense, more))
        found = self._dense[ids]
        if int(found.min()) < 0:
            for new in distinct(ids[found < 0]).tolist():
                self._dense[new] = self._codes[new]
            found = self._dense[ids]
        return found

    def in_order(self, codes: Ints) -> tuple[Ints, Ints]:
        """The ids that codes stand for, in order, and for each code the index of its id."""
        used = distinct(codes)
        ids = np.array(list(self._codes), np.int64)[used] if len(used) else np.zeros(0, np.int64)
        order = np.argsort(ids)
        place = np.zeros(len(self._codes), np.int32)
        place[used[order]] = np.arange(len(used), dtype=np.int32)
        return ids[order], place[codes] if len(codes) else np.zeros(0, np.int32)


def encode(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values in order, and for each row the index of its value."""
    if len(values) and bool((values == values[0]).all()):
        return values[:1].copy(), np.zeros(len(values), np.int32)
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low < 4 * len(values) + 1024:
        seen = np.zeros(high - low + 1, np.bool_)
        seen[values - low] = True
        unique = np.flatnonzero(seen) + low
        place = np.cumsum(seen, dtype=np.int32) - 1
        return unique, place[values - low]
    found, inverse = grouped(values)
    return found, inverse.astype(np.int32)


class Processes:
    """Process ids under one set of codes."""

    def __init__(self) -> None:
        self._codes: Codes[int] = Codes()

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids in the order of their codes."""
        return tuple(self._codes)

    def codes(self, unique: Ints, inverse: Ints) -> Ints:
        table = np.array([self._codes[int(i)] for i in unique], np.int32)
        return table[inverse] if len(unique) else np.zeros(0, np.int32)


# As CUPTI counts them and nsys calls them.
_COPY_KINDS = {
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
}
# Pages of unified memory, which the driver moves by itself: no call launches these.
MIGRATIONS = {11: "Host-to-Device", 12: "Device-to-Host", 13: "Device-to-Device"}
# Of copies to and from the host the kind of its memory counts: pinned memory is copied several times as fast.
_HOST_MEMORY = 64
_HOST_KINDS = ("Pageable", "Pinned")
_TO_DEVICE, _TO_HOST = 1, 2


def copy_kinds(columns: Mapping[str, Ints]) -> Ints:
    """The kinds of copies with the memory on the host's side where that is recorded, for `Names.copies`."""
    kind = columns["name"]
    if not {"source", "target"} <= columns.keys():
        return kind
    memory = np.where(kind == _TO_DEVICE, columns["source"], np.where(kind == _TO_HOST, columns["target"], -1))
    return np.where(kind >= 0, kind + _HOST_MEMORY * (1 + memory), -1)


def migrated(kinds: Ints) -> Flags:
    """Which kinds, as `copy_kinds` makes them, are page migrations."""
    found: Flags = np.isin(kinds % _HOST_MEMORY, list(MIGRATIONS)) & (kinds >= 0)
    return found


class Names:
    """The names of kernels, copies and ranges under one set of codes; kernels come first."""

    def __init__(self, db: NsysDatabase) -> None:
        self._db = db
        self._codes: Codes[str] = Codes()

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._codes)

    def strings(self, unique: Ints, inverse: Ints) -> Ints:
        """Codes of rows whose names are StringIds ids: each row's index among the ids in use."""
        return self._add(self._db.strings(unique.tolist()), inverse)

    def copies(self, unique: Ints, inverse: Ints) -> Ints:
        """Codes of copies by kind; early exports lack the table of these. The kinds are as `copy_kinds` makes them."""
        known = _COPY_KINDS | self._enumeration("ENUM_CUDA_MEMCPY_OPER")
        memory = self._enumeration("ENUM_CUDA_MEM_KIND")

        def label(number: int) -> str:
            kind, place = number % _HOST_MEMORY, number // _HOST_MEMORY - 1
            if kind in MIGRATIONS:
                return f"Page migration {MIGRATIONS[kind]}"
            text = f"Copy {known[kind]}" if kind in known else f"Copy of kind {kind}"
            return f"{text} ({memory[place]})" if memory.get(place) in _HOST_KINDS else text

        return self._add([label(i) if i >= 0 else f"Copy of kind {i}" for i in unique.tolist()], inverse)

    def _enumeration(self, table: str) -> dict[int, str]:
        if not self._db.has(table) or not {"id", "label"} <= set(self._db.columns(table)):
            return {}
        rows = self._db.query(f'SELECT id, label FROM "{table}"')
        return {number: str(label) for number, label in rows if isinstance(number, int)}

    def literal(self, inverse: Ints, name: str) -> Ints:
        return self._add([name], np.zeros(len(inverse), np.int32)) if len(inverse) else inverse

    def graphs(self, unique: Ints, inverse: Ints) -> Ints:
        return self._add([f"CUDA graph {i}" for i in unique.tolist()], inverse)

    def texts(self, texts: Sequence[str | None], ids: Ints) -> Ints:
        """Codes of ranges: their own text, or a registered string."""
        unique, inverse = encode(ids)
        registered = self._db.strings(unique.tolist()) if None in texts else ["" for _ in unique]
        codes = self._codes
        named = (registered[place] if text is None else text for text, place in zip(texts, inverse, strict=True))
        return np.fromiter((codes[name] for name in named), np.int64, len(ids))

    def _add(self, values: Sequence[str], inverse: Ints) -> Ints:
        codes = np.array([self._codes[v] for v in values], np.int32)
        return codes[inverse] if len(values) else np.zeros(0, np.int32)
