"""`llm-perf plan --calibrate-from`: a measured server answers for itself and refuses to extrapolate."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.model.estimate.measured import MeasuredLevel, MeasuredPace, left_out_errors, median_error
from tests.support.fixtures_dir import REPO
from tests.support.schemas import valid


def published(weight: str, prompt: int, output: int, most: int) -> MeasuredPace:
    """vLLM 0.30 on an H100 as it was published, without times to first token at rest but the first."""
    with (REPO / "tests" / "data" / "published_serving.csv").open(newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["weight"], int(row["prompt"]), int(row["output"])) == (weight, prompt, output)
            and int(row["concurrency"]) <= most
        ]
    levels = tuple(
        MeasuredLevel(
            concurrency=int(row["concurrency"]),
            ttft_ms=float(row["ttft_p95_ms"]),
            gap_ms=float(row["itl_median_ms"]),
            output_tokens_per_s=float(row["output_tokens_per_s"]),
        )
        for row in rows
    )
    return MeasuredPace(levels=levels, prompt=prompt, output=output)


@pytest.mark.parametrize(
    ("weight", "prompt", "output", "most"),
    [("fp8", 1024, 128, 256), ("fp8", 128, 1024, 384), ("fp8", 2048, 2048, 64), ("bf16", 8192, 512, 32)],
)
def test_loads_that_were_left_out_are_within_ten_percent_in_the_middle(
    weight: str, prompt: int, output: int, most: int
) -> None:
    errors = left_out_errors(published(weight, prompt, output, most))
    assert len(errors) >= 4
    found = median_error(errors)
    assert found is not None and found <= 0.10


def bench(folder: Path, levels: list[dict[str, Any]]) -> Path:
    file = folder / "bench.json"
    file.write_text(json.dumps({"schema_version": 1, "server": "vllm", "model": "tiny", "levels": levels}))
    return file


def level(
    concurrency: int, tokens_per_s: float, *, prompt: int = 100, output: int = 50, gap: float = 10
) -> dict[str, Any]:
    return {
        "label": f"concurrency {concurrency}",
        "concurrency": concurrency,
        "completed": 10,
        "input_tokens": 10 * prompt,
        "output_tokens": 10 * output,
        "output_tokens_per_s": tokens_per_s,
        "latencies": {
            "ttft": {"mean_ms": 30.0, "median_ms": 30.0, "p90_ms": 53.0, "p99_ms": 76.0},
            "itl": {"median_ms": gap},
        },
    }


def test_the_answer_is_a_document_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--calibrate-from", str(bench(tmp_path, LEVELS)), "--json"]
    assert main([*asked, "--rate", "20"]) == 0
    found = valid("calibrated", json.loads(capsys.readouterr().out))
    assert main([*asked[:-1], "--rate", "20"]) == 0
    assert f"{found['answer']['servers']} such servers" in " ".join(capsys.readouterr().out.split())
    assert [row["concurrency"] for row in found["levels"]] == [1, 2, 4, 8]
    assert main([*asked, "--ttft-ms", "0.001"]) == 0
    assert valid("calibrated", json.loads(capsys.readouterr().out))["answer"] is None


# 500 ms a request alone, 200 ms more for each other one.
LEVELS = [level(1, 100), level(2, 2 * 50 / 0.7), level(4, 4 * 50 / 1.1), level(8, 8 * 50 / 1.9)]


def test_the_most_requests_in_flight_are_among_those_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = bench(tmp_path, LEVELS)
    assert main(["plan", "--calibrate-from", str(file), "--tpot-ms", "1000"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Up to 8 requests in flight meet the SLOs (the highest load measured; more may be possible)" in out
    assert "median error 0.0 % in tokens per second" in out
    assert main(["plan", "--calibrate-from", str(tmp_path / "bench.json"), "--tpot-ms", "25"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    # 1.1 s for 50 tokens with four in flight, of which the first takes 30 ms; 1.3 s with five.
    assert "Up to 4 requests in flight meet the SLOs: first token in 30 ms (median), 59.92 ms (95th percentile)" in out
    assert "181.8 tokens per second" in out
    assert main(["plan", "--calibrate-from", str(file), "--tpot-ms", "1"]) == 0
    assert "No measured number of requests in flight meets the SLOs." in capsys.readouterr().out


def test_levels_that_scatter_are_no_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scattered = [LEVELS[0], level(2, 40), level(3, 160), LEVELS[2], LEVELS[3]]
    assert main(["plan", "--calibrate-from", str(bench(tmp_path, scattered))]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "The median error is above 10 %, or a level is off by more than 50 %: the levels scatter" in out
    assert "requests in flight keep" not in out


def test_a_demand_is_answered_by_more_servers_of_the_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = bench(tmp_path, LEVELS)

    def servers(*demand: str) -> int:
        assert main(["plan", "--calibrate-from", str(file), *demand]) == 0
        out = " ".join(capsys.readouterr().out.split())
        return int(out.split(" such servers")[0].split()[-1])

    ten = servers("--rate", "10/s")
    # At most 8 in flight and 4.2 requests per second were measured.
    assert 3 <= ten <= 5
    assert servers("--rate", "100/s") == pytest.approx(10 * ten, abs=9)
    assert 13 <= servers("--users", "100") <= 30


@pytest.mark.parametrize(
    ("levels", "argv", "message"),
    [
        (LEVELS, ["--context", "1000"], "prompts of 950 tokens were not measured, those of"),
        (LEVELS, ["--context", "400", "--output", "300"], "answers of 300 tokens were not measured"),
        (LEVELS, ["workload.tp=2"], "workload.tp: has no effect with --calibrate-from"),
        (LEVELS, ["model=llama3_8b"], "model: has no effect with --calibrate-from"),
        (LEVELS[:1], [], "has 1 different numbers of requests in flight; at least 2 are needed"),
        ([*LEVELS, level(16, 300, prompt=200)], [], "prompts or answers of its levels differ in length"),
        ([level(1, 10, output=1), level(2, 20, output=1)], [], "answers of a single token say nothing about steps"),
        ([{**LEVELS[0], "latencies": {}}, LEVELS[1]], [], "no tokens, throughput or latencies of concurrency 1"),
    ],
)
def test_what_was_not_measured_is_refused(
    levels: list[dict[str, Any]], argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--calibrate-from", str(bench(tmp_path, levels)), *argv]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_no_run_of_bench_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text("[]")
    assert main(["plan", "--calibrate-from", str(tmp_path / "other.json")]) == 2
    assert "other.json is not a bench.json" in " ".join(capsys.readouterr().err.split())
    assert main(["plan", "--calibrate-from", str(tmp_path)]) == 2
    assert "cannot be read (No such file or directory); give a run of llm-perf bench" in " ".join(
        capsys.readouterr().err.split()
    )


def test_prompts_and_steps_are_separated_by_the_gaps_between_tokens() -> None:
    """30 ms until a request arrives, 50 ms a prompt, steps of 10 ms and 0.2 ms a sequence."""
    counts = (1, 2, 4, 8, 16)
    levels = tuple(
        MeasuredLevel(
            concurrency=count,
            ttft_ms=30 + 50 * (1 + (count - 1) / 2),
            gap_ms=10 + 0.2 * count,
            output_tokens_per_s=count * 64 / (30 + 50 * count + 63 * (10 + 0.2 * count)) * 1e3,
            ttft_p90_ms=30 + 50 * count,
        )
        for count in counts
    )
    pace = MeasuredPace(levels=levels, prompt=1000, output=64)
    assert pace.own_prompt_ms == pytest.approx(50, rel=0.05)
    assert pace.step_ms(8) == pytest.approx(11.6, rel=0.05)
    # Twelve requests were not measured: their first tokens lie between those of eight and of sixteen.
    found = pace.closed_times(12)
    assert (found.ttft_ms, found.ttft_p95_ms) == (pytest.approx(30 + 50 * 6.5), pytest.approx(30 + 50 * 12))
    assert found.request_ms == pytest.approx(30 + 50 * 12 + 63 * 12.4, rel=0.01)


def test_levels_that_scatter_a_little_are_met_by_a_line() -> None:
    """Real levels of a CPU server that others used too: their neighbours alone miss the median one by 11 %."""
    measured = ((2, 45.36), (3, 56.64), (4, 77.63), (6, 74.64), (8, 90.85), (12, 95.17), (16, 92.13), (24, 109.2))
    levels = tuple(
        MeasuredLevel(concurrency=count, ttft_ms=100 * count, gap_ms=30, output_tokens_per_s=rate)
        for count, rate in measured
    )
    error = median_error(left_out_errors(MeasuredPace(levels=levels, prompt=249, output=32)))
    assert error is not None and 0.05 < error < 0.08
