"""What a drill on a GPU gave, from the files it left: drill.json for machines, drill.md for people.

    python benchmarks/gpu_drill_summary.py OUT

For every run below OUT/runs: how each stage ended and how long it took, headline numbers, bounds, how much of the
decode time ncu covered, and the lines of the report that say "unknown". Every byte below OUT is searched for the
planted token.
"""

import csv
import json
import os
import sys
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
    lines += ["", f"Files with the planted token: {', '.join(planted) or 'none'}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    root = Path(sys.argv[1])
    with (root / "drill.tsv").open(encoding="utf-8") as file:
        steps = list(csv.DictReader(file, delimiter="\t"))
    runs = sorted(path.parent for path in (root / "runs").rglob("manifest.json"))
    token = os.environ.get("HF_TOKEN", "")
    result = {
        "steps": steps,
        "runs": {run.relative_to(root / "runs").as_posix(): run_summary(run) for run in runs},
        "files_with_the_planted_token": files_with(root, token.encode()) if token else ["not searched: no HF_TOKEN"],
    }
    (root / "drill.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (root / "drill.md").write_text(as_markdown(result), encoding="utf-8")
    print(as_markdown(result))
    return 1 if result["files_with_the_planted_token"] or any(row["exit"] != "0" for row in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
