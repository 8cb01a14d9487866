"""What an nsys export says about itself and about the machine: versions and GPUs."""

import json
from typing import Any

from llm_perf_opt.analysis.printable import as_utf8
from llm_perf_opt.analysis.timeline import CapturedGpu
from llm_perf_opt.profiling.parsers.nsys_database import NsysDatabase

# Schemas seen in exports of nsys 2022.4 to 2025.x.
KNOWN_MAJOR = (2, 3)
NEWEST_KNOWN = (3, 24)
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
            f"schema version {schema} is not among those this version knows (2.x to 3.24); it was tried all the same"
        ]
    return []


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
        gpus = json.loads(text)["Gpus"]
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
