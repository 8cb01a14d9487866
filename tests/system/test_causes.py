"""`llm-perf run` names the planted cause of programs without marks, and the line it is in."""

from pathlib import Path

import pytest
from benchmarks.causes.run import Planted, ask_llm_perf, load_planted

QUICK = ("python_loop", "sleep", "json_dump")


@pytest.mark.long
@pytest.mark.parametrize("planted", [row for row in load_planted() if row.name in QUICK], ids=lambda row: row.name)
def test_the_first_finding_is_the_planted_cause(planted: Planted, tmp_path: Path) -> None:
    answer = ask_llm_perf(planted, tmp_path)
    assert answer.is_right, answer.said


def test_every_program_has_an_expected_answer() -> None:
    planted = load_planted()
    folder = planted[0].program.parent
    assert {row.program.name for row in planted} == {path.name for path in folder.glob("*.py")}
