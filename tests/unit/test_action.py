"""The composite action: its script is run as GitHub would, with a stand-in for llm-perf that keeps its words."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.fixtures_dir import REPO

ACTION = REPO / ".github" / "actions" / "compare" / "action.yml"


def run_action(tmp_path: Path, *, code: int = 0, **inputs: str) -> tuple[int, list[str], str]:
    """The exit code, the words llm-perf was called with, and what was printed."""
    action = yaml.safe_load(ACTION.read_text())
    [step] = action["runs"]["steps"]
    assert set(inputs) <= set(action["inputs"])
    given = {name: inputs.get(name, value["default"]) for name, value in action["inputs"].items()}
    env = {name: given[text.removeprefix("${{ inputs.").removesuffix(" }}")] for name, text in step["env"].items()}
    tool = tmp_path / "bin" / "llm-perf"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" > words.txt\n'
        'for w in "$@"; do if [ "$last" = -o ]; then mkdir -p "$w"; echo table > "$w/compare.md"; fi; last=$w; done\n'
        f"exit {code}\n"
    )
    tool.chmod(0o755)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={
            "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, (tmp_path / "words.txt").read_text().splitlines(), done.stdout


def test_two_runs_are_compared_with_every_gate(tmp_path: Path) -> None:
    gates = "tpot_ms<=+5%\n\nttft_ms<=50\n"
    code, words, _ = run_action(tmp_path, base="runs/a b", candidate="$(touch owned)", gates=gates)
    assert (code, words) == (0, [
        "compare", "runs/a b", "$(touch owned)", "-o", "llm-perf-compare",
        "--github", "--junit", "llm-perf-compare.junit.xml",
        "--gate", "tpot_ms<=+5%", "--gate", "ttft_ms<=50",
    ])  # fmt: skip
    assert (tmp_path / "output").read_text() == "code=0\n"
    assert (tmp_path / "summary").read_text() == "table\n"
    assert not (tmp_path / "owned").exists()


def test_pairs_are_made_as_the_overrides_say(tmp_path: Path) -> None:
    code, words, _ = run_action(tmp_path, interleave="5", overrides="experiment=demo base.ref=main")
    tail = ["--interleave", "5", "--", "experiment=demo", "base.ref=main"]
    common = ["compare", "-o", "llm-perf-compare", "--github", "--junit", "llm-perf-compare.junit.xml"]
    assert (code, words) == (0, [*common, *tail])


def test_the_former_name_of_the_overrides_still_works(tmp_path: Path) -> None:
    _, words, _ = run_action(tmp_path, interleave="5", words="experiment=demo base.ref=main")
    assert words[-3:] == ["--", "experiment=demo", "base.ref=main"]


@pytest.mark.parametrize(
    ("code", "inconclusive", "ended"), [(1, "fail", 1), (1, "warn", 1), (3, "fail", 3), (3, "warn", 0), (2, "warn", 2)]
)
def test_a_job_fails_unless_inconclusive_may_pass(code: int, inconclusive: str, ended: int, tmp_path: Path) -> None:
    found, _, said = run_action(tmp_path, code=code, base="a", candidate="b", inconclusive=inconclusive)
    assert (found, (tmp_path / "output").read_text()) == (ended, f"code={code}\n")
    assert ("::warning" in said) is (ended == 0)
