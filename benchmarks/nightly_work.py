"""The work that `scripts/nightly.py` measures, with the package of the checkout it is started in.

    python benchmarks/nightly_work.py NAME FOLDER

FOLDER holds the inputs, which `prepare` makes once for all runs of both sides.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

EVENTS, KERNELS = 500_000, 500_000
TRACE, EXPORT = "trace.json.gz", "export.sqlite"
# Starts take tens of milliseconds: several of them stand out from the start of the program that counts them.
STARTS = 20


def prepare(folder: Path) -> None:
    """Make the inputs of all benchmarks."""
    import nsys_sqlite
    import torch_trace

    torch_trace.scale(folder / TRACE, EVENTS)
    nsys_sqlite.scale(folder / EXPORT, KERNELS)


def read_trace(folder: Path) -> None:
    _llm_perf("analyze", str(folder / TRACE), "--json")


def read_export(folder: Path) -> None:
    _llm_perf("analyze", str(folder / EXPORT), "--json")


def start(folder: Path) -> None:
    for _ in range(STARTS):
        _llm_perf("--help")


def predict(folder: Path) -> None:
    _llm_perf("predict", "model=llama3_8b", "hardware=h200", "--json")


WORK: dict[str, Callable[[Path], None]] = {
    "torch_trace": read_trace,
    "nsys_export": read_export,
    "start_up": start,
    "predict": predict,
}


def _llm_perf(*argv: str) -> None:
    """Run a command of the package in the current directory, compiled as an installed one is."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(Path.cwd() / "src")
    command = [sys.executable, "-m", "llm_perf_opt.cli", *argv]
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    WORK[sys.argv[1]](Path(sys.argv[2]))
