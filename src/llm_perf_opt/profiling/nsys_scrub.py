"""Removes the recorded process environment from an nsys export before anyone shares it.

nsys stores the complete environment of the workload and of itself: in TARGET_INFO_SYSTEM_ENV, in META_DATA_CAPTURE and,
as one string of NUL-separated `NAME=value` or one string per variable, in StringIds.
"""

import re
import sqlite3
from pathlib import Path

from llm_perf_opt.errors import ParseError

REMOVED = "(environment removed)"
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_NAMED_BY = (
    ("NVTX_EVENTS", "textId"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "mangledName"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
)


def scrub_environment(sqlite: Path) -> int:
    """Overwrite every recorded environment string; returns how many. The file is rewritten without slack."""
    try:
        with sqlite3.connect(sqlite, isolation_level=None) as connection:
            return _scrub(connection)
    except sqlite3.Error as error:
        raise ParseError(f"{sqlite}: the recorded environment could not be removed ({error})") from error
    finally:
        connection.close()


def _scrub(connection: sqlite3.Connection) -> int:
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA journal_mode = MEMORY")
    tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    names: set[str] = set()
    changed = 0
    connection.execute("BEGIN")
    for table in sorted(tables & {"TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE"}):
        for row, name, value in connection.execute(f'SELECT rowid, name, value FROM "{table}"').fetchall():
            if _is_block(str(name), str(value)):
                names |= _variable_names(str(value))
                connection.execute(f'UPDATE "{table}" SET value = ? WHERE rowid = ?', (REMOVED, row))
                changed += 1
    if "StringIds" in tables:
        changed += _scrub_strings(connection, tables, names)
    connection.execute("COMMIT")
    connection.execute("VACUUM")
    return changed


def _scrub_strings(connection: sqlite3.Connection, tables: set[str], names: set[str]) -> int:
    """Blocks of the environment, and single variables named in a block that name nothing on the timeline."""
    strings = [
        (int(i), str(v)) for i, v in connection.execute("SELECT id, value FROM StringIds WHERE value LIKE '%=%'")
    ]
    blocks = [(i, v) for i, v in strings if "\0" in v and _ASSIGNMENT.match(v)]
    for _, value in blocks:
        names |= _variable_names(value)
    used = _ids_in_use(connection, tables)
    single = [i for i, v in strings if "\0" not in v and i not in used and v.split("=", 1)[0] in names]
    ids = sorted({i for i, _ in blocks} | set(single))
    connection.executemany("UPDATE StringIds SET value = ? WHERE id = ?", [(REMOVED, i) for i in ids])
    return len(ids)


def _ids_in_use(connection: sqlite3.Connection, tables: set[str]) -> set[int]:
    """Ids of strings that name ranges, kernels or calls: a range may be called `batch=8`."""
    used: set[int] = set()
    for table, column in _NAMED_BY:
        if table not in tables or column not in {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}:
            continue
        rows = connection.execute(f'SELECT DISTINCT "{column}" FROM "{table}"')
        used |= {int(i) for (i,) in rows if i is not None}
    return used


def _is_block(name: str, value: str) -> bool:
    """A row that holds variables: by its name, or because it looks like `A=1` NUL `B=2`."""
    return "environment" in name.lower() or bool("\0" in value and _ASSIGNMENT.match(value)) or ":ENV" in name


def _variable_names(value: str) -> set[str]:
    return {part.split("=", 1)[0] for part in value.split("\0") if _ASSIGNMENT.match(part)}
