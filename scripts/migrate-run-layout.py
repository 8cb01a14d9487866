#!/usr/bin/env python3
"""Flatten runs of the old two-stage profiler into the present layout.

    python scripts/migrate-run-layout.py --dry-run RUN [RUN ...]
    python scripts/migrate-run-layout.py RUN [RUN ...]

Old: <run>/tmp/stage2/<run>/{nsys,ncu,stage1}, <run>/tmp/<run>/..., <run>/stage1
New: <run>/{nsys,ncu,torch_profiler}

Nothing is ever overwritten: a file whose new place is taken stays where it is and is named, and the exit code is 1.
Standard library only.
"""

import argparse
import sys
from pathlib import Path

RENAMED = {"stage1": "torch_profiler"}
STAGES = ("nsys", "ncu", "stage1", "torch_profiler", "static_analysis")
SCRATCH = ("workload", "direct_inference", "stage2")


def find_nested(run: Path) -> list[Path]:
    """Directories inside a run that hold what belongs one level up: stage directories, or anything in tmp/<run>."""
    old = [path for stage in ("stage2", "stage1") for path in sorted((run / "tmp" / stage).glob("*"))]
    nested = [path for path in old if path.is_dir() and any((path / stage).is_dir() for stage in STAGES)]
    # A run that is called like a stage has that stage's scratch there.
    again = run / "tmp" / run.name
    return [*nested, again] if again.is_dir() and run.name not in (*STAGES, *SCRATCH) else nested


def plan_moves(run: Path) -> list[tuple[Path, Path]]:
    """Every file with its new place."""
    moves: list[tuple[Path, Path]] = []
    for root in [*find_nested(run), *([run] if (run / "stage1").is_dir() else [])]:
        for file in sorted(p for p in root.rglob("*") if p.is_file() or p.is_symlink()):
            stage, *rest = file.relative_to(root).parts
            if root == run and stage != "stage1":
                continue
            moves.append((file, run.joinpath(RENAMED.get(stage, stage), *rest)))
    return moves


def migrate(run: Path, *, dry_run: bool) -> tuple[int, int]:
    """Move what can be moved; returns how many files were moved and how many were left because of a name clash."""
    moved = left = 0
    taken: set[Path] = set()
    for source, target in plan_moves(run):
        if target.exists() or target in taken:
            print(f"left: {source} ({target} exists)")
            left += 1
            continue
        print(f"{'would move' if dry_run else 'moved'}: {source} -> {target}")
        taken.add(target)
        moved += 1
        if not dry_run:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
    if not dry_run:
        _remove_empty(run)
    return moved, left


def _remove_empty(run: Path) -> None:
    """Remove the directories that the moves emptied."""
    for top in (run / "tmp", run / "stage1"):
        for path in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
            if not any(path.iterdir()):
                path.rmdir()
        if top.is_dir() and not any(top.iterdir()):
            top.rmdir()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--dry-run", action="store_true", help="say what would be moved, move nothing")
    args = parser.parse_args(argv)
    left = 0
    for run in args.runs:
        if not run.is_dir():
            print(f"error: {run}: no such directory", file=sys.stderr)
            return 2
        moved, clashes = migrate(run.resolve(), dry_run=args.dry_run)
        left += clashes
        if moved == clashes == 0:
            print(f"{run}: nothing to do, it is in the present layout")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
