"""Kernel summaries: of an export alone, of what `nsys stats` printed, ours in nsys's own columns, and old runs' files.

That of an export reads one table, several times faster than reading the whole timeline.
"""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.capture.kernels.names import classify_kernel, short_kernel_name
from llm_perf_opt.capture.readers.nsys_stats import SummaryRow
from llm_perf_opt.capture.rows import KernelRow, ranked
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import ParseError
from llm_perf_opt.system.arrays import load_numpy
from llm_perf_opt.system.terminal import printable

if TYPE_CHECKING:
    from llm_perf_opt.capture.intervals import Ints

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
    """The rows as kernels by total time; one that is there once per launch shape, as in 2022, is put together.

    Medians and deviations are None where they are not printed (2021 and older) or cannot be had by name.
    """
    whole = sum(row.total_ns for row in rows)
    by_name: dict[str, list[SummaryRow]] = {}
    for row in rows:
        if None in (row.min_ns, row.max_ns) or row.instances < 1:
            raise ParseError(f"{source}: the row of {row.name[:80]!r} is not complete")
        by_name.setdefault(row.name, []).append(row)
    return ranked(_put_together(same, whole) for same in by_name.values())


def _put_together(same: Sequence[SummaryRow], whole: int) -> KernelRow:
    count, total = sum(row.instances for row in same), sum(row.total_ns for row in same)
    first = same[0]
    return KernelRow(
        name=first.name,
        short_name=short_kernel_name(first.name),
        kernel_class=classify_kernel(first.name),
        instances=count,
        total_ns=total,
        avg_ns=total / count,
        med_ns=first.med_ns if len(same) == 1 else None,
        min_ns=min(row.min_ns or 0 for row in same),
        max_ns=max(row.max_ns or 0 for row in same),
        stddev_ns=_deviation_ns(same, total / count, count),
        time_pct=100.0 * total / whole if whole else 0.0,
    )


def _deviation_ns(same: Sequence[SummaryRow], average_ns: float, count: int) -> float | None:
    """That of all launches, from those of each launch shape."""
    if len(same) == 1:
        return same[0].stddev_ns
    squares = 0.0
    for row in same:
        if row.stddev_ns is None:
            return None
        squares += (row.instances - 1) * row.stddev_ns**2
        squares += row.instances * (row.total_ns / row.instances - average_ns) ** 2
    return math.sqrt(squares / (count - 1))


def summary_notes(rows: Sequence[SummaryRow]) -> list[str]:
    """What a summary of an older nsys does not say."""
    notes = []
    if len({row.name for row in rows}) < len(rows):
        notes.append("lists a kernel once per launch shape (nsys 2022 and older): put together here, without a median")
    if rows and all(row.med_ns is None for row in rows):
        notes.append("has no column of medians and deviations (nsys 2021 and older print none)")
    return notes


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
                    "" if k.med_ns is None else f"{k.med_ns:.1f}",
                    k.min_ns,
                    k.max_ns,
                    "" if k.stddev_ns is None else f"{k.stddev_ns:.1f}",
                    printable(k.name),
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
COLUMNS_READ = {"start": "start", "end": "end", "name": "demangledName"}


def summarize_kernels(path: Path) -> tuple[tuple[KernelRow, ...], tuple[str, ...]]:
    """Kernels by total time, the same rows as a full analysis gives, and notes on rows left out."""
    # Here, for what only reads or writes summaries needs no numpy.
    load_numpy()
    import numpy as np

    from llm_perf_opt.capture.readers.nsys_database import Ids, LeftOut, Names, joined, open_nsys_database, read_events
    from llm_perf_opt.capture.tables import kernel_rows

    with open_nsys_database(path) as db:
        if not db.has(KERNELS):
            return (), ("no GPU kernel was recorded",)
        db.require(KERNELS, ("start", "end"))
        ids, names, left_out = Ids(), Names(db), LeftOut()

        def part(rows: "dict[str, Ints]") -> "dict[str, Ints]":
            named = rows["name"] if "name" in rows else np.full(len(rows["start"]), -1, np.int64)
            return {"name": ids.codes(named), "time": rows["end"] - rows["start"]}

        columns = joined([part(rows) for rows in read_events(db, KERNELS, COLUMNS_READ, left_out)])
        count = left_out.missing + left_out.backwards
        notes = (f"left out: {count_of(count, 'row')} of {KERNELS} without a usable start and end",) if count else ()
        if not columns:
            return (), notes
        codes = names.strings(*ids.in_order(columns.pop("name")))
        return kernel_rows(names.all, codes, columns["time"]), notes
