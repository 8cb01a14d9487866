"""Opens an nsys export read-only and hands out its columns; whatever is wrong with it becomes a ParseError."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ParseError, ToolError

MAGIC = b"SQLite format 3\x00"
# Longer names are cut: a name is for reading, and a report must stay a report.
MAX_NAME = 4096


class NsysDatabase:
    """An open export."""

    def __init__(self, path: Path, small: sqlite3.Connection, large: Any) -> None:
        self.path = path
        self._small = small
        self._large = large
        rows = self.query("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {str(name) for (name,) in rows}
        self._columns: dict[str, tuple[str, ...]] = {}

    def has(self, table: str) -> bool:
        return table in self._tables

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
        """A small question to sqlite3."""
        try:
            return self._small.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise broken(self.path, str(error)) from error

    def string_ids(self, pattern: str) -> list[int]:
        """Ids of the strings in which a regular expression is found."""
        if not self.has("StringIds"):
            return []
        sql = f"SELECT id FROM {self._scan_of('StringIds')} WHERE length(value) < 200 AND regexp_matches(value, ?)"
        return [int(i) for i in self._numpy(sql, [pattern])["id"]]

    def scan(
        self,
        table: str,
        wanted: Mapping[str, str],
        *,
        small: Mapping[str, str] | None = None,
        leave_out: tuple[str, Sequence[int]] | None = None,
        only: tuple[str, Sequence[int]] | None = None,
        text: str | None = None,
    ) -> dict[str, Any]:
        """Columns as 64-bit integers, `small` ones as 32-bit (masked where NULL), and one of text where asked for."""
        select = [f"CAST({_name(sql)} AS BIGINT) AS {quoted(key)}" for key, sql in wanted.items()]
        select += [f"TRY_CAST({_name(sql)} AS INTEGER) AS {quoted(key)}" for key, sql in (small or {}).items()]
        if text is not None:
            cut = f"CASE WHEN length({text}) > {MAX_NAME} THEN left({text}, {MAX_NAME}) || '…' ELSE {text} END"
            select.append(f"{cut} AS text" if text != "NULL" else "NULL::VARCHAR AS text")
        where = ""
        for chosen, word in ((leave_out, "NOT IN"), (only, "IN")):
            if chosen is not None and chosen[1]:
                where = f" WHERE {quoted(chosen[0])} {word} ({', '.join(str(int(v)) for v in chosen[1])})"
        return self._numpy(f"SELECT {', '.join(select)} FROM {self._scan_of(table)}{where}", [])

    def aggregate(self, table: str, columns: Mapping[str, str], select: str, group: str) -> list[tuple[Any, ...]]:
        """A question to duckdb whose answer is a few rows. `columns` are those `select` and `group` speak of."""
        import duckdb

        inner = ", ".join(f"{sql} AS {quoted(key)}" for key, sql in columns.items())
        try:
            sql = f"SELECT {select} FROM (SELECT {inner} FROM {self._scan_of(table)}) GROUP BY {group}"
            return list(self._large.sql(sql).fetchall())
        except duckdb.Error as error:
            raise broken(self.path, str(error).splitlines()[0]) from error

    def _scan_of(self, table: str) -> str:
        path, name = str(self.path).replace("'", "''"), table.replace("'", "''")
        return f"sqlite_scan('{path}', '{name}')"

    def _numpy(self, sql: str, values: Sequence[Any]) -> dict[str, Any]:
        import duckdb

        try:
            # Running the query before fetching lets duckdb scan on all cores.
            found = self._large.sql(sql, params=list(values) or None)
            found.execute()
            return dict(found.fetchnumpy())
        except duckdb.Error as error:
            raise broken(self.path, str(error).splitlines()[0]) from error


@contextmanager
def open_nsys_database(path: Path) -> Iterator[NsysDatabase]:
    """Check that a file is a readable SQLite export and open it."""
    _check_header(path)
    try:
        small = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=2.0)
    except sqlite3.Error as error:
        raise broken(path, str(error)) from error
    try:
        large = _connect_duckdb()
        try:
            database = NsysDatabase(path.resolve(), small, large)
            if not (database.has("StringIds") or database.has("META_DATA_EXPORT") or database.has("EXPORT_META_DATA")):
                raise ParseError(
                    f"{path}: a SQLite file, but not an export of nsys (no table StringIds); make one with "
                    "`nsys export --type sqlite REPORT.nsys-rep`"
                )
            yield database
        finally:
            large.close()
    finally:
        small.close()


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


def _connect_duckdb() -> Any:
    """A duckdb connection with the SQLite scanner, loaded from its package and never from the network."""
    import duckdb

    package = find_spec("duckdb_extension_sqlite_scanner")
    if package is None or not package.submodule_search_locations:
        raise ToolError("the package duckdb-extension-sqlite-scanner is missing; install it with pip")
    folder = Path(package.submodule_search_locations[0]) / "extensions"
    found = sorted(folder.glob("*/*.duckdb_extension"))
    # No network, and no spill files in the user's directory. The signature is not checked again: it takes longer than a
    # whole summary, and whoever could change the package's file could change this one.
    settings = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_unsigned_extensions": "true",
        "temp_directory": "",
    }
    connection = duckdb.connect(config={**settings})
    try:
        connection.execute(f"LOAD '{found[-1]!s}'" if found else "LOAD sqlite_scanner")
    except duckdb.Error as error:
        connection.close()
        raise ToolError(
            f"duckdb {duckdb.__version__} could not load its SQLite extension ({str(error).splitlines()[0]}); install "
            f"duckdb-extension-sqlite-scanner=={duckdb.__version__}"
        ) from error
    return connection


def broken(path: Path, why: str) -> ParseError:
    """What sqlite or duckdb said, as an error for the user."""
    if "locked" in why:
        return ParseError(f"{path}: locked by another program ({why}); wait until it has finished writing")
    return ParseError(f"{path}: could not be read ({why}); the file may be damaged, export the report again")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _name(sql: str) -> str:
    """A plain column name is quoted (`end` is a keyword); SQL made by `column_or` passes."""
    return quoted(sql) if sql.isidentifier() else sql
