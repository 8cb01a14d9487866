"""`llm-perf optimize` on programs: what it runs, writes, refuses, and leaves behind when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.optimize.user_experiments import read_experiments
from tests.support.orchestrator import command, environment
from tests.support.schemas import valid, valid_file

PROGRAM = """\
import os, sys, time
time.sleep(float(os.environ.get("NAP", "0.3")))
if "--broken" in sys.argv:
    raise SystemExit("RuntimeError: no such kernel")
print("other" if "mode=2" in sys.argv else "answer")
"""
EXPERIMENTS = """\
outputs: [stdout]
experiments:
  - name: shorter
    environment: {NAP: 0.02}
  - name: lies
    overrides: [mode=2]
    environment: {NAP: 0.01}
  - name: breaks
    overrides: [--broken]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mine.yaml").write_text(EXPERIMENTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*more: str) -> list[str]:
    return ["optimize", "--experiments", "mine.yaml", "-o", "out", *more, "--", sys.executable, "-S", "program.py"]


@pytest.mark.slow
def test_a_program_is_tried_verified_and_recommended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("--budget", "2m")) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    found = valid_file("optimize", folder / "out" / "optimize.json")
    rows = {row["name"]: row for row in found["experiments"]}
    assert (found["status"], found["best"], found["objective"]) == ("done", "shorter", "wall_ms")
    assert (rows["shorter"]["status"], rows["shorter"]["check"]["verdict"]) == ("helped", "equal")
    # Faster still, and wrong.
    assert (rows["lies"]["status"], rows["lies"]["check"]["verdict"]) == ("wrong", "different")
    assert rows["breaks"]["status"] == "failed" and "no such kernel" in rows["breaks"]["reason"]
    assert (rows["breaks"]["overrides"], rows["lies"]["overrides"]) == (["--broken"], ["mode=2"])
    assert found["gain"] > 1.1 and found["gain_low"] > 1 and found["gain_is_direct"]
    assert found["recommendation"]["command"].startswith("NAP=0.02 ")
    assert [step["name"] for step in found["path"]] == ["start", "shorter"]
    assert "| shorter | helped |" in (folder / "out" / "optimize.md").read_text()
    assert "<script" not in (folder / "out" / "optimize.html").read_text()
    assert not (folder / "out" / ".lock").exists()


def test_a_dry_run_runs_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("--dry-run")) == 0
    assert "shorter" in capsys.readouterr().out and not (folder / "out").exists()
    assert main(words("--dry-run", "--json")) == 0
    plan = valid("optimize_plan", json.loads(capsys.readouterr().out))
    assert "shorter" in [trial["name"] for trial in plan["experiments"]]


def test_every_wrong_option_is_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--budget", "soon", "--constraint", "peak_gb", "--constraint", "speed<=3", "--min-top1", "2"]
    assert main(words(*wrong)) == 2
    shown = capsys.readouterr().err
    assert [line.split(":")[1].strip() for line in shown.splitlines()] == [
        "--budget",
        "--min-top1",
        "--constraint",
        "--constraint",
    ]
    assert main(["optimize", "--", "no-such-program"]) == 2
    assert "--experiments: needed" in capsys.readouterr().err
    assert main(["optimize", "run=nowhere"]) == 2
    assert "run: no manifest.json in it (got 'nowhere')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("experiments: []", "--experiments.experiments"),
        ("experiments: [{name: a}]", "changes nothing"),
        ("experiments: [{name: a, overrides: [x=1]}, {name: a, overrides: [x=2]}]", "'a' is there twice"),
        ("experiments: [{name: a, override: [x=1]}]", "--experiments.experiments.0.override: unknown key"),
        ("- a", "not a mapping"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_file_of_experiments_is_refused_in_words(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_experiments(path)


def test_a_budget_too_small_for_the_start_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_PERF_NAP", "30")
    (folder / "program.py").write_text(PROGRAM.replace('"NAP"', '"LLM_PERF_NAP"'))
    assert main(words("--budget", "1s")) == 1
    assert "--budget: 1 s are too short to measure the baseline" in capsys.readouterr().err
    assert valid_file("optimize", folder / "out" / "optimize.json")["status"] == "failed"


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupt_keeps_what_was_measured_and_leaves_nothing_running(folder: Path) -> None:
    (folder / "mine.yaml").write_text(EXPERIMENTS.replace("NAP: 0.01", "NAP: 300"))
    process = subprocess.Popen(
        command(*words()), cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    result = folder / "out" / "optimize.json"
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if result.is_file() and any(r["status"] == "helped" for r in json.loads(result.read_text())["experiments"]):
            break
        time.sleep(0.1)
    time.sleep(0.5)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted: every process was ended" in said
    found = valid_file("optimize", result)
    rows = {row["name"]: row["status"] for row in found["experiments"]}
    assert found["status"] == "interrupted" and rows["shorter"] == "helped" and rows["breaks"] == "not tried"
    assert children and not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
