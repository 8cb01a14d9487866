"""The SQLite export of nsys as a Timeline.

The large tables are scanned by duckdb's SQLite extension, which comes as a package and is loaded from disk; the small
ones are read with sqlite3. Tables exist in an export only when they hold rows, and column names differ between
versions, so each is looked up before it is used.

What an nsys export says about itself and about the machine: versions and GPUs.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llm_perf_opt.analysis.kernels.names import as_utf8
from llm_perf_opt.analysis.timeline.intervals import Flags, Ints
from llm_perf_opt.analysis.timeline.timeline import (
    Activities,
    Calls,
    CapturedGpu,
    HostEvents,
    LaunchShape,
    Origin,
    Ranges,
    Timeline,
    distinct,
    join,
    no_activities,
    no_calls,
    no_host_events,
)
from llm_perf_opt.profiling.parsers.nsys_columns import Names, Processes, copy_kind, drop_broken, encode, join_calls
from llm_perf_opt.profiling.parsers.nsys_database import LATEST_NS, NsysDatabase, open_nsys_database

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
    """What to say about a schema nobody has tried."""
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


def read_devices(db: NsysDatabase, notes: list[str]) -> tuple[CapturedGpu, ...]:
    """The GPUs, from TARGET_INFO_GPU or, where that is missing, the GpuInfo row of the system environment."""
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
        sm_count=_number(row["smCount"]),
        clock_hz=_number(row["clockRate"]),
        l2_bytes=_number(row["l2CacheSize"]),
        memory_bytes=_number(row["totalMemory"]),
        memory_bytes_per_s=_number(row["memoryBandwidth"]),
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
    )


def _number(value: Any) -> int | None:
    """Zero means nsys does not know."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS and int(text) > 0 else None


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYSTEM = "OSRT_API"
# Calls of MPI and when they wait, as far as nsys traced them; their names are texts.
MPI = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_OTHER_EVENTS")
NVTX = "NVTX_EVENTS"
PAUSES = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
DIAGNOSTIC_ERROR, DIAGNOSTICS_QUOTED, DIAGNOSTIC_LENGTH = 3, 3, 200
PUSH_POP, START_END = 59, 60
# How a kernel was launched; nobody looks at it in a capture of more kernels than this, and reading it takes time.
SHAPE_COLUMNS = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)
MOST_SHAPED = 300_000
# The process is the upper part of a serialised thread id.
PID_MASK = ~0xFFFFFF
PID_SHIFT, PID_BITS = 24, 0xFFFFFF
# Shorter calls explain no gap.
_LONG_CALL_NS = 100_000
# Calls that only ask or prepare; leaving the short ones out of the scan halves it.
_NEVER_LAUNCH = r"Get|SetAttribute|IsCapturing|Occupancy|Event(Create|Destroy|Query|Record)|Malloc|HostAlloc"
_WAITS = (
    r"Synchronize|^cudaMemcpy(2D|3D|ToSymbol|FromSymbol)?(_ptds)?(_v\d+)?$|^cudaFree(Host)?(_v\d+)?$"
    r"|^cuMemcpy(HtoD|DtoH|DtoD)(_v\d+)?(_ptds)?$|^cuMemFree(Host)?(_v\d+)?$"
)


def read_nsys_sqlite(path: Path) -> Timeline:
    """Read an export, or raise ParseError with what is wrong with it."""
    with open_nsys_database(path) as database:
        return _read(database)


def _read(db: NsysDatabase) -> Timeline:
    product, schema = read_version(db)
    notes = schema_note(schema)
    names, processes = Names(db), Processes()
    kernels = _work(db, KERNELS, "demangledName", names.strings, processes, notes)
    copies = _work(db, COPIES, "copyKind", names.copies, processes, notes)
    sets = _work(db, SETS, None, lambda ids: names.literal(ids, "Memset"), processes, notes)
    graphs = _work(db, GRAPHS, "graphId", lambda ids: names.numbered(ids, "CUDA graph"), processes, notes)
    shapes = _launch_shapes(kernels)
    calls, correlation, threads = _calls(db, names, notes)
    ranges, threads = _ranges(db, names, threads, notes)
    pauses, threads = _pauses(db, names, threads)
    thread_process = processes.codes(threads & PID_MASK)
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
    parts = [_activities(t, link) for t, link in zip(tables, links.calls, strict=True)]
    notes += diagnostic_notes(db)
    devices = read_devices(db, notes)
    system = _system(db, names, threads)
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
        system=system,
        pauses=pauses,
        origin=_origin(db, processes),
        launch_shapes=shapes,
        thread_names=_thread_names(db, threads),
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
    rows = [(int(t), int(n)) for t, n in db.query("SELECT globalTid, nameId FROM ThreadNames") if t and n is not None]
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


def _session_start_ns(db: NsysDatabase) -> int:
    """The time of day at which the export's clock was zero; 0 where it does not say."""
    table = "TARGET_INFO_SESSION_START_TIME"
    if not db.has(table) or "utcEpochNs" not in db.columns(table):
        return 0
    rows = db.query(f"SELECT utcEpochNs FROM {table} LIMIT 1")
    return next((int(value) for (value,) in rows if isinstance(value, int) and 0 < value < LATEST_NS), 0)


def _work(
    db: NsysDatabase,
    table: str,
    name: str | None,
    code: Callable[[Ints], Ints],
    processes: Processes,
    notes: list[str],
) -> dict[str, Ints]:
    """One table of GPU work; rows without an end, or ending before they start, are left out and said."""
    none = np.zeros(0, np.int64)
    if not db.has(table):
        return dict.fromkeys(("start", "end", "correlation", "process", "device", "stream", "bytes", "name"), none)
    db.require(table, ("start", "end"))
    wanted = {
        "start": "start",
        "end": "end",
        "correlation": db.column_or(table, "correlationId", "-1"),
        "process": db.column_or(table, "globalPid", "0"),
        "name": f"TRY_CAST({db.column_or(table, name, '-1') if name else '-1'} AS BIGINT)",
    }
    if table in (COPIES, SETS):
        wanted["bytes"] = db.column_or(table, "bytes", "-1")
    if table == COPIES:
        wanted["name"] = f"TRY_CAST({copy_kind(db, table)} AS BIGINT)"
    if table == KERNELS and _can_shape(db):
        wanted |= {name: name for name in SHAPE_COLUMNS}
    small = {"device": db.column_or(table, "deviceId", "0"), "stream": db.column_or(table, "streamId", "-1")}
    columns = drop_broken(db, db.scan(table, wanted, small=small), table, notes)
    return {**columns, "process": processes.codes(columns["process"]), "name": code(columns["name"])}


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
    never, waits = db.string_ids(_NEVER_LAUNCH), db.string_ids(_WAITS)
    wanted = {
        "start": "start",
        "end": "end",
        "tid": db.column_or(CALLS, "globalTid", "0"),
        "correlation": db.column_or(CALLS, "correlationId", "-1"),
    }
    has_names = "nameId" in db.columns(CALLS)
    skip = ("nameId", sorted(set(never) - set(waits))) if has_names else None
    if has_names:
        wanted["name"] = 'TRY_CAST("nameId" AS BIGINT)'
    columns = drop_broken(db, db.scan(CALLS, wanted, leave_out=skip, unless_longer_ns=_LONG_CALL_NS), CALLS, notes)
    thread_ids, thread = encode(columns["tid"])
    wait: Flags = np.isin(columns["name"], waits) if has_names else np.zeros(len(thread), np.bool_)
    calls = Calls(
        start_ns=columns["start"],
        end_ns=columns["end"],
        thread=thread,
        name=names.strings(columns["name"]) if has_names else np.full(len(thread), -1, np.int32),
        launches=np.zeros_like(wait),
        waits=wait,
    )
    return calls, columns["correlation"], thread_ids


def _system(db: NsysDatabase, names: Names, threads: Ints) -> HostEvents:
    """Long calls of the operating system and of MPI by the threads that also called CUDA or opened ranges."""
    parts = []
    for table, name in ((SYSTEM, "nameId"), *((table, "textId") for table in MPI)):
        if db.has(table) and {"start", "end", "globalTid", name} <= set(db.columns(table)):
            wanted = {"start": "start", "end": "end", "tid": "globalTid", "name": f'TRY_CAST("{name}" AS BIGINT)'}
            parts.append(drop_broken(db, db.scan(table, wanted, longer_ns=_LONG_CALL_NS), table, []))
    if not parts:
        return no_host_events()
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    order = np.argsort(threads)
    place = np.minimum(np.searchsorted(threads[order], columns["tid"]), max(len(threads) - 1, 0))
    known = threads[order][place] == columns["tid"] if len(threads) else np.zeros(len(place), np.bool_)
    return HostEvents(
        start_ns=columns["start"][known],
        end_ns=columns["end"][known],
        name=names.strings(columns["name"][known]),
        thread=order[place[known]],
    )


def _pauses(db: NsysDatabase, names: Names, threads: Ints) -> tuple[HostEvents, Ints]:
    """When nsys or CUPTI held the program up long enough to be seen, and all thread ids, the known ones first."""
    found: list[dict[str, Ints]] = []
    for table in PAUSES:
        if db.has(table) and {"start", "end", "globalTid", "nameId"} <= set(db.columns(table)):
            wanted = {"start": "start", "end": "end", "tid": "globalTid", "name": 'TRY_CAST("nameId" AS BIGINT)'}
            found.append(drop_broken(db, db.scan(table, wanted, longer_ns=_LONG_CALL_NS), table, []))
    if not any(len(part["start"]) for part in found):
        return no_host_events(), threads
    columns = {key: np.concatenate([part[key] for part in found]) for key in found[0]}
    all_threads = np.concatenate((threads, np.setdiff1d(columns["tid"], threads)))
    order = np.argsort(all_threads, kind="stable")
    return HostEvents(
        start_ns=columns["start"],
        end_ns=columns["end"],
        name=names.strings(columns["name"]),
        thread=order[np.searchsorted(all_threads[order], columns["tid"])],
    ), all_threads


def _ranges(db: NsysDatabase, names: Names, threads: Ints, notes: list[str]) -> tuple[Ranges, Ints]:
    """NVTX ranges that ended, and all thread ids, those of the calls first."""
    none = np.zeros(0, np.int64)
    if not db.has(NVTX):
        return Ranges(start_ns=none, end_ns=none, name=none, thread=none, process_wide=none.astype(np.bool_)), threads
    db.require(NVTX, ("start", "end", "eventType"))
    wanted: dict[str, Any] = {
        "start": "start",
        "end": "end",
        "type": "eventType",
        "tid": db.column_or(NVTX, "globalTid", "0"),
        "id": db.column_or(NVTX, "textId", "-1"),
    }
    columns = db.scan(NVTX, wanted, only=("eventType", (PUSH_POP, START_END)), text=db.column_or(NVTX, "text", "NULL"))
    text = columns.pop("text")
    columns["row"] = np.arange(len(columns["start"]))
    open_ = int(np.ma.getmaskarray(columns["end"]).sum())
    kept = drop_broken(db, columns, NVTX, [])
    dropped = len(columns["start"]) - len(kept["start"]) - open_
    if open_:
        notes.append(f"{open_} range(s) had not ended when the capture stopped and are left out")
    if dropped:
        notes.append(f"{dropped} row(s) of {NVTX} end before they start and are left out")
    known = {int(t): i for i, t in enumerate(threads)}
    new = [int(t) for t in np.unique(kept["tid"]) if int(t) not in known]
    all_threads = np.concatenate((threads, np.array(new, np.int64)))
    code = {int(t): i for i, t in enumerate(all_threads)}
    unique, inverse = encode(kept["tid"])
    return Ranges(
        start_ns=kept["start"],
        end_ns=kept["end"],
        name=names.texts(text[kept["row"]], kept["id"]),
        thread=np.array([code[int(t)] for t in unique], np.int64)[inverse] if len(unique) else none,
        process_wide=kept["type"] == START_END,
    ), all_threads
