"""The kernel summary of an export alone: one scan in duckdb, several times faster than reading the whole timeline."""

from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.kernel_class import classify_kernel
from llm_perf_opt.analysis.kernel_names import short_kernel_name
from llm_perf_opt.analysis.kernel_rows import KernelRow
from llm_perf_opt.profiling.parsers.nsys_database import LATEST_NS, NsysDatabase, broken, open_nsys_database

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


def summarize_kernels(path: Path) -> tuple[tuple[KernelRow, ...], tuple[str, ...]]:
    """Kernels by total time, the same rows as a full analysis gives, and notes on rows left out."""
    with open_nsys_database(path) as db:
        if not db.has(KERNELS):
            return (), ("no GPU kernel was recorded",)
        db.require(KERNELS, ("start", "end"))
        return _summarize(db)


def _summarize(db: NsysDatabase) -> tuple[tuple[KernelRow, ...], tuple[str, ...]]:
    column = db.column_or(KERNELS, "demangledName", "-1")
    code = f"coalesce(TRY_CAST({column} AS BIGINT), -1)"
    rows = _grouped(db, code)
    codes = [int(row[0]) for row in rows]
    names = dict(zip(codes, db.strings(codes), strict=True))
    first: dict[str, int] = {}
    same = {code: first[name] for code, name in names.items() if first.setdefault(name, code) != code}
    if same:
        # Two ids for one text, or names that differ only where they are cut: medians cannot be added up.
        cases = " ".join(f"WHEN {other} THEN {kept}" for other, kept in same.items())
        rows = _grouped(db, f"CASE {code} {cases} ELSE {code} END")
    if any(row[2] and int(row[6]) > LATEST_NS for row in rows):
        raise broken(db.path, f"table {KERNELS} holds times that no clock can have")
    whole = sum(int(row[3]) for row in rows if row[2])
    left_out = sum(int(row[1]) - int(row[2]) for row in rows)
    notes = (f"{left_out} row(s) of {KERNELS} have no usable start and end and are left out",) if left_out else ()
    kernels = [_kernel(names[int(row[0])], row, whole) for row in rows if row[2]]
    return tuple(sorted(kernels, key=lambda k: (-k.total_ns, k.name))), notes


def _grouped(db: NsysDatabase, code: str) -> list[tuple[Any, ...]]:
    return db.aggregate(
        KERNELS,
        {"name": code, "time": 'CASE WHEN "end" >= "start" THEN "end" - "start" END'},
        "name, count(*), count(time), sum(time), median(time), min(time), max(time), stddev_samp(time)",
        "name",
    )


def _kernel(name: str, row: tuple[Any, ...], whole: int) -> KernelRow:
    _, _, count, total, median, least, most, deviation = row
    instances, total_ns = int(count), int(total)
    return KernelRow(
        name=name,
        short_name=short_kernel_name(name),
        kernel_class=classify_kernel(name),
        instances=instances,
        total_ns=total_ns,
        avg_ns=total_ns / instances,
        med_ns=float(median),
        min_ns=int(least),
        max_ns=int(most),
        stddev_ns=0.0 if deviation is None else float(deviation),
        time_pct=100.0 * total_ns / whole if whole else 0.0,
    )
