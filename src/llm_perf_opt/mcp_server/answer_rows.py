"""Rows of a table as JSON values, every text in them as data."""

from collections.abc import Sequence
from typing import Any, overload

from llm_perf_opt.mcp_server.limits import as_data
from llm_perf_opt.sql.table import DataTable, as_json


class TableRows(Sequence[Sequence[Any]]):
    """The rows of a table as lists of JSON values, made when they are shown."""

    def __init__(self, table: DataTable) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, index: int) -> list[Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[Any]]: ...

    def __getitem__(self, index: int | slice) -> list[Any] | list[list[Any]]:
        place = slice(index, index + 1) if isinstance(index, int) else index
        columns = {name: values[place] for name, values in self._table.columns.items()}
        rows = DataTable(self._table.name, columns, self._table.types).rows()
        shown = [[_shown(as_json(value)) for value in row.values()] for row in rows]
        return shown[0] if isinstance(index, int) else shown


def _shown(value: Any) -> Any:
    """A value of a result with every text in it as data."""
    if isinstance(value, str):
        return as_data(value)
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return {as_data(key): _shown(item) for key, item in value.items()} if isinstance(value, dict) else value
