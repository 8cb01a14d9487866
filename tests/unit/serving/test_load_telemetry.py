"""What a server and its GPUs report during a load."""

import socket
import time
from itertools import count
from typing import Any

import pytest

from llm_perf_opt.core.documents import ClockSample
from llm_perf_opt.report.sections.served_load import bench_metrics, bench_sections
from llm_perf_opt.serving.counters import CounterSample, parse_counters, parse_info, summarise_counters
from llm_perf_opt.serving.engine import server_report
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import BenchDocument, GpuFigures, level_result
from llm_perf_opt.serving.load_run import Target
from llm_perf_opt.serving.serving_config import LoadLevel, SloSection
from llm_perf_opt.serving.telemetry import gpu_figures, is_local, missing_samples, sampled_gpus
from llm_perf_opt.system.nvml import GpuSamples
from tests.support.fake_nvml import FakeNvml
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
        # Addresses for documentation, which no machine has.
        ("http://192.0.2.7:8000", False),
        ("http://[2001:db8::7]:8000", False),
    ],
)
def test_only_the_gpus_of_a_local_server_are_looked_at(url: str, local: bool) -> None:
    assert is_local(url) is local


@pytest.mark.parametrize(
    ("addresses", "local"),
    [(["127.0.1.1"], True), (["192.0.2.7"], False), (["127.0.0.1", "192.0.2.7"], False), ([], False)],
)
def test_a_name_is_local_where_all_of_its_addresses_are_of_this_machine(
    addresses: list[str], local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, port: None, **_: object) -> list[Any]:
        assert host == "gpu-box"
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert is_local("http://gpu-box:8000") is local


def test_an_address_of_an_own_interface_is_local() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        try:
            # Chooses a route and with it an address; nothing is sent.
            own.connect(("192.0.2.7", 9))
        except OSError:
            pytest.skip("this machine has no route to another")
        address = own.getsockname()[0]
    assert not address.startswith("127.")
    assert is_local(f"http://{address}:8000")


def test_gpus_are_sampled_while_a_level_runs_and_summarised() -> None:
    counter = count(100, 25)
    driver = FakeNvml(gpus=2, energy_j=lambda at_ns: float(next(counter)), utilisation_pct=96)
    with sampled_gpus((0, 1), library=driver) as gpus:
        time.sleep(0.05)
    found = gpu_figures(gpus)
    assert [(one.device, one.utilisation_pct, one.most_memory_bytes) for one in found] == [
        ("NVIDIA H200", 96, 5_000_000_000)
    ] * 2
    grown = [(gpu.samples[-1].energy_j or 0.0) - (gpu.samples[0].energy_j or 0.0) for gpu in gpus]
    assert [one.energy_j for one in found] == grown and min(grown) > 0
    assert missing_samples(gpus) == ()


def test_a_driver_without_an_energy_counter_gives_the_integral_of_its_power() -> None:
    with sampled_gpus((0,), library=FakeNvml(power_w=lambda at_ns: 400.0)) as gpus:
        time.sleep(0.05)
    (found,) = gpu_figures(gpus)
    assert found.mean_power_w == pytest.approx(400.0)
    assert found.energy_j == pytest.approx(400.0 * (gpus[0].samples[-1].at_ns - gpus[0].samples[0].at_ns) / 1e9)


def test_gpus_that_cannot_be_sampled_are_reported_with_the_reason() -> None:
    with sampled_gpus((0, 1, 2), library=FakeNvml(init_code=9)) as gpus:
        pass
    assert gpu_figures(gpus) == ()
    assert missing_samples(gpus) == ("power and clocks could not be sampled: Driver Not Loaded",)
    with sampled_gpus((0, 1), library=FakeNvml(gpus=1)) as gpus:
        time.sleep(0.01)
    assert [one.device for one in gpu_figures(gpus)] == ["NVIDIA H200"]
    assert missing_samples(gpus) == ("power and clocks could not be sampled: the driver knows no GPU 1 (Not Found)",)


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
