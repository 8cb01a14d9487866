"""Opens an nsys export read-only and hands out its columns; whatever is wrong with it becomes a ParseError."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.files import real_path
from llm_perf_opt.errors import ParseError, ToolError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"SQLite format 3\x00"
# Above this many ids the whole string table is read instead of asking for each.
MANY_IDS = 20_000
# Longer names are cut: a name is for reading, and a report must stay a report.
MAX_NAME = 4096
# A century and a half from 1970; the difference of two such times still is a 64-bit number.
LATEST_NS = 2**62
_KEPT_OF_A_SCAN = json.dumps({"OPERATOR_NAME": "true", "OPERATOR_CARDINALITY": "true"})


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
        found = f"regexp_matches(value, {literal(pattern)})"
        sql = f"SELECT id FROM {self._scan_of('StringIds')} WHERE length(value) < 200 AND {found}"
        return [int(i) for i in self._numpy(sql, "StringIds")["id"]]

    def strings(self, ids: Sequence[int]) -> list[str]:
        """The strings behind ids of StringIds; one that is missing is named by its id."""
        found: dict[int, str] = {}
        if self.has("StringIds"):
            sql = f"SELECT id, substr(value, 1, {MAX_NAME}), length(value) FROM StringIds"
            if len(ids) > MANY_IDS:
                rows = self.query(sql)
            else:
                rows = [row for i in ids for row in self.query(sql + " WHERE id = ?", [int(i)])]
            found = {int(i): str(v) + ("…" if int(n) > MAX_NAME else "") for i, v, n in rows if v is not None}
        return [found[int(i)] if int(i) in found else f"(no name, string {int(i)})" for i in ids]

    def scan(
        self,
        table: str,
        wanted: Mapping[str, str],
        *,
        small: Mapping[str, str] | None = None,
        leave_out: tuple[str, Sequence[int]] | None = None,
        only: tuple[str, Sequence[int]] | None = None,
        unless_longer_ns: int | None = None,
        longer_ns: int | None = None,
        text: str | None = None,
    ) -> "dict[str, NDArray[Any]]":
        """Columns as 64-bit integers, `small` ones as 32-bit (masked where NULL), and one of text where asked for.

        `unless_longer_ns` keeps rows of this length although they are of those to `leave_out`; `longer_ns` keeps only
        rows of this length.
        """
        select = [f"CAST({_name(sql)} AS BIGINT) AS {quoted(key)}" for key, sql in wanted.items()]
        select += [f"TRY_CAST({_name(sql)} AS INTEGER) AS {quoted(key)}" for key, sql in (small or {}).items()]
        if text is not None:
            cut = f"CASE WHEN length({text}) > {MAX_NAME} THEN left({text}, {MAX_NAME}) || '…' ELSE {text} END"
            select.append(f"{cut} AS text" if text != "NULL" else "NULL::VARCHAR AS text")
        where = ""
        for chosen, word in ((leave_out, "NOT IN"), (only, "IN")):
            if chosen is not None and chosen[1]:
                listed = f"{quoted(chosen[0])} {word} ({', '.join(str(int(v)) for v in chosen[1])})"
                # NULL is in no list, and not out of one either.
                where = f" WHERE {listed}" + (f" OR {quoted(chosen[0])} IS NULL" if chosen is leave_out else "")
        if unless_longer_ns is not None and where:
            where += f' OR "end" - "start" >= {unless_longer_ns}'
        if longer_ns is not None:
            where = f' WHERE "end" - "start" >= {longer_ns}'
        return self._numpy(f"SELECT {', '.join(select)} FROM {self._scan_of(table)}{where}", table)

    def aggregate(self, table: str, columns: Mapping[str, str], select: str, group: str) -> list[tuple[Any, ...]]:
        """A question to duckdb whose answer is a few rows. `columns` are those `select` and `group` speak of."""
        inner = ", ".join(f"{sql} AS {quoted(key)}" for key, sql in columns.items())
        sql = f"SELECT {select} FROM (SELECT {inner} FROM {self._scan_of(table)}) GROUP BY {group}"
        with self._scanning(table):
            return list(self._large.sql(sql).fetchall())

    def _scan_of(self, table: str) -> str:
        return f"sqlite_scan({literal(str(self.path))}, {literal(table)})"

    def _numpy(self, sql: str, table: str) -> "dict[str, NDArray[Any]]":
        with self._scanning(table):
            # Running the query before fetching lets duckdb scan on all cores.
            found = self._large.sql(sql)
            found.execute()
            return dict(found.fetchnumpy())

    @contextmanager
    def _scanning(self, table: str) -> Iterator[None]:
        """One scan of a table: an error becomes ours, and a scan that lost rows becomes one."""
        import duckdb

        try:
            yield
            scanned = _rows_scanned(json.loads(self._large.get_profiling_information()))
        except duckdb.Error as error:
            raise broken(self.path, str(error).splitlines()[0]) from error
        except (SystemError, UnicodeDecodeError) as error:
            # So the driver says that it cannot make text of what is in a cell.
            raise broken(self.path, f"table {table} holds text that is not UTF-8") from error
        if not self._is_complete(table, scanned):
            raise broken(self.path, f"table {table} is damaged: only {scanned} of its rows can be reached")

    def _is_complete(self, table: str, rows: int) -> bool:
        """Whether this is how many rows a table has.

        duckdb asks for stretches of row ids. Where one is out of order, sqlite ends the stretch there without a word.
        Row ids are 1 … n in an export, so the first and the last tell; only where they do not, the rows are counted.
        """
        name = quoted(table)
        ((low, high),) = self.query(f"SELECT (SELECT min(rowid) FROM {name}), (SELECT max(rowid) FROM {name})")
        if high is not None and high - low + 1 == rows:
            # The last row's own id may be the wrong one.
            return not self.query(f"SELECT 1 FROM {name} WHERE rowid > {int(high)} LIMIT 1")
        return bool(self.query(f"SELECT count(*) FROM {name}")[0][0] == rows)


def _rows_scanned(plan: Mapping[str, Any]) -> int:
    """How many rows the scan at the bottom of a plan handed on."""
    if plan.get("operator_name") == "SQLITE_SCAN":
        return int(plan["operator_cardinality"])
    return sum(_rows_scanned(child) for child in plan["children"])


@contextmanager
def open_nsys_database(path: Path) -> Iterator[NsysDatabase]:
    """Check that a file is a readable SQLite export and open it."""
    _check_header(path)
    try:
        small = sqlite3.connect(f"{real_path(path).as_uri()}?mode=ro", uri=True, timeout=2.0)
    except sqlite3.Error as error:
        raise broken(path, str(error)) from error
    try:
        large = _connect_duckdb()
        try:
            database = NsysDatabase(real_path(path), small, large)
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
        # How many rows a scan gave is kept, and nothing else about it.
        connection.execute("SET enable_profiling = 'no_output'")
        connection.execute(f"PRAGMA custom_profiling_settings = '{_KEPT_OF_A_SCAN}'")
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


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(sql: str) -> str:
    """A plain column name is quoted (`end` is a keyword); SQL made by `column_or` passes."""
    return quoted(sql) if sql.isidentifier() else sql
