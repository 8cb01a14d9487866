"""Builds small nsys exports in which every number can be worked out by hand."""

import lzma
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.fixtures_dir import DATA

PID = 0x1000000
THREAD = PID | 1
OTHER_THREAD = PID | 2
DEVICE_TO_HOST = 2


@dataclass
class Export:
    """Rows of an export; `write` makes the file. Tables without rows are left out, as nsys does."""

    schema: str | None = "3.20.3"
    strings: dict[str, int] = field(default_factory=dict)
    kernels: list[tuple[object, ...]] = field(default_factory=list)
    copies: list[tuple[object, ...]] = field(default_factory=list)
    graphs: list[tuple[object, ...]] = field(default_factory=list)
    calls: list[tuple[object, ...]] = field(default_factory=list)
    ranges: list[tuple[object, ...]] = field(default_factory=list)
    system_calls: list[tuple[object, ...]] = field(default_factory=list)
    pauses: list[tuple[object, ...]] = field(default_factory=list)

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def kernel(
        self,
        name: str,
        start: object,
        end: object,
        correlation: int,
        pid: int = PID,
        device: int = 0,
        stream: int = 7,
    ) -> None:
        self.kernels.append((start, end, device, correlation, pid, self.string(name), stream))

    def copy(self, start: int, end: int, correlation: int, size_bytes: int = 8, kind: int = DEVICE_TO_HOST) -> None:
        self.copies.append((start, end, 0, correlation, PID, size_bytes, kind))

    def graph(self, start: int, end: int, correlation: int) -> None:
        self.graphs.append((start, end, 0, correlation, PID, 77))

    def call(self, start: int, end: int, correlation: int, name: str = "cudaLaunchKernel", tid: int = THREAD) -> None:
        self.calls.append((start, end, tid, correlation, self.string(name)))

    def system_call(self, name: str, start: int, end: int, tid: int = THREAD) -> None:
        self.system_calls.append((start, end, tid, self.string(name)))

    def pause(self, name: str, start: int, end: int, tid: int = OTHER_THREAD) -> None:
        """Something nsys lists as its own overhead."""
        self.pauses.append((start, end, tid, self.string(name)))

    def range(self, name: str, start: object, end: object, *, tid: int = THREAD, kind: int = 59) -> None:
        self.ranges.append((start, end, kind, name, None, tid))

    def registered_range(self, name: str, start: int, end: int, *, tid: int = THREAD) -> None:
        self.ranges.append((start, end, 59, None, self.string(name), tid))

    def write(self, path: Path) -> Path:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, s) for s, i in self.strings.items()])
        if self.schema is not None:
            connection.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
            versions = [("EXPORT_SCHEMA_VERSION", self.schema), ("EXPORT_PRODUCT_VERSION", "2025.3.2")]
            connection.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", versions)
        gpu = "start INTEGER, end INTEGER, deviceId INTEGER, correlationId INTEGER, globalPid INTEGER"
        for table, columns, rows in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", f"{gpu}, demangledName INTEGER, streamId INTEGER", self.kernels),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", f"{gpu}, bytes INTEGER, copyKind INTEGER", self.copies),
            ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", f"{gpu}, graphId INTEGER", self.graphs),
            (
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
                self.calls,
            ),
            ("PROFILER_OVERHEAD", "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER", self.pauses),
            ("OSRT_API", "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER", self.system_calls),
            (
                "NVTX_EVENTS",
                "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER",
                self.ranges,
            ),
        ):
            if rows:
                connection.execute(f"CREATE TABLE {table} ({columns})")
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        connection.commit()
        connection.close()
        return path


def h200_export(folder: Path, name: str = "llama") -> Path:
    """A real capture on an H200, unpacked: of a Llama, a small program that replays a CUDA graph, or a JAX program."""
    path = folder / f"{name}.sqlite"
    path.write_bytes(lzma.decompress((DATA / "h200" / f"{name}.sqlite.xz").read_bytes()))
    return path
