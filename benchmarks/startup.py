"""Start-up time of the command line against `python -c 'import hydra'`, side by side.

    .venv/bin/python benchmarks/startup.py

Each command is started in turn, RUNS times; the ratio of medians counts, not the seconds. Targets: `llm-perf --help` at
most 1.5x, `llm-perf profile --help` at most 3x. The result is kept in benchmarks/results/startup.json.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 15
BASE = "import hydra"
COMMANDS = {
    BASE: [sys.executable, "-c", "import hydra"],
    "llm-perf --help": [str(Path(sys.executable).with_name("llm-perf")), "--help"],
    "llm-perf profile --help": [str(Path(sys.executable).with_name("llm-perf")), "profile", "--help"],
}
LIMITS = {"llm-perf --help": 1.5, "llm-perf profile --help": 3.0}
RESULT = Path(__file__).with_name("results") / "startup.json"


def measure() -> dict[str, float]:
    """Median milliseconds of each command, interleaved so that a noisy moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(RUNS):
            for name, argv in COMMANDS.items():
                start = time.perf_counter()
                subprocess.run(argv, cwd=scratch, stdout=subprocess.DEVNULL, check=True)
                times[name].append((time.perf_counter() - start) * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    medians = measure()
    ratios = {name: medians[name] / medians[BASE] for name in LIMITS}
    result = {
        "runs": RUNS,
        "median_ms": {name: round(value, 1) for name, value in medians.items()},
        "ratio_to_import_hydra": {name: round(value, 2) for name, value in ratios.items()},
        "limits": LIMITS,
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0 if all(ratios[name] <= limit for name, limit in LIMITS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
