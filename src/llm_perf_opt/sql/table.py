"""Columns of equal length by name, and what they become: rows, pandas, Arrow, polars, a Parquet file."""

import datetime
import decimal
import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from llm_perf_opt.errors import ConfigError, ToolError
from llm_perf_opt.sql.events import Values, ViewRows
from llm_perf_opt.sql.view_schema import MISSING, SqlView
from llm_perf_opt.system.terminal import cut_text, number_columns, printable, table_text

# What a notebook shows of a table: a cell stays below 20 kB.
SHOWN_ROWS, SHOWN_COLUMNS, SHOWN_TEXT = 10, 16, 80
# One row: Python values by column.
TableValues = dict[str, Any]
Fill = Callable[[], ViewRows]


@dataclass(frozen=True)
class DataTable:
    """Columns by name. Integers with missing values are masked arrays; missing texts are None, missing reals NaN.

    `types` are the SQL types of the columns.
    """

    name: str
    columns: Mapping[str, Values]
    types: Mapping[str, str]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, column: str) -> Values:
        try:
            return self.columns[column]
        except KeyError:
            raise KeyError(f"{self.name} has no column {column!r}, it has: {', '.join(self.columns)}") from None

    def __repr__(self) -> str:
        return f"{self.name}: {len(self):,} rows × {len(self.columns)} columns ({', '.join(self.columns)})"

    def __str__(self) -> str:
        """The first rows, as `print` shows them."""
        return self.text(SHOWN_ROWS)

    def _repr_html_(self) -> str:
        """The first rows, as notebooks show them."""
        names = list(self.columns)[:SHOWN_COLUMNS]
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_short(row[name]))}</td>" for name in names) + "</tr>"
            for row in self.rows(SHOWN_ROWS)
        )
        more = "" if len(names) == len(self.columns) else f", the first {len(names)} columns"
        rows = f"{min(len(self), SHOWN_ROWS):,} of {len(self):,} rows{more}" if len(self) else "no rows"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(self.name)}: {rows}</p>"

    def __iter__(self) -> Iterator[TableValues]:
        return iter(self.rows())

    def rows(self, most: int | None = None) -> list[TableValues]:
        """The rows, or the first of them, as mappings of Python values; None is a missing value."""
        taken = {name: plain_values(values[:most]) for name, values in self.columns.items()}
        return [dict(zip(taken, row, strict=True)) for row in zip(*taken.values(), strict=True)]

    def pandas(self) -> Any:
        """A `pandas.DataFrame`; integers with missing values get the type Int64."""
        pandas = _package("pandas", "pandas")
        return pandas.DataFrame({name: _for_pandas(pandas, values) for name, values in self.columns.items()})

    def arrow(self) -> Any:
        """A `pyarrow.Table`."""
        arrow = _package("pyarrow", "arrow")
        kinds = {
            "BIGINT": arrow.int64(),
            "INTEGER": arrow.int64(),
            "DOUBLE": arrow.float64(),
            "BOOLEAN": arrow.bool_(),
            "VARCHAR": arrow.string(),
        }
        columns = {
            name: arrow.array(np.ma.getdata(v), type=kinds.get(self.types.get(name, "")), mask=_missing(v))
            for name, v in self.columns.items()
        }
        return arrow.table(columns)

    def polars(self) -> Any:
        """A `polars.DataFrame`."""
        polars = _package("polars", "polars")
        kinds = {
            "BIGINT": polars.Int64,
            "INTEGER": polars.Int64,
            "DOUBLE": polars.Float64,
            "BOOLEAN": polars.Boolean,
            "VARCHAR": polars.String,
        }
        return polars.DataFrame(
            [
                polars.Series(name, plain_values(v), dtype=kinds.get(self.types.get(name, "")))
                if _missing(v) is not None or v.dtype == object
                else polars.Series(name, v)
                for name, v in self.columns.items()
            ]
        )

    # As the tables of a run were called first.
    to_pandas, to_polars = pandas, polars

    def parquet(self, path: Path | str) -> Path:
        """Write a Parquet file."""
        target = Path(path).expanduser()
        if not target.parent.is_dir():
            raise ConfigError(f"{target}: {target.parent} is not a directory; give a file in a directory that exists")
        from llm_perf_opt.sql.database import write_parquet

        write_parquet(self, target)
        return target

    def text(self, most: int) -> str:
        """The first rows for a terminal."""
        names = list(self.columns)
        rows = [[_short(row[name]) for name in names] for row in self.rows(most)]
        shown = table_text(names, [[printable(cell) for cell in row] for row in rows], right=number_columns(rows))
        more = len(self) - len(rows)
        if not rows:
            return f"{shown.plain}\nno rows"
        return shown.plain + (f"\n… and {more:,} more rows" if more > 0 else "")


def table_of(view: SqlView, rows: ViewRows) -> DataTable:
    """A view's rows with their missing values as such."""
    columns = {}
    for column in view.columns:
        values = rows[column.name]
        if column.optional and bool((values == MISSING).any()):
            values = np.ma.MaskedArray(values, mask=values == MISSING)
        columns[column.name] = values
    return DataTable(view.name, columns, {column.name: column.type for column in view.columns})


def plain_values(values: Values) -> list[Any]:
    """Python values; None for what is missing."""
    if values.dtype.kind == "f":
        return [None if value is None or math.isnan(value) else value for value in values.tolist()]
    found: list[Any] = values.tolist()
    return found


def as_json(value: Any) -> Any:
    """A value of a result as JSON can hold it: what is not a finite number is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        return as_json(float(value))
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, np.ndarray):
        return [as_json(item) for item in value.tolist()]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, datetime.timedelta | uuid.UUID):
        return str(value)
    return value


def _missing(values: Values) -> Any:
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    return None if mask is None or not mask.any() else mask


def _for_pandas(pandas: ModuleType, values: Values) -> Any:
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "iu":
        return pandas.arrays.IntegerArray(np.ma.getdata(values).astype(np.int64), np.ma.getmaskarray(values))
    return np.array(plain_values(values), object) if isinstance(values, np.ma.MaskedArray) else values


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    return cut_text(text, SHOWN_TEXT)


def _package(name: str, extra: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ToolError(
            f"this needs {name}, which is not installed: pip install {name}, or 'llm-perf-opt[{extra}]'"
        ) from error
