"""From an exported trace to the stage's files: the compressed trace, operator and kernel tables, module shares."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.profiling.parsers.trace_chunks import open_gzip
from llm_perf_opt.workload.module_shares import Shares, cpu_shares, device_shares
from llm_perf_opt.workload.operators import kernel_table, operator_table
from llm_perf_opt.workload.tables import Recorded, write_kernels_csv, write_operators_csv, write_operators_md
from llm_perf_opt.workload.trace_columns import MEMORY, read_columns
from llm_perf_opt.workload.trace_sweep import sweep

OPERATORS_CSV = "operators.csv"
OPERATORS_MD = "operators.md"
KERNELS_CSV = "kernels.csv"
COPY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TraceReport:
    """What the trace says about modules, by CPU and by device time."""

    has_device: bool
    cpu: Shares | None
    device: Shares | None

    def module_data(self) -> dict[str, Any]:
        """The shares as metrics.json holds them: by device time where there is any, else by CPU time."""
        best = self.device or self.cpu
        return {
            "modules": best,
            "modules_by": None if best is None else ("device_time" if self.device is not None else "cpu_time"),
            "modules_cpu": self.cpu,
            "modules_device": self.device,
            "modules_reason": None
            if best is not None
            else "the trace holds no range of a phase (activities without cpu)",
        }


def write_trace_report(trace: Path, out_dir: Path, *, trace_name: str, by_shape: bool, pass_note: str) -> TraceReport:
    """Keep the trace compressed, and build the tables from it."""
    with trace.open("rb") as source, open_gzip(out_dir / trace_name, "wb") as copy:
        shutil.copyfileobj(source, copy, COPY_BYTES)
    columns = read_columns(trace)
    found = sweep(columns)
    has_device = len(columns.device.name) > 0
    by_name = operator_table(columns, found, by_shape=False)
    operators = operator_table(columns, found, by_shape=True) if by_shape else by_name
    recorded = Recorded(device=has_device, memory=MEMORY in columns.cpu.kind, shapes=by_shape)
    write_operators_csv(out_dir / OPERATORS_CSV, operators, recorded)
    write_operators_md(out_dir / OPERATORS_MD, by_name, operators, recorded, pass_note=pass_note)
    if has_device:
        write_kernels_csv(out_dir / KERNELS_CSV, kernel_table(columns, found))
    return TraceReport(
        has_device=has_device,
        cpu=cpu_shares(found),
        device=device_shares(columns, found) if has_device else None,
    )
