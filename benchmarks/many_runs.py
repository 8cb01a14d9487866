"""How long `llm-perf runs` takes for ten thousand runs: without an index, with one, and after some runs changed.

    .venv/bin/python benchmarks/many_runs.py [RUN_DIR] [--runs 10000]

Every run is a copy of RUN_DIR's manifest with a name and times of its own; without RUN_DIR, the demo is run first. Half
of the runs lie in sweeps. Commands are timed from start to exit. Target: under 2 s with an index. The result is kept in
benchmarks/results/many_runs.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LLM_PERF = str(Path(sys.executable).with_name("llm-perf"))
RESULT = Path(__file__).with_name("results") / "many_runs.json"
LIMIT_S = 2.0
ROUNDS = 5
IN_A_SWEEP = 50
CHANGED = 50


def demo(scratch: Path) -> Path:
    subprocess.run([LLM_PERF, "profile", "experiment=demo", "artifacts.runs_dir=demo"], cwd=scratch, check=True)
    return scratch / "demo"


def make_runs(source: Path, root: Path, count: int) -> list[Path]:
    manifest = json.loads((source / "manifest.json").read_text(encoding="utf-8"))
    folders = [path.name for path in source.iterdir() if path.is_dir()]
    made = []
    for number in range(count):
        is_swept = number % 2 == 1
        name = (
            f"sweep-{number // (2 * IN_A_SWEEP):05}/{number % IN_A_SWEEP}-{number}" if is_swept else f"run-{number:05}"
        )
        run = root / name
        for folder in folders:
            (run / folder).mkdir(parents=True)
        manifest["run_id"] = run.name
        for stage in manifest["stages"]:
            if "tpot_ms" in stage["metrics"]:
                stage["metrics"]["tpot_ms"]["value"] = 1.0 + number / 1000
        (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        made.append(run)
    return made


def seconds(*arguments: str, rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([LLM_PERF, "runs", *arguments], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    return round(statistics.median(times), 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = args.run or demo(Path(scratch))
        root = Path(scratch, "runs")
        made = make_runs(source, root, args.runs)
        result = {
            "runs": args.runs,
            "manifest_bytes": (source / "manifest.json").stat().st_size,
            "seconds": {
                "no index yet": seconds(str(root), rounds=1),
                "with an index": seconds(str(root)),
                "--json": seconds(str(root), "--json"),
                "--where": seconds(str(root), "--where", "tpot_ms<1.5", "--sort", "tpot_ms"),
            },
            "limit_s": LIMIT_S,
        }
        for run in made[:CHANGED]:
            text = (run / "manifest.json").read_text(encoding="utf-8")
            (run / "manifest.json").write_text(text + "\n", encoding="utf-8")
        result["seconds"][f"{CHANGED} changed"] = seconds(str(root))
        result["index_bytes"] = (root / ".llm-perf-runs.parquet").stat().st_size
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0 if result["seconds"]["with an index"] < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
