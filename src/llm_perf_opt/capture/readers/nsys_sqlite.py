"""The SQLite export of nsys as a Timeline.

Tables exist in an export only when they hold rows, and column names differ between versions, so each is looked up
before it is used.

What an nsys export says about itself and about the machine: versions and GPUs.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Ints
from llm_perf_opt.capture.kernels.names import MAX_NAME, as_utf8, cut_name
from llm_perf_opt.capture.readers.nsys_database import (
    LATEST_NS,
    Ids,
    LeftOut,
    Names,
    NsysDatabase,
    Processes,
    as_text,
    check_times,
    copy_kinds,
    encode,
    joined,
    migrated,
    narrow,
    one_for_all,
    open_nsys_database,
    read_events,
)
from llm_perf_opt.capture.timeline import (
    Activities,
    Calls,
    CapturedGpu,
    HostEvents,
    LaunchShape,
    Origin,
    PageFaults,
    Ranges,
    Timeline,
    count_lost_launches,
    distinct,
    join,
    join_calls,
    join_events,
    lost_notes,
    no_activities,
    no_calls,
    no_host_events,
)
from llm_perf_opt.core.units import count_of
from llm_perf_opt.system.arrays import give_back_freed_memory

# Schemas seen in exports of nsys 2022.4 to 2025.x.
KNOWN_MAJOR = (2, 3)
NEWEST_KNOWN = (3, 25)
# Of a clock rate or a size in bytes.
MOST_DIGITS = 18


def read_version(db: NsysDatabase) -> tuple[str | None, str | None]:
    """Product and schema version; None where the export does not say."""
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if db.has(table) and {"name", "value"} <= set(db.columns(table)):
            found = {str(k): str(v) for k, v in db.query(f'SELECT name, value FROM "{table}"') if v is not None}
            product = found.get("EXPORT_PRODUCT_VERSION")
            return (f"nsys {product}" if product else None), found.get("EXPORT_SCHEMA_VERSION")
    return None, None


def schema_note(schema: str | None) -> list[str]:
    """The note on a schema version that has not been tested."""
    if schema is None:
        return ["the export does not name its schema version; it was read by its table and column names"]
    try:
        major, minor = (int(part) for part in schema.split(".")[:2])
    except ValueError:
        return [f"schema version {schema!r} is not a version; the export was read by its table and column names"]
    if major not in KNOWN_MAJOR or (major, minor) > NEWEST_KNOWN:
        return [
            f"schema version {schema} is not among those this version knows (2.x to 3.25); it was tried all the same"
        ]
    return []


def diagnostic_notes(db: NsysDatabase) -> list[str]:
    """What nsys itself found wrong with the capture: errors, and kinds of events it may have lost."""
    if not db.has(DIAGNOSTICS) or not {"severity", "text"} <= set(db.columns(DIAGNOSTICS)):
        return []
    rows = db.query(
        f'SELECT text, count(*) FROM "{DIAGNOSTICS}" WHERE severity = {DIAGNOSTIC_ERROR} '
        "OR text LIKE 'Not all CUDA events%' OR text LIKE 'Not all NVTX events%' GROUP BY text ORDER BY min(rowid)"
    )
    listed = [re.sub(r"\s+", " ", as_utf8(str(text))).strip()[:DIAGNOSTIC_LENGTH] for text, _ in rows if text]
    more = len(listed) - DIAGNOSTICS_QUOTED
    quoted = [f"nsys says: {text}" for text in listed[:DIAGNOSTICS_QUOTED]]
    return [*quoted, f"nsys says {more} more such things (table {DIAGNOSTICS})"] if more > 0 else quoted


def lost_cuda_events(db: NsysDatabase) -> bool:
    """Whether nsys says that it may have lost events of CUDA."""
    if not db.has(DIAGNOSTICS) or "text" not in db.columns(DIAGNOSTICS):
        return False
    return bool(db.query(f"SELECT 1 FROM \"{DIAGNOSTICS}\" WHERE text LIKE 'Not all CUDA events%' LIMIT 1"))


def read_devices(db: NsysDatabase, notes: list[str]) -> tuple[CapturedGpu, ...]:
    """The GPUs, from TARGET_INFO_GPU or, where that is missing, the GpuInfo row of the system environment.

    nsys lists every adapter of the machine, on Windows also those without CUDA; only CUDA devices have SMs.
    """
    listed = _listed_devices(db, notes)
    return tuple(device for device in listed if device.sm_count is not None) or listed


def _listed_devices(db: NsysDatabase, notes: list[str]) -> tuple[CapturedGpu, ...]:
    if db.has("TARGET_INFO_GPU") and "name" in db.columns("TARGET_INFO_GPU"):
        return _from_table(db)
    if db.has("TARGET_INFO_SYSTEM_ENV") and {"name", "value"} <= set(db.columns("TARGET_INFO_SYSTEM_ENV")):
        rows = db.query("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'GpuInfo'")
        return tuple(device for (value,) in rows if value for device in _from_json(str(value), notes))
    return ()


def _from_table(db: NsysDatabase) -> tuple[CapturedGpu, ...]:
    keys = (
        "name",
        "smCount",
        "clockRate",
        "l2CacheSize",
        "totalMemory",
        "memoryBandwidth",
        "computeMajor",
        "computeMinor",
    )
    select = ", ".join(db.column_or("TARGET_INFO_GPU", key, "NULL") for key in keys)
    return tuple(
        _device(dict(zip(keys, row, strict=True))) for row in db.query(f"SELECT DISTINCT {select} FROM TARGET_INFO_GPU")
    )


def _from_json(text: str, notes: list[str]) -> tuple[CapturedGpu, ...]:
    try:
        described = json.loads(text)
        gpus = described["Gpus"] if described else []
        return tuple(
            _device(
                {
                    "name": gpu["Name"],
                    "smCount": gpu["SmCount"],
                    "clockRate": gpu["ClockRate"],
                    "l2CacheSize": gpu["L2CacheSize"],
                    "totalMemory": gpu["TotalMemory"],
                    "memoryBandwidth": gpu["MemoryBandwidth"],
                    "computeMajor": gpu["ComputeMajor"],
                    "computeMinor": gpu["ComputeMinor"],
                }
            )
            for gpu in gpus
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        notes.append(f"the description of the GPU could not be understood ({error!r:.200})")
        return ()


def _device(row: dict[str, Any]) -> CapturedGpu:
    major, minor = (row[key] if isinstance(row[key], int) else None for key in ("computeMajor", "computeMinor"))
    return CapturedGpu(
        name=as_utf8(str(row["name"])),
        sm_count=_known_number(row["smCount"]),
        clock_hz=_known_number(row["clockRate"]),
        l2_bytes=_known_number(row["l2CacheSize"]),
        memory_bytes=_known_number(row["totalMemory"]),
        memory_bytes_per_s=_known_number(row["memoryBandwidth"]),
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
    )


def _known_number(value: Any) -> int | None:
    """Zero means nsys does not know."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS and int(text) > 0 else None


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
CPU_FAULTS, GPU_FAULTS = "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
SYSTEM = "OSRT_API"
# Calls of MPI and when they wait, as far as nsys traced them; their names are texts.
MPI = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_OTHER_EVENTS")
NVTX = "NVTX_EVENTS"
CALL_COLUMNS = {
    "start": "start",
    "end": "end",
    "tid": "globalTid",
    "correlation": "correlationId",
    "name": "nameId",
}
PAUSES = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
DIAGNOSTIC_ERROR, DIAGNOSTICS_QUOTED, DIAGNOSTIC_LENGTH = 3, 3, 200
PUSH_POP, START_END = 59, 60
# `--trace=python-gil` of nsys 2023.4 writes these NVTX ranges, in a domain `GIL Trace`: no ranges of the program.
GIL_WAIT, GIL_HELD = "Waiting for GIL", "Holding GIL"
# How a kernel was launched; not used in a capture of more kernels than this, because reading it takes time.
SHAPE_COLUMNS = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)
MOST_SHAPED = 300_000
WORK_COLUMNS = {
    "start": "start",
    "end": "end",
    "correlation": "correlationId",
    "process": "globalPid",
    "device": "deviceId",
    "stream": "streamId",
}
# And the columns that identify a piece of work, by table.
NAME_COLUMNS = {
    KERNELS: {"name": "demangledName"},
    COPIES: {"name": "copyKind", "source": "srcKind", "target": "dstKind", "bytes": "bytes"},
    SETS: {"bytes": "bytes"},
    GRAPHS: {"name": "graphId"},
}
UNSAID = {"correlation": -1, "process": 0, "device": 0, "stream": -1, "name": -1}
# The process is the upper part of a serialised thread id.
PID_MASK = ~0xFFFFFF
PID_SHIFT, PID_BITS = 24, 0xFFFFFF
# Shorter calls explain no gap.
_LONG_CALL_NS = 100_000
# Calls that only ask or prepare; the short ones are half of all.
_NEVER_LAUNCH = re.compile(
    "Get|SetAttribute|IsCapturing|Occupancy|Event(Create|Destroy|Query|Record)|HostAlloc|MallocHost"
)
_WAITS = re.compile(
    r"Synchronize|^cudaMemcpy(2D|3D|ToSymbol|FromSymbol)?(_ptds)?(_v\d+)?\Z|^cudaFree(Host)?(_v\d+)?\Z"
    r"|^cuMemcpy(HtoD|DtoH|DtoD)(_v\d+)?(_ptds)?\Z|^cuMemFree(Host)?(_v\d+)?\Z"
)
# What is longer is not a name of a call.
LONGEST_CALL = 200


def read_nsys_sqlite(path: Path) -> Timeline:
    """Read an export, or raise ParseError with what is wrong with it."""
    with open_nsys_database(path) as database:
        timeline = _read(database)
    give_back_freed_memory(max(len(timeline.kernels), len(timeline.calls)))
    return timeline


def _read(db: NsysDatabase) -> Timeline:
    product, schema = read_version(db)
    notes = schema_note(schema)
    names, processes = Names(db), Processes()
    kernels = _work(db, KERNELS, names.strings, processes, notes)
    copies = _work(db, COPIES, names.copies, processes, notes)
    sets = _work(db, SETS, lambda _, inverse: names.literal(inverse, "Memset"), processes, notes)
    graphs = _work(db, GRAPHS, names.graphs, processes, notes)
    shapes = _launch_shapes(kernels)
    calls, correlation, threads = _calls(db, names, notes)
    ranges, threads = _ranges(db, names, threads, notes)
    pauses, threads = _pauses(db, names, threads)
    thread_process = processes.codes(*encode(threads & PID_MASK))
    tables = [kernels, copies, sets, graphs]
    owners = distinct(thread_process[calls.thread])
    for table, columns in zip((KERNELS, COPIES, SETS, GRAPHS), tables, strict=True):
        # Early exports do not say which process worked; where only one called, it did.
        if len(owners) == 1 and db.has(table) and "globalPid" not in db.columns(table):
            columns["process"] = np.full(len(columns["start"]), owners[0], np.int32)
    links = join_calls(
        correlation, thread_process[calls.thread], [(t.pop("correlation"), t["process"]) for t in tables]
    )
    notes += links.notes
    for link in links.calls:
        calls.launches[link[link >= 0]] = True
    calls = replace(calls, correlation=correlation)
    lost = count_lost_launches(names.all, calls)
    is_empty = len(calls) > 0 and not any(len(table["start"]) for table in tables)
    notes += lost_notes(lost, calls, is_empty=is_empty)
    parts = [_activities(t, link) for t, link in zip(tables, links.calls, strict=True)]
    notes += diagnostic_notes(db)
    devices = read_devices(db, notes)
    faults = _page_faults(db)
    if faults is not None:
        notes.append(f"unified memory: {faults.cpu_count:,} page faults of the CPU, {faults.gpu_count:,} of the GPU")
    system = _system(db, names, threads)
    ranges, gil_waits, gil_held = _apart_from_gil(ranges, names.all)
    return Timeline(
        source=db.path.name,
        kind="nsys",
        producer=product,
        schema=schema,
        names=names.all,
        kernels=parts[0],
        copies=_with_sizes(parts[1], parts[2]),
        graphs=parts[3],
        calls=calls,
        ranges=ranges,
        thread_process=thread_process,
        devices=devices,
        notes=tuple(notes),
        system=system if not len(gil_waits) else join_events((system, gil_waits)),
        pauses=pauses,
        gil_held=gil_held,
        origin=_origin(db, processes),
        launch_shapes=shapes,
        thread_names=_thread_names(db, threads),
        lost_launches=lost,
        may_lack_gpu_work=lost_cuda_events(db),
        page_faults=faults,
    )


def _launch_shapes(columns: dict[str, Ints]) -> tuple[LaunchShape, ...]:
    """The distinct ways kernels were launched; the columns become one, `shape`, that says which."""
    if SHAPE_COLUMNS[0] not in columns:
        return ()
    rows = np.stack([columns.pop(name) for name in SHAPE_COLUMNS], axis=1)
    distinct_rows, columns["shape"] = np.unique(rows, axis=0, return_inverse=True)
    return tuple(
        LaunchShape(
            grid=tuple(row[0:3]),
            block=tuple(row[3:6]),
            registers=row[6] if row[6] >= 0 else None,
            shared_bytes=row[7] + row[8] if min(row[7:9]) >= 0 else None,
        )
        for row in distinct_rows.tolist()
    )


def _thread_names(db: NsysDatabase, threads: Ints) -> tuple[str, ...]:
    """`name (id)` of each thread, where any has a name."""
    if not db.has("ThreadNames") or not {"nameId", "globalTid"} <= set(db.columns("ThreadNames")):
        return ()
    # Of a damaged export a column may hold anything.
    rows = db.query(
        "SELECT globalTid, nameId FROM ThreadNames WHERE typeof(globalTid) = 'integer' AND typeof(nameId) = 'integer'"
    )
    rows = [(int(t), int(n)) for t, n in rows if t]
    names = dict(zip((t for t, _ in rows), db.strings([n for _, n in rows]), strict=True))
    return tuple(f"{names.get(int(t), 'thread')} ({int(t) & PID_BITS})" for t in threads)


def _origin(db: NsysDatabase, processes: Processes) -> Origin:
    """The host, and the processes as `name (pid)`."""
    table, host = "TARGET_INFO_SYSTEM_ENV", None
    if db.has(table) and {"name", "value"} <= set(db.columns(table)):
        rows = db.query(f"SELECT value FROM {table} WHERE name = 'Hostname'")
        host = next((as_utf8(str(value)) for (value,) in rows if value), None)
    names: dict[int, str] = {}
    if db.has("PROCESSES") and {"globalPid", "name"} <= set(db.columns("PROCESSES")):
        found = db.query("SELECT globalPid, name FROM PROCESSES WHERE name IS NOT NULL")
        names = {int(key): as_utf8(str(name)) for key, name in found if isinstance(key, int)}
    return Origin(
        host=host,
        processes=tuple(f"{names.get(key, 'process')} ({(key >> PID_SHIFT) & PID_BITS})" for key in processes.ids),
        base_ns=_session_start_ns(db),
    )


def _page_faults(db: NsysDatabase) -> PageFaults | None:
    """How often unified memory was not where it was used; nsys records that only where it was asked to."""
    if not (db.has(CPU_FAULTS) or db.has(GPU_FAULTS)):
        return None
    on_cpu = db.query(f"SELECT count(*) FROM {CPU_FAULTS}")[0][0] if db.has(CPU_FAULTS) else 0
    on_gpu = 0
    if db.has(GPU_FAULTS):
        # One row stands for all faults that the GPU reported together.
        each = db.column_or(GPU_FAULTS, "numberOfPageFaults", "1")
        on_gpu = db.query(f"SELECT coalesce(sum(CAST({each} AS INTEGER)), 0) FROM {GPU_FAULTS}")[0][0]
    return PageFaults(cpu_count=int(on_cpu), gpu_count=int(on_gpu))


def _session_start_ns(db: NsysDatabase) -> int:
    """The time of day at which the export's clock was zero; 0 where it does not say."""
    table = "TARGET_INFO_SESSION_START_TIME"
    if not db.has(table) or "utcEpochNs" not in db.columns(table):
        return 0
    rows = db.query(f"SELECT utcEpochNs FROM {table} LIMIT 1")
    return next((int(value) for (value,) in rows if isinstance(value, int) and 0 < value < LATEST_NS), 0)


def _work(
    db: NsysDatabase, table: str, code: Callable[[Ints, Ints], Ints], processes: Processes, notes: list[str]
) -> dict[str, Ints]:
    """One table of GPU work; rows without an end, or ending before they start, are left out and said."""
    keys = ("start", "end", "correlation", "process", "device", "stream", "bytes", "name")
    no_rows: dict[str, Ints] = dict.fromkeys(keys, np.zeros(0, np.int64))
    if not db.has(table):
        return no_rows
    db.require(table, ("start", "end"))
    wanted = WORK_COLUMNS | NAME_COLUMNS[table]
    if table == KERNELS and _can_shape(db):
        wanted |= {name: name for name in SHAPE_COLUMNS}
    unsaid = UNSAID if table in (KERNELS, GRAPHS) else {**UNSAID, "bytes": -1}
    owners, names, left_out = Ids(), Ids(), LeftOut()
    parts: list[dict[str, Ints]] = []
    for rows in read_events(db, table, wanted, left_out):
        for key in unsaid.keys() - rows.keys():
            rows[key] = np.full(len(rows["start"]), unsaid[key], np.int64)
        if table == COPIES:
            rows["name"] = copy_kinds(rows)
        rows["process"], rows["name"] = owners.codes(rows["process"]), names.codes(rows["name"])
        rows["device"], rows["stream"] = _small(rows["device"]), _small(rows["stream"])
        rows["correlation"] = narrow(rows["correlation"])
        parts.append({key: column for key, column in rows.items() if key not in ("source", "target")})
    notes += left_out.notes(table)
    columns = joined(parts) or no_rows
    columns["process"] = processes.codes(*owners.in_order(columns["process"]))
    kinds, place = names.in_order(columns["name"])
    if table == COPIES and bool((moved := migrated(kinds)).any()):
        columns["by_driver"] = moved[place].astype(np.int8)
    columns["name"] = code(kinds, place)
    # Of millions of kernels mostly one process, device and stream: three columns less.
    return columns | {key: one_for_all(columns[key]) for key in ("process", "device", "stream")}


def _small(numbers: Ints) -> Ints:
    """Numbers of devices or streams in 32 bits; what is out of place is unknown."""
    limit = 2**31
    odd = (numbers < -limit) | (numbers >= limit)
    return np.where(odd, -1, numbers).astype(np.int32) if bool(odd.any()) else numbers.astype(np.int32)


def _can_shape(db: NsysDatabase) -> bool:
    if not set(SHAPE_COLUMNS) <= set(db.columns(KERNELS)):
        return False
    ((last,),) = db.query(f"SELECT max(rowid) FROM {KERNELS}")
    return last is not None and int(last) <= MOST_SHAPED


def _activities(columns: dict[str, Ints], call: Ints) -> Activities:
    return Activities(
        start_ns=columns["start"],
        end_ns=columns["end"],
        name=columns["name"],
        call=call,
        process=columns["process"],
        device=columns["device"],
        stream=columns["stream"],
        size_bytes=columns.get("bytes"),
        shape=columns.get("shape"),
        by_driver=columns["by_driver"].astype(np.bool_) if "by_driver" in columns else None,
    )


def _with_sizes(copies: Activities, sets: Activities) -> Activities:
    both = join([copies, sets])
    sizes = [a.size_bytes for a in (copies, sets) if a.size_bytes is not None]
    return replace(both, size_bytes=np.concatenate(sizes)) if len(both) else no_activities()


def _calls(db: NsysDatabase, names: Names, notes: list[str]) -> tuple[Calls, Ints, Ints]:
    """Calls that may have launched or waited; with their correlation ids and the thread ids in use."""
    none = np.zeros(0, np.int64)
    if not db.has(CALLS):
        if db.has(KERNELS):
            notes.append("the host calls were not recorded (no CUDA API trace), so no kernel can be given to a range")
        return no_calls(), none, none
    db.require(CALLS, ("start", "end"))
    kinds, threads, left_out = _CallKinds(db), Ids(), LeftOut()
    parts: list[dict[str, Ints]] = []
    for rows in read_events(db, CALLS, CALL_COLUMNS, left_out, keep=kinds.may_matter):
        for key, unsaid in (("tid", 0), ("correlation", -1)):
            if key not in rows:
                rows[key] = np.full(len(rows["start"]), unsaid, np.int64)
        parts.append({**rows, "tid": threads.codes(rows["tid"]), "correlation": narrow(rows["correlation"])})
    notes += left_out.notes(CALLS)
    columns = joined(parts)
    if not columns:
        return no_calls(), none, none
    thread_ids, thread = threads.in_order(columns["tid"])
    named = "name" in columns
    wait: Flags = kinds.waits[columns["name"]] if named else np.zeros(len(thread), np.bool_)
    calls = Calls(
        start_ns=columns["start"],
        end_ns=columns["end"],
        thread=one_for_all(thread),
        name=names.strings(*kinds.ids.in_order(columns["name"])) if named else np.full(len(thread), -1, np.int32),
        launches=np.zeros_like(wait),
        waits=wait,
    )
    return calls, columns["correlation"], thread_ids


class _CallKinds:
    """The names of calls by what they do, looked up as they are met."""

    def __init__(self, db: NsysDatabase) -> None:
        self._db = db
        self.ids = Ids()
        self.waits: Flags = np.zeros(0, np.bool_)
        self._idle: Flags = np.zeros(0, np.bool_)

    def may_matter(self, columns: dict[str, Ints], length_ns: Ints) -> Flags:
        """All but short calls that neither launch nor wait; the names become codes."""
        if "name" not in columns:
            return np.ones(len(length_ns), np.bool_)
        columns["name"] = self.ids.codes(columns["name"])
        if len(self.ids) > len(self.waits):
            texts = self._db.strings(list(self.ids)[len(self.waits) :])
            waits = np.array([len(text) < LONGEST_CALL and _WAITS.search(text) is not None for text in texts])
            idle = np.array([len(text) < LONGEST_CALL and _NEVER_LAUNCH.search(text) is not None for text in texts])
            self.waits, self._idle = np.append(self.waits, waits), np.append(self._idle, idle & ~waits)
        return ~self._idle[columns["name"]] | (length_ns >= _LONG_CALL_NS)


def _long_events(db: NsysDatabase, table: str, name: str) -> list[dict[str, Ints]]:
    """Long events on threads, in parts; none where the table or a column of it is missing."""
    wanted = {"start": "start", "end": "end", "tid": "globalTid", "name": name}
    if not db.has(table) or not set(wanted.values()) <= set(db.columns(table)):
        return []
    return list(read_events(db, table, wanted, LeftOut(), keep=lambda _, length_ns: length_ns >= _LONG_CALL_NS))


def _system(db: NsysDatabase, names: Names, threads: Ints) -> HostEvents:
    """Long calls of the operating system and of MPI by the threads that also called CUDA or opened ranges."""
    tables = ((SYSTEM, "nameId"), *((table, "textId") for table in MPI))
    columns = joined([part for table, name in tables for part in _long_events(db, table, name)])
    if not columns:
        return no_host_events()
    order = np.argsort(threads)
    place = np.minimum(np.searchsorted(threads[order], columns["tid"]), max(len(threads) - 1, 0))
    known = threads[order][place] == columns["tid"] if len(threads) else np.zeros(len(place), np.bool_)
    return HostEvents(
        start_ns=columns["start"][known],
        end_ns=columns["end"][known],
        name=names.strings(*encode(columns["name"][known])),
        thread=order[place[known]],
    )


def _pauses(db: NsysDatabase, names: Names, threads: Ints) -> tuple[HostEvents, Ints]:
    """When nsys or CUPTI held the program up long enough to be seen, and all thread ids, the known ones first."""
    columns = joined([part for table in PAUSES for part in _long_events(db, table, "nameId")])
    if not columns or not len(columns["start"]):
        return no_host_events(), threads
    met = set(threads.tolist())
    more = np.array([thread for thread in distinct(columns["tid"]).tolist() if thread not in met], np.int64)
    all_threads = np.concatenate((threads, more))
    order = np.argsort(all_threads, kind="stable")
    return HostEvents(
        start_ns=columns["start"],
        end_ns=columns["end"],
        name=names.strings(*encode(columns["name"])),
        thread=order[np.searchsorted(all_threads[order], columns["tid"])],
    ), all_threads


def _ranges(db: NsysDatabase, names: Names, threads: Ints, notes: list[str]) -> tuple[Ranges, Ints]:
    """NVTX ranges that ended, and all thread ids, those of the calls first."""
    none = np.zeros(0, np.int64)
    if not db.has(NVTX):
        return Ranges(start_ns=none, end_ns=none, name=none, thread=none, process_wide=none.astype(np.bool_)), threads
    db.require(NVTX, ("start", "end", "eventType"))
    thread, registered = db.column_or(NVTX, "globalTid", "0"), db.column_or(NVTX, "textId", "-1")
    # As bytes, to say where they are not text; one character more than is kept, to see what is cut.
    text = f"CAST(substr({db.column_or(NVTX, 'text', 'NULL')}, 1, {MAX_NAME + 1}) AS BLOB)"
    columns: dict[str, list[Any]] = {key: [] for key in ("start", "end", "type", "tid", "id", "text")}
    for part in db.select(
        f'SELECT "start", "end", eventType, {thread}, {registered}, {text} FROM {NVTX} '
        f"WHERE eventType IN ({PUSH_POP}, {START_END})"
    ):
        for key, values in zip(columns, zip(*part, strict=True), strict=True):
            columns[key] += values
    texts = [_range_name(value) for value in columns.pop("text")]
    found = {key: db.integers(NVTX, values) for key, values in columns.items()}
    (start, no_start), (end, no_end) = found["start"], found["end"]
    open_ = 0 if no_end is None else int(no_end.sum())
    kept = end >= start
    for flags in (no_start, no_end):
        if flags is not None:
            kept &= ~flags
    dropped = len(start) - int(kept.sum()) - open_
    if open_:
        notes.append(f"left out: {count_of(open_, 'range')} still open when the capture stopped")
    if dropped:
        notes.append(f"left out: {count_of(dropped, 'row')} of {NVTX} with an end before the start")
    start, end, tids = start[kept], end[kept], found["tid"][0][kept]
    check_times(db, NVTX, start, end)
    known = {int(t): i for i, t in enumerate(threads)}
    new = [int(t) for t in distinct(tids) if int(t) not in known]
    all_threads = np.concatenate((threads, np.array(new, np.int64)))
    code = {int(t): i for i, t in enumerate(all_threads)}
    unique, inverse = encode(tids)
    return Ranges(
        start_ns=start,
        end_ns=end,
        name=names.texts(list(compress(texts, kept)), found["id"][0][kept]),
        thread=np.array([code[int(t)] for t in unique], np.int64)[inverse] if len(unique) else none,
        process_wide=found["type"][0][kept] == START_END,
    ), all_threads


def _apart_from_gil(ranges: Ranges, names: tuple[str, ...]) -> tuple[Ranges, HostEvents, HostEvents]:
    """The ranges of the program, when threads waited for the GIL, and when they held it."""
    if GIL_HELD not in names:
        return ranges, no_host_events(), no_host_events()
    held = ranges.name == names.index(GIL_HELD)
    waits = ranges.name == (names.index(GIL_WAIT) if GIL_WAIT in names else -1)
    kept = np.flatnonzero(~held & ~waits)
    own = Ranges(
        start_ns=ranges.start_ns[kept],
        end_ns=ranges.end_ns[kept],
        name=ranges.name[kept],
        thread=ranges.thread[kept],
        process_wide=ranges.process_wide[kept],
    )
    events = ranges.as_events
    return own, events.take(np.flatnonzero(waits)), events.take(np.flatnonzero(held))


def _range_name(text: bytes | None) -> str | None:
    if text is None:
        return None
    return cut_name(as_text(text))
