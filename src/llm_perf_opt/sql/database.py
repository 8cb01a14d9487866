"""DuckDB that sees the views of a capture or a run and nothing else.

The configuration is locked before a statement is taken: no files, no network, no extensions, no Python objects by name,
bounded memory and threads, no spilling to disk. One SELECT at a time is taken. Table functions outside a short list are
refused by name: `enable_logging` ends the process when files are off, `pandas_scan` takes addresses of memory, and
`query` hides names of views in a text (measured with DuckDB 1.5.5).

A view is read when a statement names it. Until then it can be described and gives no rows but an error.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.sql.events import Values, texts
from llm_perf_opt.sql.table import DataTable, Fill
from llm_perf_opt.sql.view_schema import VIEWS, SqlView, rows_of
from llm_perf_opt.system.arrays import usable_cores

if TYPE_CHECKING:
    import duckdb

# Table functions that only compute, or describe the views.
ALLOWED_FUNCTIONS: Final = frozenset(
    {
        *("duckdb_columns", "duckdb_functions", "duckdb_tables", "duckdb_views", "generate_series", "histogram"),
        *("histogram_values", "json_each", "json_tree", "pragma_table_info", "range", "repeat", "repeat_row"),
        *("summary", "table_info", "unnest", "version"),
    }
)
LONGEST_STATEMENT = 100_000
_SIMPLE = ("BIGINT", "INTEGER", "SMALLINT", "TINYINT", "UBIGINT", "UINTEGER", "DOUBLE", "FLOAT", "BOOLEAN", "VARCHAR")
_WHOLE = 2**63
# In the place of a missing number while it is written.
_LEAST = -_WHOLE


@dataclass(frozen=True, kw_only=True)
class SqlLimits:
    """What one statement may use. Memory is DuckDB's own: a single value of a function may exceed it."""

    memory_bytes: int = 1 << 30
    timeout_s: float = 60.0
    threads: int = 4


DEFAULT_LIMITS: Final = SqlLimits()


# What bounds a statement besides: entered before it runs, left when its rows are there.
Guard = Callable[[SqlLimits], AbstractContextManager[None]]


def unguarded(limits: SqlLimits) -> AbstractContextManager[None]:
    """No bound but DuckDB's own."""
    return nullcontext()


class SqlDatabase:
    """One locked database. `fills` give the rows of the views; each is queried once."""

    def __init__(self, fills: Mapping[str, Fill], limits: SqlLimits = DEFAULT_LIMITS, guard: Guard = unguarded) -> None:
        self._fills, self._limits, self._guard = fills, limits, guard
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._filled: set[str] = set()
        self._lock = Lock()

    def query(self, sql: str) -> DataTable:
        """The whole result of one SELECT statement."""
        import duckdb

        with self._lock:
            connection = self._connected()
            words = check_statement(connection, sql)
            for view in (view for view in VIEWS if view.name in words):
                self._fill(connection, view)
            timer = Timer(self._limits.timeout_s, connection.interrupt)
            timer.daemon = True
            try:
                with self._guard(self._limits):
                    timer.start()
                    return _result(connection.execute(sql))
            except duckdb.InterruptException as error:
                raise ProfilingError(
                    f"query: stopped after {self._limits.timeout_s:g} s; select fewer rows, or join on fewer"
                ) from error
            except (duckdb.OutOfMemoryException, MemoryError) as error:
                raise ProfilingError(
                    f"query: needs more than {self._limits.memory_bytes >> 20:,} MiB; select or group fewer rows"
                ) from error
            except duckdb.Error as error:
                if isinstance(error, duckdb.FatalException | duckdb.InternalException):
                    self._connection = None
                raise ConfigError(f"query: {first_lines(str(error))}") from error
            finally:
                timer.cancel()

    def _connected(self) -> "duckdb.DuckDBPyConnection":
        if self._connection is None:
            self._connection = connect_locked(self._limits)
            self._filled.clear()
            for view in VIEWS:
                self._connection.execute(view.unread_definition)
        return self._connection

    def _fill(self, connection: "duckdb.DuckDBPyConnection", view: SqlView) -> None:
        if view.name in self._filled:
            return
        rows = self._fills[view.name]()
        connection.register(rows_of(view.name), {name: np.ascontiguousarray(rows[name]) for name in view.names})
        connection.execute(view.definition)
        self._filled.add(view.name)


def connect_locked(limits: SqlLimits = DEFAULT_LIMITS) -> "duckdb.DuckDBPyConnection":
    """A database in memory whose settings cannot be changed any more."""
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            # Without a place for them no temporary files are written.
            "temp_directory": "",
        },
    )
    settings: Mapping[str, str | int] = {
        "memory_limit": f"'{limits.memory_bytes >> 20} MiB'",
        "threads": max(1, min(limits.threads, usable_cores())),
        "python_enable_replacements": "false",
        "python_scan_all_frames": "false",
        # Columns of Python texts are texts, regardless of their first values.
        "pandas_analyze_sample": 0,
        "lock_configuration": "true",
    }
    # In interactive sessions DuckDB prints a progress bar between the output of the program. A notebook without
    # ipywidgets has none, and refuses the setting.
    with suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")
    for name, value in settings.items():
        connection.execute(f"SET {name} = {value}")
    return connection


def check_statement(connection: "duckdb.DuckDBPyConnection", sql: str) -> frozenset[str]:
    """The names in a statement; an error where it is not one SELECT, or calls what is not allowed."""
    import duckdb

    if len(sql) > LONGEST_STATEMENT:
        raise ConfigError(f"query: {len(sql):,} characters, allowed: at most {LONGEST_STATEMENT:,}")
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise ConfigError(f"query: {first_lines(str(error))}") from error
    kinds = [statement.type.name for statement in statements]
    if kinds != ["SELECT"]:
        got = ", ".join(kinds) or "nothing"
        raise ConfigError(f"query: one SELECT statement is allowed (got {got}); nothing can be written or configured")
    names, called = _names(sql)
    refused = sorted(called & _table_functions(connection) - ALLOWED_FUNCTIONS)
    if refused:
        raise ConfigError(
            f"query: the function {refused[0]} is not allowed (it reads or changes what lies outside the views), "
            f"allowed: {', '.join(view.name for view in VIEWS)} and functions of values"
        )
    return names


def _names(sql: str) -> tuple[frozenset[str], frozenset[str]]:
    """The identifiers and keywords of a statement, and those of them that are followed by a parenthesis."""
    import duckdb

    # Places are those of bytes.
    text = sql.encode("utf-8", "surrogatepass")
    tokens = duckdb.tokenize(sql)
    ends = [at for at, _ in tokens[1:]] + [len(text)]
    kinds = (duckdb.token_type.identifier, duckdb.token_type.keyword)
    names, called, last = set(), set(), None
    for (at, kind), end in zip(tokens, ends, strict=True):
        word = text[at:end].decode("utf-8", "replace")
        if kind in kinds:
            last = _bare(word)
            names.add(last)
        elif kind == duckdb.token_type.comment:
            continue
        else:
            if last is not None and word.startswith("("):
                called.add(last)
            last = None
    return frozenset(names), frozenset(called)


def _bare(word: str) -> str:
    """A name without its quotes, and without the comment that may follow it."""
    word = word.strip()
    if word.startswith('"'):
        closed = word.replace('""', "\0").find('"', 1)
        return word.replace('""', "\0")[1:closed].replace("\0", '"').casefold()
    return word.split("--")[0].split("/*")[0].strip().casefold()


def _table_functions(connection: "duckdb.DuckDBPyConnection") -> frozenset[str]:
    rows = connection.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE function_type IN ('table', 'table_macro', 'pragma')"
    ).fetchall()
    return frozenset(str(name).casefold() for (name,) in rows)


def first_lines(message: str) -> str:
    """A message of DuckDB in one line, without the part of the statement it quotes."""
    return " ".join(message.partition("\n\nLINE ")[0].split())


def _described(cursor: "duckdb.DuckDBPyConnection") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names, made unique, and SQL types."""
    names: list[str] = []
    for column in cursor.description or ():
        name, number = str(column[0]), 1
        while name in names:
            name, number = f"{column[0]}_{number}", number + 1
        names.append(name)
    return tuple(names), tuple(str(column[1]) for column in cursor.description or ())


def _result(cursor: "duckdb.DuckDBPyConnection") -> DataTable:
    names, types = _described(cursor)
    given = [str(column[0]) for column in cursor.description or ()]
    if set(types) <= set(_SIMPLE) and given == list(names):
        found = cursor.fetchnumpy()
        return DataTable(
            "result", {name: _unmasked(found[name]) for name in names}, dict(zip(names, types, strict=True))
        )
    rows = cursor.fetchall()
    columns, kinds = {}, {}
    for index, (name, kind) in enumerate(zip(names, types, strict=True)):
        columns[name], kinds[name] = _typed([row[index] for row in rows], kind)
    return DataTable("result", columns, kinds)


def _unmasked(values: Values) -> Values:
    """Texts and reals have their own value for what is missing."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not values.mask.any():
        return np.ma.getdata(values)
    if values.dtype == object:
        filled = values.astype(object)
        filled[np.ma.getmaskarray(values)] = None
        return np.ma.getdata(filled)
    return values.filled(np.nan) if values.dtype.kind == "f" else values


def _typed(values: Sequence[Any], kind: str) -> tuple[Values, str]:
    """Python values as a column: sums are whole numbers of 64 bits where they fit."""
    missing = np.array([value is None for value in values], np.bool_)
    is_whole = kind in ("HUGEINT", "UHUGEINT") or kind.endswith("INT") or kind == "INTEGER"
    if is_whole and all(value is None or -_WHOLE <= value < _WHOLE for value in values):
        data = np.array([0 if value is None else value for value in values], np.int64)
        return (np.ma.MaskedArray(data, mask=missing) if missing.any() else data), "BIGINT"
    if kind in ("DOUBLE", "FLOAT") or kind.startswith("DECIMAL"):
        return np.array([np.nan if value is None else float(value) for value in values], np.float64), "DOUBLE"
    if kind == "BOOLEAN" and not missing.any():
        return np.array(values, np.bool_), kind
    return texts(values), kind


def write_parquet(table: DataTable, path: Path) -> None:
    """Write a table as Parquet, by our own database, which no statement of a user reaches."""
    import duckdb

    columns = [_stored(name, values, table.types.get(name, "VARCHAR")) for name, values in table.columns.items()]
    partial = path.with_name(f".{path.name}.part")
    target = str(partial).replace("'", "''")
    with duckdb.connect(":memory:", config={"autoload_known_extensions": "false"}) as connection:
        connection.execute("SET pandas_analyze_sample = 0")
        connection.register("written", {one.name: one.values for one in columns})
        selected = ", ".join(one.expression for one in columns)
        try:
            connection.execute(f"COPY (SELECT {selected} FROM written) TO '{target}' (FORMAT parquet)")
            partial.replace(path)
        except duckdb.Error as error:
            raise ProfilingError(f"{path}: cannot be written as Parquet ({first_lines(str(error))})") from error
        finally:
            partial.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A column as DuckDB takes it, and the expression that makes of it what is written."""

    name: str
    values: Values
    expression: str


def _stored(name: str, values: Values, kind: str) -> _Stored:
    quoted = '"' + name.replace('"', '""') + '"'
    value, held = quoted, values
    if isinstance(values, np.ma.MaskedArray):
        is_whole = values.dtype.kind in "iu"
        held = np.ma.filled(values.astype(np.int64), _LEAST) if is_whole else texts(values.tolist())
        value = f"nullif({quoted}, {_LEAST})" if is_whole else quoted
    elif values.dtype.kind == "f":
        value = f"nullif({quoted}, 'NaN'::DOUBLE)"
    # What is not a simple value is written as text.
    cast = f"CAST({value} AS {kind if kind in _SIMPLE else 'VARCHAR'})"
    return _Stored(name=name, values=held, expression=f"{cast} AS {quoted}")
