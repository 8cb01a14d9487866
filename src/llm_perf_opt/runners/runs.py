"""`llm-perf runs [DIR]`: a table of runs, those in the old layout included."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llm_perf_opt.core.manifest import RunManifest, read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import ConfigError, ManifestError

DEFAULT_DIR = Path("tmp/runs")
OLD_LAYOUT = ("tmp/stage2/*/nsys", "tmp/stage2/*/ncu", "tmp/stage2/*/stage1", "stage1")
MIGRATE = "old layout: python scripts/migrate-run-layout.py --dry-run {path}"


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One line of the table. `note` is set when the run cannot be read as it is."""

    run_id: str
    path: str
    date: str = ""
    model: str = ""
    device: str = ""
    status: str = ""
    stages: str = ""
    note: str = ""


def find_runs(root: Path) -> list[RunRow]:
    """Every run below a directory, oldest first; sweeps are looked into."""
    rows: list[RunRow] = []
    for path in sorted(p for p in [root, *root.glob("*"), *root.glob("*/*")] if p.is_dir()):
        if (path / MANIFEST_FILE).exists():
            rows.append(_row(path))
        elif is_old_layout(path):
            rows.append(RunRow(run_id=path.name, path=str(path), note=MIGRATE.format(path=path)))
    return rows


def is_old_layout(path: Path) -> bool:
    """Whether a directory looks like a run of the two-stage profiler."""
    return any(next(path.glob(pattern), None) is not None for pattern in OLD_LAYOUT)


def _row(path: Path) -> RunRow:
    try:
        manifest = read_manifest(path)
    except ManifestError as error:
        return RunRow(run_id=path.name, path=str(path), note=str(error))
    return RunRow(
        run_id=manifest.run_id,
        path=str(path),
        date=manifest.created_at.replace("T", " ")[:16],
        model=str(_nested(manifest, "model", "name")),
        device=str(_device(manifest)),
        status=manifest.status,
        stages=", ".join(f"{s.name} {s.status}" for s in manifest.stages),
    )


def _nested(manifest: RunManifest, section: str, key: str) -> object:
    values = manifest.config.get(section)
    return values.get(key, "") if isinstance(values, dict) else ""


def _device(manifest: RunManifest) -> object:
    """The device's own name where a stage recorded it, else what was asked for."""
    for stage in manifest.stages:
        if "device_name" in stage.metrics:
            return stage.metrics["device_name"].value
    return _nested(manifest, "run", "device")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="llm-perf runs", description="List runs: id, date, model, device, stages.")
    parser.add_argument("dir", nargs="?", type=Path, default=DEFAULT_DIR, help=f"default: {DEFAULT_DIR}")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    args = parser.parse_args(argv)
    if not args.dir.is_dir():
        raise ConfigError(f"{args.dir}: no such directory; give the folder that holds runs (artifacts.runs_dir)")
    rows = find_runs(args.dir)
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    if not rows:
        print(f"no runs in {args.dir}", file=sys.stderr)
        return 0
    _print_table(rows)
    return 0


def _print_table(rows: Sequence[RunRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("run", "date", "model", "device", "status", "stages"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(row.run_id, row.date, row.model, row.device, row.status, row.note or row.stages)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
