"""The kernel summary of `nsys stats` as CSV: reads any version's, writes ours in the same columns, finds old ones.

The kernel summary of an export alone: one scan in duckdb, several times faster than reading the whole timeline.
"""

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.kernels.names import classify_kernel, short_kernel_name
from llm_perf_opt.analysis.timeline.rows import KernelRow
from llm_perf_opt.errors import ParseError
from llm_perf_opt.profiling.parsers.nsys_database import LATEST_NS, NsysDatabase, broken, open_nsys_database

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
# Nanoseconds of ten years have eighteen.
MOST_DIGITS = 18
MAX_NAME = 4096
REQUIRED = ("Total Time (ns)", "Instances", "Name")
SUMMARY_FILES = ("summary_cuda_gpu_kern_sum.csv", "summary_gpukernsum.csv", "summary.csv")


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One row as nsys printed it; a column this version does not have is None."""

    name: str
    instances: int
    total_ns: int
    time_pct: float | None
    avg_ns: float | None
    med_ns: float | None
    min_ns: int | None
    max_ns: int | None
    stddev_ns: float | None


def read_kernel_summary(path: Path) -> tuple[SummaryRow, ...]:
    """Rows of a kernel summary; lines nsys prints before the table are skipped."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise ParseError(f"{path}: could not be read ({error.strerror or error})") from error
    return parse_kernel_summary(text, source=str(path))


def parse_kernel_summary(text: str, *, source: str) -> tuple[SummaryRow, ...]:
    """As `read_kernel_summary`, from the text."""
    rows = _cells(text, source)
    start = next((i for i, row in enumerate(rows) if all(c in row for c in REQUIRED)), None)
    if start is None:
        raise ParseError(f"{source}: not a kernel summary of nsys (no columns {', '.join(REQUIRED)})")
    header = rows[start]
    found = []
    for number, row in enumerate(rows[start + 1 :], start=start + 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            raise ParseError(
                f"{source}, line {number}: {len(row)} columns instead of {len(header)}; the file is damaged"
            )
        found.append(_row(dict(zip(header, row, strict=True)), f"{source}, line {number}"))
    return tuple(found)


def _cells(text: str, source: str) -> list[list[str]]:
    """The table and what stands before it. A quote that is never closed is an error: the file was cut there."""
    # A name may be long; it is cut below, as that of an export is.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return list(reader)
    except csv.Error as error:
        raise ParseError(f"{source}, line {reader.line_num}: {error}; the file is damaged") from error


def _row(cells: dict[str, str], where: str) -> SummaryRow:
    def cell(column: str) -> str:
        return cells[column].replace(",", "").strip() if column in cells else ""

    def number(column: str) -> float | None:
        text = cell(column)
        try:
            value = float(text) if text else 0.0
        except ValueError:
            value = nan
        if not (isfinite(value) and value >= 0.0):
            raise ParseError(f"{where}: {column} is not a number of 0 or more (got {cells[column][:40]!r})")
        return value if text else None

    def whole(column: str) -> int | None:
        text = cell(column)
        if text and not (text.isdecimal() and len(text) <= MOST_DIGITS):
            raise ParseError(f"{where}: {column} is not a whole number of 0 or more (got {cells[column][:40]!r})")
        return int(text) if text else None

    def rounded(column: str) -> int | None:
        value = number(column)
        return int(value) if value is not None and value.is_integer() else None

    instances, total = whole("Instances"), whole("Total Time (ns)")
    if instances is None or total is None:
        raise ParseError(f"{where}: Instances and Total Time (ns) must be whole numbers")
    return SummaryRow(
        name=cells["Name"] if len(cells["Name"]) <= MAX_NAME else cells["Name"][:MAX_NAME] + "…",
        instances=instances,
        total_ns=total,
        time_pct=number("Time (%)"),
        avg_ns=number("Avg (ns)"),
        med_ns=number("Med (ns)"),
        min_ns=rounded("Min (ns)"),
        max_ns=rounded("Max (ns)"),
        stddev_ns=number("StdDev (ns)"),
    )


def to_kernel_rows(rows: Sequence[SummaryRow], *, source: str) -> tuple[KernelRow, ...]:
    """The rows as kernels by total time; a list by launch shape, as older versions print it, is refused."""
    names = [row.name for row in rows]
    if len(set(names)) < len(names):
        raise ParseError(
            f"{source}: lists a kernel once per launch shape (nsys 2022 and older), so its median and deviation "
            "cannot be had by name; give the .sqlite or the .nsys-rep"
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
    return tuple(sorted(found, key=lambda k: (-k.total_ns, k.name)))


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
