"""Starts the real orchestrator as a user would, with a plug-in of two small stages."""

import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from llm_perf_opt.cli import main
from llm_perf_opt.profiling.vendor.vendor_tools import probe_gpus
from tests.support.fixtures_dir import DATA, REPO
from tests.support.schemas import valid_file

OFF = (
    "model=llama_tiny",
    "dataset=synthetic",
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
)
ALPHA = "pipeline.alpha.enable=true"
# The key runs are marked with, apart from the user's own.
STATE = Path(tempfile.gettempdir(), f"llm-perf-tests-{os.getuid()}")
BETA = "pipeline.beta.enable=true"


def dry_code_of_ncu() -> int:
    """How a dry run with ncu ends on this machine: without a GPU the run itself would fail."""
    return 0 if probe_gpus(os.environ)[0] else 2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a user sees of one call."""

    code: int
    out: str
    err: str


def environment(**extra: str) -> dict[str, str]:
    plugin = os.pathsep.join([str(DATA / "plugin"), str(REPO)])
    return {**os.environ, "PYTHONPATH": plugin, "XDG_STATE_HOME": str(STATE), **extra}


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "llm_perf_opt.cli", *args]


def llm_perf(*args: str, cwd: Path, timeout_s: float = 120, **extra: str) -> Outcome:
    done = subprocess.run(
        command(*args),
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Outcome(code=done.returncode, out=done.stdout, err=done.stderr)


def llm_perf_here(*args: str, cwd: Path, **extra: str) -> Outcome:
    """As `llm_perf`, inside of this process, which spares the second that a start and its imports take.

    For tests of what a run does; those of signals, streams and crashes need their own process.
    """
    out, err = StringIO(), StringIO()
    variables, folder, path = dict(os.environ), Path.cwd(), [*sys.path]
    try:
        os.environ.clear()
        os.environ.update(environment(**extra))
        os.chdir(cwd)
        sys.path.insert(0, str(DATA / "plugin"))
        with redirect_stdout(out), redirect_stderr(err):
            code = main(args)
    finally:
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)
        sys.path[:] = path
    return Outcome(code=code, out=out.getvalue(), err=err.getvalue())


def only_run(cwd: Path) -> Path:
    runs = sorted((cwd / "tmp" / "runs").iterdir())
    assert len(runs) == 1
    return runs[0]


def valid_manifest(run_dir: Path) -> dict[str, Any]:
    """The manifest as plain data, checked against the published schema."""
    manifest: dict[str, Any] = valid_file("manifest", run_dir / "manifest.json")
    return manifest


def statuses(manifest: dict[str, Any]) -> dict[str, str]:
    return {stage["name"]: stage["status"] for stage in manifest["stages"]}
