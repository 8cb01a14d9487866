"""What a load ends with: the block of text, saturation and the recommended level, vLLM's file, the report."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from llm_perf_opt.report.sections.served_load import bench_metrics, bench_sections, shown_level
from llm_perf_opt.serving.block import result_block
from llm_perf_opt.serving.foreign_results import read_results
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import BenchDocument, CapacityResult, LatencyFigures, LevelResult, level_result
from llm_perf_opt.serving.saturation import recommended, saturation, verdict
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection, SloSection
from llm_perf_opt.serving.vllm_file import vllm_json

RECORDS = [
    RequestRecord(
        index=number,
        started_s=0.5 * number,
        status="ok",
        ttft_s=0.1,
        latency_s=0.4,
        gaps_s=(0.1, 0.1, 0.1),
        prompt_tokens=10,
        output_tokens=4,
        counted_by="usage",
    )
    for number in range(4)
]
FAILED = [RequestRecord(index=9, started_s=0.0, status="failed", error="HTTP 500: no")] * 3


def _level(concurrency: int, tokens_per_s: float, ttft_ms: float, **more: object) -> LevelResult:
    level = LevelResult(
        label=f"concurrency {concurrency}",
        concurrency=concurrency,
        completed=10,
        output_tokens_per_s=tokens_per_s,
        latencies={"ttft": LatencyFigures(median_ms=ttft_ms)},
    )
    return replace(level, **more)  # type: ignore[arg-type]


def test_the_block_of_a_level_is_that_of_vllm() -> None:
    run = LoadRun(level=LoadLevel(concurrency=2), records=RECORDS, duration_s=2.0)
    slo = SloSection(ttft_ms=200)
    lines = result_block(level_result(run, slo), slo=slo).splitlines()
    assert lines[:16] == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                    4",
        "Failed requests:                        0",
        "Maximum request concurrency:            2",
        "Benchmark duration (s):                 2.00",
        "Total input tokens:                     40",
        "Total generated tokens:                 16",
        "Request throughput (req/s):             2.00",
        "Request goodput (req/s):                2.00",
        "SLO:                                    TTFT ≤ 200 ms",
        "Output token throughput (tok/s):        8.00",
        "Peak output token throughput (tok/s):   8.00",
        "Peak concurrent requests:               1",
        "Total token throughput (tok/s):         28.00",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                         100.00",
    ]
    assert [line for line in lines if line.startswith("-")][1:] == [
        "-----Time per Output Token (excl. 1st token)------",
        "---------------Inter-token Latency----------------",
        "----------------End-to-end Latency----------------",
    ]
    assert lines[-2:] == ["P99 E2EL (ms):                          400.00", "=" * 50]
    brief = replace(run, duration_s=0.25)
    assert "Peak output token throughput" not in result_block(level_result(brief, slo), slo=slo)


def test_a_level_in_which_every_request_failed_says_so_and_has_no_latency() -> None:
    level = level_result(LoadRun(level=LoadLevel(concurrency=2), records=FAILED, duration_s=1.0), SloSection())
    assert result_block(level, slo=SloSection()).splitlines()[-2:] == [
        "Every request failed. Most frequent error: HTTP 500: no",
        "=" * 50,
    ]
    (section,) = bench_sections(BenchDocument(levels=(level,)), source="")
    assert section.paragraphs[2] == "Every request failed at concurrency 2: there are no latencies."


def test_a_block_names_the_most_frequent_error() -> None:
    level = level_result(LoadRun(level=LoadLevel(rate=2.0), records=[*RECORDS, *FAILED], duration_s=2.0), SloSection())
    lines = result_block(level, slo=SloSection()).splitlines()
    assert lines[1:6] == [
        "Successful requests:                    4",
        "Failed requests:                        3",
        "Request rate configured (RPS):          2.00",
        "Benchmark duration (s):                 2.00",
        "Most frequent error: HTTP 500: no",
    ]


def test_what_failed_is_named_before_what_had_not_ended() -> None:
    left = [RequestRecord(index=n, started_s=0.0, status="unfinished", error="under way") for n in range(9)]
    level = level_result(LoadRun(level=LoadLevel(rate=2.0), records=[*left, *FAILED], duration_s=2.0), SloSection())
    assert list(level.errors.items()) == [("HTTP 500: no", 3), ("under way", 9)]
    lines = result_block(level, slo=SloSection()).splitlines()
    assert lines[-2] == "No request succeeded. Most frequent error: HTTP 500: no"
    some = level_result(LoadRun(level=LoadLevel(rate=2.0), records=[*RECORDS, *left], duration_s=2.0), SloSection())
    assert not any("error" in line for line in result_block(some, slo=SloSection()).splitlines())


def test_saturation_is_the_level_after_which_more_load_brings_no_throughput() -> None:
    levels = (_level(1, 250, 20), _level(4, 837, 41), _level(8, 859.6, 106.6))
    document = BenchDocument(levels=levels)
    found = saturation(levels)
    assert found is not None and found.text == "saturates at concurrency 4; 8 adds 2.7 % throughput at 2.6× TTFT"
    assert recommended(document) == shown_level(document) == levels[1]
    assert verdict(document) == (
        "The server saturates at concurrency 4; 8 adds 2.7 % throughput at 2.6× TTFT. Recommended: concurrency 4."
    )
    grows = BenchDocument(levels=levels[:2])
    assert verdict(grows) == "No saturation up to concurrency 4. Recommended: concurrency 4."
    assert verdict(BenchDocument(levels=levels[:1])) is None
    fewer = (_level(4, 837, 41), _level(8, 800, 90))
    assert (verdict(BenchDocument(levels=fewer)) or "").startswith(
        "The server saturates at concurrency 4; 8 has 4.4 % less throughput at 2.2× TTFT."
    )


def test_with_an_slo_the_recommended_level_is_the_most_load_that_meets_it() -> None:
    slo = SloSection(ttft_ms=50)
    levels = (
        _level(1, 250, 20, meets_slo=True, goodput_per_s=2.0),
        _level(4, 837, 41, meets_slo=True, goodput_per_s=7.0),
        _level(8, 1600, 60, meets_slo=False, goodput_per_s=8.0),
    )
    said = verdict(BenchDocument(levels=levels, slo=slo))
    assert said == (
        "No saturation up to concurrency 8. Recommended: concurrency 4, the most load that meets the SLO "
        "(TTFT ≤ 50 ms, 90 % of the requests)."
    )
    none = verdict(BenchDocument(levels=levels[2:], slo=slo))
    assert none == "No level meets the SLO (TTFT ≤ 50 ms, 90 % of the requests)."


def test_an_invalid_level_is_never_recommended() -> None:
    late = _level(8, 1600, 30, client_lag_mean_ms=20.0, client_lag_p99_ms=90.0)
    document = BenchDocument(levels=(_level(1, 250, 20), _level(4, 837, 41), late))
    best = recommended(document)
    assert best is not None and best.concurrency == 4
    assert shown_level(BenchDocument(levels=(late,))) == late
    assert shown_level(document) == document.levels[1]
    marked = ["concurrency 1", "concurrency 4", "concurrency 8 (invalid)"]
    throughput, latency = bench_sections(document, source="bench.json")[0].tables
    assert [row[0] for row in throughput.rows] == marked
    assert [row[0] for row in latency.rows] == marked


def test_levels_whose_client_was_late_are_named_where_a_level_is_recommended() -> None:
    late = {"client_lag_mean_ms": 20.0, "client_lag_p99_ms": 90.0}
    levels = (_level(1, 250, 20, meets_slo=True, **late), _level(4, 837, 41, meets_slo=True, **late))
    slo = SloSection(ttft_ms=50)
    above = _level(8, 859, 600, meets_slo=False)
    assert verdict(BenchDocument(levels=(*levels, above), slo=slo)) == (
        "The client was late at concurrency 1, concurrency 4: not counted. "
        "No other level meets the SLO (TTFT ≤ 50 ms, 90 % of the requests)."
    )
    assert verdict(BenchDocument(levels=levels)) == "The client was late at concurrency 1, concurrency 4: not counted."
    assert bench_metrics(BenchDocument(levels=levels), source="")["serve_client_late_ms"].value == 20.0
    assert "serve_client_late_ms" not in bench_metrics(BenchDocument(levels=(*levels, above)), source="")


def test_a_search_shows_the_highest_load_that_met_the_slo_and_its_capacity() -> None:
    rates = [
        replace(_level(1, 240, 80), concurrency=None, rate=rate, label=f"{rate} requests/s", meets_slo=rate < 15.5)
        for rate in (15.57, 7.8, 15.25)
    ]
    found = CapacityResult(by="rate", value=15.4, low=14.9, high=15.6, met=15.25, missed=15.57, levels=4)
    document = BenchDocument(
        levels=(_level(32, 311, 896, meets_slo=False), *rates), slo=SloSection(ttft_ms=300), capacity=found
    )
    assert recommended(document) == shown_level(document) == rates[2]
    metric = bench_metrics(document, source="")["serve_capacity"]
    assert (metric.value, metric.unit, metric.how) == (
        15.4,
        "requests/s",
        "requests/s that meet TTFT ≤ 300 ms (95 % confidence interval 14.9 to 15.6)",
    )
    assert "serve_capacity" not in bench_metrics(replace(document, capacity=replace(found, value=None)), source="")


def test_a_block_says_what_its_figures_are_not() -> None:
    slower = [replace(RECORDS[0], index=n, started_s=float(n), latency_s=0.4 + 0.1 * n) for n in range(20)]
    level = level_result(LoadRun(level=LoadLevel(rate=1.0), records=slower, duration_s=20.0), SloSection())
    burst = replace(
        level, growth=None, latencies={**level.latencies, "itl": LatencyFigures(mean_ms=9.0, median_ms=0.0, n=60)}
    )
    assert [result_block(one, slo=SloSection()).splitlines()[1] for one in (level, burst)] == [
        "NOT SUSTAINED: the last requests took 3.5 times as long as the first",
        "IN BURSTS: tokens of a stream arrive together, so TTFT, TPOT and ITL are those of bursts",
    ]


@pytest.mark.parametrize(("share", "meets"), [(0.75, True), (0.76, False)])
def test_a_level_meets_the_slo_when_enough_of_all_its_requests_are_good(share: float, meets: bool) -> None:
    run = LoadRun(level=LoadLevel(rate=2.0), records=[*RECORDS[:3], FAILED[0]], duration_s=2.0)
    level = level_result(run, SloSection(ttft_ms=101, share=share))
    assert (level.good_share, level.meets_slo) == (0.75, meets)


def test_the_file_for_readers_of_vllms_results_is_read_back_to_the_same_figures(tmp_path: Path) -> None:
    run = LoadRun(level=LoadLevel(rate=2.0), records=[*RECORDS, *FAILED], duration_s=2.0)
    level = level_result(run, SloSection())
    path = tmp_path / "vllm_1.json"
    path.write_bytes(vllm_json(run, level, LoadSection(rate=(2.0,)), model="m"))
    document = read_results([path])
    (read,) = document.levels
    assert (document.made_by, document.model) == ("vllm bench serve", "m")
    for name in (
        "rate",
        "duration_s",
        "sent",
        "completed",
        "failed",
        "output_tokens",
        "requests_per_s",
        "most_at_once",
    ):
        assert getattr(read, name) == getattr(level, name)
    assert {k: v.median_ms for k, v in read.latencies.items()} == {k: v.median_ms for k, v in level.latencies.items()}
    found = msgspec.json.decode(path.read_bytes())
    assert found["ttfts"] == [0.1] * 4 + [0.0] * 3 and found["errors"][-1] == "HTTP 500: no"


def test_littles_law_holds_in_a_steady_state() -> None:
    records = [
        RequestRecord(index=n, started_s=0.4 * n, status="ok", ttft_s=0.1, latency_s=0.4, output_tokens=1)
        for n in range(10)
    ]
    level = level_result(LoadRun(level=LoadLevel(concurrency=1), records=records, duration_s=4.0), SloSection())
    assert (level.mean_concurrency, level.littles_law) == (pytest.approx(1.0), pytest.approx(1.0))
    # Half of the requests never ended: they were under way, and are not in the throughput.
    cut = [*records[:5], RequestRecord(index=5, started_s=2.0, status="unfinished", error="x")]
    half = level_result(LoadRun(level=LoadLevel(concurrency=1), records=cut, duration_s=4.0), SloSection())
    assert half.littles_law == pytest.approx(0.5)
