"""Tables of a SQLite file read from its pages against SQLite itself: the same rows, or an error in words.

Made up: schemas, values, sizes of pages, reserved bytes, encodings, rows of several pages, deleted rows, tables without
row ids and with columns that hide them; and damage anywhere.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.capture.readers.nsys_database import open_nsys_database
from llm_perf_opt.errors import ParseError
from tests.fuzz.made_up import SLOW, cases

KINDS = ("INTEGER", "INT", "BIGINT", "TEXT", "REAL", "BLOB", "INTEGER DEFAULT 7", "")
NAMES = ("a", "b", "start", "rowid", "_rowid_", "oid", "x y")
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300) | st.sampled_from([0, 1, -1, 2**47, -(2**47) - 1])
VALUES = {
    "TEXT": st.text(max_size=20) | st.integers(0, 9000).map(lambda n: "x" * n),
    "REAL": st.floats(allow_nan=False),
    "BLOB": st.binary(max_size=40),
}


@dataclass(frozen=True, kw_only=True)
class Made:
    """A table and what was done to it."""

    page: int
    encoding: str
    columns: tuple[tuple[str, str], ...]
    is_keyed: bool
    has_row_ids: bool
    rows: tuple[tuple[object, ...], ...]
    first: int
    deleted: int
    added: bool

    def write(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA page_size = {self.page}")
            connection.execute(f"PRAGMA encoding = '{self.encoding}'")
            connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            key = "k INTEGER PRIMARY KEY, " if self.is_keyed else ""
            columns = key + ", ".join(f'"{name}" {kind}' for name, kind in self.columns)
            connection.execute(f"CREATE TABLE t ({columns}){'' if self.has_row_ids else ' WITHOUT ROWID'}")
            listed = ", ".join(f'"{name}"' for name, _ in self.columns)
            marks = ", ".join("?" * len(self.columns))
            for number, row in enumerate(self.rows):
                keyed = (f"INSERT INTO t (k, {listed}) VALUES ({self.first + number * number}, {marks})", row)
                connection.execute(*(keyed if self.is_keyed else (f"INSERT INTO t VALUES ({marks})", row)))
            if self.deleted and self.is_keyed:
                connection.execute(f"DELETE FROM t WHERE k % {self.deleted + 1} = 0")
            if self.added:
                connection.execute("ALTER TABLE t ADD COLUMN later INTEGER DEFAULT 5")
            connection.commit()


@st.composite
def tables(draw: st.DrawFn) -> Made:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    columns = tuple((name, draw(st.sampled_from(KINDS))) for name in names)
    # Mostly what belongs in a column; an integer column holds anything, too.
    drawn = [VALUES.get(kind, INTEGERS) | st.none() for _, kind in columns]
    if draw(st.integers(0, 5)) == 0:
        drawn = [values | st.floats(allow_nan=False) | st.text(max_size=90) for values in drawn]
    is_keyed = draw(st.booleans())
    rows = draw(st.lists(st.tuples(*drawn), max_size=12))
    return Made(
        page=draw(st.sampled_from([512, 1024, 4096, 65536])),
        encoding=draw(st.sampled_from(["UTF-8", "UTF-16le", "UTF-16be"])),
        columns=columns,
        is_keyed=is_keyed,
        has_row_ids=not is_keyed or draw(st.integers(0, 4)) > 0,
        rows=tuple(rows * draw(st.sampled_from([1, 1, 20, 200]))),
        first=draw(st.sampled_from([0, -50, 2**40, -(2**63)])),
        deleted=draw(st.integers(0, 3)),
        added=draw(st.booleans()),
    )


def _by_sqlite(path: Path, columns: list[str]) -> list[tuple[object, ...]] | None:
    wanted = ", ".join(f'"{name}"' for name in columns)
    try:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(f"SELECT {wanted} FROM t").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        return None


def _by_us(path: Path, columns: list[str]) -> list[tuple[object, ...]] | None:
    found: list[tuple[object, ...]] = []
    try:
        with open_nsys_database(path) as database:
            if not database.has("t") or not set(columns) <= set(database.columns("t")):
                return None
            for rows in database.rows("t", columns):
                lists = [
                    [None if absent else value for value, absent in zip(values.tolist(), flags, strict=True)]
                    for values, null in zip(rows.values, rows.null, strict=True)
                    for flags in [[False] * len(values) if null is None else null.tolist()]
                ]
                found += zip(*lists, strict=True)
    except ParseError:
        return None
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@cases(SLOW)
@given(made=tables())
def test_a_whole_table_is_read_as_sqlite_reads_it(folder: Path, made: Made) -> None:
    path = folder / "whole.sqlite"
    made.write(path)
    columns = [name for name, _ in made.columns]
    expected, found = _by_sqlite(path, columns), _by_us(path, columns)
    assert expected is not None
    if found is None:
        # Never for what nsys writes: integers in a table with row ids.
        plain = made.has_row_ids and not {"rowid", "_rowid_", "oid"} <= set(columns)
        assert not plain or any(not isinstance(value, int | None) for row in expected for value in row)
    else:
        assert found == expected


@cases(SLOW)
@given(made=tables(), draw=st.data())
def test_a_damaged_table_is_read_as_sqlite_reads_it_or_not_at_all(
    folder: Path, made: Made, draw: st.DataObject
) -> None:
    path = folder / "damaged.sqlite"
    made.write(path)
    data = bytearray(path.read_bytes())
    # Where the table's pages begin, the header of the file, or anywhere.
    starts = st.integers(0, len(data) // made.page - 1).map(lambda number: number * made.page)
    near = st.tuples(starts, st.integers(0, 15)).map(sum)
    for at in draw.draw(st.lists(near | st.integers(0, len(data) - 1) | st.integers(16, 60), max_size=6)):
        data[at] = draw.draw(st.integers(0, 255))
    if draw.draw(st.integers(0, 5)) == 0:
        del data[draw.draw(st.integers(0, len(data))) :]
    path.write_bytes(data)
    columns = [name for name, _ in made.columns]
    found = _by_us(path, columns)
    if found is not None:
        assert found == _by_sqlite(path, columns)


def test_a_damaged_schema_that_sqlite_quotes_in_its_message_is_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "damaged.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
        connection.commit()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"CREATE TABLE t (a", b"CREATE TABLE t \x80a"))
    with pytest.raises(ParseError), open_nsys_database(path):
        pass
