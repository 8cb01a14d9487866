"""`llm-perf bench` as a user runs it: servers are started, loaded and ended with all they started, bad ones too."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.fake_server import fake_server
from tests.support.fixtures_dir import REPO
from tests.support.orchestrator import Outcome, command, environment, llm_perf, only_run, valid_manifest
from tests.support.schemas import valid_file
from tests.support.tiny_snapshot import write_tiny_snapshot

pytestmark = pytest.mark.slow
FAKE = REPO / "tests" / "support" / "fake_server.py"
QUICK = ("load.requests=40", "load.output_tokens=4", "dataset.prompt_tokens=16", "load.duration_s=20")


def _fake(*args: str) -> list[str]:
    words = [sys.executable, str(FAKE), "'{args}'", "--host", "'{host}'", "--port", "'{port}'"]
    return [f"server.command=[{','.join(words)}]", f"server.args=[{','.join(args)}]"]


def _bench(cwd: Path, *overrides: str, **extra: str) -> Outcome:
    return llm_perf("bench", *overrides, cwd=cwd, timeout_s=240, **extra)


def _results(cwd: Path) -> dict[str, Any]:
    found: dict[str, Any] = valid_file("bench", only_run(cwd) / "bench" / "bench.json")
    return found


def _left_running(cwd: Path) -> list[str]:
    """Processes of a server this test started: they have its run's port in their command, or its folder as theirs."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(FAKE) in words and _works_in(process, cwd):
            found.append(shlex.join(words))
    return found


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return Path(process.cwd()) == folder.resolve()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def test_a_server_is_started_loaded_and_ended_and_the_page_says_what_came(tmp_path: Path) -> None:
    done = _bench(tmp_path, *_fake(), *QUICK, "load.rate=100,200", "load.slo.ttft_ms=10000")
    assert done.code == 0, done.err
    run = only_run(tmp_path)
    manifest = valid_manifest(run)
    assert [(s["name"], s["status"]) for s in manifest["stages"]] == [("bench", "ok")]
    found = _results(tmp_path)
    assert [(level["label"], level["completed"]) for level in found["levels"]] == [
        ("100 requests/s", 40),
        ("200 requests/s", 40),
    ]
    # The fake counts two tokens a word, which the probe finds out: prompts are as long as asked for.
    assert [level["input_tokens"] for level in found["levels"]] == [40 * 16] * 2
    assert [level["goodput_per_s"] == level["requests_per_s"] for level in found["levels"]] == [True, True]
    lines = [json.loads(line) for line in (run / "bench" / "requests.jsonl").read_text().splitlines()]
    assert sorted({line["level"] for line in lines}) == ["rate=100", "rate=200"] and len(lines) == 80
    text = (run / "report.md").read_text()
    titles = re.findall(r"^## (.*)$", text, re.M)
    # There only for a load of seconds, which this is on a busy machine.
    assert [title for title in titles if title != "Requests in the server over time"] == [
        "Serving under load",
        "Throughput and latency",
        "Latency over time",
        "Counters",
        "The server about itself",
        "Provenance",
    ]
    page = (run / "report.html").read_text()
    assert 'id="section-bench-1"' in page and 'id="waterfall"' not in page
    assert _left_running(tmp_path) == []
    again = llm_perf("report", str(run), cwd=tmp_path)
    assert (again.code, (run / "report.md").read_text()) == (0, text)


def test_a_server_that_runs_is_used_and_stays(tmp_path: Path) -> None:
    with fake_server() as server:
        done = _bench(
            tmp_path,
            f"server.url={server.url}",
            *QUICK,
            "load.concurrency=1,4",
            "server.api_key_env=MY_KEY",
            f"artifacts.sync=file://{tmp_path}/store",
            MY_KEY="sk-0123456789abcdefgh",
        )
        assert done.code == 0, done.err
        assert {one["auth"] for one in server.asked} == {"Bearer sk-0123456789abcdefgh"}
        assert len(server.asked) == 1 + 2 + 80
    run = only_run(tmp_path)
    sent = tmp_path / "store" / run.name
    assert valid_manifest(sent) == valid_manifest(run) and (sent / "report.html").is_file()
    held = [p for p in tmp_path.rglob("*") if p.is_file() and b"0123456789abcdefgh" in p.read_bytes()]
    assert held == []


@pytest.mark.parametrize(
    ("fault", "overrides", "words", "levels"),
    [
        pytest.param(
            "dies_on_start",
            (),
            "openai ended with exit code 4 before it was ready: fake: ValueError: no such model",
            0,
            marks=pytest.mark.long,
        ),
        pytest.param(
            "never_ready",
            ("server.ready_timeout_s=2",),
            "not ready within 2 s (server.ready_timeout_s), it answers HTTP",
            0,
            marks=pytest.mark.long,
        ),
        (
            "dies_under_load",
            (),
            "concurrency 1: the server ended under load with exit code 3: fake: RuntimeError: out of memory",
            1,
        ),
        pytest.param(
            "every_tenth_500",
            (),
            "concurrency 1: 4 failed and 0 unfinished of 40 requests, more than load.max_failed_share=0.05 allows; "
            'most often: HTTP 500: {"error": "out of luck"}',
            1,
            marks=pytest.mark.long,
        ),
        pytest.param(
            "stalls",
            ("load.stall_s=0.5", "load.requests=3"),
            "most often: silent for longer than load.stall_s in the",
            1,
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_bad_server_fails_the_run_in_words_and_leaves_nothing(
    fault: str, overrides: tuple[str, ...], words: str, levels: int, tmp_path: Path
) -> None:
    done = _bench(tmp_path, *_fake("--fault", fault), *QUICK, *overrides)
    assert (done.code, _left_running(tmp_path)) == (1, [])
    assert words in done.err
    manifest = valid_manifest(only_run(tmp_path))
    assert (manifest["status"], manifest["stages"][0]["status"]) == ("failed", "failed")
    assert words in manifest["stages"][0]["reason"]
    found = _results(tmp_path)["levels"]
    assert len(found) == levels
    if fault == "dies_under_load":
        # The probe, two to warm up, and the rest of the first twenty: kept although the server died.
        assert found[0]["completed"] == 17


def test_prompts_that_are_not_there_are_bad_input_and_leave_no_run(tmp_path: Path) -> None:
    done = _bench(tmp_path, "server.url=http://127.0.0.1:9", "dataset=prompts", "dataset.file=nope.txt")
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert done.err.startswith("error: dataset.file: ") and str(tmp_path / "nope.txt") in done.err


@pytest.mark.long
def test_a_server_that_ignores_the_first_signal_is_ended_all_the_same(tmp_path: Path) -> None:
    done = _bench(tmp_path, *_fake("--fault", "ignores_sigterm"), *QUICK, "server.end_timeout_s=1")
    assert (done.code, _left_running(tmp_path)) == (0, [])


def _await_connection(pid: int) -> None:
    """Until a client process is connected: on a busy machine it takes seconds to start."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if any(one.status == psutil.CONN_ESTABLISHED for one in child.net_connections()):
                    return
        time.sleep(0.05)


@pytest.mark.long
def test_an_interrupt_ends_the_server_and_keeps_the_results(tmp_path: Path) -> None:
    overrides = (*_fake(), "load.duration_s=300", "load.requests=1000000", "load.output_tokens=4")
    process = subprocess.Popen(command("bench", *overrides), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"bench, concurrency 1: started" in line:
                break
        _await_connection(process.pid)
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, _left_running(tmp_path)) == (130, [])
    assert b"interrupted: the server was ended, the results so far are kept" in said
    assert valid_manifest(only_run(tmp_path))["status"] == "interrupted"
    assert _results(tmp_path)["levels"][0]["completed"] > 5


@pytest.mark.long
def test_two_loads_are_compared_under_the_last_level_both_have(tmp_path: Path) -> None:
    loads = {"base": "1,4", "candidate": "4,8", "other": "2"}
    # Tokens so far apart that they do not arrive as one on a busy machine: a TPOT of 0 cannot be compared.
    with fake_server(gap_s=0.01) as server:
        for name, levels in loads.items():
            words = (f"server.url={server.url}", f"load.concurrency={levels}", f"artifacts.runs_dir={tmp_path / name}")
            assert _bench(tmp_path, *words, *QUICK).code == 0
    compared = ("compare", "base", "candidate", "--json", "--gate", "ttft_ms<=60000")
    # One load of each side says nothing of the next one, unless its variation is stated.
    assert llm_perf(*compared, cwd=tmp_path).code == 3
    found = llm_perf(*compared, "--start-variation", "5", cwd=tmp_path)
    assert found.code == 0, found.err
    document = json.loads(found.out)
    rows = {row["metric"]: row for row in document["metrics"]}
    whole = ["output_tokens_per_s", "requests_per_s", "ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms"]
    assert list(rows) == ["ttft_ms", "tpot_ms", "e2e_ms", *whole]
    level = valid_file("bench", tmp_path / "base" / "bench" / "bench.json")["levels"][1]
    assert rows["ttft_ms"]["base"]["median"] == pytest.approx(level["latencies"]["ttft"]["median_ms"])
    assert (rows["ttft_ms"]["base"]["n"], rows["ttft_ms"]["low"] is None) == (40, False)
    assert rows["output_tokens_per_s"]["base"]["median"] == level["output_tokens_per_s"]
    assert rows["output_tokens_per_s"]["lower_is_better"] is False
    assert document["notes"][0] == "both under concurrency 4, 4 consecutive requests are one repeat"
    refused = llm_perf("compare", "base", "other", cwd=tmp_path)
    assert refused.code == 2
    assert "not measured under the same load (got concurrency 1, concurrency 4 and concurrency 2)" in refused.err


@pytest.mark.long
@pytest.mark.real_nsys
@pytest.mark.skipif(shutil.which("nsys") is None, reason="needs nsys")
def test_nsys_records_a_window_of_a_server_that_is_started_once_more(tmp_path: Path) -> None:
    window = ("capture.tool=nsys", "capture.duration_s=1", "capture.trace=osrt,nvtx")
    done = _bench(tmp_path, *_fake(), *QUICK, *window)
    assert (done.code, _left_running(tmp_path)) == (0, []), done.err
    run = only_run(tmp_path)
    stages = valid_manifest(run)["stages"]
    assert [(stage["name"], stage["status"]) for stage in stages] == [("bench", "ok"), ("nsys", "ok")]
    assert stages[1]["notes"][0] == "a window of the server under concurrency 1, opened after warming up"
    assert (run / "nsys" / "run.sqlite").is_file() and not list((run / "nsys").glob("*.nsys-rep"))
    # Measured was the server without nsys: what it printed, and was started with, is in its own file.
    assert (run / "bench" / "server.cmd.txt").read_text().startswith("cd ")
    assert "nsys launch" in (run / "bench" / "server-nsys.cmd.txt").read_text()


@pytest.mark.long
@pytest.mark.real_nsys
@pytest.mark.skipif(shutil.which("nsys") is None, reason="needs nsys")
def test_a_server_whose_nsys_lost_its_agent_is_started_once_more(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    # Fails once as nsys 2022.4 does on a busy machine; every other call reaches the real one.
    (folder / "nsys").write_text(
        f'#!/bin/sh\nif [ "$1" = launch ] && mkdir {shlex.quote(str(tmp_path / "failed"))} 2>/dev/null; then\n'
        '  echo "[QuadDCommon::tag_message*] = Local Endpoint is not available."; exit 1\nfi\n'
        f'exec {shlex.quote(str(Path(shutil.which("nsys") or "").resolve()))} "$@"\n'
    )
    (folder / "nsys").chmod(0o755)
    window = ("capture.tool=nsys", "capture.duration_s=1", "capture.trace=osrt,nvtx")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = _bench(tmp_path, *_fake(), *QUICK, *window, PATH=path)
    assert (done.code, _left_running(tmp_path)) == (0, []), done.err
    assert "nsys lost its agent (Local Endpoint is not available); trying again" in done.err
    run = only_run(tmp_path)
    assert [stage["status"] for stage in valid_manifest(run)["stages"]] == ["ok", "ok"]
    assert (run / "nsys" / "run.sqlite").is_file()


def test_the_servers_own_profiler_is_asked_around_a_window(tmp_path: Path) -> None:
    with fake_server() as server:
        asked = (f"server.url={server.url}", "capture.tool=engine", "capture.duration_s=0.3")
        done = _bench(tmp_path, *asked, *QUICK, "+server.profile_body.output_dir='{dir}'")
        paths = [one["path"] for one in server.asked]
        folder = next(one["output_dir"] for one in server.asked if one["path"] == "/start_profile")
    assert done.code == 0, done.err
    first, last = paths.index("/start_profile"), paths.index("/stop_profile")
    assert (first, last) == (1 + 2 + 40, len(paths) - 1) and last > first + 1
    assert folder == str(only_run(tmp_path) / "bench" / "engine")


@pytest.mark.long
def test_a_server_without_a_profiler_is_told_from_one_that_fails(tmp_path: Path) -> None:
    with fake_server(fault="no_profiler") as server:
        done = _bench(tmp_path, f"server.url={server.url}", "capture.tool=engine", *QUICK)
    assert done.code == 1
    assert "answers HTTP 404: this server offers no profiler of its own" in done.err
    assert _results(tmp_path)["levels"][0]["completed"] == 40
    with fake_server(fault="no_stop_profile") as server:
        folder = tmp_path / "stop"
        folder.mkdir()
        done = _bench(folder, f"server.url={server.url}", "capture.tool=engine", "capture.duration_s=0.3", *QUICK)
    assert done.code == 1
    assert "/stop_profile answers HTTP 500: the server failed while it wrote its trace" in done.err


def _can_serve() -> bool:
    return all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "openai", "accelerate"))


@pytest.mark.long
@pytest.mark.skipif(not _can_serve(), reason="transformers serve needs fastapi, uvicorn, openai and accelerate")
def test_transformers_serve_answers_and_is_measured(tmp_path: Path) -> None:
    model = write_tiny_snapshot(tmp_path / "tiny")
    done = _bench(
        tmp_path,
        "server=transformers",
        f"server.args=[{model},--device,cpu]",
        "dataset.prompt_tokens=24",
        "load.output_tokens=6",
        "load.requests=4",
        "load.concurrency=2",
        "load.warmup_requests=1",
        HF_HUB_OFFLINE="1",
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )
    assert done.code == 0, done.err
    (level,) = _results(tmp_path)["levels"]
    assert (level["completed"], level["failed"], level["output_tokens"]) == (4, 0, 24)
    assert 4 * 18 <= level["input_tokens"] <= 4 * 30
    assert sorted(level["latencies"]) == ["e2el", "itl", "tpot", "ttft"]


@pytest.mark.real_vllm
@pytest.mark.skipif("LLM_PERF_TEST_VLLM" not in os.environ, reason="LLM_PERF_TEST_VLLM names no folder with a vllm")
def test_vllm_on_the_cpu_is_started_loaded_profiled_and_ended(tmp_path: Path) -> None:
    model = write_tiny_snapshot(tmp_path / "tiny")
    done = llm_perf(
        "bench",
        "server=vllm",
        f"server.args=[{model},--load-format,dummy,--max-model-len,512,--enforce-eager]",
        "dataset.prompt_tokens=64",
        "load.output_tokens=16",
        "load.concurrency=1,4",
        "load.requests=20",
        "capture.tool=engine",
        "capture.duration_s=2",
        "capture.timeout_s=1200",
        cwd=tmp_path,
        timeout_s=2400,
        VLLM_CPU_KVCACHE_SPACE="1",
        HF_HUB_OFFLINE="1",
        PATH=f"{os.environ['LLM_PERF_TEST_VLLM']}{os.pathsep}{os.environ['PATH']}",
    )
    assert done.code == 0, done.err
    levels = _results(tmp_path)["levels"]
    assert [(one["completed"], one["failed"], one["output_tokens"]) for one in levels] == [(20, 0, 320)] * 2
    assert {row["name"] for row in levels[0]["counters"]} >= {"running", "waiting", "KV cache use"}
    assert list((only_run(tmp_path) / "bench" / "engine").rglob("*.json*")) != []


def test_the_slowest_requests_are_explained_in_the_run_and_by_analyze(tmp_path: Path) -> None:
    with fake_server(gap_s=0.001) as server:
        done = _bench(tmp_path, f"server.url={server.url}", *QUICK, "load.concurrency=4", "capture.requests=slowest")
    assert done.code == 0, done.err
    run = only_run(tmp_path)
    found = valid_file("slow_requests", run / "bench" / "slow_requests.json")
    (level,) = found["levels"]
    assert (level["method"], level["level"], len(level["slowest"])) == ("arrival times", "concurrency=4", 10)
    assert found["notes"][0].startswith("the steps of a server that llm-perf did not start are not recorded; ")
    for one in level["slowest"]:
        assert sum(part["time_s"] for part in one["parts"]) == pytest.approx(one["e2e_s"], rel=0.02)
    ids = {json.loads(line)["request_id"] for line in (run / "bench" / "requests.jsonl").read_text().splitlines()}
    assert len(ids) == 40 and {one["request_id"] for one in level["slowest"]} <= ids
    assert set(ids) <= {one["id"] for one in server.asked}
    assert "## Slowest requests" in (run / "report.md").read_text()
    assert valid_manifest(run)["stages"][0]["files"][-1]["role"] in ("picture", "slow_requests_json")
    again = llm_perf("analyze", str(run), "--json", cwd=tmp_path)
    assert again.code == 0, again.err
    assert json.loads(again.out)["levels"] == found["levels"]
    assert "Slowest requests, concurrency 4" in llm_perf("analyze", str(run), cwd=tmp_path).out
    refused = llm_perf("analyze", str(run), "-o", "x", cwd=tmp_path)
    assert (refused.code, "the run has its report; leave -o out" in refused.err) == (2, True)


@pytest.mark.long
def test_the_time_until_a_started_server_is_ready_is_explained(tmp_path: Path) -> None:
    done = _bench(tmp_path, *_fake("--fault", "slow_start"), *QUICK, "capture.startup=true")
    assert (done.code, _left_running(tmp_path)) == (0, []), done.err
    run = only_run(tmp_path)
    found = valid_file("startup", run / "bench" / "startup.json")
    assert sum(part["time_s"] for part in found["parts"]) == pytest.approx(found["ready_s"], abs=1e-6)
    weights = next(part for part in found["parts"] if part["purpose"] == "weights")
    # The fake sleeps for two seconds in load_model().
    assert 1.0 < weights["time_s"] < 3.0 and weights["processes"][0].startswith("fake_server.py (")
    assert "## Time until ready" in (run / "report.md").read_text()
    assert f"openai was ready after {found['ready_s']:.1f} s: " in done.out
    refused = _bench(tmp_path, "server.url=http://127.0.0.1:9", "capture.startup=true")
    assert (refused.code, "capture.startup: the server at server.url has started already" in refused.err) == (2, True)


@pytest.mark.real_vllm
@pytest.mark.skipif("LLM_PERF_TEST_VLLM" not in os.environ, reason="LLM_PERF_TEST_VLLM names no folder with a vllm")
def test_vllm_says_which_prompt_delayed_the_others_and_where_its_start_went(tmp_path: Path) -> None:
    model = write_tiny_snapshot(tmp_path / "tiny")
    config = json.loads((model / "config.json").read_text())
    # Wide enough for a prompt to take longer than a decode step; positions for 8,000 tokens.
    wide = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}
    (model / "config.json").write_text(json.dumps({**config, **wide, "head_dim": 64, "max_position_embeddings": 16384}))
    # The tokenizer takes a byte for a token.
    streams = [{"prompt": f"stream {n} " + "abcd" * 12, "output_tokens": 800, "at_s": 0.02 * n} for n in range(6)]
    planted = {"prompt": "long " + "x" * 7995, "output_tokens": 4, "at_s": 1.0}
    traffic = tmp_path / "planted.jsonl"
    traffic.write_text("\n".join(json.dumps(row) for row in (*streams, planted)))
    done = llm_perf(
        "bench",
        "server=vllm",
        f"server.args=[{model},--load-format,dummy,--max-model-len,12000,--enforce-eager,--max-num-batched-tokens,2048]",
        "traffic.format=jsonl",
        f"traffic.path={traffic}",
        "load.arrival=recorded",
        "load.requests=7",
        "capture.requests=slowest",
        "capture.startup=true",
        cwd=tmp_path,
        timeout_s=1200,
        VLLM_CPU_KVCACHE_SPACE="1",
        HF_HUB_OFFLINE="1",
        PATH=f"{os.environ['LLM_PERF_TEST_VLLM']}{os.pathsep}{os.environ['PATH']}",
    )
    assert done.code == 0, done.err
    bench = only_run(tmp_path) / "bench"
    (level,) = valid_file("slow_requests", bench / "slow_requests.json")["levels"]
    assert level["method"] == "steps" and level["match"]["matched_steps"] >= 0.95 * level["match"]["steps"]
    assert level["match"]["matched_tokens"] >= 0.95 * level["match"]["tokens"]
    assert (level["delays"][0]["request"], level["delays"][0]["prompt_tokens"]) == (6, 8000)
    assert level["delays"][0]["victims"] == 6
    for one in level["slowest"]:
        assert sum(part["time_s"] for part in one["parts"]) == pytest.approx(one["e2e_s"], rel=0.02)
    startup = valid_file("startup", bench / "startup.json")
    explained = [part["time_s"] for part in startup["parts"] if part["purpose"] not in ("waiting", "other")]
    assert sum(explained) >= 0.95 * startup["ready_s"]
