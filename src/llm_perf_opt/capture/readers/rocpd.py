"""The rocpd database of rocprofv3 (ROCm 7's default output) as a Timeline.

The tables carry a UUID in their names and differ between versions; the views over them (`kernels`, `memory_copies`,
`regions`) do not, so only these are read. A record is joined with its host call by `stack_id` inside one `guid`:
`corr_id` is 0 in real files. The recorded environment of the process is never inspected.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Ints
from llm_perf_opt.capture.kernels.names import cut_name
from llm_perf_opt.capture.readers.nsys_database import LeftOut, NsysDatabase, check_times, open_database
from llm_perf_opt.capture.timeline import (
    Activities,
    Calls,
    CapturedGpu,
    Codes,
    LaunchShape,
    Origin,
    Ranges,
    Timeline,
    count_lost_launches,
    distinct,
    join_calls,
    lost_notes,
    no_activities,
    no_calls,
    positive_or_none,
)
from llm_perf_opt.errors import ParseError

ROCPD = "rocpd"
KERNELS, COPIES, REGIONS, DISPATCHES = "kernels", "memory_copies", "regions", "rocpd_kernel_dispatch"
PROCESSES, AGENTS, METADATA = "rocpd_info_process", "rocpd_info_agent", "rocpd_metadata"
NODES = "rocpd_info_node"
# Ranges that the program opened with roctx; their text is behind the call's name.
_MARKER = "MARKER"
# These belong to no thread; the others are pushed and popped.
_PROCESS_WIDE = re.compile("RangeStart", re.IGNORECASE)
_WAITS = re.compile(
    r"Synchronize|^hip(Memcpy|Memcpy2D|Memcpy3D|MemcpyToSymbol|MemcpyFromSymbol|MemcpyWithStream|Free|FreeHost|HostFree)"
    r"(_spt)?$|^hipMemcpy(HtoD|DtoH|DtoD)$|^hsa_signal_wait"
)
# Agents of other types, and records without one, are neither.
_ENDS = {"GPU": "DEVICE", "CPU": "HOST"}
_COPY = re.compile(r"(HOST|DEVICE)_TO_(HOST|DEVICE)$")
# Calls of the compiler's own start-up code and between host and driver, of no meaning to a reader of a timeline.
_SETS_UP_CALLS = re.compile(r"^__hip(Push|Pop)CallConfiguration$")
_WORK = {
    "name": "name",
    "start": "start",
    "end": "end",
    "stream": "stream_id",
    "queue": "queue_id",
    "stack": "stack_id",
    "guid": "guid",
}
_SHAPE = ("grid_x", "grid_y", "grid_z", "workgroup_x", "workgroup_y", "workgroup_z", "vgpr_count", "lds_size")


def read_rocpd(path: Path) -> Timeline:
    """Read a database, or raise ParseError with what is wrong with it."""
    with open_database(path) as database:
        return _Reader(database).read()


class _Reader:
    """Views of one database under shared codes of names, processes and threads."""

    def __init__(self, db: NsysDatabase) -> None:
        self._db = db
        self._names: Codes[str] = Codes()
        self._processes: Codes[str] = Codes()
        self._threads: Codes[tuple[str, int]] = Codes()
        self._notes: list[str] = []

    def read(self) -> Timeline:
        for view in (KERNELS, REGIONS):
            if not self._db.columns(view):
                raise ParseError(
                    f"{self._db.path}: a rocpd database without the view {view}; convert it with the rocpd of ROCm 7, "
                    "or record the program again with rocprofv3"
                )
        # First, so that processes without GPU work have a code too.
        host = self._processes_listed()
        calls, correlation, ranges = self._host()
        kernels, shapes = self._kernels()
        copies = self._copies()
        process = np.array([self._processes[guid] for guid, _ in self._threads], np.int64)
        owners = process[calls.thread] if len(calls) else np.zeros(0, np.int64)
        work = [(table.call, table.process) for table in (kernels, copies)]
        links = join_calls(correlation, owners, work)
        for link in links.calls:
            calls.launches[link[link >= 0]] = True
        kernels, copies = (replace(w, call=link) for w, link in zip((kernels, copies), links.calls, strict=True))
        lost = count_lost_launches(tuple(self._names), calls) if len(kernels) else 0
        self._say_what_is_missing(kernels, copies, calls)
        return Timeline(
            source=self._db.path.name,
            kind=ROCPD,
            producer="rocprofv3",
            schema=self._schema(),
            names=tuple(self._names),
            kernels=kernels,
            copies=copies,
            graphs=no_activities(),
            calls=calls,
            ranges=ranges,
            thread_process=process if len(process) else np.zeros(1, np.int64),
            devices=self._devices(distinct(np.concatenate((kernels.device, copies.device)))),
            notes=(*self._notes, *links.notes, *lost_notes(lost, calls)),
            origin=Origin(host=host, processes=self._process_names()),
            launch_shapes=shapes,
            thread_names=tuple(f"thread {tid}" for _, tid in self._threads),
            lost_launches=lost,
        )

    def _rows(self, view: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Columns of a view in the order of start, None where the view lacks one."""
        self._db.require(view, ("start", "end"))
        there = ", ".join(self._db.column_or(view, name, "NULL") for name in columns)
        return self._db.query(f'SELECT {there} FROM "{view}" ORDER BY "start"')

    def _columns(self, view: str, columns: Sequence[str]) -> dict[str, list[Any]]:
        """The usable rows by column; those without times or ending before they start are counted and left out."""
        left_out, kept = LeftOut(), []
        start, end = columns.index("start"), columns.index("end")
        for row in self._rows(view, columns):
            if type(row[start]) is not int or type(row[end]) is not int:
                left_out.missing += 1
            elif row[end] < row[start]:
                left_out.backwards += 1
            else:
                kept.append(row)
        self._notes += left_out.notes(view)
        found = dict(zip(columns, (list(c) for c in zip(*kept, strict=True)), strict=True)) if kept else {}
        return found or {name: [] for name in columns}

    def _times(self, view: str, columns: dict[str, list[Any]]) -> tuple[Ints, Ints]:
        start, end = (np.array(columns[key], np.int64) for key in ("start", "end"))
        check_times(self._db, view, start, end)
        return start, end

    def _numbers(self, view: str, values: Sequence[Any]) -> Ints:
        return self._db.integers(view, values)[0]

    def _ids(self, view: str, values: Sequence[Any]) -> Ints:
        """Ids of calls; 0 is written where a record has none."""
        found = self._numbers(view, values)
        return np.where(found > 0, found, -1)

    def _name(self, text: Any) -> int:
        return self._names["(no name)" if text is None else cut_name(str(text))]

    def _kernels(self) -> tuple[Activities, tuple[LaunchShape, ...]]:
        columns = self._columns(KERNELS, (*_WORK.values(), "agent_type_index", *_SHAPE))
        work = self._work(KERNELS, columns, self._numbers(KERNELS, columns["agent_type_index"]), None)
        total = self._row_count(DISPATCHES)
        if total > len(work):
            self._notes.append(f"{total - len(work):,} of {total:,} kernels are in no view of the database")
        codes: Codes[LaunchShape] = Codes()
        sizes = zip(*(columns[name] for name in _SHAPE), strict=True)
        places = [codes[_shape(row)] if _has_shape(row) else -1 for row in sizes]
        return replace(work, shape=np.array(places, np.int64)), tuple(codes)

    def _copies(self) -> Activities:
        if not self._db.columns(COPIES):
            return no_activities()
        ends = ("src_agent_type", "dst_agent_type", "src_agent_type_index", "dst_agent_type_index")
        columns = self._columns(COPIES, (*_WORK.values(), "size", *ends))
        columns["name"] = [
            _copy_name(*row) for row in zip(columns["name"], *(columns[key] for key in ends[:2]), strict=True)
        ]
        source, target = (self._numbers(COPIES, columns[key]) for key in ends[2:])
        to_gpu = np.array([kind == "GPU" for kind in columns["dst_agent_type"]], np.bool_)
        return self._work(COPIES, columns, np.where(to_gpu, target, source), self._numbers(COPIES, columns["size"]))

    def _work(self, view: str, columns: dict[str, list[Any]], device: Ints, size_bytes: Ints | None) -> Activities:
        """GPU work whose `call` still is the id of its call."""
        start, end = self._times(view, columns)
        stream, queue = (self._numbers(view, columns[key]) for key in ("stream_id", "queue_id"))
        return Activities(
            start_ns=start,
            end_ns=end,
            name=np.array([self._name(name) for name in columns["name"]], np.int64),
            call=self._ids(view, columns["stack_id"]),
            process=np.array([self._processes[str(guid)] for guid in columns["guid"]], np.int64),
            device=device,
            stream=np.where(stream >= 0, stream, queue),
            size_bytes=size_bytes,
        )

    def _host(self) -> tuple[Calls, Ints, Ranges]:
        """Calls of the runtime with their ids, and the ranges among the recorded regions."""
        wanted = ("name", "start", "end", "tid", "guid", "category", "stack_id", "extdata")
        columns = self._columns(REGIONS, wanted)
        start, end = self._times(REGIONS, columns)
        is_range: Flags = np.array([str(c).startswith(_MARKER) for c in columns["category"]], np.bool_)
        names = [str(name) for name in columns["name"]]
        is_call = ~is_range & np.array([_SETS_UP_CALLS.match(name) is None for name in names], np.bool_)
        thread = np.array(
            [self._threads[(str(g), t)] for g, t in zip(columns["guid"], columns["tid"], strict=True)], np.int64
        )
        shown = [
            _message(data) or name if ranged else name
            for name, data, ranged in zip(names, columns["extdata"], is_range.tolist(), strict=True)
        ]
        code = np.array([self._name(name) for name in shown], np.int64)
        if not len(start):
            calls, correlation = no_calls(), start
        else:
            waits = np.array([_WAITS.search(name) is not None for name in names], np.bool_)[is_call]
            correlation = self._ids(REGIONS, columns["stack_id"])[is_call]
            calls = Calls(
                start_ns=start[is_call],
                end_ns=end[is_call],
                thread=thread[is_call],
                name=code[is_call],
                launches=np.zeros(int(is_call.sum()), np.bool_),
                waits=waits,
                correlation=correlation,
            )
        wide = np.array([_PROCESS_WIDE.search(name) is not None for name in names], np.bool_)
        # A mark has no length.
        is_range &= end > start
        ranges = Ranges(
            start_ns=start[is_range],
            end_ns=end[is_range],
            name=code[is_range],
            thread=thread[is_range],
            process_wide=wide[is_range],
        )
        return calls, correlation, ranges

    def _say_what_is_missing(self, kernels: Activities, copies: Activities, calls: Calls) -> None:
        used = {list(self._names)[int(code)] for code in distinct(calls.name)}
        if not len(kernels):
            self._notes.append("no kernels were recorded; record with `rocprofv3 --sys-trace` (or --kernel-trace)")
        if not len(copies) and any(re.match(r"hipMemcpy|hsa_amd_memory_async_copy", name) for name in used):
            self._notes.append(
                "copies were called and not recorded; record with `rocprofv3 --sys-trace` (or --memory-copy-trace)"
            )
        if len(kernels) and not len(calls):
            self._notes.append(
                "the host calls were not recorded, so no kernel can be given to a range; record with `rocprofv3 "
                "--sys-trace` (or --hip-trace)"
            )

    def _row_count(self, view: str) -> int:
        return int(self._db.query(f'SELECT count(*) FROM "{view}"')[0][0]) if self._db.columns(view) else 0

    def _schema(self) -> str | None:
        if not {"tag", "value"} <= set(self._db.columns(METADATA)):
            return None
        rows = self._db.query(f"SELECT value FROM {METADATA} WHERE tag = 'schema_version'")
        return next((str(value) for (value,) in rows), None)

    def _processes_listed(self) -> str | None:
        """Gives the processes their codes; returns the host."""
        if "guid" in self._db.columns(PROCESSES):
            for (guid,) in self._db.query(f"SELECT DISTINCT guid FROM {PROCESSES} ORDER BY guid"):
                self._processes[str(guid)]
        if "hostname" not in self._db.columns(NODES):
            return None
        hosts = {str(name) for (name,) in self._db.query(f"SELECT hostname FROM {NODES}") if name}
        return min(hosts) if len(hosts) == 1 else None

    def _process_names(self) -> tuple[str, ...]:
        """`program (pid)`; of the command only the program, for its arguments may hold secrets."""
        known: dict[str, str] = {}
        if {"guid", "pid", "command"} <= set(self._db.columns(PROCESSES)):
            for guid, pid, command in self._db.query(f"SELECT guid, pid, command FROM {PROCESSES}"):
                program = PurePosixPath(str(command or "process").split(" ")[0]).name
                known[str(guid)] = f"{program} ({pid})"
        return tuple(known.get(guid, "process") for guid in self._processes)

    def _devices(self, used: Ints) -> tuple[CapturedGpu, ...]:
        """The GPUs that worked; all of them where none did."""
        if not {"type", "type_index", "product_name"} <= set(self._db.columns(AGENTS)):
            return ()
        columns = [
            self._db.column_or(AGENTS, name, "NULL") for name in ("type_index", "product_name", "name", "extdata")
        ]
        rows = self._db.query(f"SELECT DISTINCT {', '.join(columns)} FROM {AGENTS} WHERE type = 'GPU' ORDER BY 1")
        working = {int(number) for number in used}
        chosen = [row for row in rows if row[0] in working] or rows
        return tuple(_device(product or name, extra) for _, product, name, extra in chosen)


def _copy_name(name: Any, source: Any, target: Any) -> str:
    """As copies of other captures are called; by the name, else by what kinds of devices it is between."""
    match = _COPY.search(str(name))
    ends = match.groups() if match else tuple(_ENDS.get(kind, "UNKNOWN") for kind in (source, target))
    return f"Copy {ends[0].title()}-to-{ends[1].title()}"


def _has_shape(row: tuple[Any, ...]) -> bool:
    return all(type(size) is int and size > 0 for size in row[:6])


def _shape(row: tuple[Any, ...]) -> LaunchShape:
    """A grid of AMD counts work items; blocks are what fits into it."""
    items, block, (registers, shared) = row[:3], row[3:6], row[6:8]
    return LaunchShape(
        grid=tuple(-(-int(n) // int(size)) for n, size in zip(items, block, strict=True)),
        block=tuple(int(size) for size in block),
        registers=registers if type(registers) is int else None,
        shared_bytes=shared if type(shared) is int else None,
    )


def _message(data: Any) -> str | None:
    """What the program called a range."""
    try:
        found = json.loads(data)
    except (TypeError, ValueError, RecursionError):
        return None
    message = found.get("message") if isinstance(found, dict) else None
    return message if isinstance(message, str) and message else None


def _device(name: Any, extra: Any) -> CapturedGpu:
    try:
        found = json.loads(extra)
    except (TypeError, ValueError, RecursionError):
        found = None
    said: dict[str, Any] = found if isinstance(found, dict) else {}
    banks = said.get("mem_banks")
    sizes = [b.get("size_in_bytes") for b in banks if isinstance(b, dict)] if isinstance(banks, list) else []
    memory = sum(size for size in sizes if type(size) is int and size > 0)
    clock_mhz = positive_or_none(said.get("max_engine_clk_fcompute"))
    return CapturedGpu(
        name=str(name),
        sm_count=positive_or_none(said.get("cu_count")),
        clock_hz=None if clock_mhz is None else clock_mhz * 1_000_000,
        memory_bytes=memory or None,
    )
