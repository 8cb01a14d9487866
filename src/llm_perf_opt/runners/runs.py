"""`llm-perf runs [DIR]`: a table of runs, those in the old layout included."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llm_perf_opt.core.manifest import RunManifest, read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.core.terminal import printable
from llm_perf_opt.errors import ConfigError, ManifestError

DEFAULT_DIR = Path("tmp/runs")
OLD_LAYOUT = ("tmp/stage2/*/nsys", "tmp/stage2/*/ncu", "tmp/stage2/*/stage1", "stage1")
LONGEST_CELL = 200
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
    for path in _folders(root):
        try:
            if (path / MANIFEST_FILE).exists():
                rows.append(_row(path))
            elif is_old_layout(path):
                rows.append(RunRow(run_id=path.name, path=str(path), note=MIGRATE.format(path=path)))
        except OSError as error:
            rows.append(RunRow(run_id=path.name, path=str(path), note=f"cannot be read ({error.strerror or error})"))
    return rows


def _folders(root: Path) -> list[Path]:
    """The directory itself and two levels below it; what may not be looked into is left out."""
    found, level = [root], [root]
    for _ in range(2):
        level = [path for folder in level for path in _folders_in(folder)]
        found += level
    return sorted(found)


def _folders_in(folder: Path) -> list[Path]:
    try:
        entries = [Path(entry.path) for entry in os.scandir(folder)]
    except OSError:
        return []
    # Unlike an entry of scandir, this says no to a link that leads to itself.
    return [path for path in entries if path.is_dir()]


def is_old_layout(path: Path) -> bool:
    """Whether a directory looks like a run of the two-stage profiler."""
    return any(next(path.glob(pattern), None) is not None for pattern in OLD_LAYOUT)


def _row(path: Path) -> RunRow:
    try:
        manifest = read_manifest(path)
    except ManifestError as error:
        return RunRow(run_id=path.name, path=str(path), note=str(error))
    return RunRow(
        run_id=_short(manifest.run_id),
        path=str(path),
        date=manifest.created_at.replace("T", " ")[:16],
        model=_short(_nested(manifest, "model", "name")),
        device=_short(_device(manifest)),
        status=manifest.status,
        stages=_short(", ".join(f"{s.name} {s.status}" for s in manifest.stages)),
    )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"


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
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("run", "date", "model", "device", "status", "stages"):
        table.add_column(title, overflow="fold")
    for row in rows:
        cells = (row.run_id, row.date, row.model, row.device, row.status, row.note or row.stages)
        # As Text a bracket in a name is a bracket, not markup.
        table.add_row(*(Text(printable(cell)) for cell in cells))
    # Colours are for a terminal, and would not pass the filter of what is printed.
    console = Console(file=sys.__stdout__) if sys.stdout.isatty() else Console(width=200)
    console.print(table)
