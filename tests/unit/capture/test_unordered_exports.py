"""Newer versions of nsys do not promise the order of rows in an export."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from tests.support.nsys_builder import h200_export


@pytest.mark.parametrize("name", ["llama", "graphs_node"])
def test_an_export_with_its_rows_in_another_order_gives_the_same_numbers(tmp_path: Path, name: str) -> None:
    path = h200_export(tmp_path, name)
    expected = msgspec.to_builtins(analyze_timelines([read_nsys_sqlite(path)]))
    with closing(sqlite3.connect(path)) as database, database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            # By a hash of the row's number: far from any order, and the same in every run.
            database.execute(f'CREATE TABLE new AS SELECT * FROM "{table}" ORDER BY rowid * 2654435761 % 4294967296')
            database.execute(f'DROP TABLE "{table}"')
            database.execute(f'ALTER TABLE new RENAME TO "{table}"')
    assert msgspec.to_builtins(analyze_timelines([read_nsys_sqlite(path)])) == expected
