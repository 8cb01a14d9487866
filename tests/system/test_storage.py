"""Runs of many processes: in one shared directory, and sent to a real S3 server on loopback."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socket import socket
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests.conftest import REQUIRE_TOOLS
from tests.support.orchestrator import ALPHA, OFF, command, environment, llm_perf, only_run, valid_manifest

pytestmark = pytest.mark.long
SECRET = "zk3vQ9rTfW71LmXpS0dUeHyB"
WRITERS = 8


def free_port() -> int:
    with closing(socket()) as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that lead S3's clients to a server with a bucket `runs`."""
    for name in ("moto", "flask", "flask_cors", "s3fs"):
        try:
            __import__(name)
        except ImportError:
            pytest.fail(f"needs {name}") if REQUIRE_TOOLS else pytest.skip(f"needs {name}")
    folder, port = tmp_path_factory.mktemp("s3"), free_port()
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                build_opener(ProxyHandler({})).open(Request(f"{url}/runs", method="PUT"), timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()
                time.sleep(0.2)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7TESTKEY",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }
    finally:
        server.terminate()
        server.wait(10)


def test_a_run_is_sent_to_s3_listed_there_and_sent_again_when_resumed(tmp_path: Path, s3: dict[str, str]) -> None:
    done = llm_perf("profile", *OFF, ALPHA, "artifacts.sync=s3://runs/team", cwd=tmp_path, timeout_s=120, **s3)
    run = only_run(tmp_path)
    assert done.code == 0, done.err
    assert f"sent to s3://runs/team/{run.name}: " in done.err
    assert valid_manifest(run)["config"]["artifacts"]["sync"] == "s3://runs/team"
    held = [p for p in run.rglob("*") if p.is_file() and (SECRET.encode() in p.read_bytes())]
    assert held == []
    listed = llm_perf("runs", "s3://runs/team", "--json", cwd=tmp_path, timeout_s=120, **s3)
    (row,) = json.loads(listed.out)
    assert (row["run_id"], row["path"], row["status"]) == (run.name, f"s3://runs/team/{run.name}", "ok")
    again = llm_perf("profile", f"run.resume={run}", cwd=tmp_path, timeout_s=120, **s3)
    assert again.code == 0 and f"sent to s3://runs/team/{run.name}: " in again.err
    assert len(json.loads(llm_perf("runs", "s3://runs", "--json", cwd=tmp_path, timeout_s=120, **s3).out)) == 1


def test_a_bucket_that_is_not_there_is_told_before_anything_runs(tmp_path: Path, s3: dict[str, str]) -> None:
    done = llm_perf("profile", *OFF, ALPHA, "artifacts.sync=s3://typo/team", cwd=tmp_path, timeout_s=120, **s3)
    assert done.code == 2
    assert "artifacts.sync: s3://typo/team cannot be written to (" in done.err
    assert not list((tmp_path / "tmp" / "runs").iterdir())
    assert llm_perf("runs", "s3://typo/team", cwd=tmp_path, timeout_s=120, **s3).code == 2


def test_jobs_of_a_sweep_are_sent_each_to_its_place(tmp_path: Path, s3: dict[str, str]) -> None:
    arguments = ("-m", "pipeline.alpha.seconds=0,0.1", "artifacts.sync=s3://runs/sweeps")
    done = llm_perf("profile", *OFF, ALPHA, *arguments, cwd=tmp_path, timeout_s=120, **s3)
    assert done.code == 0, done.err
    (sweep,) = (tmp_path / "tmp" / "runs").iterdir()
    found = json.loads(llm_perf("runs", "s3://runs/sweeps", "--json", cwd=tmp_path, timeout_s=120, **s3).out)
    assert [row["path"] for row in found] == [f"s3://runs/sweeps/{sweep.name}/{number}" for number in (0, 1)]


def test_eight_processes_write_into_one_shared_directory(tmp_path: Path) -> None:
    """All start together, so that several want the same name; another process lists the runs meanwhile."""
    argv = command("profile", *OFF, ALPHA, "pipeline.alpha.seconds=1")
    shared = tmp_path / "tmp" / "runs"
    writers = [
        subprocess.Popen(argv, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(WRITERS)
    ]
    while any(writer.poll() is None for writer in writers):
        if shared.is_dir():
            listed = llm_perf("runs", "--json", cwd=tmp_path)
            assert listed.code == 0 and not any(row["note"] for row in json.loads(listed.out))
        time.sleep(0.5)
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    runs = sorted(shared.iterdir())
    assert [valid_manifest(run)["status"] for run in runs] == ["ok"] * WRITERS
    assert [valid_manifest(run)["run_id"] for run in runs] == [run.name for run in runs]
    left = [p.name for p in shared.rglob("*") if p.name == ".lock" or p.suffix in (".tmp", ".pkl")]
    assert left == []
