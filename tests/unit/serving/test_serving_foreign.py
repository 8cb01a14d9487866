"""Results of `vllm bench serve` and aiperf, read by `llm-perf analyze`."""

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.capture.readers.kinds import LOAD, TORCH, kind_of
from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.errors import ParseError
from llm_perf_opt.serving.foreign_results import read_results
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import LatencyFigures, LevelResult, level_result
from llm_perf_opt.serving.serving_config import LoadLevel, SloSection
from tests.support.fixtures_dir import DATA

# The keys and their order are those the tools write.
VLLM: dict[str, Any] = {
    "date": "20261116-180000",
    "backend": "openai",
    "model_id": "tiny",
    "num_prompts": 200,
    "request_rate": 4.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 50.0,
    "completed": 198,
    "failed": 2,
    "total_input_tokens": 2000,
    "total_output_tokens": 3168,
    "request_throughput": 3.96,
    "request_goodput": None,
    "output_throughput": 63.36,
    "total_token_throughput": 103.36,
    "max_concurrent_requests": 7,
    "mean_ttft_ms": 20.5,
    "median_ttft_ms": 19.0,
    "std_ttft_ms": 3.0,
    "p99_ttft_ms": 40.0,
    "mean_tpot_ms": 5.5,
    "median_tpot_ms": 5.0,
    "std_tpot_ms": 1.0,
    "p99_tpot_ms": 9.0,
}
AIPERF: dict[str, Any] = {
    "schema_version": "1.0",
    "request_throughput": {"unit": "requests/sec", "avg": 2.5},
    "request_latency": {"unit": "ms", "avg": 210.0, "p50": 200.0, "p90": 300.0, "p99": 400.0, "std": 9.0, "count": 10},
    "request_count": {"unit": "requests", "avg": 10.0},
    "error_request_count": {"unit": "requests", "avg": 1.0},
    "time_to_first_token": {"unit": "ms", "avg": 21.0, "p50": 20.0, "p90": 30.0, "p99": 40.0},
    "inter_token_latency": {"unit": "us", "avg": 2100.0, "p50": 2000.0, "p90": 3000.0, "p99": 4000.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 99.0},
    "benchmark_duration": {"unit": "sec", "avg": 4.0},
    "input_config": {"loadgen": {"concurrency": 8}, "endpoint": {"model_names": ["tiny"]}},
}


def _write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_a_result_of_vllm_is_a_level_of_ours(tmp_path: Path) -> None:
    path = _write(tmp_path / "vllm.json", VLLM)
    assert kind_of(path) == LOAD
    document = read_results([path])
    assert (document.made_by, document.model) == ("vllm bench serve", "tiny")
    assert document.levels == (
        LevelResult(
            label="4 requests/s",
            rate=4.0,
            duration_s=50.0,
            sent=200,
            completed=198,
            failed=2,
            input_tokens=2000,
            output_tokens=3168,
            requests_per_s=3.96,
            output_tokens_per_s=63.36,
            total_tokens_per_s=103.36,
            most_at_once=7,
            latencies={
                "ttft": LatencyFigures(mean_ms=20.5, median_ms=19.0, p99_ms=40.0, std_ms=3.0),
                "tpot": LatencyFigures(mean_ms=5.5, median_ms=5.0, p99_ms=9.0, std_ms=1.0),
            },
        ),
    )


def test_a_result_of_aiperf_is_a_level_of_ours_and_its_itl_our_tpot(tmp_path: Path) -> None:
    path = _write(tmp_path / "profile_export_aiperf.json", AIPERF)
    assert kind_of(path) == LOAD
    (level,) = read_results([path]).levels
    assert (level.label, level.completed, level.failed, level.duration_s) == ("concurrency 8", 10, 1, 4.0)
    assert level.latencies == {
        "ttft": LatencyFigures(mean_ms=21.0, median_ms=20.0, p90_ms=30.0, p99_ms=40.0),
        "tpot": LatencyFigures(mean_ms=2.1, median_ms=2.0, p90_ms=3.0, p99_ms=4.0),
        "e2el": LatencyFigures(mean_ms=210.0, median_ms=200.0, p90_ms=300.0, p99_ms=400.0, std_ms=9.0, n=10),
    }


def test_our_figures_of_vllms_own_requests_are_those_it_prints() -> None:
    """12 requests vLLM 0.32 timed itself (`--save-detailed`), put through our definitions, give its own figures."""
    path = DATA / "vllm_bench.json"
    raw = json.loads(path.read_text())
    columns = ("start_times", "ttfts", "itls", "latencies", "input_lens", "output_lens")
    records = [
        RequestRecord(
            index=index,
            started_s=start,
            status="ok",
            ttft_s=ttft,
            latency_s=latency,
            gaps_s=tuple(gaps),
            prompt_tokens=prompt,
            output_tokens=output,
        )
        for index, (start, ttft, gaps, latency, prompt, output) in enumerate(
            zip(*(raw[name] for name in columns), strict=True)
        )
    ]
    run = LoadRun(level=LoadLevel(rate=6.0), records=records, duration_s=raw["duration"])
    ours = level_result(run, SloSection(ttft_ms=150, e2el_ms=400))
    (theirs,) = read_results([path]).levels
    for name in ("ttft", "tpot", "itl", "e2el"):
        mine, printed = vars(ours.latencies[name]), vars(theirs.latencies[name])
        assert {k: v for k, v in mine.items() if k != "n"} == pytest.approx(
            {k: v for k, v in printed.items() if k != "n"}, rel=1e-9
        )
    # The most at once is another matter: this version of vLLM counts by whole seconds.
    rates = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "goodput_per_s")
    assert [getattr(ours, name) for name in rates] == pytest.approx([getattr(theirs, name) for name in rates])


def test_appended_results_and_several_files_are_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text("\n".join(json.dumps({**VLLM, "request_rate": rate}) for rate in (1.0, "inf")) + "\n")
    other = _write(tmp_path / "aiperf.json", AIPERF)
    assert [level.label for level in read_results([path, other]).levels] == ["1 requests/s", "all", "concurrency 8"]


def test_analyze_prints_them_and_writes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [_write(tmp_path / f"{rate}.json", {**VLLM, "request_rate": rate}) for rate in (1.0, 2.0)]
    out = tmp_path / "run"
    assert main(["analyze", "-v", *map(str, files), "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Measured by vllm bench serve: tiny." in said
    assert "TTFT" in said and "19.00" in said
    manifest = read_manifest(out)
    assert manifest.stages[0].metrics["serve_ttft_ms[rate=2]"].value == 19.0
    assert "# tiny" in (out / "report.md").read_text()
    assert (out / "bench" / "throughput_latency.svg").is_file()


def test_captures_and_results_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = _write(tmp_path / "trace.json", {"traceEvents": []})
    assert kind_of(trace) == TORCH
    code = main(["analyze", str(trace), str(_write(tmp_path / "v.json", VLLM))])
    expected = "error: analyze: load generator results and captures cannot be combined; analyze them separately\n"
    assert (code, capsys.readouterr().err) == (2, expected)


@pytest.mark.parametrize("text", ['{"request_throughput": 1.0', '{"request_throughput": 1.0} [1]'])
def test_a_damaged_result_is_refused_in_words(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ParseError, match=r"not valid JSON|not a result of a load generator"):
        read_results([path])
