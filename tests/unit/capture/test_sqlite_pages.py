"""Integers from the pages of a SQLite file: the same rows as SQLite's own, for every kind of table."""

import random
import sqlite3
import threading
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

import pytest

from llm_perf_opt.capture.intervals import Flags, Ints
from llm_perf_opt.capture.readers import sqlite_pages
from llm_perf_opt.capture.readers.nsys_database import open_nsys_database
from llm_perf_opt.capture.readers.sqlite_pages import NotPlain, PageReader
from llm_perf_opt.errors import ParseError

EDGES = (0, 1, -1, 2, 127, -128, 128, 2**15, -(2**15) - 1, 2**23, 2**31 - 1, -(2**31), 2**47, -(2**47) - 1, 2**63 - 1)
Table = list[tuple[object, ...]]


def _write(path: Path, columns: str, rows: Sequence[tuple[object, ...]], *, page: int = 4096) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page}")
    connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    connection.execute(f"CREATE TABLE t ({columns})")
    connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.commit()
    connection.close()
    return path


def _changed(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def _from_pages(path: Path, *columns: int) -> Table:
    """The rows as pages hold them; raises where they are not plain."""
    connection = sqlite3.connect(path)
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchall()
    connection.close()
    found: Table = []
    with FileIO(path) as file:
        for rows in PageReader(file).read(root, columns):
            lists = [_with_none(values, null) for values, null in zip(rows.values, rows.null, strict=True)]
            found += zip(*lists, strict=True)
    return found


def _with_none(values: Ints, null: Flags | None) -> list[int | None]:
    flags = [False] * len(values) if null is None else null.tolist()
    return [None if absent else value for value, absent in zip(values.tolist(), flags, strict=True)]


def _from_sqlite(path: Path, *columns: str) -> Table:
    connection = sqlite3.connect(path)
    rows = connection.execute(f"SELECT {', '.join(columns)} FROM t").fetchall()
    connection.close()
    return rows


def _either_way(path: Path, *columns: str) -> Table:
    """The rows as an export's are read: from pages, from SQLite, or from the one after the other."""
    found: Table = []
    with open_nsys_database(path) as database:
        for rows in database.rows("t", columns):
            found += zip(*(values.tolist() for values in rows.values), strict=True)
    return found


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small blocks, shared by two threads also where there is one core; the threads that read one."""
    read_by: list[int] = []
    monkeypatch.setattr(sqlite_pages, "BLOCK_BYTES", 16 << 10)
    monkeypatch.setattr(sqlite_pages, "usable_cores", lambda: 2)
    alone = PageReader._block_of

    def noted(self: PageReader, pages: Ints, columns: Sequence[int]) -> sqlite_pages.Block:
        read_by.append(threading.get_ident())
        return alone(self, pages, columns)

    monkeypatch.setattr(PageReader, "_block_of", noted)
    return read_by


def test_two_threads_give_the_rows_in_their_order(tmp_path: Path, two_threads: list[int]) -> None:
    rows = [(i, 10**12 + 3 * i, None if i % 7 == 0 else i % 5) for i in range(60_000)]
    path = _write(tmp_path / "a.sqlite", "a INTEGER, b INTEGER, c INTEGER", rows)
    assert _from_pages(path, 0, 1, 2) == rows
    assert len(two_threads) > 50 and threading.get_ident() not in two_threads


def test_two_threads_leave_the_rest_to_sqlite_where_rows_are_not_plain(tmp_path: Path, two_threads: list[int]) -> None:
    rows: list[tuple[object, ...]] = [(i, "text" if i == 40_000 else i) for i in range(60_000)]
    path = _write(tmp_path / "a.sqlite", "a INTEGER, b INTEGER", rows)
    with pytest.raises(NotPlain):
        _from_pages(path, 0, 1)
    assert _either_way(path, "a") == [(a,) for a, _ in rows]
    assert two_threads


def test_a_system_that_reads_at_no_place_reads_with_one_thread(
    tmp_path: Path, two_threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_pages, "HAS_PREADV", False)
    rows = [(i, 10**12 + 3 * i, i % 5) for i in range(60_000)]
    path = _write(tmp_path / "a.sqlite", "a INTEGER, b INTEGER, c INTEGER", rows)
    assert _from_pages(path, 0, 1, 2) == rows
    assert set(two_threads) == {threading.get_ident()}


def test_readers_that_stop_early_end_their_threads(tmp_path: Path, two_threads: list[int]) -> None:
    path = _write(tmp_path / "a.sqlite", "a INTEGER", [(i,) for i in range(60_000)])
    with open_nsys_database(path) as database:
        first = next(iter(database.rows("t", ["a"])))
    assert first.values[0][0] == 0
    assert not [t for t in threading.enumerate() if t.ident in two_threads]


@pytest.mark.parametrize("page", [512, 4096, 65536])
def test_integers_of_every_size_are_read_as_sqlite_reads_them(tmp_path: Path, page: int) -> None:
    draw = random.Random(1)
    rows = [(draw.choice(EDGES), draw.choice(EDGES), None if i % 7 == 0 else i) for i in range(3000)]
    path = _write(tmp_path / "a.sqlite", "a INTEGER, b INTEGER, c INTEGER", rows, page=page)
    assert _from_pages(path, 0, 1, 2) == rows
    assert _from_pages(path, 2, 0) == [(c, a) for a, _, c in rows]


def test_a_table_of_many_pages_is_read_in_its_order(tmp_path: Path) -> None:
    rows = [(i, 10**12 + 3 * i, i % 5) for i in range(60_000)]
    path = _write(tmp_path / "a.sqlite", "a INTEGER, b INTEGER, c INTEGER", rows, page=512)
    assert _from_pages(path, 0, 1, 2) == rows


def test_deleted_rows_large_ids_and_columns_of_text_are_no_obstacle(tmp_path: Path) -> None:
    rows = [(i, "x" * (i % 4), i * i, "y" * (i % 900)) for i in range(2000)]
    path = _write(tmp_path / "a.sqlite", "a INTEGER, s TEXT, b INTEGER, t TEXT", rows)
    _changed(path, "DELETE FROM t WHERE a % 3 = 0", "UPDATE t SET rowid = rowid + 5000000000 WHERE a > 1500")
    assert _from_pages(path, 0, 2) == _from_sqlite(path, "a", "b") == _either_way(path, "a", "b")


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ("a INTEGER, b INTEGER", (2, 0.5)),
        ("a INTEGER, b INTEGER", (2, "text")),
        ("a INTEGER, s TEXT, b INTEGER", (2, "x" * 70, 3)),
        ("a INTEGER, s TEXT, b INTEGER", (2, "x" * 9000, 3)),
    ],
    ids=["a fraction", "text for an integer", "long text before it", "a row of several pages"],
)
def test_what_is_not_plain_is_said_to_be(tmp_path: Path, columns: str, row: tuple[object, ...]) -> None:
    path = _write(tmp_path / "a.sqlite", columns, [row])
    with pytest.raises(NotPlain):
        _from_pages(path, 0, len(row) - 1)


def test_sqlite_reads_on_where_rows_stop_being_plain(tmp_path: Path) -> None:
    rows = [(i, "x" * (5 if i < 90_000 else 9000 * (i % 500 == 0)), 7 * i) for i in range(100_000)]
    path = _write(tmp_path / "a.sqlite", "a INTEGER, s TEXT, b INTEGER", rows)
    with pytest.raises(NotPlain):
        _from_pages(path, 0, 2)
    assert _either_way(path, "a", "b") == [(a, b) for a, _, b in rows]


def test_a_write_ahead_log_leaves_the_reading_to_sqlite(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.sqlite", "a INTEGER", [(1,), (2,)])
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("INSERT INTO t VALUES (3)")
    writer.commit()
    assert _either_way(path, "a") == [(1,), (2,), (3,)]
    writer.close()


def test_a_column_that_is_the_row_id_or_came_later_is_read_too(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.sqlite", "a INTEGER PRIMARY KEY, b INTEGER", [(5, 1), (9, 2)])
    _changed(path, "ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 4")
    assert _either_way(path, "a", "b", "c") == [(5, 1, 4), (9, 2, 4)]


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    path = _changed(_write(tmp_path / "a.sqlite", "a INTEGER", [(1,)]), "DELETE FROM t")
    assert _from_pages(path, 0) == _either_way(path, "a") == []


def test_a_fraction_where_an_integer_belongs_is_an_error(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.sqlite", "a INTEGER, b INTEGER", [(1, 2), (3, 0.5)])
    with pytest.raises(ParseError, match="table t holds something else where an integer belongs"):
        _either_way(path, "a", "b")


@pytest.mark.parametrize("seed", range(40))
def test_damage_gives_the_rows_sqlite_gives_or_an_error(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = _write(tmp_path / "a.sqlite", "a INTEGER, b INTEGER", [(i, i * 1000) for i in range(4000)], page=1024)
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(4096, len(data))] = draw.randrange(256)
    path.write_bytes(data)
    try:
        found = _either_way(path, "a", "b")
    except ParseError:
        return
    assert found == [tuple(-1 if v is None else v for v in row) for row in _from_sqlite(path, "a", "b")]
