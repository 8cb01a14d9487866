"""`--json` of every command: the standard output is one document that obeys its schema, also when the command fails."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_perf_opt.cli import COMMANDS, main
from llm_perf_opt.errors import EXIT_BAD_INPUT, EXIT_FAILED
from llm_perf_opt.system.json_output import asks_for_json, without_json
from scripts.schemas import DOCUMENTS
from tests.support.fake_server import fake_server
from tests.support.fixtures_dir import DATA, REPO
from tests.support.orchestrator import ALPHA, OFF, llm_perf_here
from tests.support.report_runs import clean, stage, write_run
from tests.support.schemas import valid

# Standard output of these is a protocol or its own program.
NO_DOCUMENT = {"mcp"}
# Words that each command refuses before it does any work.
REFUSED = {
    "profile": ["--mutirun"],
    "run": ["model=llama_tiny"],
    "bench": ["load.rat=1"],
    "infer": ["--mutirun"],
    "predict": ["model=lama3_8b", "hardware=h200"],
    "plan": ["model=llama3_8b", "--users", "x"],
    "analyze": ["no_such_file.sqlite"],
    "compare": ["no_such_run", "no_such_run"],
    "query": ["no_such_file.sqlite", "SELECT 1"],
    "bisect": ["a", "b"],
    "optimize": ["--objective", "speed"],
    "open": ["no_such_folder"],
    "report": ["no_such_run"],
    "runs": ["no_such_folder"],
    "sweep": ["report", "no_such_folder"],
    "export": ["no_such_run", "--to", "prometheus"],
    "doctor": ["--all"],
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with two runs, and a sweep of both."""
    for number, tpot_ms in enumerate((10.0, 12.0)):
        folder = tmp_path / "sweep" / str(number)
        record = stage("torch_profiler", folder, metrics=clean(tpot_ms=tpot_ms, ttft_ms=40.0))
        write_run(folder, record, run_id=f"run-{number}", config={"run": {"seed": number}})
        assert main(["report", str(folder)]) == 0
    return tmp_path / "sweep"


SHOWN: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "analyze": ("analysis", lambda runs: ["analyze", str(DATA / "h200" / "graph_eager.trace.json.gz")]),
    "compare": ("compare", lambda runs: ["compare", str(runs / "0"), str(runs / "1"), "--force"]),
    "doctor": ("doctor", lambda runs: ["doctor"]),
    "export": ("export", lambda runs: ["export", str(runs / "0"), "--to", "prometheus", "-o", str(runs / "0.prom")]),
    "open": ("run_result", lambda runs: ["open", str(runs / "0")]),
    "plan": ("predictions", lambda runs: ["plan", "model=llama3_8b", "hardware=h200", "--devices", "1"]),
    "predict": ("predictions", lambda runs: ["predict", "model=llama3_8b", "hardware=h200"]),
    "query": (
        "query",
        lambda runs: ["query", str(DATA / "h200" / "graph_eager.trace.json.gz"), "SELECT count(*) AS n FROM kernels"],
    ),
    "report": ("run_result", lambda runs: ["report", str(runs / "0")]),
    "runs": ("runs", lambda runs: ["runs", str(runs)]),
    "runs --where": ("runs_selected", lambda runs: ["runs", str(runs), "--where", "tpot_ms<11"]),
    "sweep": ("sweep", lambda runs: ["sweep", "report", str(runs), "--objectives", "tpot_ms,ttft_ms"]),
}
# Commands that run a program or a model; tests of their own look at their documents, those of the last two where the
# commands are tested.
RUNNING = {"profile", "run", "infer", "bench", "bisect", "optimize"}


def test_every_command_is_tested_here() -> None:
    assert {*REFUSED, *NO_DOCUMENT} >= COMMANDS.keys()
    assert {name.split()[0] for name in SHOWN} | RUNNING | NO_DOCUMENT >= COMMANDS.keys()
    assert {schema for schema, _ in SHOWN.values()} <= DOCUMENTS.keys()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_error_is_a_document_and_keeps_its_exit_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([name, "--json", *REFUSED[name]]) == EXIT_BAD_INPUT
    shown = capsys.readouterr()
    error = valid("error", json.loads(shown.out))["error"]
    assert (error["kind"], error["exit_code"]) == ("bad_input", EXIT_BAD_INPUT)
    assert [f"error: {message}" for message in error["messages"]] == shown.err.splitlines()


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_the_standard_output_is_one_document(
    name: str, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schema, words = SHOWN[name]
    monkeypatch.chdir(runs.parent)
    capsys.readouterr()
    assert main([*words(runs), "--json"]) == 0
    valid(schema, json.loads(capsys.readouterr().out))


def test_what_a_run_came_to(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["report", str(runs / "1"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["run_id"] == "run-1"
    assert shown["stages"] == [{"name": "torch_profiler", "status": "ok", "duration_s": None, "reason": None}]
    assert shown["numbers"]["tpot_ms"]["value"] == 12.0
    assert "report.html" in shown["files"]


def test_json_after_two_dashes_belongs_to_the_program() -> None:
    assert asks_for_json(["run", "--json", "--", "python"])
    assert not asks_for_json(["run", "--", "python", "--json"])
    assert without_json(["--json", "--", "python", "--json"]) == ["--", "python", "--json"]


def test_an_error_nobody_foresaw_is_a_document_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr("llm_perf_opt.commands.doctor.probe_host", fail)
    assert main(["doctor", "--json"]) == EXIT_FAILED
    error = valid("error", json.loads(capsys.readouterr().out))["error"]
    assert (error["kind"], error["exit_code"]) == ("not_foreseen", EXIT_FAILED)
    assert error["messages"][0].startswith("ZeroDivisionError: made up ")


def test_hydra_s_own_texts_and_json_exclude_each_other(tmp_path: Path) -> None:
    done = llm_perf_here("profile", "--cfg", "job", *OFF, "--json", cwd=tmp_path)
    assert done.code == EXIT_BAD_INPUT
    (message,) = valid("error", json.loads(done.out))["error"]["messages"]
    assert message == "--json: has no effect with --cfg, which prints text; leave one of them out"


@pytest.mark.slow
def test_profile_prints_what_the_run_came_to(tmp_path: Path) -> None:
    done = llm_perf_here("profile", *OFF, ALPHA, "--json", cwd=tmp_path)
    shown = valid("run_result", json.loads(done.out))
    assert (done.code, shown["status"], [stage["name"] for stage in shown["stages"]]) == (0, "ok", ["alpha"])
    dry = llm_perf_here("profile", *OFF, ALPHA, "run.dry_run=true", "--json", cwd=tmp_path)
    assert [stage["name"] for stage in valid("plan", json.loads(dry.out))["stages"]] == ["alpha"]
    none = llm_perf_here("profile", *OFF, "--json", cwd=tmp_path)
    assert (none.code, valid("error", json.loads(none.out))["error"]["exit_code"]) == (EXIT_BAD_INPUT, EXIT_BAD_INPUT)


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_prints_its_runs(tmp_path: Path) -> None:
    sweep = llm_perf_here("profile", "-m", *OFF, ALPHA, "run.seed=1,2", "--json", cwd=tmp_path)
    assert len(valid("sweep", json.loads(sweep.out))["runs"]) == 2


@pytest.mark.slow
def test_run_and_infer_print_what_the_run_came_to(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text("print('text of the program')\n")
    off = ["pipeline.torch_profiler.enable=false", "pipeline.nsys.enable=false", "run.repeats=1"]
    done = llm_perf_here("run", "--json", *off, "--", sys.executable, "prog.py", cwd=tmp_path)
    shown = valid("run_result", json.loads(done.out))
    assert done.code == 0, done.err
    assert shown["numbers"]["wall_ms"]["value"] > 0


@pytest.mark.slow
def test_bench_prints_its_results(tmp_path: Path) -> None:
    with fake_server() as server:
        words = [f"server.url={server.url}", "load.concurrency=1", "load.requests=2", "load.warmup_requests=0"]
        done = llm_perf_here("bench", *words, "load.output_tokens=4", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    (level,) = valid("bench", json.loads(done.out))["levels"]
    assert level["completed"] == 2


def test_the_documentation_names_the_schema_of_every_command() -> None:
    text = (REPO / "docs" / "automation.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if name not in NO_DOCUMENT and f"`{name}" not in text] == []
