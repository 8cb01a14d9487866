"""`llm-perf query RUN|CAPTURE "SELECT …"`: SQL over what a capture or a run holds.

The process bounds itself while a statement runs: DuckDB's limits do not hold for a single value of a function
(`repeat('x', 1e9)` took 1.9 GB under a limit of 256 MB), so the address space is limited too, and a statement that does
not stop when it should ends the process.
"""

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

from llm_perf_opt.commands.entry import command_parser
from llm_perf_opt.config.arguments import written_by
from llm_perf_opt.core.manifest import strict_json
from llm_perf_opt.errors import EXIT_FAILED, EXIT_OK, ConfigError
from llm_perf_opt.system.files import write_whole
from llm_perf_opt.system.terminal import printable

if TYPE_CHECKING:
    from llm_perf_opt.sql.database import SqlLimits
    from llm_perf_opt.sql.table import DataTable

FORMATS = ("table", "json", "csv", "parquet")
SHOWN_ROWS = 40
# How much address space the process uses, in pages.
STATM = Path("/proc/self/statm")
# Beyond DuckDB's own memory: rows on their way to the output.
HEADROOM_BYTES = 1 << 30
# An interrupt that has no effect in this time will have none.
GRACE_S = 5.0
EXAMPLES = (
    'llm-perf query trace.json.gz \\\n      "SELECT class, sum(duration_ns) FROM kernels GROUP BY 1"',
    'llm-perf query tmp/runs/demo --format json \\\n      "SELECT metric, value, unit FROM metrics"',
    "llm-perf query --schema",
)


def main(argv: Sequence[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_intermixed_args(list(argv))
    if args.json:
        args.format = "json"
    if args.schema:
        return _print_schema(args.format)
    if args.source is None or args.sql is None:
        raise ConfigError(
            'query: a run or capture and a statement are needed, allowed: RUN|CAPTURE "SELECT …", or --schema'
        )
    if args.memory < 64:
        raise ConfigError(f"--memory: too little (got {args.memory}), allowed: from 64 MiB on")
    if args.timeout <= 0:
        raise ConfigError(f"--timeout: must be above 0 seconds (got {args.timeout:g})")
    if args.output is not None and args.format == "table":
        raise ConfigError(f"-o: has no effect with --format table, allowed: with {', '.join(FORMATS[1:])}")
    if args.format == "parquet" and args.output is None:
        raise ConfigError("--format parquet: needs -o FILE, where the rows are written")
    from llm_perf_opt.system.arrays import load_numpy

    load_numpy()
    from llm_perf_opt.api.load import open_any
    from llm_perf_opt.sql.database import SqlLimits

    limits = SqlLimits(memory_bytes=args.memory << 20, timeout_s=args.timeout)
    opened = open_any(args.source, detail=args.detail, limits=limits, guard=bounded_process)
    return _answer(opened.query(args.sql), args.format, args.output)


def _parser() -> Any:
    parser = command_parser(
        "query",
        "Query a capture or a run with SQL. The views are the same for nsys, torch and rocpd. Takes one SELECT "
        "statement, which has no access to files or the network.",
        EXAMPLES,
    )
    parser.add_argument("source", nargs="?", type=Path, metavar="RUN|CAPTURE", help="directory of a run, or a capture")
    parser.add_argument("sql", nargs="?", metavar="SQL", help="one SELECT statement over the views")
    parser.add_argument("--format", choices=FORMATS, default="table", help="how to print the rows (default table)")
    parser.add_argument("--json", action="store_true", help="as --format json (docs/schemas/query.schema.json)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write json, csv or parquet to a file")
    parser.add_argument("--schema", action="store_true", help="list the views and their columns")
    parser.add_argument("--detail", action="store_true", help="shapes and memory events of long torch traces too")
    parser.add_argument("--memory", type=int, default=1024, metavar="MIB", help="memory of the database (default 1024)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="stop a statement (default 60)")
    return parser


def _answer(found: "DataTable", form: str, output: Path | None) -> int:
    """Print or write the rows."""
    if form == "table":
        print(found.text(SHOWN_ROWS))
        return EXIT_OK
    if output is None:
        print(_text(found, form), end="")
        return EXIT_OK
    with written_by("-o", output):
        if form == "parquet":
            found.parquet(output)
        else:
            write_whole(output, _text(found, form).encode("utf-8", "backslashreplace"))
    print(f"written: {output}", file=sys.stderr)
    return EXIT_OK


def _text(found: "DataTable", form: str) -> str:
    """The rows as a JSON list of objects, one to a line, or as CSV with the names of the columns first."""
    from llm_perf_opt.sql.table import as_json

    rows = found.rows()
    if form == "json":
        lines = (strict_json({name: as_json(value) for name, value in row.items()}) for row in rows)
        return "[" + ",\n".join(lines) + "]\n"
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return written.getvalue()


def _cell(value: Any) -> Any:
    """A value for CSV: nothing for what is missing, no character that would steer a terminal."""
    return printable(value) if isinstance(value, str) else value


def _print_schema(form: str) -> int:
    from llm_perf_opt.sql.view_schema import VIEWS

    if form == "json":
        views = [
            {
                "view": view.name,
                "row": view.meaning,
                "columns": [{"name": c.name, "type": c.type, "meaning": c.meaning} for c in view.columns],
            }
            for view in VIEWS
        ]
        print(strict_json(views, indent=2))
        return EXIT_OK
    if form != "table":
        raise ConfigError(f"--schema: has no form {form}, allowed: --format table or json")
    for view in VIEWS:
        print(f"{view.name}: {view.meaning}")
        width = max(len(column.name) for column in view.columns)
        for column in view.columns:
            print(f"  {column.name:<{width}}  {column.type:<8} {column.meaning}")
        print()
    return EXIT_OK


@contextmanager
def bounded_process(limits: "SqlLimits") -> Iterator[None]:
    """Bound the address space of this process, and end it where a statement does not stop."""
    import resource

    if not STATM.is_file():
        # Not on this system: DuckDB's own limits hold.
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _address_space() + limits.memory_bytes + HEADROOM_BYTES
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    timer = Timer(limits.timeout_s + GRACE_S, _give_up, (limits.timeout_s,))
    timer.daemon = True
    timer.start()
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        timer.cancel()


def _address_space() -> int:
    """Bytes of address space in use."""
    pages = int(STATM.read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _give_up(timeout_s: float) -> None:
    os.write(2, f"error: query: did not stop after {timeout_s:g} s and was ended\n".encode())
    os._exit(EXIT_FAILED)
