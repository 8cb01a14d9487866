"""`llm-perf export RUN_DIR --to …`: numbers, tables, stacks or timelines for other tools; `--share`: a copy for people.

MLflow and Weights & Biases need their package (extras `mlflow` and `wandb`), which is imported only when asked for.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from llm_perf_opt.commands.entry import command_parser
from llm_perf_opt.config.arguments import written_by
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import EXIT_OK, ConfigError, ToolError
from llm_perf_opt.pipeline.index import IndexedRun, index_run
from llm_perf_opt.pipeline.share import SharedDocument
from llm_perf_opt.report.render.openmetrics import render_openmetrics
from llm_perf_opt.system.files import write_whole
from llm_perf_opt.system.json_output import print_json, text_to_stderr

if TYPE_CHECKING:
    from llm_perf_opt.report.render.stacks_export import StackProfile

OTLP, PERFETTO, PARQUET = "otlp", "perfetto", "parquet"
TEXTS = ("prometheus", "openmetrics", OTLP)
STACKS = ("speedscope", "collapsed")
SOURCES = ("host", "python", "operators")
# What is made out of captures, in a run or not.
OF_CAPTURES = (*STACKS, PERFETTO, PARQUET)
# As every exporter of OpenTelemetry reads them.
ENDPOINT, HEADERS = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS"
PACKAGES = {"mlflow": "mlflow", "wandb": "wandb"}
ARTIFACTS = ("report.html", "manifest.json")
LABELS = ("run", "model", "device", "commit")
# Longer ones are refused by MLflow.
LONGEST_PARAM = 500
PARAMS_AT_ONCE = 100
# What the small packages cannot do by themselves.
MLFLOW_HINT = (
    "set MLFLOW_TRACKING_URI to the address of your server; without one, `pip install sqlalchemy alembic` lets MLflow "
    "keep its own file"
)
WANDB_HINT = "log in with `wandb login`, or set WANDB_MODE=offline and sync later"


@dataclass(frozen=True, kw_only=True)
class ExportDocument:
    """What `llm-perf export --json` prints: what went where (`file`: None for a service).

    `numbers` are those of a run, sent or not; `shared` says what a shared copy is without.
    """

    schema_version: Literal[1] = 1
    sources: tuple[str, ...]
    target: str
    file: str | None
    size_bytes: int | None
    labels: Mapping[str, str]
    numbers: Mapping[str, float]
    shared: SharedDocument | None = None


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    _refuse_slips(args)
    run = index_run(args.source[0]) if _is_run(args.source[0]) or args.to not in OF_CAPTURES else None
    shared: SharedDocument | None = None
    with text_to_stderr(args.json):
        if args.share:
            shared = _share(args)
        elif args.to == PERFETTO:
            _write_perfetto(args)
        elif args.to == PARQUET:
            _write_tables(args)
        elif args.to in STACKS:
            _deliver(_stacks(args), args)
        elif run is not None:
            _export(run, args)
    if args.json:
        print_json(
            ExportDocument(
                sources=tuple(map(str, args.source)),
                target=args.to or "share",
                file=None if args.output is None else str(args.output),
                size_bytes=None if args.output is None else _size_of(args.output),
                labels={} if run is None else run.labels,
                numbers={} if run is None else numbers_of(run),
                shared=shared,
            )
        )
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    examples = [
        "llm-perf export tmp/runs/demo --to prometheus",
        "llm-perf export tmp/runs/demo --to otlp -o demo.otlp.json",
        "llm-perf export capture.sqlite --to parquet -o tables",
        "llm-perf export trace.json.gz --to speedscope -o trace.speedscope.json",
        "llm-perf export --share tmp/runs/demo -o demo.zip",
    ]
    parser = command_parser("export", "Export a run for other tools or for other people.", examples)
    parser.add_argument(
        "source",
        nargs="+",
        type=Path,
        metavar="RUN_DIR",
        help="the directory of a run; of stacks, perfetto and parquet also captures",
    )
    parser.add_argument(
        "--to",
        choices=[*TEXTS, *PACKAGES, *STACKS, PERFETTO, PARQUET],
        help="numbers: prometheus, openmetrics, otlp (OpenTelemetry), mlflow, wandb; stacks: speedscope, collapsed; "
        "timelines of all ranks in one file: perfetto; a folder with every table: parquet",
    )
    parser.add_argument(
        "--share",
        action="store_true",
        help="a copy without secrets, host names, home directories, captures and model outputs",
    )
    parser.add_argument("--with-captures", action="store_true", help="with --share: captures too, redacted")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write; with --share a .zip, or .html for the page",
    )
    parser.add_argument(
        "--stacks", choices=SOURCES, help="with collapsed: sampled host stacks, Python frames or operators of a trace"
    )
    parser.add_argument(
        "--endpoint", metavar="URL", help=f"with otlp: a collector (default: ${ENDPOINT}, else the text is printed)"
    )
    parser.add_argument("--project", default="llm-perf", metavar="NAME", help="experiment of MLflow, project of W&B")
    parser.add_argument("--json", action="store_true", help="print what was sent (docs/schemas/export.schema.json)")
    return parser


def _refuse_slips(args: argparse.Namespace) -> None:
    """Options that contradict each other or have no effect."""
    problems = []
    if bool(args.to) == bool(args.share):
        problems.append("export: one of --to and --share is needed")
    if len(args.source) > 1 and args.to != PERFETTO:
        problems.append(f"export: one run at a time (got {len(args.source)}), allowed: several with --to {PERFETTO}")
    if args.source[0].is_file() and args.to not in OF_CAPTURES:
        target = "--share" if args.share else f"--to {args.to}"
        problems.append(
            f"{target}: takes the directory of a run (got the file {args.source[0]}), allowed of a capture: "
            f"{', '.join(f'--to {one}' for one in OF_CAPTURES)}"
        )
    if args.output is not None and args.to in PACKAGES:
        problems.append(f"-o: has no effect with --to {args.to}, allowed: with {', '.join((*TEXTS, *STACKS))}")
    if args.output is None and (args.share or args.to == PERFETTO):
        problems.append("-o: a file is needed to write to")
    if args.output is None and args.to == PARQUET:
        problems.append(f"--to {PARQUET}: needs -o DIR, where one file for each table is written")
    if args.json and args.output is None and args.to in (*TEXTS, *STACKS) and not _endpoint(args):
        problems.append(f"--json: the text of --to {args.to} goes to the same place, allowed: with -o FILE")
    if args.share and args.output is not None and args.output.suffix not in (".zip", ".html"):
        problems.append(f"-o: allowed with --share: a name that ends with .zip or .html (got {args.output.name!r})")
    if args.with_captures and (not args.share or (args.output is not None and args.output.suffix != ".zip")):
        problems.append("--with-captures: has an effect with --share and a .zip only")
    if args.stacks is not None and args.to != "collapsed":
        problems.append("--stacks: has an effect with --to collapsed only; a speedscope file holds them all")
    if args.endpoint is not None and (args.to != OTLP or not args.endpoint.startswith(("http://", "https://"))):
        problems.append(f"--endpoint: the http or https address of a collector, with --to {OTLP} only")
    if problems:
        raise ConfigError(problems)


def _export(run: IndexedRun, args: argparse.Namespace) -> None:
    if args.to in PACKAGES:
        package = _package(args.to)
        send, refusal, hint = (
            (_to_mlflow, package.exceptions.MlflowException, MLFLOW_HINT)
            if args.to == "mlflow"
            else (_to_wandb, package.Error, WANDB_HINT)
        )
        try:
            send(package, run, args.project)
        except refusal as error:
            raise ToolError(f"--to {args.to}: {str(error).partition('. ')[0].rstrip('.')}; {hint}") from error
        return
    _deliver(_numbers(run, args.to), args)


def _deliver(data: bytes, args: argparse.Namespace) -> None:
    """To a collector, to the standard output, or into a file."""
    endpoint = _endpoint(args)
    if endpoint and args.output is None:
        from llm_perf_opt.core.http import post_json

        address = post_json(f"{endpoint.rstrip('/')}/v1/metrics", data, headers=os.environ.get(HEADERS, ""))
        print(f"sent to {address}", file=sys.stderr)
    elif args.output is None:
        print(data.decode("utf-8"), end="")
    else:
        _write(args.output, data)


def _endpoint(args: argparse.Namespace) -> str | None:
    return (args.endpoint or os.environ.get(ENDPOINT)) if args.to == OTLP else None


def _write(path: Path, data: bytes) -> None:
    # A collector must not read half a file.
    with written_by("-o", path):
        write_whole(path, data)
    print(f"written: {path}", file=sys.stderr)


def _numbers(run: IndexedRun, target: str) -> bytes:
    labels = {name: run.labels[name] for name in LABELS if run.labels[name]}
    if target == OTLP:
        from llm_perf_opt.report.render.otlp import render_otlp

        time_ns = int(datetime.fromisoformat(run.created_at).timestamp()) * 10**9
        text = render_otlp(run.numbers, labels, time_ns=time_ns)
    else:
        text = render_openmetrics(run.numbers, labels, strict=target == "openmetrics")
    return text.encode("utf-8", "backslashreplace")


def _stacks(args: argparse.Namespace) -> bytes:
    from llm_perf_opt.system.arrays import load_numpy

    load_numpy()
    from llm_perf_opt.report.render.stacks_export import NONE_FOUND, NONE_RECORDED, collapsed, speedscope

    given = args.source[0]
    name, profiles = _stacks_of_run(given) if _is_run(given) else _stacks_of_capture(given)
    sources = [source for source in SOURCES if any(profile.source == source for profile in profiles)]
    if not sources:
        raise ConfigError(f"{given}: {NONE_FOUND if _is_run(given) else NONE_RECORDED}")
    if args.to == "speedscope":
        return speedscope(profiles, name=name)
    source = args.stacks or sources[0]
    if source not in sources:
        raise ConfigError(f"--stacks: {given} has no such stacks (got {source}), allowed: {', '.join(sources)}")
    return collapsed([profile for profile in profiles if profile.source == source]).encode("utf-8", "backslashreplace")


def _stacks_of_run(run_dir: Path) -> "tuple[str, tuple[StackProfile, ...]]":
    from llm_perf_opt.report.render.stacks_export import host_stacks, stacks_of_run
    from llm_perf_opt.report.run_files import read_run_files

    manifest = read_manifest(run_dir)
    return manifest.run_id, stacks_of_run(read_run_files(manifest, run_dir), host_stacks(manifest, run_dir))


def _stacks_of_capture(path: Path) -> "tuple[str, tuple[StackProfile, ...]]":
    from llm_perf_opt.api.sources import CaptureFiles
    from llm_perf_opt.capture.window import timeline_window
    from llm_perf_opt.report.render.stacks_export import stacks_of_capture

    files = CaptureFiles([path], detail=True)
    timelines = [one.timeline for one in files.read.captures]
    windows = [timeline_window(one, one.operators if len(one.operators) else None) for one in timelines]
    return path.name, stacks_of_capture(files.captured, windows)


def _is_run(path: Path) -> bool:
    return (path / MANIFEST_FILE).is_file()


def _size_of(path: Path) -> int:
    """Of a file, or of all files in a folder."""
    return sum(one.stat().st_size for one in (path.iterdir() if path.is_dir() else (path,)))


def _write_tables(args: argparse.Namespace) -> None:
    from llm_perf_opt.commands.export_tables import export_tables

    for path in export_tables(args.source[0], args.output):
        print(path)


def _write_perfetto(args: argparse.Namespace) -> None:
    """The timelines of every capture, those of a run its own."""
    import tempfile

    from llm_perf_opt.system.arrays import load_numpy

    load_numpy()
    from llm_perf_opt.capture.readers.kinds import capture_files, kind_of
    from llm_perf_opt.capture.window import timeline_window
    from llm_perf_opt.pipeline.analyze.read import read_captures
    from llm_perf_opt.report.render.perfetto import render_ranks

    files = [file for source in args.source for file in _captures_of(source) or capture_files(source)]
    kinds = [kind_of(file) for file in files]
    windows = []
    with tempfile.TemporaryDirectory(prefix="llm-perf-export-") as scratch:
        # Each by itself: a trace of torch and one of nsys are not two ranks.
        for kind in dict.fromkeys(kinds):
            own = [file for file, its in zip(files, kinds, strict=True) if its == kind]
            for measured in read_captures(own, [kind] * len(own), Path(scratch), detailed=True).measured:
                timeline = measured.timeline
                rank = timeline.origin.rank
                name = f"{'' if rank is None else f'rank {rank}, '}{timeline.kind}: {Path(timeline.source).name}"
                operators = timeline.operators if len(timeline.operators) else None
                windows.append((name, timeline_window(timeline, operators)))
    if not windows:
        raise ConfigError(f"{args.source[0]}: no capture with a timeline, allowed: nsys exports, torch traces, rocpd")
    _write(args.output, render_ranks(windows))


def _captures_of(source: Path) -> list[Path]:
    """The captures a run recorded, of every rank; of anything else none."""
    if not _is_run(source):
        return []
    manifest = read_manifest(source)
    files = [file.path for stage in manifest.stages for file in stage.files if file.role in ("trace", "nsys_sqlite")]
    inside = [path for path in files if path.is_file() and path.resolve().is_relative_to(source.resolve())]
    if not inside:
        raise ConfigError(f"{source}: holds no capture any more; give the captures themselves")
    return inside


def _share(args: argparse.Namespace) -> SharedDocument:
    from llm_perf_opt.system.arrays import load_numpy

    load_numpy()
    from llm_perf_opt.pipeline.share import share_page, share_zip

    with written_by("-o", args.output):
        if args.output.suffix == ".html":
            document = share_page(args.source[0], args.output, os.environ)
        else:
            document = share_zip(args.source[0], args.output, os.environ, with_captures=args.with_captures)
    for left in document.left_out:
        print(f"left out: {left.path} ({left.reason})")
    for redacted in document.redacted:
        places = "several places" if redacted.places is None else count_of(redacted.places, "place")
        print(f"redacted: {redacted.path}, {places}")
    print(f"written: {args.output}", file=sys.stderr)
    return document


def numbers_of(run: IndexedRun) -> dict[str, float]:
    """All numbers, and the ends of their spread under names of their own."""
    found = {}
    for name, metric in run.numbers.items():
        if isinstance(metric.value, int | float):
            found[name] = float(metric.value)
            if metric.spread is not None:
                found[f"{name}_p10"], found[f"{name}_p90"] = metric.spread.p10, metric.spread.p90
    return found


def _to_mlflow(mlflow: ModuleType, run: IndexedRun, project: str) -> None:
    mlflow.set_experiment(project)
    with mlflow.start_run(run_name=run.run_id):
        mlflow.set_tags({f"llm_perf.{name}": value for name, value in run.labels.items() if value})
        params = [(key, value[:LONGEST_PARAM]) for key, value in run.keys.items()]
        for first in range(0, len(params), PARAMS_AT_ONCE):
            mlflow.log_params(dict(params[first : first + PARAMS_AT_ONCE]))
        mlflow.log_metrics(numbers_of(run))
        for path in _sent(Path(run.path)):
            mlflow.log_artifact(str(path))


def _to_wandb(wandb: ModuleType, run: IndexedRun, project: str) -> None:
    with wandb.init(project=project, name=run.run_id, config={**run.keys, **run.labels}, job_type="llm-perf") as sent:
        sent.log(numbers_of(run))
        for path in _sent(Path(run.path)):
            sent.save(str(path), base_path=run.path, policy="now")


def _sent(run_dir: Path) -> list[Path]:
    """The files that go with the numbers; a link in a run of another user could lead to any file of ours."""
    paths = [run_dir / name for name in ARTIFACTS]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _package(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        extra = f"pip install 'llm-perf-opt[{name}]'"
        raise ToolError(f"--to {name} needs the package {name}, which is not installed: {extra}") from error
