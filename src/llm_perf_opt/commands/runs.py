"""`llm-perf runs [DIR]`: a table of runs, those in the old layout included."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.commands.entry import command_parser
from llm_perf_opt.config.arguments import written_by
from llm_perf_opt.core.manifest import strict_json
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import ConfigError, did_you_mean
from llm_perf_opt.pipeline.catalogue import LocalFolder, RunFolder, RunRow, list_runs, short
from llm_perf_opt.system.files import write_page
from llm_perf_opt.system.terminal import printable

if TYPE_CHECKING:
    from llm_perf_opt.pipeline.index import IndexedRun

DEFAULT_DIR = Path("tmp/runs")
# Shown where no columns are named, as far as any run has them.
TREND = ("ttft_ms", "tpot_ms", "tokens_per_s", "ttft_p99_ms", "wall_ms", "peak_memory_bytes")
FIXED = ("run", "date", "model", "device")
ALLOWED = "allowed: a label such as model, a number such as tpot_ms, or a key of the configuration in full"
OLD_LAYOUT = ("tmp/stage2/*/nsys", "tmp/stage2/*/ncu", "tmp/stage2/*/stage1", "stage1")
# The columns TTFT and TPOT are there in any case.
ALWAYS = 2
# Narrower terminals do without the date.
WIDE = 110
MIGRATE = "old layout: python scripts/migrate-run-layout.py --dry-run {path}"


def _rows(folder: RunFolder) -> list[RunRow]:
    """Every run below a folder, oldest first; sweeps are inspected."""
    listed = list_runs(folder, kind="row", say=_say)
    unread = [_unread(folder, place, note) for place, note in listed.unread.items()]
    rows = [*listed.rows.values(), *unread]
    if isinstance(folder, LocalFolder):
        rows += [
            RunRow(run_id=path.name, path=str(path), note=MIGRATE.format(path=path))
            for path in folder.others()
            if is_old_layout(path)
        ]
    return sorted(rows, key=lambda row: row.path.split("/"))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _unread(folder: RunFolder, place: str, note: str) -> RunRow:
    path = folder.path_of(place)
    return RunRow(run_id=path.rpartition("/")[2], path=path, note=note)


def is_old_layout(path: Path) -> bool:
    """Whether a directory looks like a run of the two-stage profiler."""
    return any(next(path.glob(pattern), None) is not None for pattern in OLD_LAYOUT)


def main(argv: Sequence[str]) -> int:
    examples = ["llm-perf runs", "llm-perf runs --where 'tpot_ms<500' --sort tpot_ms", "llm-perf runs --html runs.html"]
    parser = command_parser("runs", "List runs with their times, including the runs of sweeps.", examples)
    where = f"a folder here or in a store (s3://…); default: {DEFAULT_DIR}"
    parser.add_argument("dir", nargs="?", default=str(DEFAULT_DIR), help=where)
    parser.add_argument("--json", action="store_true", help="print one JSON array (docs/schemas/runs.schema.json)")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="FILTER",
        help="such as model=llama3_1b or 'tpot_ms<20'",
    )
    parser.add_argument("--sort", metavar="KEY", help="by a label, a number or a key of the configuration")
    parser.add_argument("--reverse", action="store_true", help="in descending order")
    parser.add_argument("--columns", metavar="KEYS", help="comma-separated numbers, labels or keys to show")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the numbers over time")
    args = parser.parse_args(argv)
    folder = _folder(args.dir)
    if args.where or args.sort or args.columns or args.html:
        return _chosen(folder, args)
    rows = _rows(folder)
    if args.json:
        print(strict_json([asdict(row) for row in rows], indent=2, ensure_ascii=True))
        return 0
    if not rows:
        print(f"no runs in {args.dir}", file=sys.stderr)
        return 0
    _print_table(rows)
    return 0


def _folder(text: str) -> RunFolder:
    if "://" in text:
        from llm_perf_opt.pipeline.stores import StoreFolder

        return StoreFolder.open(text)
    if not Path(text).is_dir():
        raise ConfigError(
            f"{text}: no such directory; give the folder that holds runs, or make one: llm-perf profile experiment=demo"
        )
    return LocalFolder(root=Path(text))


def _chosen(folder: RunFolder, args: argparse.Namespace) -> int:
    """Runs filtered, sorted and with columns of choice; those that cannot be read are left out and counted."""
    from llm_perf_opt.pipeline.index import parse_filter, require_numbers, sorted_runs
    from llm_perf_opt.system.terminal import terminal_table

    filters = [parse_filter(text) for text in args.where]
    listed = list_runs(folder, kind="run", say=_say)
    columns = [name.strip() for name in (args.columns or "").split(",") if name.strip()]
    asked = {"--where": [one.key for one in filters], "--sort": [args.sort] if args.sort else [], "--columns": columns}
    _require_known(asked, [*listed.runs.values()])
    require_numbers(filters, [*listed.runs.values()], TREND)
    runs = [run for run in listed.runs.values() if all(one.keeps(run) for one in filters)]
    runs = sorted_runs(runs, args.sort, reverse=args.reverse) if args.sort else runs
    chosen = [name for name in columns if name not in FIXED] if columns else _known_trend(runs)
    unknown = [name for name in chosen if runs and all(run.value(name) is None for run in runs)]
    if args.columns and unknown:
        print(f"note: no run has {', '.join(unknown)}", file=sys.stderr)
    if args.html is not None:
        page = _trend_page(runs, chosen, args.html)
        with written_by("--html", args.html):
            write_page(args.html, page)
        print(f"written: {args.html}", file=sys.stderr)
    if args.json:
        found = [{"run": r.run_id, "path": r.path, **{name: r.value(name) for name in chosen}} for r in runs]
        print(strict_json(found, indent=2, ensure_ascii=True))
        return 0
    lines = [[printable(cell) for cell in line] for line in _lines(runs, chosen)]
    print(terminal_table((*FIXED, *chosen), lines, right=range(4, 4 + len(chosen))))
    if listed.unread:
        print(f"note: {count_of(len(listed.unread), 'run')} could not be read; `llm-perf runs` shows why")
    return 0


def _known_trend(runs: "Sequence[IndexedRun]") -> list[str]:
    return [name for name in TREND if any(isinstance(run.value(name), float) for run in runs)] or list(TREND[:2])


def _require_known(asked: Mapping[str, Sequence[str]], runs: "Sequence[IndexedRun]") -> None:
    """Refuse a name that no run has or can have: it would match nothing."""
    if not runs:
        return
    known = {*TREND, *(name for run in runs for name in run.columns)}
    unknown = [(option, name) for option, names in asked.items() for name in names if name not in known]
    if not unknown:
        return
    from llm_perf_opt.completion import known_keys

    # A key that is null has no value in any run.
    known |= {one.key for config in ("config", "bench") for one in known_keys(config)}
    problems = [
        f"{option}: no run has {name}{did_you_mean(name, known) or f'; {ALLOWED}'}"
        for option, name in unknown
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)


def _lines(runs: "Sequence[IndexedRun]", chosen: Sequence[str]) -> list[tuple[str, ...]]:
    names = readable_names([(run.path, run.labels["run"], run.overrides) for run in runs])
    return [
        (
            short(name),
            *(short(run.labels[label]) for label in FIXED[1:]),
            *(_cell(run, number) for number in chosen),
        )
        for name, run in zip(names, runs, strict=True)
    ]


def readable_names(runs: Sequence[tuple[str, str, Sequence[str]]]) -> list[str]:
    """Each run (path, name, overrides) by its name; of a sweep, whose runs are numbered, with what was swept."""
    sweeps: dict[str, list[Sequence[str]]] = {}
    for path, name, overrides in runs:
        if name.isdigit():
            sweeps.setdefault(path.rpartition("/")[0], []).append(overrides)
    return [_readable(path, name, overrides, sweeps.get(path.rpartition("/")[0], ())) for path, name, overrides in runs]


def _readable(path: str, name: str, overrides: Sequence[str], members: Sequence[Sequence[str]]) -> str:
    if not name.isdigit() or len(members) < 2:
        return name
    swept = [word for word in overrides if any(word not in other for other in members) and not _is_place(word)]
    if not swept:
        # A pass of a comparison: the folder says of which side.
        return "/".join(path.split("/")[-2:])
    parts = (word.lstrip("+~").partition("=") for word in swept)
    return " ".join([name, *(f"{key.rpartition('.')[2]}={value}" for key, _, value in parts)])


def _is_place(word: str) -> bool:
    return word.startswith(("artifacts.", "hydra."))


def _cell(run: "IndexedRun", name: str) -> str:
    from llm_perf_opt.core.units import format_quantity

    value = run.value(name)
    if value is None:
        return "—"
    metric = run.metric(name)
    if isinstance(value, float) and metric is not None:
        return format_quantity(value, metric.unit)
    return short(value)


def _trend_page(runs: "Sequence[IndexedRun]", chosen: Sequence[str], page: Path) -> str:
    """Each number over the time of the runs, a line for each model on each device."""
    from llm_perf_opt.report.compare.trends import RunsTable, render_runs_page, report_link
    from llm_perf_opt.report.draw import Chart, ChartPoint

    charts = []
    for name in chosen:
        known = [(run, metric) for run in runs if (metric := run.metric(name)) is not None]
        shown = [
            (run, metric, float(metric.value))
            for run, metric in sorted(known, key=lambda one: one[0].created_at)
            if isinstance(metric.value, int | float)
        ]
        points = [
            ChartPoint(
                x=run.labels["date"],
                y=value,
                low=None if metric.spread is None else metric.spread.p10,
                high=None if metric.spread is None else metric.spread.p90,
                group=f"{run.labels['model']} on {run.labels['device']}",
                text=f"{run.run_id} {run.labels['commit']}: {_cell(run, name)}",
            )
            for run, metric, value in shown
        ]
        if points:
            unit = shown[0][1].unit
            charts.append(Chart(title=name, x_label="date", y_unit=unit, points=tuple(points)))
    columns = (*FIXED, *chosen)
    return render_runs_page(
        title="Runs",
        sentence=f"{len(runs)} runs; points are medians, bars go from p10 to p90.",
        table=RunsTable(
            columns=columns,
            rows=tuple(_lines(runs, chosen)),
            numeric=tuple(range(4, len(columns))),
            links=tuple(report_link(run.path, page) for run in runs),
        ),
        charts=charts,
    )


def _print_table(rows: Sequence[RunRow]) -> None:
    from llm_perf_opt.core.units import digits, format_ms
    from llm_perf_opt.system.terminal import screen_width, show, table_text

    columns: list[tuple[str, list[float | None], Callable[[float], str]]] = [
        ("TTFT", [row.ttft_ms for row in rows], format_ms),
        ("TPOT", [row.tpot_ms for row in rows], format_ms),
        ("tokens/s", [row.tokens_per_s for row in rows], digits),
        ("TTFT P99", [row.ttft_p99_ms for row in rows], format_ms),
        ("wall", [row.wall_ms for row in rows], format_ms),
    ]
    shown = [one for number, one in enumerate(columns) if number < ALWAYS or any(v is not None for v in one[1])]
    times = [name for name, _, _ in shown]
    header = ["run", "date", "model", "device", "status", *times, "stages"]
    names = readable_names([(row.path, row.run_id, row.overrides) for row in rows])
    cells = [
        [
            *(names[number], row.date, row.model, row.device, row.status),
            *("–" if (value := values[number]) is None else form(value) for _, values, form in shown),
            row.note or row.failed or row.stages,
        ]
        for number, row in enumerate(rows)
    ]
    width = screen_width()
    if width is not None and width < WIDE:
        # The name of a run is its time unless the user chose another; of stages those that failed are enough.
        header = [header[0], *header[2:-1], "not ok"]
        cells = [[line[0], *line[2:-1], row.note or row.failed] for line, row in zip(cells, rows, strict=True)]
    numbers = [header.index(name) for name in times]
    show(table_text(header, cells, right=numbers, rule=False))
