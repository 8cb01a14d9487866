"""What all fuzz tests share: how many cases each makes, made-up JSON, damaged files, and what an answer is."""

import copy
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from llm_perf_opt.errors import ProfilingError

CASES = int(os.environ.get("LLM_PERF_FUZZ_CASES", "2000"))
# Of all cases a test makes this many thousandths, together all of them; what uses Hydra or a database is slow.
CHEAP, SLOW, SLOWEST = 40, 9, 2
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def cases(share: int) -> settings:
    return settings(
        max_examples=max(10, CASES * share // 1000),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def answers(parse: Callable[[], object]) -> None:
    """The property: it returns, or it raises a `ProfilingError`, whose text is not empty."""
    try:
        parse()
    except ProfilingError as error:
        if not str(error).strip():
            pytest.fail(f"{type(error).__name__} says nothing")


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """A file with some bytes replaced, removed, doubled, or its end cut off."""
    data = bytearray(original)
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        size = draw(st.integers(1, 40))
        kind = draw(st.sampled_from(("replace", "remove", "double", "cut")))
        if kind == "replace":
            data[at : at + size] = draw(st.binary(min_size=0, max_size=size))
        elif kind == "remove":
            del data[at : at + size]
        elif kind == "double":
            data[at:at] = data[at : at + size]
        else:
            del data[len(data) - min(len(data), size * 20) :]
    return bytes(data)


# What a column may hold in a file that was joined, edited or cut, regardless of its type.
VALUES = st.one_of(
    st.none(),
    st.sampled_from(("", "nan", "1e999", "-1", "0x10", b"", b"\x00\xff", 1.5, -1.0, float("inf"), 2**63 - 1, -(2**63))),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=8),
)


@st.composite
def retyped_columns(draw: st.DrawFn, path: Path) -> None:
    """Values of another type in one or two columns of a SQLite file, in place."""
    with closing(sqlite3.connect(path)) as database, database:
        # Otherwise a table that a view names cannot be put in the place of another.
        database.execute("PRAGMA legacy_alter_table = ON")
        columns = [(table, column) for table, names in _tables(database) for column in names]
        # Each alone: what is wrong in the first table that is read hides the others.
        for table, column in draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2)):
            # A type is a wish in SQLite but for a primary key.
            database.execute(f'CREATE TABLE new AS SELECT * FROM "{table}"')
            database.execute(f'DROP TABLE "{table}"')
            database.execute(f'ALTER TABLE new RENAME TO "{table}"')
            database.execute(f'UPDATE "{table}" SET "{column}" = ?', (draw(VALUES),))


def _tables(database: sqlite3.Connection) -> list[tuple[str, list[str]]]:
    names = [str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return [(name, [str(row[1]) for row in database.execute(f'PRAGMA table_info("{name}")')]) for name in names]


TYPED = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers(), max_size=2)
)


@st.composite
def retyped(draw: st.DrawFn, original: Any) -> Any:
    """Plain data with values of another type, or without them, in one to four places at any depth."""
    whole = {"all": copy.deepcopy(original)}
    for _ in range(draw(st.integers(1, 4))):
        place, key = draw(st.sampled_from(list(_places(whole))))
        if draw(st.integers(0, 4)):
            place[key] = draw(TYPED)
        elif place is not whole:
            del place[key]
    return whole["all"]


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every value below: what holds it, and under which key or index."""
    keys = list(content) if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        yield content, key
        yield from _places(content[key])
