"""The kernel summary of an export alone: one scan in duckdb, several times faster than reading the whole timeline."""

from pathlib import Path

from llm_perf_opt.analysis.kernel_class import classify_kernel
from llm_perf_opt.analysis.kernel_names import short_kernel_name
from llm_perf_opt.analysis.kernel_rows import KernelRow
from llm_perf_opt.profiling.parsers.nsys_database import MAX_NAME, NsysDatabase, open_nsys_database

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


def summarize_kernels(path: Path) -> tuple[tuple[KernelRow, ...], tuple[str, ...]]:
    """Kernels by total time, the same rows as a full analysis gives, and notes on rows left out."""
    with open_nsys_database(path) as db:
        if not db.has(KERNELS):
            return (), ("no GPU kernel was recorded",)
        db.require(KERNELS, ("start", "end"))
        return _summarize(db)


def _summarize(db: NsysDatabase) -> tuple[tuple[KernelRow, ...], tuple[str, ...]]:
    rows = db.aggregate(
        KERNELS,
        {
            "name": db.column_or(KERNELS, "demangledName", "-1"),
            "time": 'CASE WHEN "end" >= "start" THEN "end" - "start" END',
        },
        "name, count(*), count(time), sum(time), median(time), min(time), max(time), stddev_samp(time)",
        "name",
    )
    whole = sum(int(row[3]) for row in rows if row[2])
    left_out = sum(int(row[1]) - int(row[2]) for row in rows)
    notes = (f"{left_out} row(s) of {KERNELS} have no usable start and end and are left out",) if left_out else ()
    kernels = [_kernel(db, row, whole) for row in rows if row[2]]
    return tuple(sorted(kernels, key=lambda k: (-k.total_ns, k.name))), notes


def _kernel(db: NsysDatabase, row: tuple[object, ...], whole: int) -> KernelRow:
    code, _, count, total, median, least, most, deviation = row
    name = _name(db, -1 if code is None else int(str(code)))
    instances, total_ns = int(str(count)), int(str(total))
    return KernelRow(
        name=name,
        short_name=short_kernel_name(name),
        kernel_class=classify_kernel(name),
        instances=instances,
        total_ns=total_ns,
        avg_ns=total_ns / instances,
        med_ns=float(str(median)),
        min_ns=int(str(least)),
        max_ns=int(str(most)),
        stddev_ns=0.0 if deviation is None else float(str(deviation)),
        time_pct=100.0 * total_ns / whole if whole else 0.0,
    )


def _name(db: NsysDatabase, code: int) -> str:
    found = db.query("SELECT substr(value, 1, ?), length(value) FROM StringIds WHERE id = ?", (MAX_NAME, code))
    if not found or found[0][0] is None:
        return f"(no name, string {code})"
    return str(found[0][0]) + ("…" if int(found[0][1]) > MAX_NAME else "")
