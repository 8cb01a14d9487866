"""What `nsys stats` printed, as kernels: CSV, TSV or JSON, in any unit of time, also between other reports in one file.

Versions and options change the columns: `Total Time (us)`, `Average (ns)`, `Operation` instead of `Name`. A report that
holds no kernel times is refused by its own name, with the command that makes the right one.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path

from llm_perf_opt.capture.kernels.names import cut_name
from llm_perf_opt.errors import ParseError
from llm_perf_opt.system.files import decode_text

# Nanoseconds of ten years have eighteen.
MOST_DIGITS = 18
HEAD_BYTES = 1 << 16
MAKE_ONE = "make a kernel summary with `nsys stats --report cuda_gpu_kern_sum --format csv REPORT.nsys-rep`"
_NS = {"ns": 1.0, "nsec": 1.0, "us": 1e3, "usec": 1e3, "µs": 1e3, "ms": 1e6, "msec": 1e6, "s": 1e9, "sec": 1e9}
_TIMED = re.compile(r"(?P<what>.+?) ?\((?P<unit>ns|nsec|us|usec|µs|ms|msec|s|sec)\)")
# Names of columns before 2021.3, and what they are called since.
_RENAMED = {"Average": "Avg", "Minimum": "Min", "Maximum": "Max", "Median": "Med", "Time(%)": "Time (%)"}
# What identifies each report: its columns and its name.
_REPORTS = (
    ({"Num Calls"}, "a summary of host calls (cuda_api_sum or osrt_sum)"),
    ({"Source", "Instances"}, "a summary of MPI calls (mpi_event_sum)"),
    ({"Style", "Range"}, "a summary of NVTX ranges (nvtx_sum)"),
    ({"Kern Inst"}, "kernels by NVTX range (nvtx_kern_sum)"),
    ({"QCount"}, "launch and execution times (cuda_kern_exec_sum)"),
    ({"Count", "Operation"}, "a summary of copies and sets (cuda_gpu_mem_time_sum or cuda_gpu_mem_size_sum)"),
    ({"Projected Start"}, "NVTX ranges projected on the GPU (nvtx_gpu_proj_trace)"),
    ({"GrdX"}, "a trace of GPU work (cuda_gpu_trace)"),
    ({"Start", "Duration"}, "a trace, one row per event"),
)
# Columns that a summary of kernels never has.
_OF_OTHERS = {"Source", "Style", "Range", "Queue"}
# What every row of these is called.
_DIRECTIVES = (
    (re.compile(r"@[^@]*:\d+$"), "a summary of OpenACC constructs (openacc_sum)"),
    (
        re.compile(
            r"^(Thread|Idle|Implicit Task|Parallel|Task|Target|Submit Target|Data Operation|Sync Region|Worksharing"
            r"|Work|Master|Masked|Lock|Mutex|Flush|Cancel|Dispatch|Control Tool|omp_\w+)\b"
        ),
        "a summary of OpenMP events (openmp_sum)",
    ),
)
_PROSE = (
    "Processing [",
    "Generating ",
    "Using ",
    "SKIPPED",
    "Exporting ",
    "Exported ",
    "NOTICE",
    "WARNING",
    "** ",
    " ** ",
)


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One row as nsys printed it, in nanoseconds; a column this version does not have is None."""

    name: str
    instances: int
    total_ns: int
    time_pct: float | None
    avg_ns: float | None
    med_ns: float | None
    min_ns: int | None
    max_ns: int | None
    stddev_ns: float | None


@dataclass(frozen=True, kw_only=True)
class KernelSummary:
    """The kernels of a file, and what a reader must know about how they were printed."""

    rows: tuple[SummaryRow, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column as printed, under today's name, and the unit its times are in (empty: none)."""

    printed: str
    name: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class _Table:
    """One report: its columns by name, and its rows of text with their line numbers (0: unknown)."""

    columns: Mapping[str, _Column]
    rows: tuple[tuple[int, Mapping[str, str]], ...]

    @property
    def has_kernels(self) -> bool:
        own = {"Total Time", "Instances"} <= set(self.columns) and not _OF_OTHERS & set(self.columns)
        named = "Name" in self.columns or {"Category", "Operation"} <= set(self.columns)
        return own and named and self._directives is None

    @property
    def _directives(self) -> str | None:
        """The report on a compiler's directives this is, whose columns are those of a kernel summary; else None."""
        names = [cells["Name"] for _, cells in self.rows if "Name" in cells]
        return next((what for mark, what in _DIRECTIVES if names and all(mark.search(name) for name in names)), None)

    @property
    def report(self) -> str:
        if self._directives is not None:
            return self._directives
        return next((name for columns, name in _REPORTS if columns <= set(self.columns)), "a report of another kind")


def looks_like_stats(head: str) -> bool:
    """Whether the first characters of a file are those of some report of `nsys stats`, as CSV, TSV or JSON."""
    if _first_character(head) == "[":
        keys = re.findall(r'"([^"\n]+)":', head[:4096])
        return bool(_header(keys))
    lines = head.splitlines()[:400]
    return any(_header(line.split(separator)) for line in lines for separator in ",\t")


def read_kernel_summary(path: Path) -> tuple[SummaryRow, ...]:
    """The rows of the kernel summary in a file `nsys stats` printed."""
    return read_stats(path).rows


def read_stats(path: Path) -> KernelSummary:
    """The kernel summary in a file, and notes on it."""
    try:
        text = decode_text(path.read_bytes())
    except OSError as error:
        raise ParseError(f"{path}: could not be read ({error.strerror or error})") from error
    return parse_stats(text, source=str(path))


def parse_stats(text: str, *, source: str) -> KernelSummary:
    """As `read_stats`, from the text."""
    is_json = _first_character(text) in ("[", "{")
    tables = list(_json_tables(text, source) if is_json else _csv_tables(text, source))
    found = [table for table in tables if table.has_kernels]
    # A summary of all GPU work says the same of kernels as the one alongside it.
    found = [table for table in found if "Category" not in table.columns] or found
    if not found:
        raise ParseError(f"{source}: {_what_instead(tables)}; {MAKE_ONE}")
    if len(found) > 1:
        raise ParseError(
            f"{source}: holds {len(found)} kernel summaries, which cannot be added up (medians are lost); give each in "
            "its own file"
        )
    table = found[0]
    rows = [_row(cells, table, f"{source}, line {line}" if line else source) for line, cells in table.rows]
    notes = []
    unit = table.columns["Total Time"].unit
    if unit in ("ms", "msec", "s", "sec"):
        notes.append(f"its times are printed in {unit}, rounded to four decimals; with --timeunit nsec they are exact")
    others = sorted({other.report for other in tables if not other.has_kernels})
    if others:
        notes.append(f"next to the kernel summary it holds {', '.join(others)}, which were not read")
    return KernelSummary(rows=tuple(row for row in rows if row is not None), notes=tuple(notes))


def _what_instead(tables: Sequence[_Table]) -> str:
    if not tables:
        return "not a kernel summary of nsys (no columns Total Time, Instances, Name)"
    return f"of nsys stats, but no kernel summary: {', '.join(dict.fromkeys(table.report for table in tables))}"


def _first_character(text: str) -> str:
    """The first one that is neither space nor in a line nsys says before its report."""
    lines = (line.strip() for line in text.splitlines())
    return next((line[0] for line in lines if line and not line.startswith(_PROSE)), "")


def _column(cell: str) -> _Column:
    cell = cell.strip()
    timed = _TIMED.fullmatch(cell)
    name = timed["what"] if timed else cell
    return _Column(printed=cell, name=_RENAMED.get(name, name), unit=timed["unit"] if timed else "")


def _header(cells: Sequence[str]) -> dict[str, _Column]:
    """The columns where these are the header of a report, else none."""
    columns = {column.name: column for column in map(_column, cells)}
    known = {"Total Time", "Instances", "Num Calls", "Count", "Duration", "Projected Duration", "Total"}
    return columns if len(columns) > 3 and known & set(columns) else {}


def _json_tables(text: str, source: str) -> Iterator[_Table]:
    """The reports of a file: lists of objects, with nsys's own words between them."""
    decoder = json.JSONDecoder()
    text = "\n".join(line for line in text.splitlines() if not line.startswith(_PROSE))
    at = 0
    while at < len(text) and (rest := text[at:].lstrip()):
        at = len(text) - len(rest)
        try:
            listed, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"{source}: not readable as JSON of nsys stats ({error})") from error
        objects = [o for o in listed if isinstance(o, dict)] if isinstance(listed, list) else []
        columns = _header([str(key) for key in objects[0]]) if objects else {}
        if columns:
            rows = [{_column(str(key)).name: "" if v is None else str(v) for key, v in o.items()} for o in objects]
            yield _Table(columns=columns, rows=tuple((0, {"Name": "", **row}) for row in rows))


def _csv_tables(text: str, source: str) -> Iterator[_Table]:
    """The reports of a file: a header, rows as long as it, and then an empty line or nsys's own words."""
    # A name may be long; it is cut below, as that of an export is.
    csv.field_size_limit(sys.maxsize)
    tabs = any("\t" in line and _header(line.split("\t")) for line in text[:HEAD_BYTES].splitlines())
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter="\t" if tabs else ",")
    columns: dict[str, _Column] = {}
    rows: list[tuple[int, Mapping[str, str]]] = []
    try:
        for cells in reader:
            starts = _header(cells)
            if starts or (columns and cells and cells[0].startswith(_PROSE)):
                if columns:
                    yield _Table(columns=columns, rows=tuple(rows))
                columns, rows = starts, []
            elif columns and any(cell.strip() for cell in cells):
                if len(cells) != len(columns):
                    raise ParseError(
                        f"{source}, line {reader.line_num}: {len(cells)} columns instead of {len(columns)}; "
                        "the file is damaged"
                    )
                rows.append((reader.line_num, dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise ParseError(f"{source}, line {reader.line_num}: {error}; the file is damaged") from error
    if columns:
        yield _Table(columns=columns, rows=tuple(rows))


def _row(cells: Mapping[str, str], table: _Table, where: str) -> SummaryRow | None:
    """A row as kernel; None where it is not one (a summary of all GPU work lists copies too)."""
    if "Category" in table.columns and cells["Category"] != "CUDA_KERNEL":
        return None
    name = cells["Name" if "Name" in table.columns else "Operation"]

    def cell(column: str) -> str:
        return cells[column].replace(",", "").strip() if column in table.columns else ""

    def number(column: str) -> float | None:
        text = cell(column)
        try:
            value = float(text) if text else 0.0
        except ValueError:
            value = nan
        if not (isfinite(value) and value >= 0.0):
            printed = table.columns[column].printed
            raise ParseError(f"{where}: {printed} is not a number of 0 or more (got {cells[column][:40]!r})")
        factor = _NS[table.columns[column].unit] if column in table.columns and table.columns[column].unit else 1.0
        return value * factor if text else None

    def whole(column: str) -> int | None:
        text = cell(column)
        if table.columns[column].unit not in ("", "ns", "nsec") and number(column) is not None:
            return round(number(column) or 0.0)
        if text and not (text.isdecimal() and len(text) <= MOST_DIGITS):
            printed = table.columns[column].printed
            raise ParseError(f"{where}: {printed} is not a whole number of 0 or more (got {cells[column][:40]!r})")
        return int(text) if text else None

    def rounded(column: str) -> int | None:
        value = number(column)
        exact = column in table.columns and table.columns[column].unit in ("", "ns", "nsec")
        return None if value is None or (exact and not value.is_integer()) else round(value)

    instances, total = whole("Instances"), whole("Total Time")
    if instances is None or total is None:
        raise ParseError(f"{where}: Instances and Total Time (ns) must be whole numbers")
    return SummaryRow(
        name=cut_name(name),
        instances=instances,
        total_ns=total,
        time_pct=number("Time (%)"),
        avg_ns=number("Avg"),
        med_ns=number("Med"),
        min_ns=rounded("Min"),
        max_ns=rounded("Max"),
        stddev_ns=number("StdDev"),
    )
