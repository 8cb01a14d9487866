"""`llm-perf optimize server.command=…` as a user runs it: real servers with good, wrong and broken settings."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.fixtures_dir import REPO
from tests.support.orchestrator import command, environment, llm_perf
from tests.support.schemas import valid, valid_file
from tests.support.tiny_snapshot import write_tiny_snapshot

pytestmark = pytest.mark.slow
SERVER = REPO / "tests" / "support" / "tuned_server.py"
WORDS = [sys.executable, str(SERVER), "'{args}'", "--host", "'{host}'", "--port", "'{port}'"]
QUICK = (
    f"server.command=[{','.join(WORDS)}]",
    *("load.concurrency=2", "load.output_tokens=8", "load.requests=12", "dataset.prompt_tokens=16"),
)
MODES = """\
options:
  - {id: mode, flag: --mode, values: [dies, wrong, fast]}
"""
SECRET = "q8Zt3vLw0pXy7kRb"
FLAGS = """\
options:
  - {id: tokens, flag: --tokens, default: 2, values: [2, 4, 8, 16]}
  - {id: sequences, flag: --sequences, default: 1, values: [1, 2, 4, 8]}
"""


def left_running(cwd: Path) -> list[str]:
    """Servers of this test that still run, and what they started."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        try:
            if str(SERVER) in words and Path(process.cwd()) == cwd.resolve():
                found.append(shlex.join(words))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.mark.long
def test_the_good_setting_is_verified_the_wrong_one_rejected_and_the_broken_one_a_row(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(MODES)
    done = llm_perf(
        *("optimize", *QUICK, "server.args=[--tokens,2,--sequences,2]", "--space", "space.yaml", "-o", "out", "--json"),
        *("--max-experiments", "8", "--budget", "10m", f"server.env.SOME_API_KEY={SECRET}"),
        cwd=tmp_path,
        timeout_s=280,
    )
    assert done.code == 0, done.err
    found = valid("optimize_server", json.loads(done.out))
    assert found == valid_file("optimize_server", tmp_path / "out" / "optimize_server.json")
    rows = {row["name"]: row for row in found["configurations"]}
    assert found["best"] == "mode=fast" and rows["mode=fast"]["check"]["verdict"] == "equal"
    assert 1.2 < found["gain"]["low"] <= found["gain"]["gain"] < 3
    assert rows["mode=wrong"]["status"] == "wrong" and "0 of 8 answers equal" in rows["mode=wrong"]["reason"]
    assert rows["mode=dies"]["status"] == "failed"
    assert "ValueError: this mode needs a GPU with more memory" in rows["mode=dies"]["reason"]
    assert found["recommendation"]["command"].endswith("--mode fast --host 0.0.0.0 --port 8000")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        *("optimize.html", "optimize.md", "compose.yaml", "kubernetes.yaml", "starts"),
    }
    assert left_running(tmp_path) == []
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path.name for path in written if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.long
def test_a_killed_search_leaves_no_server_and_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(FLAGS)
    words = ("optimize", *QUICK, "--space", "space.yaml", "--max-experiments", "8", "--budget", "10m")
    search = subprocess.Popen(
        command(*words, "-o", "out"),
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    journal = tmp_path / "out" / "optimize_server.journal.jsonl"
    until = time.monotonic() + 120
    # The header and two starts; the third server is running, or about to.
    while time.monotonic() < until and not (journal.is_file() and len(journal.read_bytes().splitlines()) >= 3):
        time.sleep(0.05)
    while time.monotonic() < until and not left_running(tmp_path):
        time.sleep(0.05)
    search.send_signal(signal.SIGKILL)
    search.wait()
    while time.monotonic() < until and left_running(tmp_path):
        time.sleep(0.1)
    assert left_running(tmp_path) == []
    before = len(journal.read_bytes().splitlines()) - 1
    done = llm_perf(*words, "--json", "--resume", "out", cwd=tmp_path, timeout_s=280)
    assert done.code == 0, done.err
    found = valid("optimize_server", json.loads(done.out))
    assert (found["status"], found["resumed"]) == ("done", before)
    assert 4 < found["starts"] <= 8 and found["best"] is not None
    other = llm_perf(*words, "--resume", "out", "load.requests=13", cwd=tmp_path)
    assert (other.code, "holds another search" in other.err) == (2, True), other.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("server.url=http://127.0.0.1:1",), "server.url: a server that runs cannot be started with other settings"),
        (("server=vllm", "--objective", "goodput"), "--objective: goodput counts requests that keep limits"),
        (("server=vllm", "--objective", "wall_ms"), "--objective: not an objective of servers (got 'wall_ms')"),
        (("server.command=[x]",), "--space: needed, nothing is known of what can be set of 'openai'"),
        (("server=vllm", "--constraint", "peak_gb<=80"), "--constraint: no such number (got 'peak_gb')"),
        (("server=vllm", "--max-kl", "0.1"), "--max-kl: whole distributions are not sent over HTTP"),
        (("server=vllm", "--resume", "nowhere"), "--resume: no such directory (got 'nowhere')"),
    ],
)
@pytest.mark.long
def test_what_cannot_be_searched_is_refused_in_words(words: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    done = llm_perf("optimize", *words, cwd=tmp_path)
    assert (done.code, problem in done.err) == (2, True), done.err


@pytest.mark.real_vllm
@pytest.mark.skipif("LLM_PERF_TEST_VLLM" not in os.environ, reason="LLM_PERF_TEST_VLLM names no folder with a vllm")
def test_vllm_on_the_cpu_is_told_to_run_more_than_one_sequence(tmp_path: Path) -> None:
    model = write_tiny_snapshot(tmp_path / "tiny")
    done = llm_perf(
        *("optimize", "server=vllm", f"server.args=[{model},--max-model-len,512,--enforce-eager,--max-num-seqs,1]"),
        *("dataset.prompt_tokens=16", "load.output_tokens=200", "load.concurrency=16", "load.duration_s=12"),
        *("--budget", "40m", "--max-experiments", "12", "-o", "out", "--json"),
        cwd=tmp_path,
        timeout_s=2700,
        VLLM_CPU_KVCACHE_SPACE="1",
        HF_HUB_OFFLINE="1",
        PATH=f"{os.environ['LLM_PERF_TEST_VLLM']}{os.pathsep}{os.environ['PATH']}",
    )
    assert done.code == 0, done.err
    found = valid("optimize_server", json.loads(done.out))
    assert {one["id"] for one in found["observations"]} >= {"queue", "capped_batch"}
    assert found["best"] is not None and "max_num_seqs=" in found["best"]
    assert found["gain"]["low"] > 1.02
