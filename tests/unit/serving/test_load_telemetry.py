"""What a server and its GPUs report during a load."""

import pytest

from llm_perf_opt.core.documents import ClockSample
from llm_perf_opt.report.sections.served_load import bench_metrics, bench_sections
from llm_perf_opt.serving.counters import CounterSample, parse_counters, parse_info, summarise_counters
from llm_perf_opt.serving.engine import server_report
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import BenchDocument, GpuFigures, level_result
from llm_perf_opt.serving.load_run import Target
from llm_perf_opt.serving.serving_config import LoadLevel, SloSection
from llm_perf_opt.serving.telemetry import gpu_figures, is_local
from llm_perf_opt.system.nvml import GpuSamples
from tests.support.fake_server import fake_server

PAGE = """\
vllm:prefix_cache_queries_total{engine="0"} 1000
vllm:prefix_cache_hits_total{engine="0"} 100
vllm:spec_decode_num_draft_tokens_total{engine="0"} 300
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 60
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="1024"} 1.0
"""


def _gpu(*samples: ClockSample) -> GpuSamples:
    return GpuSamples(device="NVIDIA H200", samples=list(samples))


def test_energy_is_the_drivers_counter_or_the_integral_of_its_power() -> None:
    counted = _gpu(
        ClockSample(at_ns=0, energy_j=500.0, utilisation_pct=80, memory_used_bytes=10),
        ClockSample(at_ns=2_000_000_000, energy_j=900.0, utilisation_pct=100, memory_used_bytes=30),
    )
    powers = _gpu(
        ClockSample(at_ns=0, power_w=100.0, utilisation_pct=50),
        ClockSample(at_ns=1_000_000_000, power_w=300.0, utilisation_pct=50),
    )
    idle = _gpu(ClockSample(at_ns=0, utilisation_pct=0), ClockSample(at_ns=1, utilisation_pct=0))
    assert gpu_figures([counted, powers, idle, GpuSamples()]) == (
        GpuFigures(device="NVIDIA H200", mean_power_w=200.0, energy_j=400.0, utilisation_pct=90, most_memory_bytes=30),
        GpuFigures(device="NVIDIA H200", mean_power_w=200.0, energy_j=200.0, utilisation_pct=50),
    )


def test_energy_per_output_token_is_on_the_page_and_among_the_metrics() -> None:
    record = RequestRecord(index=0, started_s=0, status="ok", ttft_s=0.1, latency_s=0.2, output_tokens=50)
    gpus = (GpuFigures(device="a", energy_j=75.0, mean_power_w=75.0), GpuFigures(device="b", energy_j=25.0))
    level = level_result(LoadRun(level=LoadLevel(rate=1), records=[record], duration_s=1.0), SloSection(), gpus=gpus)
    assert level.joules_per_output_token == 2.0
    document = BenchDocument(levels=(level,), reported={"version": "0.32.0"})
    sections = {section.title: section for section in bench_sections(document, source="bench/bench.json")}
    assert sections["GPUs under load"].tables[0].rows[0] == ("1 requests/s", "a", 75.0, 75.0, 2.0, None, None)
    assert sections["The server about itself"].tables[0].rows == (("version", "0.32.0"),)
    assert bench_metrics(document, source="")["serve_joules_per_output_token"].value == 2.0


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000", True),
        ("http://localhost", True),
        ("http://10.0.0.5:8000", False),
        ("https://localhost.example", False),
    ],
)
def test_only_the_gpus_of_a_local_server_are_looked_at(url: str, local: bool) -> None:
    assert is_local(url) is local


def test_shares_come_from_what_two_totals_grew_by() -> None:
    first = parse_counters(PAGE)
    last = parse_counters(PAGE.replace(" 1000\n", " 3000\n").replace(" 100\n", " 1600\n").replace(" 300\n", " 400\n"))
    samples = [CounterSample(at_s=at, values=values) for at, values in ((0, first), (9, last))]
    rows = {row.name: row for row in summarise_counters(samples)}
    assert (rows["prefix cache hits"].mean, rows["speculative acceptance"].mean) == (0.75, 0.0)
    assert rows["prefix cache tokens asked"].last == 2000


def test_a_page_read_after_the_load_counts_for_totals_alone() -> None:
    pages = ((0.0, 4.0, 7.0), (1.0, 6.0, 8.0), (2.1, 0.0, 9.0))
    samples = [CounterSample(at_s=at, values={"running": now, "preemptions": total}) for at, now, total in pages]
    running, preemptions = summarise_counters(samples, until_s=2.0)
    assert (running.mean, running.most, running.last, preemptions.last) == (5.0, 6.0, 6.0, 2.0)


def test_a_server_is_asked_what_it_is() -> None:
    assert parse_info(PAGE) == {
        "cache_config.block_size": "16",
        "cache_config.cache_dtype": "auto",
        "cache_config.num_gpu_blocks": "1024",
    }
    with fake_server() as server:
        target = Target(url=server.url, headers={}, metrics_path="/metrics", trouble=lambda: None)
        assert server_report(target) == {"version": "0.1-fake"}
