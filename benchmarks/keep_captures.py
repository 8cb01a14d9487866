"""The nsys exports below a folder of runs, small enough to be kept: FOLDER-NAME.sqlite.xz each.

    python benchmarks/keep_captures.py RUNS OUT [--seconds 2]

Tables that hold environments, command lines, calls of the operating system and what the program printed are emptied,
and names of files taken out. With --seconds only what began within N seconds after the first kernel remains. A run
is named by its folder right below RUNS.
"""

import argparse
import lzma
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

EMPTIED = (
    "ANALYSIS_FILE",
    "DIAGNOSTIC_EVENT",
    "META_DATA_CAPTURE",
    "OSRT_API",
    "OSRT_CALLCHAINS",
    "PROCESSES",
    "ProcessStreams",
    "TARGET_INFO_SYSTEM_ENV",
)
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
# Columns that name a string; all other strings go.
NAMES = ("nameId", "textId", "jsonTextId", "shortName", "demangledName", "mangledName")
MOST_BYTES = 16 << 20
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
# Names of the machine: of its files, its own threads, its GPU. Before each the tables it needs.
CHANGES = (
    (("META_DATA_EXPORT",), "DELETE FROM META_DATA_EXPORT WHERE name GLOB '*HOST*'"),
    (("TARGET_INFO_GPU",), "UPDATE TARGET_INFO_GPU SET uuid = ''"),
    (
        ("ThreadNames", CALLS),
        f"DELETE FROM ThreadNames WHERE globalTid NOT IN (SELECT globalTid FROM {CALLS})",
    ),
    (
        ("StringIds",),
        "UPDATE StringIds SET value = 'a file' "
        "WHERE value GLOB '*/opt/*' OR value GLOB '/*' OR value GLOB '*/streams/*'",
    ),
    (
        ("StringIds",),
        "UPDATE StringIds SET value = 'a thread' WHERE value GLOB '*worker/*' OR value GLOB 'cpuhp/*' "
        "OR value GLOB 'migration/*' OR value GLOB 'ksoftirqd/*' OR value GLOB 'irq/*'",
    ),
)


def make_small(path: Path, seconds: float | None) -> None:
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in set(EMPTIED) & set(tables):
            database.execute(f'DELETE FROM "{table}"')
        for needed, change in CHANGES:
            if set(needed) <= set(tables):
                database.execute(change)
        if seconds is not None and KERNELS in tables:
            (first_ns,) = database.execute(f"SELECT min(start) FROM {KERNELS}").fetchone()
            for table in tables:
                columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
                if "start" in columns and first_ns is not None:
                    database.execute(f'DELETE FROM "{table}" WHERE start > ?', (first_ns + int(seconds * 1e9),))
        if "StringIds" in tables:
            _drop_unused_strings(database, tables)
        database.commit()
        database.execute("VACUUM")


def _drop_unused_strings(database: sqlite3.Connection, tables: Sequence[str]) -> None:
    database.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    for table in tables:
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        for column in set(NAMES) & set(columns):
            found = f'SELECT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL'
            database.execute(f"INSERT OR IGNORE INTO used {found}")
    database.execute("DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM used)")


def _free(folder: Path, name: str) -> Iterator[Path]:
    """Names for a run's captures: it may have several."""
    yield folder / f"{name}.sqlite.xz"
    yield from (folder / f"{name}-{number}.sqlite.xz" for number in count(2))


def main() -> int:
    parser = argparse.ArgumentParser(description="nsys exports small enough to be kept")
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    for source in sorted(args.runs.rglob("*.sqlite")):
        name = source.relative_to(args.runs).parts[0]
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "capture.sqlite"
            shutil.copyfile(source, copy)
            make_small(copy, args.seconds)
            packed = lzma.compress(copy.read_bytes(), preset=3)
            kept = next(path for path in _free(args.out, name) if not path.exists())
            print(f"{kept.name}: {copy.stat().st_size:,} bytes, packed {len(packed):,}")
            if len(packed) > MOST_BYTES:
                print(f"{kept.name}: left out, it is larger than {MOST_BYTES >> 20} MiB; --seconds makes it smaller")
                continue
            kept.write_bytes(packed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
