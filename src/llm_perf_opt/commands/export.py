"""`llm-perf export RUN_DIR --to …`: a run's numbers for Prometheus, OpenMetrics, MLflow or Weights & Biases, or its
tables as Parquet.

The last two need their package (extras `mlflow` and `wandb`), which is imported only when asked for.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from llm_perf_opt.config.arguments import command_parser, written_by
from llm_perf_opt.errors import EXIT_OK, ConfigError, ToolError
from llm_perf_opt.pipeline.index import IndexedRun, index_run
from llm_perf_opt.report.render.openmetrics import render_openmetrics
from llm_perf_opt.system.files import write_page
from llm_perf_opt.system.json_output import print_json, text_to_stderr

TEXTS = ("prometheus", "openmetrics")
PARQUET = "parquet"
PACKAGES = {"mlflow": "mlflow", "wandb": "wandb"}
ARTIFACTS = ("report.html", "manifest.json")
LABELS = ("run", "model", "device", "commit")
# Longer ones are refused by MLflow.
LONGEST_PARAM = 500
PARAMS_AT_ONCE = 100
# What the small packages cannot do by themselves.
MLFLOW_HINT = (
    "set MLFLOW_TRACKING_URI to the address of your server; without one, `pip install sqlalchemy alembic` lets MLflow "
    "keep a file of its own"
)
WANDB_HINT = "log in with `wandb login`, or set WANDB_MODE=offline and sync later"


@dataclass(frozen=True, kw_only=True)
class ExportDocument:
    """What `llm-perf export --json` prints: the numbers of a run, and where they went (`file`: None for a service)."""

    schema_version: Literal[1] = 1
    run_dir: str
    target: str
    file: str | None
    labels: Mapping[str, str]
    numbers: Mapping[str, float]


def main(argv: Sequence[str]) -> int:
    examples = [
        "llm-perf export tmp/runs/demo --to prometheus",
        "llm-perf export tmp/runs/demo --to openmetrics -o demo.prom",
        "llm-perf export capture.sqlite --to parquet -o tables",
    ]
    parser = command_parser("export", "Export the numbers of a run.", examples)
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="the directory of a run; of parquet also a capture")
    parser.add_argument("--to", required=True, choices=[*TEXTS, PARQUET, *PACKAGES], help="where to")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file for prometheus or openmetrics (default: print), folder for parquet",
    )
    parser.add_argument("--project", default="llm-perf", metavar="NAME", help="experiment of MLflow, project of W&B")
    parser.add_argument("--json", action="store_true", help="print what was sent (docs/schemas/export.schema.json)")
    args = parser.parse_args(argv)
    if args.json and args.to in TEXTS and args.output is None:
        raise ConfigError(f"--json: the text of --to {args.to} goes to the same place, allowed: with -o FILE")
    if args.to == PARQUET:
        return _to_parquet(args.run, args.output)
    run = index_run(args.run)
    with text_to_stderr(args.json):
        _export(run, args)
    if args.json:
        file = None if args.output is None else str(args.output)
        print_json(
            ExportDocument(run_dir=run.path, target=args.to, file=file, labels=run.labels, numbers=numbers_of(run))
        )
    return EXIT_OK


def _export(run: IndexedRun, args: argparse.Namespace) -> None:
    if args.to in PACKAGES:
        if args.output is not None:
            raise ConfigError(f"-o: has no effect with --to {args.to}, allowed: with {' or '.join(TEXTS)}")
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
    labels = {name: run.labels[name] for name in LABELS if run.labels[name]}
    text = render_openmetrics(run.numbers, labels, strict=args.to == "openmetrics")
    if args.output is None:
        print(text, end="")
        return
    # A collector must not read half a file.
    with written_by("-o", args.output):
        write_page(args.output, text)
    print(f"written: {args.output}", file=sys.stderr)


def _to_parquet(source: Path, folder: Path | None) -> int:
    if folder is None:
        raise ConfigError(f"--to {PARQUET}: needs -o DIR, where one file for each table is written")
    from llm_perf_opt.commands.export_tables import export_tables

    for path in export_tables(source, folder):
        print(path)
    return EXIT_OK


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
    """The files that go with the numbers; a link in a run of somebody else could lead to any file of ours."""
    paths = [run_dir / name for name in ARTIFACTS]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _package(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        extra = f"pip install 'llm-perf-opt[{name}]'"
        raise ToolError(f"--to {name} needs the package {name}, which is not installed: {extra}") from error
