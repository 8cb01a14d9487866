"""The nightly comparison of releases: its commands, its exit code, and what it measures."""

import sys
from pathlib import Path

import pytest

from scripts import nightly
from tests.support.fixtures_dir import REPO


def test_a_benchmark_is_an_interleaved_comparison_with_a_gate(tmp_path: Path) -> None:
    plan = nightly.Plan(base="v0.2.0", candidate="HEAD", limit_percent=5.0, pairs="auto", out=tmp_path)
    argv = nightly.build_compare_cmd("torch_trace", plan, inputs=Path("/inputs"))
    assert argv == [
        *(sys.executable, "-m", "llm_perf_opt.cli", "compare", "--interleave", "auto"),
        *("--gate", "wall_ms<=+5%", "-o", str(tmp_path / "torch_trace")),
        *("--", "base.ref=v0.2.0", "candidate.ref=HEAD"),
        *("--", sys.executable, str(REPO / "benchmarks" / "nightly_work.py"), "torch_trace", "/inputs"),
    ]


@pytest.mark.parametrize(
    ("codes", "code", "line"),
    [
        ({"a": 0, "b": 3}, 0, "b: no answer: too noisy, or too few pairs"),
        ({"a": 0, "b": 1}, 1, "b: REGRESSION"),
        ({"a": 0, "b": 2}, 1, "b: could not be compared (exit code 2)"),
    ],
)
def test_only_a_regression_or_a_failure_fails(codes: dict[str, int], code: int, line: str) -> None:
    lines, found = nightly.summary(codes)
    assert (lines[0], lines[1], found) == ("a: no regression", line, code)


def test_a_history_without_a_release_and_an_unknown_name_are_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert nightly.main(["--base", "HEAD", "no_such"]) == 2
    allowed = "torch_trace, nsys_export, start_up, predict"
    assert capsys.readouterr().err == f"error: no such benchmark (got no_such), allowed: {allowed}\n"
