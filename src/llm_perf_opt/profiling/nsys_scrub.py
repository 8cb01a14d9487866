"""Removes recorded environments from an nsys export, and the secrets among them from the report itself.

nsys stores not only the environment of the workload and of itself, but that of every process on the machine whose
/proc entry it may read: a token exported in any shell of the user ends up in the report, however clean the workload's
own environment is. In an export the environments are NUL-separated `NAME=value` strings. A report is packed, but
values that occur once stand in it as they are: they are overwritten in place, byte for byte, so that no length changes.
Whether that worked has to be checked by exporting the report again.
"""

import mmap
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.process import SECRET_NAME
from llm_perf_opt.errors import ParseError

REMOVED = "(environment removed)"
_ASSIGNMENT = re.compile(r"[^=\x00-\x20]{1,256}=")
SECRET_VALUE = re.compile(r"^(hf_|sk-|gh[pousr]_|glpat-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_.-]{8}|://[^/@:]+:[^/@]+@")
_RAW_ASSIGNMENT = re.compile(rb"([A-Za-z_][A-Za-z0-9_]{2,127})=([^\x00-\x08\x0b\x0c\x0e-\x1f]{5,16384})")
PLACE_NAME = re.compile(r"(SOCK|SOCKET|FILE|PATH|DIR|HOME|AUTHORITY)$", re.IGNORECASE)
SHORTEST_SECRET = 5
HEADER_BYTES = 256
PIECE_BYTES = 8
_BLOCK_TABLES = frozenset({"TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE"})
_NAMED_BY = (
    ("NVTX_EVENTS", "textId"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "mangledName"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
)


@dataclass(frozen=True, kw_only=True)
class Environments:
    """What an export held, as it stood there."""

    blocks: tuple[str, ...]

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values of variables that look like secrets by their name or by themselves, longest first."""
        return tuple(sorted({value for _, value in self._found()}, key=lambda value: (-len(value), value)))

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The variables those values belong to."""
        return tuple(sorted({name for name, _ in self._found()}))

    def _found(self) -> Iterator[tuple[str, str]]:
        for block in self.blocks:
            for name, _, value in (part.partition("=") for part in block.split("\0")):
                if is_secret(name, value):
                    yield name, value


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret by its name or by its value."""
    # SSH_AUTH_SOCK, XAUTHORITY and the like name a place, and a place is no secret.
    is_place = value.startswith("/") and PLACE_NAME.search(name)
    named_so = SECRET_NAME.search(name) and not is_place
    return len(value) >= SHORTEST_SECRET and bool(named_so or SECRET_VALUE.search(value))


def scrub_export(sqlite: Path) -> Environments:
    """Overwrite every recorded environment in an export; returns what was there. The file is rewritten whole."""
    try:
        with closing(sqlite3.connect(sqlite, isolation_level=None)) as connection:
            return _scrub(connection)
    except sqlite3.Error as error:
        raise ParseError(f"{sqlite}: the recorded environments could not be removed ({error})") from error


def overwrite_secrets(report: Path, secrets: Iterable[str]) -> None:
    """Overwrite these values in a report wherever they, or long pieces of them, stand in plain bytes."""
    if not report.stat().st_size:
        return
    with report.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for secret in secrets:
            value = secret.encode("utf-8", "surrogateescape")
            if not _overwrite(data, value):
                for start in range(max(1, len(value) - PIECE_BYTES + 1)):
                    _overwrite(data, value[start : start + PIECE_BYTES])
        data.flush()


def overwrite_assignments(raw: Path) -> None:
    """Overwrite the values behind names that look like secrets in a file nobody here can read (`.qdstrm`)."""
    if not raw.stat().st_size:
        return
    with raw.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for match in _RAW_ASSIGNMENT.finditer(data):
            if is_secret(match[1].decode("ascii"), match[2].decode("utf-8", "replace")):
                data[match.start(2) : match.end(2)] = b"x" * len(match[2])
        data.flush()


def holds_any(file: Path, secrets: Iterable[str]) -> bool:
    """Whether any of the values stands in a file in plain bytes."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(secret.encode("utf-8", "surrogateescape")) >= 0 for secret in secrets)


def _overwrite(data: mmap.mmap, value: bytes) -> bool:
    # A piece of a value may be a word of the file's own header, without which nsys cannot read it.
    at = data.find(value, HEADER_BYTES)
    found = at >= 0
    while at >= 0:
        data[at : at + len(value)] = b"x" * len(value)
        at = data.find(value, at)
    return found


def _scrub(connection: sqlite3.Connection) -> Environments:
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA journal_mode = MEMORY")
    tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    blocks: list[str] = []
    connection.execute("BEGIN")
    for table in sorted(tables & _BLOCK_TABLES):
        for row, name, value in connection.execute(f'SELECT rowid, name, value FROM "{table}"').fetchall():
            if _is_block(str(name), str(value)):
                blocks.append(str(value))
                connection.execute(f'UPDATE "{table}" SET value = ? WHERE rowid = ?', (REMOVED, row))
    if "StringIds" in tables:
        blocks += _scrub_strings(connection, tables, blocks)
    connection.execute("COMMIT")
    connection.execute("VACUUM")
    return Environments(blocks=tuple(dict.fromkeys(blocks)))


def _scrub_strings(connection: sqlite3.Connection, tables: set[str], known: Iterable[str]) -> list[str]:
    """Whole environments, and single variables named in one of them that name nothing on the timeline."""
    rows = connection.execute("SELECT id, value FROM StringIds WHERE instr(value, '=') > 0")
    strings = [(int(i), str(v)) for i, v in rows]
    blocks = [(i, v) for i, v in strings if _is_block("", v)]
    names = {name for value in (*known, *(v for _, v in blocks)) for name in _variable_names(value)}
    used = _ids_in_use(connection, tables)
    singles = [(i, v) for i, v in strings if "\0" not in v and i not in used and v.split("=", 1)[0] in names]
    changes = [(REMOVED, i) for i, _ in (*blocks, *singles)]
    connection.executemany("UPDATE StringIds SET value = ? WHERE id = ?", changes)
    return [v for _, v in (*blocks, *singles)]


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
    """Something that holds variables: by its name, or because it looks like `A=1` NUL `B=2`."""
    return "environment" in name.lower() or bool("\0" in value and _ASSIGNMENT.match(value))


def _variable_names(value: str) -> list[str]:
    return [part.split("=", 1)[0] for part in value.split("\0") if _ASSIGNMENT.match(part)]
