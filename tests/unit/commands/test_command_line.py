"""The command line itself: help, what was probably meant, completion in a real shell, the report that is opened."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from llm_perf_opt.cli import COMMANDS, main
from llm_perf_opt.completion import BASH, FISH, SHELLS, ZSH, complete, install
from tests.support.fixtures_dir import REPO
from tests.support.report_runs import write_run

BIN = Path(sys.executable).parent


def test_the_help_names_every_command_and_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")][: len(COMMANDS)] == list(COMMANDS)
    assert max(map(len, lines)) <= 80


def test_the_help_of_a_command_waits_for_none_of_the_modules_that_do_its_work() -> None:
    program = """if 1:
        import sys
        from llm_perf_opt.cli import main
        for name in ("plan", "predict", "bench"):
            assert main([name, "--help"]) == 0
        work = ("model", "pipeline", "planning", "serving")
        print([name for name in sys.modules if name.startswith(tuple(f"llm_perf_opt.{part}" for part in work))])
        print([name for name in ("hydra", "omegaconf", "pydantic", "torch", "yaml") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-2:] == ["[]", "[]"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["profil"], "error: 'profil': no such command; did you mean profile?, allowed: run, profile, "),
        (
            ["profile", "--experiment", "demo"],
            "error: --experiment: no such flag; settings have no dashes: experiment=demo\n",
        ),
        (["profile", "--model=llama3_8b"], "error: --model: no such flag; settings have no dashes: model=llama3_8b\n"),
        (["profile", "--mutirun"], "error: --mutirun: no such flag; did you mean --multirun?\n"),
        (
            ["runs", "--colums", "x"],
            "error: llm-perf runs: unrecognized arguments: --colums; did you mean --columns?; ",
        ),
        (
            ["export", "run", "--to", "promtheus"],
            "error: llm-perf export: argument --to: no such choice (got 'promtheus'); did you mean prometheus?, ",
        ),
        (
            ["optimize", "--objective", "tpot"],
            "error: llm-perf optimize: argument --objective: no such choice (got 'tpot'); did you mean tpot_ms?, ",
        ),
        (
            ["sweep", "raport", "x"],
            "error: llm-perf sweep: argument what: no such choice (got 'raport'); did you mean rep",
        ),
        (
            ["experiment=demo"],
            "error: 'experiment=demo': no such command; a setting needs one: llm-perf profile ",
        ),
        (
            ["--experiment", "demo"],
            "error: '--experiment': no such command; settings have no dashes: llm-perf profile exp",
        ),
        (
            ["runs", "no/such/folder"],
            "error: no/such/folder: no such directory; give the folder that holds runs, or make ",
        ),
        (["report"], "error: llm-perf report: the following arguments are required: run_dir; "),
        (["--show-completion", "tcsh"], "error: --show-completion: unknown shell (got 'tcsh'), allowed: bash, "),
    ],
)
def test_a_wrong_word_is_answered_in_one_line_with_the_right_one(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(told)
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_wrong_choice_names_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "model=lama3_8b", "dataset.prompt_tokens=64", "run.repeats=x"]) == 2
    told = "error: model: no such choice (got 'lama3_8b'); did you mean llama3_8b?, allowed: causal_lm, "
    first, second = capsys.readouterr().err.splitlines()
    # Of the data set of an unknown model nothing can be reported.
    assert first.startswith(told)
    assert second == "error: run.repeats: not a whole number (got 'x'), allowed: a whole number or 'auto'"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("llm-perf pr", ["profile", "predict"]),
        ("llm-perf profile experiment=de", ["experiment=demo"]),
        ("llm-perf profile run.on_f", ["run.on_failure="]),
        ("llm-perf profile run.on_failure=", ["run.on_failure=continue", "run.on_failure=stop"]),
        ("llm-perf profile pipeline.nsys.enable=t", ["pipeline.nsys.enable=true"]),
        ("llm-perf predict hardware=h200,rtx409", ["hardware=h200,rtx4090"]),
        ("llm-perf bench server=vl", ["server=vllm"]),
        ("llm-perf bench load.api=", ["load.api=completions", "load.api=chat"]),
        ("llm-perf runs --w", ["--where"]),
        ("llm-perf --show-completion f", ["fish"]),
        ("llm-perf run -- python my", []),
        ("llm-perf nonsense x", []),
    ],
)
def test_words_are_completed(line: str, found: list[str]) -> None:
    assert [candidate.text for candidate in complete(line)] == found


def test_completion_knows_what_a_key_means_and_which_runs_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "tmp/runs/a")
    monkeypatch.chdir(tmp_path)
    assert [c.text for c in complete("llm-perf report ")] == ["tmp/runs/a"]
    assert [c.text for c in complete("llm-perf profile run.resume=")] == ["run.resume=tmp/runs/a"]
    (candidate,) = complete("llm-perf profile run.dry_r")
    assert candidate.meaning.startswith("show stages, order")


def test_a_real_bash_completes_behind_the_signs_it_splits_words_at(tmp_path: Path) -> None:
    ask = """
    answer() { COMP_LINE="$1"; COMP_POINT=${#1}; COMPREPLY=(); _llm_perf_complete 2>/dev/null; echo "${COMPREPLY[*]}"; }
    answer "llm-perf pr"; answer "llm-perf profile model=qw"; answer "llm-perf profile profiling/ncu@pipeline.ncu=ncu.h"
    answer "llm-perf predict hardware=h200,mi3"; complete -p llm-perf
    """
    done = subprocess.run(
        ["bash", "-c", BASH + ask],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
    )
    assert done.stdout.splitlines() == [
        "profile predict",
        "qwen3_30b_a3b qwen3_8b qwen3_moe_tiny",
        "ncu.h200 ncu.high",
        "h200,mi300x h200,mi325x h200,mi350x h200,mi355x",
        "complete -o default -F _llm_perf_complete llm-perf",
    ]


# A whole word and the beginning of one: only the first is followed by a space.
ZSH_ASK = """
compdef() { :; }; _files() { print files; }; compadd() { print -r -- "$@"; }
answer() { LBUFFER="$1"; _llm_perf; }
answer "llm-perf profile run.on_failure=s"; answer "llm-perf profile run.on_f"; answer "llm-perf analyze capt"
"""
FISH_ASK = """
complete -C "llm-perf profile run.on_failure=s"; complete -C "llm-perf profile run.on_f"; complete -C "llm-perf pr"
complete -C "llm-perf analyze capt"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "script", "found"),
    [
        ("zsh", ZSH + ZSH_ASK, ["-- run.on_failure=stop", "-S  --", "--", "-S  -- run.on_failure=", "files"]),
        (
            "fish",
            FISH + FISH_ASK,
            [
                "run.on_failure=stop",
                "run.on_failure=\tcontinue with the other stages, or stop",
                f"predict\t{COMMANDS['predict'].summary}",
                f"profile\t{COMMANDS['profile'].summary}",
                "capture.sqlite",
            ],
        ),
    ],
)
def test_a_real_zsh_and_a_real_fish_complete_and_offer_files_only_where_a_word_is_one(
    shell: str, script: str, found: list[str], tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "capture.sqlite").touch()
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environ)
    assert [line.rstrip() for line in done.stdout.splitlines()] == found, done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_installed_once(shell: str, tmp_path: Path) -> None:
    (tmp_path / f".{shell}rc").write_text("# mine")
    install(shell, tmp_path)
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert sum("--complete" in text for text in before.values()) == 1
    install(shell, tmp_path)
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert (tmp_path / f".{shell}rc").read_text().startswith("# mine" + ("" if shell == "fish" else "\n"))


def test_open_finds_the_newest_report_and_says_what_to_do_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["open"]) == 2
    assert "no run with a report" in capsys.readouterr().err
    for number, name in enumerate(("old", "sweep/1", "new")):
        page = write_run(Path("tmp/runs") / name) / "report.html"
        page.write_text("")
        os.utime(page, (number, number))
    assert main(["open", "--print"]) == 0
    assert capsys.readouterr().out == "tmp/runs/new/report.html\n"
    assert main(["open", "tmp/runs/old"]) == 0
    assert str(tmp_path / "tmp/runs/old/report.html") in capsys.readouterr().out
    Path("tmp/runs/new/report.html").unlink()
    assert main(["open", "tmp/runs/new"]) == 2
    assert "`llm-perf report tmp/runs/new` writes it" in capsys.readouterr().err


def test_the_schemas_of_the_configuration_hold_for_the_files_we_ship() -> None:
    for name, files in {"config": ["config.yaml", *_presets("experiment")], "bench": ["bench.yaml"]}.items():
        schema = json.loads((REPO / "conf" / f"{name}.schema.json").read_text(encoding="utf-8"))
        for file in files:
            jsonschema.validate(yaml.safe_load((REPO / "conf" / file).read_text(encoding="utf-8")), schema)
    config = json.loads((REPO / "conf/config.schema.json").read_text(encoding="utf-8"))
    with pytest.raises(jsonschema.ValidationError, match="contine"):
        jsonschema.validate({"run": {"on_failure": "contine"}}, config)
    jsonschema.validate({"run": {"seed": "${oc.env:SEED}"}}, config)


def _presets(group: str) -> list[str]:
    return [str(path.relative_to(REPO / "conf")) for path in (REPO / "conf" / group).glob("*.yaml")]
