"""Sweeps on real schedulers: a Slurm of one node without accounting, and a Ray of this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REQUIRE_TOOLS
from tests.support.orchestrator import ALPHA, OFF, Outcome, command, environment, llm_perf
from tests.system.slurm_cluster import PROGRAMS, slurm

pytestmark = pytest.mark.cluster
NAMES = "abcdef"
ON_SLURM = (
    "launcher=slurm",
    "hydra.launcher.gpus_per_node=null",
    "hydra.launcher.mem_gb=null",
    "hydra.launcher.cpus_per_task=1",
)


@pytest.fixture(scope="module")
def slurm_env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.getuid() != 0:
        why = f"Slurm on loopback needs root and {', '.join(missing or PROGRAMS)}"
        pytest.fail(why) if REQUIRE_TOOLS else pytest.skip(why)
    with slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


def sweep_arguments(folder: Path, *more: str) -> list[str]:
    """Six jobs; each needs its own file, and that of the fourth is not there."""
    for name in NAMES:
        (folder / name).write_text("")
    (folder / "d").unlink()
    needs = ",".join(str(folder / name) for name in NAMES)
    return ["profile", "-m", *OFF, ALPHA, "pipeline.alpha.seconds=2", f"pipeline.alpha.needs={needs}", *more]


def wait_for(what: Callable[[], bool], limit_s: float = 90) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.5)


def only_sweep(folder: Path) -> Path:
    (found,) = (folder / "tmp" / "runs").iterdir()
    return found


def report(sweep: Path, **env: str) -> dict[str, Any]:
    done = llm_perf("sweep", "report", "--json", str(sweep), cwd=sweep.parent, timeout_s=120, **env)
    document: dict[str, Any] = json.loads(done.out)
    return document


def states(sweep: Path, **env: str) -> list[str]:
    return [run["state"] for run in report(sweep, **env)["runs"]]


def times_run(sweep: Path) -> list[int]:
    files = [sweep / str(n) / "tmp" / "alpha" / "ran.txt" for n in range(len(NAMES))]
    return [len(file.read_text().splitlines()) if file.exists() else 0 for file in files]


def begin_and_kill(arguments: list[str], folder: Path, python: str = sys.executable, **env: str) -> Path:
    """Start a sweep and kill its submitter once two of its jobs are done."""
    with (folder / "submitter.log").open("wb") as log:
        submitter = subprocess.Popen(
            [python, *command(*arguments)[1:]],
            cwd=folder,
            env=environment(**env),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(lambda: (folder / "tmp" / "runs").is_dir() and (only_sweep(folder) / "jobs.json").is_file())
        wait_for(lambda: submitter.poll() is not None or states(only_sweep(folder), **env).count("ok") >= 2)
    finally:
        submitter.send_signal(signal.SIGKILL)
        submitter.wait()
    return only_sweep(folder)


def assert_complete(sweep: Path, done: Outcome, *, again: list[int], **env: str) -> None:
    """All six are there, only what was missing or failed ran again, and nothing is left lying about."""
    assert done.code == 0, done.err
    found = report(sweep, **env)
    assert [run["state"] for run in found["runs"]] == ["ok"] * 6
    assert all(run["where"] for run in found["runs"])
    assert found["keys"] == ["pipeline.alpha.needs"]
    assert times_run(sweep) == again
    assert [path for path in sweep.rglob("*") if path.name == ".lock" or path.suffix in (".pkl", ".tmp")] == []


def test_a_sweep_on_slurm_outlives_its_submitter_and_is_resumed(tmp_path: Path, slurm_env: dict[str, str]) -> None:
    arguments = sweep_arguments(tmp_path, *ON_SLURM, "hydra.launcher.array_parallelism=2")
    sweep = begin_and_kill(arguments, tmp_path, **slurm_env)
    last = json.loads((sweep / "jobs.json").read_text())["jobs"][5]["scheduler_id"]
    subprocess.run(["scancel", last], env=environment(**slurm_env), check=True)
    wait_for(lambda: not {"queued", "running"} & set(states(sweep, **slurm_env)))
    found = report(sweep, **slurm_env)["runs"]
    assert [run["state"] for run in found] == ["ok", "ok", "ok", "failed", "ok", "failed"]
    assert f"{tmp_path / 'd'} is not there; make it" in found[3]["problem"]
    assert "is gone from the queue and left no result" in found[5]["problem"] or "interrupted" in found[5]["problem"]
    before = times_run(sweep)
    (tmp_path / "d").write_text("")
    done = llm_perf("sweep", "resume", str(sweep), cwd=tmp_path, timeout_s=180, **slurm_env)
    assert_complete(sweep, done, again=[1, 1, 1, 2, 1, before[5] + 1], **slurm_env)
    nothing = llm_perf("sweep", "resume", str(sweep), cwd=tmp_path, timeout_s=120, **slurm_env)
    assert (nothing.code, nothing.out) == (0, f"{sweep}: 6 ok; to be run: 0\n")


def test_a_job_that_dies_without_a_word_is_not_waited_for(tmp_path: Path, slurm_env: dict[str, str]) -> None:
    arguments = ["profile", "-m", *OFF, ALPHA, "pipeline.alpha.seconds=1,300", *ON_SLURM]
    submitter = subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environment(**slurm_env), stdout=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: (tmp_path / "tmp" / "runs").is_dir() and (only_sweep(tmp_path) / "1" / "tmp").is_dir())
        owner = (only_sweep(tmp_path) / "1" / ".lock").read_text().splitlines()[0]
        os.kill(json.loads(owner)["pid"], signal.SIGKILL)
        out, _ = submitter.communicate(timeout=90)
    finally:
        submitter.kill()
    assert submitter.returncode == 1
    assert out.splitlines()[-1].endswith("1 ok, 1 failed")
    (_, lost) = report(only_sweep(tmp_path), **slurm_env)["runs"]
    assert lost["problem"].startswith("failed: it ended without finishing: killed")


@pytest.mark.parametrize("launcher", ["joblib", "local"])
def test_a_sweep_of_processes_here_survives_a_failed_job_and_is_resumed(launcher: str, tmp_path: Path) -> None:
    arguments = sweep_arguments(tmp_path, f"launcher={launcher}", "run.exclusive=null")
    done = llm_perf(*arguments, cwd=tmp_path, timeout_s=240)
    sweep = only_sweep(tmp_path)
    assert (done.code, states(sweep)) == (1, ["ok", "ok", "ok", "failed", "ok", "ok"]), done.err
    (tmp_path / "d").write_text("")
    resumed = llm_perf("sweep", "resume", str(sweep), cwd=tmp_path, timeout_s=240)
    assert_complete(sweep, resumed, again=[1, 1, 1, 2, 1, 1])


def test_a_sweep_on_ray_is_resumed_after_its_submitter_was_killed(tmp_path: Path) -> None:
    """Ray needs its own environment: LLM_PERF_TEST_RAY names its Python, with this package and `[ray]`."""
    python = os.environ.get("LLM_PERF_TEST_RAY", "")
    if not python:
        why = "LLM_PERF_TEST_RAY names no Python with Ray; make test-cluster makes one"
        pytest.fail(why) if REQUIRE_TOOLS else pytest.skip(why)
    on_ray = ("launcher=ray", "hydra.launcher.ray.remote.num_gpus=0", "+hydra.launcher.ray.init.num_cpus=2")
    variables = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "TMPDIR": "/tmp"}
    arguments = sweep_arguments(tmp_path, *on_ray, "run.exclusive=null", "run.env_passthrough=[RAY_ADDRESS]")
    sweep = begin_and_kill(arguments, tmp_path, python, **variables)
    wait_for(lambda: not {"queued", "running"} & set(states(sweep)))
    found = states(sweep)
    assert found.count("ok") >= 2 and {"missing", "failed"} & set(found)
    before = times_run(sweep)
    done = subprocess.run(
        [python, *command("sweep", "resume", str(sweep))[1:]],
        cwd=tmp_path,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, states(sweep)) == (1, ["ok", "ok", "ok", "failed", "ok", "ok"])
    (tmp_path / "d").write_text("")
    last = subprocess.run(
        [python, *command("sweep", "resume", str(sweep))[1:]],
        cwd=tmp_path,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    outcome = Outcome(code=last.returncode, out=last.stdout, err=last.stderr)
    again = [count if state == "ok" else count + 1 for state, count in zip(found, before, strict=True)]
    assert_complete(sweep, outcome, again=[*again[:3], times_run(sweep)[3], *again[4:]])
