"""Thousands of runs listed at once: from an index alongside them, refreshed where their manifests changed.

The index is one parquet file, written only by listing processes, as a whole and by a rename: many may list
and run at the same time. No entry is believed: each carries the stamp of the manifest it was made from, and one whose
manifest is another now, or gone, is not used. A missing, damaged or unwritable index costs time and nothing else.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec

from llm_perf_opt.core.manifest import LARGEST_BYTES, decode_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import ManifestError
from llm_perf_opt.pipeline.index import IndexedRun, index_manifest
from llm_perf_opt.system.files import open_regular, read_limited, unpacked_limit_bytes, write_whole

INDEX_FILE = ".llm-perf-runs.parquet"
# Another number makes every index again.
FORMAT = 3
# Fewer runs than this are read as fast as an index of them is written.
WORTH = 64
TAKES_LONG = 1000
# At most this many entries, of tens of kilobytes each, are in memory while the index is written.
ROWS_AT_ONCE = 2048
LEVELS = 2
LONGEST_CELL = 200
_COLUMNS = "{format: 'INTEGER', place: 'VARCHAR', stamp: 'VARCHAR', row: 'VARCHAR', run: 'VARCHAR'}"


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One line of the table. `failed`: stages that are not ok; `note`: why the run cannot be read as it is.

    `ttft_p99_ms` is of a load on a server, `wall_ms` of a program.
    """

    run_id: str
    path: str
    date: str = ""
    model: str = ""
    device: str = ""
    status: str = ""
    stages: str = ""
    failed: str = ""
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    wall_ms: float | None = None
    tokens_per_s: float | None = None
    ttft_p99_ms: float | None = None
    overrides: tuple[str, ...] = ()
    note: str = ""


T = TypeVar("T", RunRow, IndexedRun)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The runs of a folder by their place in it, and in `unread` why some cannot be read."""

    rows: Mapping[str, RunRow]
    runs: Mapping[str, IndexedRun]
    unread: Mapping[str, str]


class RunFolder(Protocol):
    """A folder of runs, here or in a store. A run's place is its path below the folder, `.` for the folder itself."""

    def stamps(self) -> dict[str, str]:
        """Every run, and what differs whenever its manifest does."""

    def manifests(self, places: Iterable[str]) -> Iterator[tuple[str, bytes | Exception]]:
        """The manifests of these runs, or why one cannot be read."""

    def path_of(self, place: str) -> str: ...

    def index(self, scratch: Path) -> Path | None:
        """A file that holds the index, if need be in `scratch`; None: there is none."""

    def save_index(self, data: bytes) -> None: ...


@dataclass(frozen=True, kw_only=True)
class LocalFolder:
    """Runs of this machine's file systems."""

    root: Path

    def stamps(self) -> dict[str, str]:
        found = {}
        for place, entry in _candidates(self.root):
            if entry is not None:
                found[place] = f"{entry.st_mtime_ns}-{entry.st_size}-{entry.st_ino}"
        return found

    def manifests(self, places: Iterable[str]) -> Iterator[tuple[str, bytes | Exception]]:
        for place in places:
            path = Path(self.path_of(place), MANIFEST_FILE)
            try:
                yield place, read_limited(path, LARGEST_BYTES)
            except OSError as error:
                yield place, ManifestError(f"{path}: cannot be read ({error.strerror or error})")

    def path_of(self, place: str) -> str:
        return str(self.root / place)

    def index(self, scratch: Path) -> Path | None:
        path = self.root / INDEX_FILE
        try:
            # A pipe in its place would be waited for.
            open_regular(path).close()
        except OSError:
            return None
        return path

    def save_index(self, data: bytes) -> None:
        write_whole(self.root / INDEX_FILE, data)

    def others(self) -> list[Path]:
        """Folders that hold no run of ours and may be something else."""
        return [self.root / place for place, entry in _candidates(self.root) if entry is None]


def _candidates(root: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """The folder and two levels below it, each with the state of its manifest; runs are not inspected."""
    level = ["."]
    for depth in range(LEVELS + 1):
        below = []
        for place in level:
            folder = f"{root}/{place}"
            entry = _stat(f"{folder}/{MANIFEST_FILE}")
            yield place, entry
            if depth < LEVELS and (entry is None or place == "."):
                below += [name if place == "." else f"{place}/{name}" for name in _folders_in(folder)]
        level = below


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        # It is not there, or a file or a link to itself is where a folder should; a run that may not be read has
        # an entry, and is set when it is read.
        return None


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if _is_folder(entry)]
    except OSError:
        return []


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads to itself.
        return False


def list_runs(
    folder: RunFolder, *, kind: Literal["row", "run"], say: Callable[[str], None] = lambda text: None
) -> Listed:
    """Every run of a folder as its line of the table or with all its numbers, in the order of their places."""
    stamps = folder.stamps()
    with tempfile.TemporaryDirectory(prefix="llm-perf-runs-") as scratch:
        index = folder.index(Path(scratch))
        known = {} if index is None else _known(index, kind)
        rows: dict[str, RunRow] = {}
        runs: dict[str, IndexedRun] = {}
        unread: dict[str, str] = {}
        for place, (stamp, text) in known.items():
            if stamps.get(place) == stamp:
                _decode(place, text, kind, rows, runs)
        new = [place for place in stamps if place not in rows and place not in runs]
        if len(new) >= TAKES_LONG:
            say(f"reading {len(new):,} manifests for the index; the next time this is fast")
        changed = Path(scratch, "changed.jsonl")
        longest = 0
        with changed.open("wb") as lines:
            for place, data in folder.manifests(new):
                path = folder.path_of(place)
                try:
                    if isinstance(data, Exception):
                        raise data
                    run = index_manifest(decode_manifest(data, f"{path}/{MANIFEST_FILE}"), path)
                except ManifestError as error:
                    unread[place] = str(error)
                    continue
                row = as_row(run)
                # Of many runs only what is requested stays in memory; the index gets all of it.
                if kind == "row":
                    rows[place] = row
                else:
                    runs[place] = run
                try:
                    entry = _line(place, stamps[place], row, run)
                except UnicodeEncodeError:
                    # Half a surrogate pair in a manifest or a name: no index holds it, so this run is read each time.
                    continue
                longest = max(longest, lines.write(entry))
        read, gone = len(new) - len(unread), len(known.keys() - stamps.keys())
        if read + gone >= WORTH:
            kept = (known.keys() & stamps.keys()) - (set(new) - unread.keys())
            data = _written(changed, longest, kept, index if known else None, Path(scratch))
            try:
                folder.save_index(data)
            except OSError as error:
                # Another user's folder, or a full disk.
                say(f"note: the index was not written ({error.strerror or error}); listing takes as long again")
    return _listed(folder, rows, runs, unread)


def as_row(run: IndexedRun) -> RunRow:
    def number(name: str) -> float | None:
        value = run.value(name)
        return value if isinstance(value, float) else None

    return RunRow(
        run_id=short(run.run_id),
        path=run.path,
        date=short(run.labels["date"]),
        model=short(run.labels["model"]),
        device=short(run.labels["device"]),
        status=run.status,
        stages=short(", ".join(f"{name} {status}" for name, status in run.stages.items())),
        failed=short(", ".join(f"{name} {status}" for name, status in run.stages.items() if status != "ok")),
        ttft_ms=number("ttft_ms"),
        tpot_ms=number("tpot_ms"),
        wall_ms=number("wall_ms"),
        tokens_per_s=number("tokens_per_s"),
        ttft_p99_ms=number("ttft_p99_ms"),
        overrides=tuple(map(short, run.overrides)),
    )


def short(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"


def _listed(
    folder: RunFolder, rows: Mapping[str, RunRow], runs: Mapping[str, IndexedRun], unread: Mapping[str, str]
) -> Listed:
    """In order, and with the paths of today: a folder of runs may have been moved."""
    return Listed(
        rows={place: _at(folder.path_of(place), rows[place]) for place in _ordered(rows)},
        runs={place: _at(folder.path_of(place), runs[place]) for place in _ordered(runs)},
        unread=unread,
    )


def _at(path: str, found: T) -> T:
    return found if found.path == path else replace(found, path=path)


def _ordered(places: Iterable[str]) -> list[str]:
    return sorted(places, key=lambda place: () if place == "." else tuple(place.split("/")))


def _decode(place: str, text: str, kind: str, rows: dict[str, RunRow], runs: dict[str, IndexedRun]) -> None:
    try:
        if kind == "row":
            rows[place] = msgspec.json.decode(text, type=RunRow)
        else:
            runs[place] = msgspec.json.decode(text, type=IndexedRun)
    except msgspec.DecodeError:
        # An index of another user is not ours; the manifest says it.
        return


def _known(index: Path, kind: Literal["row", "run"]) -> dict[str, tuple[str, str]]:
    """What an index holds; nothing where it cannot be read, or holds more than one of its size does."""
    import duckdb

    held = f"FROM read_parquet(?) WHERE format = {FORMAT}"
    limit = unpacked_limit_bytes(index.stat().st_size)
    try:
        with duckdb.connect() as connection:
            size = f"SELECT sum(strlen(place) + strlen(stamp) + strlen({kind})) {held}"
            ((unpacked_bytes,),) = connection.execute(size, [str(index)]).fetchall()
            if (unpacked_bytes or 0) > limit:
                return {}
            found = connection.execute(f"SELECT place, stamp, {kind} {held}", [str(index)]).fetchall()
    except duckdb.Error:
        return {}
    return {place: (stamp, text) for place, stamp, text in found if text is not None}


def _line(place: str, stamp: str, row: RunRow, run: IndexedRun) -> bytes:
    """One entry of the index, as `_written` reads it."""
    values = {
        "format": FORMAT,
        "place": place,
        "stamp": stamp,
        "row": msgspec.json.encode(row).decode(),
        "run": msgspec.json.encode(run).decode(),
    }
    return msgspec.json.encode(values) + b"\n"


def _written(changed: Path, longest: int, kept: Iterable[str], index: Path | None, scratch: Path) -> bytes:
    """The bytes of a new index: what changed, and of the old one what is still there."""
    import duckdb

    made, there = scratch / "made.parquet", scratch / "there.jsonl"
    there.write_bytes(b"".join(msgspec.json.encode({"place": place}) + b"\n" for place in kept))
    wanted = (
        f"SELECT * FROM read_json({_literal(changed)}, format='newline_delimited', columns={_COLUMNS}, "
        f"maximum_object_size={max(longest, 1 << 20)})"
    )
    if index is not None:
        kept = (
            f"SELECT place FROM read_json({_literal(there)}, format='newline_delimited', columns={{place: 'VARCHAR'}})"
        )
        wanted += f" UNION ALL SELECT * FROM read_parquet(?) WHERE format = {FORMAT} AND place IN ({kept})"
    # Each thread would have buffers and rows of its own.
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(
            f"COPY ({wanted}) TO {_literal(made)} "
            f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, ROW_GROUP_SIZE {ROWS_AT_ONCE})",
            [] if index is None else [str(index)],
        )
    return made.read_bytes()


def _literal(path: Path) -> str:
    """A path as a word of SQL."""
    return "'" + str(path).replace("'", "''") + "'"
