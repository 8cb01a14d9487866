"""`llm-perf plan`: what meets limits, what is cheapest of it, and what nothing else beats."""

import csv
import json
from pathlib import Path

import pytest

from llm_perf_opt.cli import main

ASKED = ["plan", "model=llama3_8b", "hardware=h200,l40s", "--context", "4096", "--devices=2"]


def test_rows_that_keep_the_limits_are_kept_and_the_cheapest_of_each_device_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "plan.csv"
    limits = ["--ttft-ms", "400", "--tpot-ms", "25", "--price", "h200=3.5,l40s=1"]
    assert main([*ASKED, *limits, "--csv", str(table)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3,840 + 256 tokens; first token in 400 ms; 25 ms a token:\n")
    assert max(map(len, out.splitlines())) <= 80
    rows = list(csv.DictReader(table.open()))
    assert {row["hardware"] for row in rows} == {"h200", "l40s"}
    assert [row for row in rows if float(row["ttft_ms"]) > 400 or float(row["tpot_ms"]) > 25] == []
    cheapest = {name: min(float(row["cost"]) for row in rows if row["hardware"] == name) for name in ("h200", "l40s")}
    named = [line.split() for line in out.split("Pareto")[0].splitlines() if line.startswith(("h200", "l40s"))]
    assert [words[0] for words in named] == sorted(cheapest, key=lambda name: cheapest[name])
    assert [float(words[-1]) for words in named] == pytest.approx(sorted(cheapest.values()), rel=0.01)
    # Along the front tokens get slower and cheaper.
    front = [line.split() for line in out.split("Pareto front):")[1].splitlines() if line[:4] in ("h200", "l40s")]
    costs = [float(words[-1]) for words in front]
    assert costs == sorted(costs, reverse=True)


def test_limits_nobody_meets_show_what_came_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--ttft-ms", "1"]) == 0
    out = capsys.readouterr().out
    assert "first token in 1 ms:\n0 of " in out
    assert "Nearest: the shortest time to first token" in out
    rows = [line for line in out.splitlines() if line.startswith(("h200", "l40s"))]
    # One row that is the nearest in both is shown once.
    assert len(rows) == len(set(rows)) == 1


def test_what_does_not_fit_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model=llama3_70b", "hardware=rtx4090", "--devices", "1"]) == 0
    assert "None fits into the memory: allow more devices (--devices)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tpot-ms", "fast"], "error: --tpot-ms: not a number from above 0 to 100,000,000 (got 'fast')"),
        (["--ttft-ms", "nan"], "error: --ttft-ms: not a number from above 0 to 100,000,000 (got 'nan')"),
        (["--context", "1e300"], "error: --context: not a number from above 0 to 100,000,000 (got '1e300')"),
        (["dataset=null"], "error: dataset: no such choice (got 'null')"),
        (["--output", "5000"], "error: --output: not less than --context (got 5000 of 4096)"),
        (["--price", "h200"], "error: --price: not ENTRY=PRICE (got 'h200')"),
        (["--price", "h100_sxm=2"], "error: --price: 'h100_sxm' is not among the devices asked for, hardware="),
        (["--wide"], "error: --wide: not an override, allowed: key=value or --json, --ttft-ms"),
        (["--colour", "red"], "error: --colour: not an override"),
    ],
)
def test_bad_input_exits_with_2_and_names_it(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main([*ASKED, *argv]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_cannot_be_planned_is_not_said_to_be_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model=deepseek_ocr", "hardware=h200", "--devices", "1"]) == 0
    out = capsys.readouterr().out
    assert "Nothing could be estimated: plans are made for text models on GPUs" in out
    assert "None fits" not in out


def test_the_rows_of_a_plan_can_be_had_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--devices", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert found
    assert all(row["serving"]["tp"] == 1 for row in found)
