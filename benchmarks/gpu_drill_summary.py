"""What a drill on a GPU gave, from the files it left: drill.json for machines, drill.md for people.

    python benchmarks/gpu_drill_summary.py OUT [--pack FOLDER] [--search]

For every run below OUT/runs: how each stage ended and how long it took, headline numbers, bounds, how much of the
decode time ncu covered, and the lines of the report that say "unknown". With --pack every folder of OUT/runs becomes
one .tar.xz below 16 MiB, and everything else results.tar.xz; what was packed and has not changed is left alone. With
--search every byte below OUT is searched for the planted token. Exit code 1: a step failed, or the token was found.
"""

import argparse
import csv
import json
import os
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHOWN = (
    "ttft_ms",
    "tpot_ms",
    "decode_tokens_per_s",
    "bound_prefill_ms",
    "bound_decode_ms",
    "ncu_coverage",
    "joules_per_token",
    "decode_joules_per_token",
    "peak_memory_bytes",
)
CHUNK = 1 << 24
MOST_BYTES = 16 << 20
# Captures are large and hold environments; scratch files are of no use afterwards.
LEFT_OUT = (".nsys-rep", ".sqlite", ".pickle", ".safetensors")
# First as it is, then without the largest files, until it fits.
LARGEST_FILES = (64 << 20, 4 << 20, 1 << 20, 1 << 18)


def run_summary(run_dir: Path) -> dict[str, Any]:
    manifest = json.loads((run_dir / "manifest.json").read_bytes())
    report = run_dir / "report.md"
    lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
    metrics = {
        f"{stage['name']}.{key}": metric["value"]
        for stage in manifest["stages"]
        for key, metric in stage["metrics"].items()
        if key in SHOWN or "cover" in key or "joules" in key or key.startswith(("bound_", "slowdown"))
    }
    return {
        "status": manifest["status"],
        "stages": {s["name"]: [s["status"], s["reason"], s["duration_s"]] for s in manifest["stages"]},
        "metrics": metrics,
        "unknown": [line.strip()[:160] for line in lines if "unknown" in line][:20],
        "page_bytes": (run_dir / "report.html").stat().st_size if (run_dir / "report.html").is_file() else None,
    }


def wanted_files(folder: Path) -> list[Path]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return [p for p in files if p.suffix not in LEFT_OUT and "tmp" not in p.relative_to(folder).parts]


def pack(archive: Path, root: Path, files: Iterable[Path]) -> None:
    """These files as one archive of at most MOST_BYTES, written again only where one of them is newer."""
    found = [(path, path.stat()) for path in files]
    newest = max((stat.st_mtime for _, stat in found), default=0.0)
    if not found or (archive.is_file() and archive.stat().st_mtime > newest):
        return
    scratch = archive.with_name(f".{archive.name}")
    for largest in LARGEST_FILES:
        with tarfile.open(scratch, "w:xz", preset=1) as tar:
            for path, stat in found:
                if stat.st_size <= largest:
                    tar.add(path, path.relative_to(root).as_posix())
        if scratch.stat().st_size < MOST_BYTES:
            scratch.replace(archive)
            return
    scratch.unlink()


def pack_all(root: Path, folder: Path) -> None:
    for run in sorted(path for path in (root / "runs").iterdir() if path.is_dir()):
        pack(folder / f"{run.name}.tar.xz", root, wanted_files(run))
    beside = [path for path in root.iterdir() if path.name not in ("runs", "pack", "served")]
    files = [p for path in sorted(beside) for p in ([path] if path.is_file() else wanted_files(path))]
    pack(folder / "results.tar.xz", root, files)


def files_with(root: Path, needle: bytes) -> list[str]:
    """Every file that holds these bytes, wherever a reading happens to be cut."""
    found = []
    for path in sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink()):
        tail = b""
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                if needle in tail + chunk:
                    found.append(path.relative_to(root).as_posix())
                    break
                tail = chunk[-len(needle) :]
    return found


def as_markdown(result: dict[str, Any]) -> str:
    lines = ["# Drill on a GPU", "", "| step | exit code | seconds |", "| --- | --- | --- |"]
    lines += [f"| {row['step']} | {row['exit']} | {row['seconds']} |" for row in result["steps"]]
    for name, run in result["runs"].items():
        lines += ["", f"## {name}: {run['status']}", "", "| stage | state | seconds |", "| --- | --- | --- |"]
        lines += [f"| {stage} | {state} {reason or ''} | {s} |" for stage, (state, reason, s) in run["stages"].items()]
        lines += ["", *(f"- {key}: {value}" for key, value in run["metrics"].items())]
        lines += [f"- says unknown: {line}" for line in run["unknown"]]
    planted = result["files_with_the_planted_token"]
    said = "not searched" if planted is None else ", ".join(planted) or "none"
    lines += ["", f"Files with the planted token: {said}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="What a drill on a GPU gave")
    parser.add_argument("root", type=Path)
    parser.add_argument("--pack", type=Path, help="a folder for the archives")
    parser.add_argument("--search", action="store_true", help="for the planted token (HF_TOKEN)")
    args = parser.parse_args()
    root: Path = args.root.resolve()
    with (root / "drill.tsv").open(encoding="utf-8") as file:
        steps = list(csv.DictReader(file, delimiter="\t"))
    runs = sorted(path.parent for path in (root / "runs").rglob("manifest.json"))
    token = os.environ.get("HF_TOKEN", "") if args.search else ""
    result = {
        "steps": steps,
        "runs": {run.relative_to(root / "runs").as_posix(): run_summary(run) for run in runs},
        "files_with_the_planted_token": files_with(root, token.encode()) if token else None,
    }
    (root / "drill.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (root / "drill.md").write_text(as_markdown(result), encoding="utf-8")
    print(as_markdown(result))
    if args.pack is not None:
        pack_all(root, args.pack.resolve())
    return 1 if result["files_with_the_planted_token"] or any(row["exit"] != "0" for row in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
