"""Kernel summaries: of an export alone, of what `nsys stats` printed, ours in nsys's own columns, and old runs' files.

That of an export is one scan in duckdb, several times faster than reading the whole timeline.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.kernels.names import classify_kernel, short_kernel_name
from llm_perf_opt.analysis.timeline.rows import KernelRow, ranked
from llm_perf_opt.errors import ParseError
from llm_perf_opt.profiling.parsers.nsys_database import LATEST_NS, NsysDatabase, broken, open_nsys_database
from llm_perf_opt.profiling.parsers.nsys_stats import SummaryRow

COLUMNS = (
    "Time (%)",
    "Total Time (ns)",
    "Instances",
    "Avg (ns)",
    "Med (ns)",
    "Min (ns)",
    "Max (ns)",
    "StdDev (ns)",
    "Name",
)
SUMMARY_FILES = ("summary_cuda_gpu_kern_sum.csv", "summary_gpukernsum.csv", "summary.csv")


def to_kernel_rows(rows: Sequence[SummaryRow], *, source: str) -> tuple[KernelRow, ...]:
    """The rows as kernels by total time; a list by launch shape, as older versions print it, is refused."""
    names = [row.name for row in rows]
    if len(set(names)) < len(names):
        raise ParseError(
            f"{source}: lists a kernel once per launch shape (nsys 2022 and older), so its median and deviation "
            "cannot be had by name; give the .sqlite or the .nsys-rep, or what `nsys stats --report gpusum` prints"
        )
    if rows and all(row.med_ns is None for row in rows):
        raise ParseError(
            f"{source}: has no column of medians (nsys 2021 and older print none); give the .sqlite or the .nsys-rep, "
            "or make the summary with a newer nsys"
        )
    total = sum(row.total_ns for row in rows)
    found = []
    for row in rows:
        if None in (row.med_ns, row.min_ns, row.max_ns, row.stddev_ns) or row.instances < 1:
            raise ParseError(f"{source}: the row of {row.name[:80]!r} is not complete")
        found.append(
            KernelRow(
                name=row.name,
                short_name=short_kernel_name(row.name),
                kernel_class=classify_kernel(row.name),
                instances=row.instances,
                total_ns=row.total_ns,
                avg_ns=row.total_ns / row.instances,
                med_ns=float(row.med_ns or 0.0),
                min_ns=int(row.min_ns or 0),
                max_ns=int(row.max_ns or 0),
                stddev_ns=float(row.stddev_ns or 0.0),
                time_pct=100.0 * row.total_ns / total if total else 0.0,
            )
        )
    return ranked(found)


def write_kernel_summary(path: Path, kernels: Sequence[KernelRow]) -> Path:
    """The kernels in nsys's own columns and rounding."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for k in kernels:
            writer.writerow(
                (
                    f"{k.time_pct:.1f}",
                    k.total_ns,
                    k.instances,
                    f"{k.avg_ns:.1f}",
                    f"{k.med_ns:.1f}",
                    k.min_ns,
                    k.max_ns,
                    f"{k.stddev_ns:.1f}",
                    k.name,
                )
            )
    return path


def find_kernel_summary(run_dir: Path) -> Path | None:
    """A run's kernel summary: where it is now, or where older versions of the layout put it."""
    folders = [run_dir / "nsys", run_dir, run_dir / "stage2" / "nsys"]
    nested = sorted(run_dir.glob("tmp/stage2/**/nsys")) + sorted(run_dir.glob("tmp/*/nsys"))
    for folder in [*folders, *nested]:
        for name in SUMMARY_FILES:
            if (folder / name).is_file():
                return folder / name
        older = sorted(folder.glob("*_cuda_gpu_kern_sum.csv")) + sorted(folder.glob("*_gpukernsum.csv"))
        if older:
            return older[0]
    return None


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
    return ranked(kernels), notes


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
