"""Builds small rocpd databases as rocprofv3 lays them out: tables with a UUID in their names, views over them."""

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GUID = "0000aaaa-0000-0000-0000-000000000001"
OTHER_GUID = "0000aaaa-0000-0000-0000-000000000002"
SECRET = "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345"
GPU = {"cu_count": 304, "max_engine_clk_fcompute": 2100, "mem_banks": [{"size_in_bytes": 206_141_652_992}]}
_SHAPE = "grid_x, grid_y, grid_z, workgroup_x, workgroup_y, workgroup_z, vgpr_count, lds_size"
_TABLES = {
    "kernels": f'guid, name, "start", "end", stream_id, queue_id, agent_type_index, stack_id, corr_id, {_SHAPE}',
    "memory_copies": (
        'guid, name, "start", "end", stream_id, queue_id, stack_id, size, src_agent_type, dst_agent_type, '
        "src_agent_type_index, dst_agent_type_index"
    ),
    "regions": 'guid, name, "start", "end", tid, category, stack_id, corr_id, extdata',
    "rocpd_info_process": "guid, pid, command, environment",
    "rocpd_info_agent": "guid, type, type_index, name, product_name, extdata",
    "rocpd_info_node": "guid, hostname",
    "rocpd_metadata": "tag, value",
}


@dataclass
class Rocpd:
    """Rows of a database; `write` makes the file."""

    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: {name: [] for name in _TABLES})

    def __post_init__(self) -> None:
        self.rows["rocpd_metadata"].append(("schema_version", "3"))
        self.rows["rocpd_info_node"].append((GUID, "node7"))
        for index, guid in enumerate((GUID, OTHER_GUID)):
            self.rows["rocpd_info_process"].append((guid, 22 + index, "/opt/bin/bmm --key sekret", SECRET))
        self.rows["rocpd_info_agent"] += [
            (GUID, "CPU", 0, "EPYC", "EPYC", "{}"),
            (GUID, "GPU", 0, "gfx942", "AMD Instinct MI300X", json.dumps(GPU)),
            (GUID, "GPU", 1, "gfx90a", "AMD Instinct MI250X", "{}"),
        ]

    def kernel(self, name: str, start: Any, end: Any, stack: int, *, guid: str = GUID, stream: int | None = 0) -> None:
        shape = (1000, 4, 1, 256, 1, 1, 128, 4096)
        self.rows["kernels"].append((guid, name, start, end, stream, 5, 0, stack, 0, *shape))

    def copy(self, name: str, start: int, end: int, stack: int, size_bytes: int) -> None:
        self.rows["memory_copies"].append((GUID, name, start, end, 0, 5, stack, size_bytes, "CPU", "GPU", 0, 0))

    def call(self, name: str, start: int, end: int, stack: int, *, guid: str = GUID, tid: int = 22) -> None:
        self.rows["regions"].append((guid, name, start, end, tid, "HIP_RUNTIME_API_EXT", stack, 0, "{}"))

    def marker(self, text: str, start: int, end: int, *, name: str = "roctxRangePushA") -> None:
        data = json.dumps({"message": text})
        self.rows["regions"].append((GUID, name, start, end, 22, "MARKER_CORE_RANGE_API", 0, 0, data))

    def write(self, path: Path) -> Path:
        suffix = f"_{GUID.replace('-', '_')}"
        with sqlite3.connect(path) as connection:
            for name, columns in _TABLES.items():
                base = name if name.startswith("rocpd_") else f"rocpd_{name}_base"
                connection.execute(f"CREATE TABLE {base}{suffix} ({columns})")
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {base}{suffix}")
                marks = ", ".join("?" * len(columns.split(",")))
                connection.executemany(f"INSERT INTO {base}{suffix} VALUES ({marks})", self.rows[name])
            connection.execute(f"CREATE TABLE rocpd_kernel_dispatch{suffix} (id INTEGER PRIMARY KEY)")
            connection.execute(f"CREATE VIEW rocpd_kernel_dispatch AS SELECT * FROM rocpd_kernel_dispatch{suffix}")
            ids = [(number,) for number in range(len(self.rows["kernels"]))]
            connection.executemany(f"INSERT INTO rocpd_kernel_dispatch{suffix} VALUES (?)", ids)
        connection.close()
        return path
