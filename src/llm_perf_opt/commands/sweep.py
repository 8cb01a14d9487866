"""`llm-perf sweep report DIR`: the runs of a sweep as one table and one page. `sweep resume DIR`: what is left."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.commands.entry import command_parser
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.markdown import escape, table
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.core.units import format_quantity
from llm_perf_opt.errors import EXIT_FAILED, EXIT_OK, ConfigError, ManifestError, did_you_mean
from llm_perf_opt.pipeline.index import IndexedRun, index_run
from llm_perf_opt.pipeline.jobs.launchers import describe
from llm_perf_opt.pipeline.jobs.record import JobsDocument, read_jobs, require_own
from llm_perf_opt.pipeline.jobs.states import JobState, job_states, remove_pickles
from llm_perf_opt.pipeline.sweep import METRICS, OBJECTIVES, SweepDocument, SweptRun, build_sweep, is_near_front
from llm_perf_opt.report.compare.trends import RunsTable, render_runs_page, report_link
from llm_perf_opt.report.draw import Chart, ChartPoint
from llm_perf_opt.system.files import real_path, write_page
from llm_perf_opt.system.json_output import JSON, print_json
from llm_perf_opt.system.lock import is_locked, remove_left_lock
from llm_perf_opt.system.secrets.secret_shapes import REDACTED
from llm_perf_opt.system.terminal import printable, terminal_table

FRONT = "★"


def main(argv: Sequence[str]) -> int:
    examples = ["llm-perf sweep report tmp/runs/sweep"]
    parser = command_parser("sweep", "Sweeps (`llm-perf profile -m …`).", examples)
    commands = parser.add_subparsers(dest="what", required=True)
    report = commands.add_parser("report", help="one table and one page of all runs of a sweep; also while jobs run")
    report.add_argument("dir", type=Path, help="the directory of the sweep, such as tmp/runs/sweep-…")
    report.add_argument(
        "--objectives",
        default=",".join(OBJECTIVES),
        help=f"the two or more numbers that span the Pareto front (default {','.join(OBJECTIVES)})",
    )
    report.add_argument("--json", action="store_true", help="print one JSON object (docs/schemas/sweep.schema.json)")
    resume = commands.add_parser("resume", help="run the jobs that are missing or failed, as they were requested")
    resume.add_argument("dir", type=Path, help="the directory of the sweep, such as tmp/runs/sweep-…")
    resume.add_argument("overrides", nargs="*", help="secrets that were not recorded, or another launcher=…")
    resume.add_argument("--trust", action="store_true", help="run the commands of another user's sweep")
    resume.add_argument("--json", action="store_true", help="then print the sweep as `sweep report --json` does")
    args = parser.parse_args(argv)
    return _report(args) if args.what == "report" else _resume(args)


def _report(args: argparse.Namespace) -> int:
    objectives = [name.strip() for name in args.objectives.split(",") if name.strip()]
    if not objectives:
        raise ConfigError(
            f"--objectives: none given (got {args.objectives!r}), allowed: comma-separated names of numbers"
        )
    read = read_sweep(args.dir)
    _require_numbers(objectives, read.runs)
    found = _written(args.dir, read, objectives)
    if args.json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    else:
        cells = _runs_table(found)
        print(terminal_table(cells.columns, [[printable(c) for c in row] for row in cells.rows], right=cells.numeric))
        if any(run.on_front for run in found.runs):
            print(f"{FRONT}: no other run is better in {' or '.join(found.objectives)} without losing in the other")
        else:
            print(f"no run is on the Pareto front: none that succeeded has {' and '.join(found.objectives)}")
        for note in read.notes:
            print(f"note: {note}")
        print(f"written: {args.dir / 'sweep.html'}")
    return EXIT_FAILED if all(run.state in ("failed", "missing") for run in found.runs) else EXIT_OK


def _written(folder: Path, read: "ReadSweep", objectives: Sequence[str]) -> SweepDocument:
    """The sweep's document, after it and its pages were written."""
    found = build_sweep(read.runs, objectives=objectives, states=read.states, jobs=read.jobs)
    write_json(folder / "sweep.json", found)
    for name, text in (
        ("sweep.md", render_md(found, read.notes)),
        ("sweep.html", render_html(found, read.notes, folder / "sweep.html")),
    ):
        write_page(folder / name, text)
    return found


def print_sweep(folder: Path) -> None:
    """Print the runs of a sweep as JSON."""
    import msgspec

    print_json(msgspec.to_builtins(_written(folder, read_sweep(folder), OBJECTIVES)))


def _require_numbers(objectives: Sequence[str], runs: Sequence[IndexedRun]) -> None:
    """What no run measured spans no front; runs that all failed measured nothing, and say nothing about a name."""
    known = {name for run in runs for name, metric in run.numbers.items() if isinstance(metric.value, int | float)}
    unknown = [name for name in objectives if known and name not in (*known, *METRICS)]
    if unknown:
        numbers = ", ".join(sorted(known))
        raise ConfigError(
            [f"--objectives: no run has {n}{did_you_mean(n, known) or f', allowed: {numbers}'}" for n in unknown]
        )


def _resume(args: argparse.Namespace) -> int:
    """The same command line again, in the same directory, for the jobs that need it."""
    from llm_perf_opt.commands.profile import run_hydra
    from llm_perf_opt.config.arguments import parse_arguments
    from llm_perf_opt.config.legacy import override_key

    folder = real_path(args.dir)
    document = read_jobs(folder) if folder.is_dir() else None
    if document is None:
        raise ConfigError(f"{args.dir}: holds no jobs.json; give the directory of a sweep, such as tmp/runs/sweep-…")
    if not args.trust:
        require_own(folder, document)
    if is_locked(folder):
        raise ConfigError(f"{args.dir}: its submitter is still at work; end it first, or wait")
    states = job_states(folder, document)
    todo = tuple(state.number for state in states if state.state in ("missing", "planned", "failed"))
    stream = sys.stderr if args.json else sys.stdout
    print(f"{args.dir}: {describe(states)}; to be run: {len(todo)}", file=stream, flush=True)
    remove_pickles(folder)
    # A job that was killed after its last stage is done, and its lock is not taken again.
    for job, state in zip(document.jobs, states, strict=True):
        if state.state == "ok":
            remove_left_lock(folder / job.folder)
    if not todo:
        if args.json:
            print_sweep(folder)
        return EXIT_OK
    given = {override_key(word) for word in args.overrides}
    kept = [word for word in document.arguments if word.startswith("-") or override_key(word) not in given]
    lost = [override_key(word) for word in kept if REDACTED in word]
    if lost:
        raise ConfigError([f"{key}: held a secret, which a sweep does not record; give it again" for key in lost])
    kept = [word for word in kept if override_key(word) != "hydra.sweep.dir"]
    if document.user_dir and Path(document.user_dir).is_dir():
        os.chdir(document.user_dir)
    as_json = [JSON] if args.json else []
    return run_hydra(parse_arguments([*kept, *args.overrides, f'hydra.sweep.dir="{folder}"', *as_json]), only=todo)


@dataclass(frozen=True, kw_only=True)
class ReadSweep:
    """The runs of a sweep in the order of their numbers; their states by path; and what could not be read."""

    runs: list[IndexedRun]
    states: dict[str, JobState] = field(default_factory=dict)
    jobs: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_sweep(folder: Path) -> ReadSweep:
    """Every job a sweep was requested, also those that did not begin; without such a list, the runs that are there."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory; give that of a sweep, such as tmp/runs/sweep-…")
    document = read_jobs(folder)
    if document is not None:
        return _read_jobs(folder, document)
    places = sorted((p.parent for p in folder.glob(f"*/{MANIFEST_FILE}")), key=lambda p: (len(p.name), p.name))
    runs, notes = [], []
    for place in places:
        try:
            runs.append(index_run(place))
        except ManifestError as error:
            notes.append(str(error))
    if not runs:
        raise ConfigError(f"{folder}: holds no runs; `llm-perf profile -m KEY=A,B` makes a sweep")
    return ReadSweep(runs=runs, notes=notes)


def _read_jobs(folder: Path, document: JobsDocument) -> ReadSweep:
    states = job_states(folder, document)
    runs, notes = [], []
    for job, state in zip(document.jobs, states, strict=True):
        path = folder / job.folder
        try:
            runs.append(index_run(path))
        except ManifestError:
            runs.append(
                IndexedRun(
                    run_id=job.folder,
                    path=str(path),
                    created_at="",
                    status=state.state,
                    labels={},
                    keys={},
                    numbers={},
                    overrides=job.overrides,
                )
            )
        if state.state == "failed":
            notes.append(f"job {job.number}: {state.reason}")
    if any(state.state != "ok" for state in states):
        rest = "" if is_locked(folder) else f"; `llm-perf sweep resume {folder}` runs what is missing or failed"
        notes.insert(0, f"{describe(states)}{rest}")
    paths = [str(folder / job.folder) for job in document.jobs]
    return ReadSweep(
        runs=runs,
        states=dict(zip(paths, states, strict=True)),
        jobs=dict(zip(paths, (job.scheduler_id for job in document.jobs), strict=True)),
        notes=notes,
    )


def render_md(found: SweepDocument, notes: Sequence[str]) -> str:
    cells = _runs_table(found)
    rows = [[escape(cell) for cell in row] for row in cells.rows]
    lines = ["# Sweep", "", _sentence(found), ""]
    lines += table(cells.columns, rows, right=[cells.columns[i] for i in cells.numeric])
    return "\n".join([*lines, "", *(f"- {escape(note)}" for note in notes)]).rstrip() + "\n"


def render_html(found: SweepDocument, notes: Sequence[str], page: Path) -> str:
    charts = [_front(found), *(_against(found, metric, key) for key in found.keys for metric in found.metrics)]
    return render_runs_page(
        title="Sweep",
        sentence=_sentence(found),
        table=replace(_runs_table(found), links=tuple(report_link(run.path, page) for run in found.runs)),
        charts=[chart for chart in charts if chart is not None],
        notes=notes,
    )


def _sentence(found: SweepDocument) -> str:
    failed = sum(run.state == "failed" for run in found.runs)
    keys = ", ".join(found.keys) or "nothing"
    best = [_name(found, run) for run in found.runs if run.on_front]
    count = f"{len(found.runs)} runs over {keys}" + (f", {failed} of them failed" if failed else "")
    if not best:
        return f"{count}."
    near = [_name(found, run) for run in found.runs if is_near_front(run, found)]
    beside = f" Not significantly different (within p10 to p90): {'; '.join(near)}." if near else ""
    return f"Best in {' and '.join(found.objectives)} (Pareto front): {'; '.join(best)}.{beside} {count}."


def _name(found: SweepDocument, run: SweptRun) -> str:
    return ", ".join(f"{key}={run.settings[key]}" for key in found.keys) or run.run_id


def _runs_table(found: SweepDocument) -> RunsTable:
    columns = ("run", *found.keys, *found.metrics, "front")
    rows = []
    for run in found.runs:
        numbers = [
            format_quantity(run.numbers[m].value, run.numbers[m].unit) if m in run.numbers else "—"
            for m in found.metrics
        ]
        settings = [run.settings[key] or "—" for key in found.keys]
        rows.append(
            (
                Path(run.path).name,
                *settings,
                *numbers,
                FRONT if run.on_front else "" if run.state == "ok" else run.state,
            )
        )
    first = 1 + len(found.keys)
    return RunsTable(
        columns=columns,
        rows=tuple(rows),
        numeric=tuple(range(first, first + len(found.metrics))),
        marked=tuple(index for index, run in enumerate(found.runs) if run.on_front),
    )


def _front(found: SweepDocument) -> Chart | None:
    if len(found.objectives) < 2:
        return None
    x, y = found.objectives[:2]
    shown = [run for run in found.runs if x in run.numbers and y in run.numbers]
    points = tuple(
        ChartPoint(
            x=run.numbers[x].value,
            y=run.numbers[y].value,
            low=None,
            high=None,
            group="runs",
            text=f"{_name(found, run)}: {x} {run.numbers[x].value:.4g}, {y} {run.numbers[y].value:.4g}",
            marked=run.on_front,
        )
        for run in shown
    )
    unit = shown[0].numbers[y].unit if shown else ""
    return Chart(title=f"{y} against {x}; marked: the front", x_label=x, y_unit=unit, points=points, connect=False)


def _against(found: SweepDocument, metric: str, key: str) -> Chart | None:
    """A number over one key; runs that differ in other keys are lines of their own."""
    others = [other for other in found.keys if other != key]
    shown = [run for run in found.runs if metric in run.numbers and run.settings[key] is not None]
    points = []
    for run in shown:
        number, value = run.numbers[metric], run.settings[key] or ""
        spread = number.spread
        points.append(
            ChartPoint(
                x=_float_or_text(value),
                y=number.value,
                low=None if spread is None else spread.p10,
                high=None if spread is None else spread.p90,
                group=", ".join(f"{o}={run.settings[o]}" for o in others) or "runs",
                text=f"{_name(found, run)}: {format_quantity(number.value, number.unit)}",
                marked=run.on_front,
            )
        )
    if not points:
        return None
    points.sort(key=lambda p: (isinstance(p.x, str), p.x if isinstance(p.x, float) else 0.0))
    unit = shown[0].numbers[metric].unit
    return Chart(title=f"{metric} against {key}", x_label=key, y_unit=unit, points=tuple(points))


def _float_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
