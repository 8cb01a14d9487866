"""Estimates: against what one H200 was measured to take, and the rules they are made of."""

import itertools
import json
import statistics
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.estimate.bands import EAGER, OWN, band_of
from llm_perf_opt.model.estimate.efficiency import MEASURED, TRANSFERRED, rates_of
from llm_perf_opt.model.estimate.engine_model import ENGINES
from llm_perf_opt.model.estimate.parallel import Layout, Wire, link_of
from llm_perf_opt.model.estimate.requests import (
    ArrivalRate,
    Load,
    forecast,
    forecast_arrivals,
    prompt_ms,
    tokens_per_check,
)
from llm_perf_opt.model.estimate.steps import Setting, shared_bound, step_estimate
from llm_perf_opt.model.hardware.hardware import load_catalogue
from llm_perf_opt.model.hardware.work import Dtypes, Step
from llm_perf_opt.planning.machine import parse_amd_smi, parse_rocm_smi
from tests.support.fixtures_dir import REPO
from tests.support.static_cases import preset_model

BF16 = Dtypes.uniform("bf16")
MEASUREMENTS = REPO / "benchmarks" / "results" / "prediction_gpu.json"


@cache
def catalogue() -> dict[str, HardwareSection]:
    return load_catalogue(conf_dir() / "hardware")


def hardware(name: str) -> HardwareSection:
    return catalogue()[name]


def setting(model: str = "llama3_8b", device: str = "h200", **changes: Any) -> Setting:
    return Setting(model=preset_model(f"causal_lm/arch/{model}"), dtypes=BF16, hardware=hardware(device), **changes)


def touched(model: str, engine: str, row: dict[str, Any]) -> float | None:
    """Experts a measured prompt hit, as benchmarks/routing.py found for its random weights."""
    routing = json.loads((REPO / "benchmarks" / "results" / "routing.json").read_text())
    if model != routing["model"]:
        return None
    found = routing.get(engine, {}).get(str(row["prompt"]))
    return None if found is None else float(found["mean"])


def errors(figure: str) -> list[float]:
    """Estimate over measurement less one: the GPU's busy time of both engines, the wall time of the graph."""
    found = []
    for part, rows in json.loads(MEASUREMENTS.read_text()).items():
        if not part.startswith("grid."):
            continue
        _, model, engine = part.split(".")
        for row in rows:
            step = Step(batch=row["batch"], new=row["prompt"] or 1, past=row["context"])
            hit = touched(model, engine, row)
            estimate = step_estimate(setting(model, engine=engine, touched=hit), step)
            assert estimate is not None and estimate.gpu_ms is not None
            if figure == "gpu":
                found.append(estimate.gpu_ms / (row["gpu_us"]["busy"] / 1e3) - 1)
            elif engine == "graph":
                found.append(estimate.mid_ms / (row["wall_us"]["median"] / 1e3) - 1)
    return found


def test_gpu_times_are_within_ten_percent_in_the_middle() -> None:
    found = errors("gpu")
    assert len(found) == 54
    assert statistics.median(map(abs, found)) <= 0.10


def test_wall_times_of_graphs_are_within_twelve_percent_and_nine_of_ten_in_the_band() -> None:
    found = errors("wall")
    assert len(found) == 27
    assert statistics.median(map(abs, found)) <= 0.12
    inside = [e for e in found if 1 / OWN.slower <= 1 + e <= OWN.faster]
    assert len(inside) >= 0.9 * len(found)


def test_rates_are_measured_where_they_were_and_transferred_elsewhere() -> None:
    h200, a100 = rates_of(hardware("h200")), rates_of(hardware("a100_80gb"))
    assert h200 is not None and a100 is not None
    assert (h200.label, a100.label) == (MEASURED, TRANSFERRED)
    assert a100.ceilings.flops_per_s["bf16"] == pytest.approx(312e12 * 0.828)
    assert rates_of(hardware("apple_m3")) is None


def test_an_estimate_is_never_below_the_bound_whatever_is_given() -> None:
    """A device said to reach ten times its data sheet."""
    own = replace(hardware("h200"), achieved_tflops={"bf16": 9894.0}, achieved_bandwidth_gb_s=48000.0)
    for step in (Step(batch=1, new=1, past=1024), Step(batch=1, new=4096, past=0)):
        sane = step_estimate(setting(engine="server"), step)
        odd = step_estimate(replace(setting(engine="server"), hardware=own), step)
        assert sane is not None and odd is not None
        bound = {1: 3.155, 4096: 62.23}[step.new]
        assert odd.low_ms == pytest.approx(bound, rel=0.02)
        assert odd.low_ms <= odd.mid_ms < sane.mid_ms


def test_two_devices_are_faster_than_one_and_slower_than_half() -> None:
    step = Step(batch=8, new=1, past=1024)
    one, two = (step_estimate(setting(engine="server", layout=Layout(tp=n)), step) for n in (1, 2))
    assert one is not None and two is not None
    assert one.mid_ms / 2 < two.mid_ms < one.mid_ms


def test_an_all_reduce_moves_its_bytes_twice_over_the_slower_direction() -> None:
    wire = Wire(bytes_per_s=450e9, start_us=8.0, share=0.75)
    # 100 MB among 4: three quarters there and back at three quarters of 450 GB/s, and the start.
    assert wire.all_reduce_us(100e6, 4) == pytest.approx(8.0 + 2 * 75e6 / (450e9 * 0.75) * 1e6)
    assert (link_of(hardware("h200")).bytes_per_s, link_of(hardware("l40s")).start_us) == (450e9, 20.0)


def test_drafts_yield_the_run_of_kept_tokens_and_one_more() -> None:
    assert tokens_per_check(0.0, 4) == 1
    assert tokens_per_check(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert tokens_per_check(1.0, 4) == 5


def test_littles_law_holds_over_layouts_loads_and_engines() -> None:
    """Requests in flight are requests per second times the seconds of one, however they are spread."""
    seen = 0
    for tp, pp, dp, concurrency, output, places, engine in itertools.product(
        (1, 2), (1, 2, 8), (1, 3), (1, 2, 7, 300), (1, 2, 256), (None, 4), ("server", "graph")
    ):
        layout = Layout(tp=tp, pp=pp, dp=dp)
        load = Load(prompt=512, output=output, concurrency=concurrency, places=places)
        found = forecast(setting(engine=engine, layout=layout), load)
        assert found is not None
        seen += 1
        per_s = found.output_tokens_per_s / output
        assert per_s * found.request_ms / 1e3 == pytest.approx(concurrency)
        assert found.request_ms == pytest.approx(found.ttft_ms + (output - 1) * found.tpot_ms)
        assert found.ttft_ms <= found.ttft_p95_ms
        assert found.slowest_tokens_per_s < found.output_tokens_per_s <= found.fastest_tokens_per_s
    assert seen == 2 * 3 * 2 * 4 * 3 * 2 * 2


def test_a_pipeline_serves_one_request_no_faster_than_one_device() -> None:
    alone = Load(prompt=1024, output=256)
    one, eight = (forecast(setting("llama3_70b", engine="server", layout=Layout(pp=n)), alone) for n in (1, 8))
    assert one is not None and eight is not None
    assert 0.8 * one.output_tokens_per_s < eight.output_tokens_per_s <= one.output_tokens_per_s
    # Many requests fill the stages, less what micro-batches and bubbles cost.
    many = Load(prompt=1024, output=256, concurrency=512)
    full, staged = (forecast(setting("llama3_70b", engine="server", layout=Layout(pp=n)), many) for n in (1, 8))
    assert full is not None and staged is not None
    assert 1.5 < staged.output_tokens_per_s / full.output_tokens_per_s < 7


def test_arrivals_fill_the_engine_until_it_cannot_keep_up() -> None:
    server = setting(engine="server")
    load = Load(prompt=1024, output=128)
    rates = [forecast_arrivals(server, load, ArrivalRate(per_s=rate)) for rate in (0.1, 5, 20, 30)]
    firsts = [(found.ttft_ms, found.ttft_p95_ms, found.tpot_ms, found.in_flight) for found in rates if found]
    assert len(firsts) == 4
    assert firsts == sorted(firsts)
    for found, rate in zip(rates, (0.1, 5, 20, 30), strict=True):
        assert found is not None
        assert found.in_flight == pytest.approx(rate * found.request_ms / 1e3)
        assert found.output_tokens_per_s == pytest.approx(rate * 128)
    assert forecast_arrivals(server, load, ArrivalRate(per_s=200)) is None
    # Two replicas take twice the arrivals in the same time.
    twice = forecast_arrivals(setting(engine="server", layout=Layout(dp=2)), load, ArrivalRate(per_s=40))
    assert twice is not None and rates[2] is not None
    assert twice.ttft_p95_ms == pytest.approx(rates[2].ttft_p95_ms)
    bursts = forecast_arrivals(server, load, ArrivalRate(per_s=20, burstiness=0.25))
    assert bursts is not None and bursts.ttft_p95_ms > rates[2].ttft_p95_ms


def test_the_band_ends_at_the_bound_and_at_what_arrives() -> None:
    alone = Load(prompt=128, output=256)
    for device, layout in itertools.product(("rtx4090", "h100_sxm"), (Layout(), Layout(tp=2), Layout(pp=4))):
        case = setting(device=device, engine="server", layout=layout)
        found = forecast(case, alone)
        token = shared_bound(case, Step(batch=1, new=1, past=128 + 128))
        assert found is not None and token is not None
        # One request: its tokens follow each other on any layout.
        assert found.fastest_tokens_per_s <= 256 / (255 * token.ms / 1e3)
    server, load = setting(engine="server"), Load(prompt=1024, output=128)
    easy, hard = (forecast_arrivals(server, load, ArrivalRate(per_s=rate)) for rate in (5, 30))
    assert easy is not None and hard is not None
    assert easy.slowest_tokens_per_s == easy.fastest_tokens_per_s == pytest.approx(5 * 128)
    assert hard.slowest_tokens_per_s < hard.fastest_tokens_per_s == pytest.approx(30 * 128)


def test_in_eager_mode_requests_may_take_much_longer_than_the_measured_rates_say() -> None:
    found = [forecast(setting(engine=engine), Load(prompt=1024, output=64)) for engine in ("graph", "eager")]
    assert [one and one.band.slower for one in found] == [OWN.slower, EAGER.slower]


def test_requests_in_flight_share_steps_and_prompts() -> None:
    load = Load(prompt=1024, output=256, concurrency=16)
    found = forecast(setting(engine="server"), load)
    first = prompt_ms(setting(engine="server"), load)
    step = step_estimate(setting(engine="server"), Step(batch=16, new=1, past=1024 + 128))
    assert found is not None and first is not None and step is not None
    # Eight prompts fit into one forward of 8192 tokens.
    eight = prompt_ms(setting(engine="server"), replace(load, chunk=None), batch=8)
    assert eight is not None and eight < 8 * first
    host = ENGINES["server"].host
    arrival = host.arrival_ms + host.prompt_token_us * 1024 / 1e3
    # While one request runs, each of the other fifteen has its prompt worked in once.
    each = eight / 8 + host.request_us / 1e3
    whole = arrival + first + host.request_us / 1e3 + 15 * each + 255 * step.mid_ms
    assert found.request_ms == pytest.approx(whole)
    assert found.output_tokens_per_s == pytest.approx(16 * 256 / whole * 1e3)
    assert found.tpot_ms == pytest.approx((whole - found.ttft_ms) / 255)
    assert found.cost is None
    priced = replace(setting(engine="server"), hardware=replace(hardware("h200"), price_per_hour=3.6))
    twice = forecast(replace(priced, layout=Layout(dp=2)), replace(load, concurrency=32))
    assert twice is not None and twice.cost is not None
    # Two replicas cost twice as much and yield twice as much.
    assert twice.output_tokens_per_s == pytest.approx(2 * found.output_tokens_per_s)
    assert twice.cost == pytest.approx(1e6 * 3.6 / 3600 / found.output_tokens_per_s)


def test_a_cached_prefix_shortens_the_prompt_and_drafts_the_tokens() -> None:
    plain, hit = (prompt_ms(setting(), Load(prompt=4096, output=1, prefix_hit=share)) for share in (0.0, 0.5))
    assert plain is not None and hit is not None
    assert 0.4 * plain < hit < 0.7 * plain
    slow, fast = (forecast(setting(engine="server"), Load(prompt=1024, output=64, acceptance=a)) for a in (None, 0.8))
    assert slow is not None and fast is not None
    assert fast.tpot_ms < slow.tpot_ms


def test_gpus_of_amd_are_read_from_both_tools() -> None:
    new = [
        {"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"}, "vram": {"size": {"value": 196592, "unit": "MB"}}}
    ]
    old = {"card0": {"Card Series": "AMD Instinct MI300X OAM", "VRAM Total Memory (B)": "206141652992"}}
    for found in (parse_amd_smi(json.dumps(new)), parse_rocm_smi(json.dumps(old))):
        assert found is not None
        assert (found.name, found.memory_bytes) == ("AMD Instinct MI300X", 206_141_652_992)
    assert parse_amd_smi("no JSON") is None


def test_rates_of_other_makers_are_lower_or_their_band_is_wider() -> None:
    amd, nvidia = rates_of(hardware("mi300x")), rates_of(hardware("h200"))
    assert amd is not None and nvidia is not None
    assert amd.ceilings.flops_per_s["bf16"] == pytest.approx(1307.4e12 * 0.828 * 0.6)
    assert amd.ceilings.bytes_per_s == pytest.approx(5300e9 * 0.8)
    assert link_of(hardware("mi300x")).share < link_of(hardware("h100_sxm")).share
    model = preset_model("causal_lm/arch/llama3_8b")
    bands = [band_of(model, "server", Layout(), hardware(name)) for name in ("h100_sxm", "mi300x", "trainium2")]
    assert [band.slower for band in bands] == sorted({band.slower for band in bands})
    assert "AMD" in bands[1].why and "NVIDIA" in bands[2].why
