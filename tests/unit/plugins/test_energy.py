"""Energy: meters that can be queried or say why not, and joules given to the phases they belong to."""

import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.plugin import CommandFailed, WorkloadSpan
from llm_perf_opt.plugins.energy import stage as energy_stage
from llm_perf_opt.plugins.energy.attribution import (
    counter_curve,
    fit_powers,
    lowest_power,
    phase_energies,
    power_curve,
)
from llm_perf_opt.plugins.energy.meters import (
    Metered,
    Places,
    Reading,
    amd_counters,
    looked_for,
    metering,
    rapl_counters,
)
from llm_perf_opt.plugins.energy.section import power_points
from llm_perf_opt.plugins.energy.stage import (
    EnergyConfig,
    _with_prompts,
    check,
    describe,
    energy_metrics,
    idle_power,
    steadiness_warnings,
    with_requests,
)
from llm_perf_opt.testing import plain_config, plain_host, scratch_context
from tests.support.fake_nvml import FakeNvml
from tests.support.ncu_run import H200

MS = 1_000_000
PREFILL_W, DECODE_W, REST_W, IDLE_W = 600.0, 320.0, 150.0, 80.0


def requests(count: int, *, prefill_ms: int = 12, decode_ms: int = 331, rest_ms: int = 24) -> list[WorkloadSpan]:
    """Requests after each other from second 1 on, as our own workload has them: 512 tokens in, 65 out."""
    found = []
    for number in range(count):
        start = 1_000 * MS + number * (prefill_ms + decode_ms + rest_ms) * MS
        edge, end = start + prefill_ms * MS, start + (prefill_ms + decode_ms) * MS
        found += [
            WorkloadSpan(name="request", start_ns=start, end_ns=end, tokens=65),
            WorkloadSpan(name="prefill", start_ns=start, end_ns=edge, tokens=512),
            WorkloadSpan(name="decode", start_ns=edge, end_ns=end, tokens=64),
        ]
    return found


def power_at(spans: list[WorkloadSpan], at_ns: int) -> float:
    for span in spans:
        if span.name != "request" and span.start_ns <= at_ns < span.end_ns:
            return PREFILL_W if span.name == "prefill" else DECODE_W
    inside = spans[0].start_ns <= at_ns <= spans[-1].end_ns
    return REST_W if inside else IDLE_W


def readings(
    spans: list[WorkloadSpan], *, refresh_ms: int, interval_ms: int = 10, lag_ms: int = 0, counter: bool = True
) -> list[Reading]:
    """A meter read every so often whose counter is refreshed more rarely, and is `lag_ms` old then."""
    end_ms = spans[-1].end_ns // MS + 500
    joules = [0.0]
    for at in range(end_ms):
        joules.append(joules[-1] + power_at(spans, at * MS) / 1e3)
    found = []
    for at in range(0, end_ms, interval_ms):
        shown = at - at % refresh_ms
        energy = round(joules[max(shown - lag_ms, 0)], 3)
        power = power_at(spans, at * MS)
        found.append(Reading(at_ns=at * MS, energy_j=energy if counter else None, power_w=power))
    return found


@pytest.mark.parametrize("lag_ms", [0, 40])
def test_short_phases_are_told_apart_by_what_each_refresh_holds(lag_ms: int) -> None:
    spans = requests(40)
    curve = counter_curve(readings(spans, refresh_ms=100, lag_ms=lag_ms))
    assert curve is not None and curve.period_s == pytest.approx(0.1)
    prefill, decode = phase_energies(curve, spans, ("prefill", "decode"))
    assert prefill.joules == pytest.approx(40 * 0.012 * PREFILL_W, rel=0.1)
    assert decode.joules == pytest.approx(40 * 0.331 * DECODE_W, rel=0.01)
    assert (prefill.count, prefill.tokens, decode.tokens) == (40, 40 * 512, 40 * 64)
    assert prefill.error_j is not None and prefill.error_j < 0.1 * 40 * 0.012 * PREFILL_W
    assert prefill.how.startswith("fitted over refreshes every 100 ms, ±")
    fit = fit_powers(curve, {name: [s for s in spans if s.name == name] for name in ("prefill", "decode")})
    # A reading sees a refresh up to an interval late, half of which is taken off.
    assert fit is not None and fit.lag_s == pytest.approx(lag_ms / 1e3, abs=0.011)


def test_an_age_of_the_counter_that_cannot_be_known_is_part_of_the_error() -> None:
    # Every 360 ms: only five ways in which a request can lie over refreshes, so several ages explain all of them.
    spans = requests(40, rest_ms=17)
    curve = counter_curve(readings(spans, refresh_ms=100, lag_ms=40))
    assert curve is not None
    (prefill, _) = phase_energies(curve, spans, ("prefill", "decode"))
    assert prefill.joules == pytest.approx(336.2, abs=0.1)
    assert prefill.joules is not None and prefill.error_j is not None
    assert abs(prefill.joules - 288.0) <= prefill.error_j


def test_long_phases_are_read_off_the_counter() -> None:
    spans = requests(3, prefill_ms=900, decode_ms=1400, rest_ms=100)
    curve = counter_curve(readings(spans, refresh_ms=20))
    assert curve is not None
    prefill, decode = phase_energies(curve, spans, ("prefill", "decode"))
    assert prefill.joules == pytest.approx(3 * 0.9 * PREFILL_W, rel=0.02)
    assert decode.joules == pytest.approx(3 * 1.4 * DECODE_W, rel=0.02)
    assert prefill.how == "meter at both ends, refreshed every 20 ms" and prefill.error_j is None


def test_a_phase_that_cannot_be_told_apart_has_a_reason_and_no_number() -> None:
    spans = requests(2)
    curve = counter_curve(readings(spans, refresh_ms=200))
    assert curve is not None
    (prefill,) = phase_energies(curve, spans, ("prefill",))
    assert prefill.joules is None and prefill.per_token is None
    assert prefill.reason is not None and prefill.reason.startswith(
        "it lasts 12.0 ms, the meter is refreshed every 200"
    )


def test_steps_that_follow_each_other_at_once_are_read_off_together() -> None:
    steps = [
        WorkloadSpan(
            name="decode", start_ns=1_000 * MS + i * 10 * MS, end_ns=1_000 * MS + i * 10 * MS + 9_990_000, tokens=2
        )
        for i in range(100)
    ]
    curve = counter_curve(readings(steps, refresh_ms=20))
    assert curve is not None
    (decode,) = phase_energies(curve, steps, ("decode",))
    assert decode.joules == pytest.approx(DECODE_W * 1.0, rel=0.03)
    assert decode.how.startswith("meter at both ends") and decode.tokens == 200


def test_without_a_counter_the_power_is_integrated() -> None:
    spans = requests(4, prefill_ms=200, decode_ms=800)
    told = readings(spans, refresh_ms=20, counter=False)
    assert counter_curve(told) is None
    curve = power_curve(told)
    assert curve is not None
    prefill, decode = phase_energies(curve, spans, ("prefill", "decode"))
    assert prefill.joules == pytest.approx(4 * 0.2 * PREFILL_W, rel=0.05)
    assert decode.joules == pytest.approx(4 * 0.8 * DECODE_W, rel=0.02)


def test_counter_and_trapezoids_check_each_other() -> None:
    spans = requests(20)
    told = readings(spans, refresh_ms=100)
    counter_j, trapezoid_j, why = check(counter_curve(told), power_curve(told), spans)
    assert why is None and counter_j is not None
    assert trapezoid_j == pytest.approx(counter_j, rel=0.05)
    # A meter that reads a tenth too much is detected.
    wrong = [replace(r, power_w=1.1 * (r.power_w or 0)) for r in told]
    _, too_much, _ = check(counter_curve(wrong), power_curve(wrong), spans)
    assert too_much == pytest.approx(1.1 * (trapezoid_j or 0))
    assert check(None, power_curve(told), spans)[2] == "the device has no counter"


def metered(spans: list[WorkloadSpan], **how: Any) -> Metered:
    return Metered(device="GPU", kind="gpu", energy_how="counter", power_how="power", readings=readings(spans, **how))


def idle_meter(watts: float = IDLE_W) -> Metered:
    told = [Reading(at_ns=i * 20 * MS, energy_j=i * 0.02 * watts, power_w=watts) for i in range(100)]
    return Metered(device="GPU", kind="gpu", readings=told)


def test_joules_per_token_are_of_whole_requests_and_idle_is_taken_off() -> None:
    spans = requests(4, prefill_ms=400, decode_ms=1600)
    document = describe([metered(spans, refresh_ms=20)], [idle_meter()], spans, EnergyConfig())
    metrics = energy_metrics(document, "energy/energy.json")
    request_j = 0.4 * PREFILL_W + 1.6 * DECODE_W
    expected = {
        "joules_per_token": request_j / 65,
        "joules_per_token_above_idle": (request_j - 2.0 * IDLE_W) / 65,
        "prefill_joules_per_token": 0.4 * PREFILL_W / 512,
        "prefill_joules_per_token_above_idle": 0.4 * (PREFILL_W - IDLE_W) / 512,
        "decode_joules_per_token": 1.6 * DECODE_W / 64,
        "decode_joules_per_token_above_idle": 1.6 * (DECODE_W - IDLE_W) / 64,
        "request_joules": request_j,
        "idle_power_w": IDLE_W,
        "mean_power_w": request_j / 2.0,
    }
    got = {name: metrics[name].value for name in expected}
    assert got == {name: pytest.approx(value, rel=0.03) for name, value in expected.items()}
    assert abs(float(metrics["energy_check_pct"].value or 0)) < 2.0
    assert metrics["joules_per_token"].how == "GPU, 4 spans, meter at both ends, refreshed every 20 ms"


def prompts_alone(count: int, *, prefill_ms: int = 12) -> list[WorkloadSpan]:
    starts = [1_000 * MS + i * (prefill_ms + 1) * MS for i in range(count)]
    return [WorkloadSpan(name="prefill", start_ns=t, end_ns=t + prefill_ms * MS, tokens=512) for t in starts]


def test_a_prefill_too_short_beside_decode_is_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans, alone = requests(2), prompts_alone(400)
    before = describe([metered(spans, refresh_ms=200)], [idle_meter()], spans, EnergyConfig())
    assert [row.joules for row in before.total if row.phase == "prefill"] == [None]
    asked: dict[str, Any] = {}

    def fake_workload(ctx: Any, **how: Any) -> Any:
        asked.update(how)
        return SimpleNamespace(spans=alone)

    monkeypatch.setattr(energy_stage, "metering", lambda *_, **__: nullcontext([metered(alone, refresh_ms=100)]))
    monkeypatch.setattr(energy_stage, "run_workload", fake_workload)
    ctx = scratch_context("energy", tmp_path)
    found, said = _with_prompts(before, [idle_meter()], spans, EnergyConfig(prompts_s=5.0), ctx)
    assert said == () and asked["stop_after_tokens"] == 1 and asked["repeats"] == 209
    metric = energy_metrics(found, "energy/energy.json")["prefill_joules_per_token"]
    # The power is that of the whole stretch: of every 13 ms, one is between two prompts.
    assert metric.value == pytest.approx(0.012 * (12 * PREFILL_W + REST_W) / 13 / 512, rel=0.01)
    assert (
        metric.how == "GPU, 400 spans, prompts alone, one after the other; meter at both ends, refreshed every 100 ms"
    )
    # The rest is what it was.
    others = [[row for row in d.total if row.phase != "prefill"] for d in (before, found)]
    assert others[0] == others[1]
    assert _with_prompts(before, [idle_meter()], spans, EnergyConfig(prompts_s=0.0), ctx) == (before, ())

    def failing(ctx: Any, **how: Any) -> Any:
        raise CommandFailed("the workload failed with exit code 1: no memory")

    monkeypatch.setattr(energy_stage, "run_workload", failing)
    kept, why = _with_prompts(before, [idle_meter()], spans, EnergyConfig(), ctx)
    assert kept == before and why[0].endswith("no memory")


def test_an_idle_power_above_that_of_the_work_is_not_taken_off() -> None:
    spans = requests(4, prefill_ms=400, decode_ms=1600)
    document = describe([metered(spans, refresh_ms=20)], [idle_meter(900.0)], spans, EnergyConfig())
    metrics = energy_metrics(document, "energy/energy.json")
    assert metrics["joules_per_token"].value is not None
    assert metrics["joules_per_token_above_idle"].value is None
    assert (metrics["idle_power_w"].reason or "").endswith("it was not idle")


def test_idle_power_is_the_lowest_second_and_not_taken_from_a_busy_device() -> None:
    falling = [Reading(at_ns=i * 20 * MS, energy_j=None, power_w=300.0 if i < 100 else 90.0) for i in range(250)]
    curve = power_curve(falling)
    assert curve is not None and lowest_power(curve, 1.0) == pytest.approx(90.0)
    busy = Metered(device="GPU", kind="gpu", readings=falling, details=[gpu_sample(i, busy=95) for i in range(9)])
    assert idle_power(busy) == (None, "the device was 95 % busy with other work before the workload was started")


def gpu_sample(
    i: int, *, clock: float = 1700.0, heat: float = 60.0, busy: float = 99, why: tuple[str, ...] = ()
) -> Any:
    from llm_perf_opt.plugin import ClockSample

    return ClockSample(
        at_ns=1_000 * MS + i * 10 * MS,
        sm_clock_mhz=clock,
        temperature_c=heat,
        utilisation_pct=busy,
        throttle_reasons=why,
    )


def test_clocks_temperature_and_throttling_that_moved_are_told() -> None:
    spans = requests(4, prefill_ms=400, decode_ms=1600)
    one = metered(spans, refresh_ms=20)
    one.details = [
        gpu_sample(i, clock=1700 - 3 * i, heat=50 + i / 5, why=("sw_power_cap",) if i >= 50 else ("gpu_idle",))
        for i in range(100)
    ]
    (device,) = describe([one], [idle_meter()], spans, EnergyConfig()).devices
    assert steadiness_warnings(device) == (
        "GPU: the SM clock moved from 1430 to 1673 MHz (p10 to p90)",
        "GPU: the temperature moved from 50 to 70 °C",
        "GPU: clocks were lowered by sw_power_cap in 50 % of the samples",
    )
    one.details = [gpu_sample(i) for i in range(100)]
    (steady,) = describe([one], [idle_meter()], spans, EnergyConfig()).devices
    assert steadiness_warnings(steady) == ()


def test_a_program_without_requests_has_them_from_prefill_to_prefill() -> None:
    prefill = [WorkloadSpan(name="prefill", start_ns=i * 100, end_ns=i * 100 + 20, tokens=8) for i in range(2)]
    steps = [WorkloadSpan(name="decode", start_ns=s, end_ns=s + 10, tokens=2) for s in (20, 30, 120, 130, 140)]
    found = [s for s in with_requests([*prefill, *steps]) if s.name == "request"]
    assert [(s.start_ns, s.end_ns, s.tokens) for s in found] == [(0, 40, 6), (100, 150, 8)]


def rapl(folder: Path, *, energy_uj: int = 5_000_000) -> Path:
    for name, label in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram")):
        (folder / name).mkdir(parents=True)
        (folder / name / "name").write_text(f"{label}\n")
        (folder / name / "max_energy_range_uj").write_text("262143328850\n")
        (folder / name / "energy_uj").write_text(f"{energy_uj}\n")
    return folder


def test_rapl_reads_packages_and_memory_and_survives_the_counters_end(tmp_path: Path) -> None:
    counters, why = rapl_counters(rapl(tmp_path, energy_uj=262_143_000_000))
    assert why is None
    assert [c.device for c in counters] == ["CPU package-0", "CPU package-0 dram"]
    assert counters[0].read() == (262_143.0, None)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1000000\n")
    assert counters[0].read() == (pytest.approx(262_143.32885 + 1.0), None)


def test_rapl_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rapl_counters(tmp_path) == ([], f"RAPL (no {tmp_path}/intel-rapl:* with a package)")
    rapl(tmp_path)
    read_text = Path.read_text

    def refuse(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refuse)
    counters, why = rapl_counters(tmp_path)
    assert counters == []
    assert why == f"RAPL ({tmp_path}/intel-rapl:0/energy_uj may be read by root alone: chmod a+r it, or run as root)"


class AmdSmiException(Exception):
    """As amdsmi raises it."""


def amdsmi(**answers: Any) -> Any:
    """What amdsmi 7.0 returns on an MI300X: a count in steps of many microjoules, and what is not known as N/A."""
    energy = {"energy_accumulator": 123_456_789, "counter_resolution": 15.3, "timestamp": 72_000_000_000}
    power = {"socket_power": 0, "current_socket_power": 312, "average_socket_power": "N/A", "power_limit": 750_000_000}

    def told(name: str, answer: Any) -> Any:
        def ask(handle: str) -> Any:
            if answers.get(name) == "unsupported":
                raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")
            return answers.get(name, answer)

        return ask

    return SimpleNamespace(
        AmdSmiException=AmdSmiException,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["gpu0", "gpu1"],
        amdsmi_get_energy_count=told("energy", energy),
        amdsmi_get_power_info=told("power", power),
    )


def test_amds_library_gives_joules_and_watts(tmp_path: Path) -> None:
    counters, why = amd_counters(tmp_path, library=amdsmi())
    assert why is None and [c.device for c in counters] == ["AMD GPU 0", "AMD GPU 1"]
    assert counters[0].read() == (pytest.approx(123_456_789 * 15.3e-6), 312.0)
    (older,), _ = amd_counters(
        tmp_path, which="cuda:1", library=amdsmi(energy={"power": 1000, "counter_resolution": 15.3, "timestamp": 1})
    )
    assert older.device == "AMD GPU 1" and older.read()[0] == pytest.approx(0.0153)
    (silent, _), _ = amd_counters(tmp_path, library=amdsmi(energy="unsupported"))
    assert silent.read() == (None, 312.0) and silent.energy_how == ""


def test_without_amd_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert amd_counters(tmp_path / "kfd") == ([], f"AMD's library (no {tmp_path}/kfd, so no GPU of AMD)")
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    counters, why = amd_counters(tmp_path)
    assert counters == [] and (why or "").startswith("AMD's library (the package amdsmi cannot be imported: ")


def test_every_meter_is_sampled_while_the_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(energy_j=lambda at_ns: at_ns / 1e9 * 200))
    ctx = scratch_context("energy", tmp_path / "run", host=plain_host(gpus=(H200,)))
    places = Places(powercap=rapl(tmp_path / "powercap"), kfd=tmp_path / "kfd")
    with metering(ctx, interval_s=0.005, places=places) as found:
        time.sleep(0.08)
    assert [(m.device, m.kind) for m in found] == [
        ("NVIDIA H200", "gpu"),
        ("CPU package-0", "cpu"),
        ("CPU package-0 dram", "cpu"),
    ]
    assert all(len(m.readings) > 5 for m in found)
    assert power_points(found[0].readings)[0][1] == 312.5
    curve = counter_curve(found[0].readings)
    assert curve is not None
    grown = (curve.joules[-1] - curve.joules[0]) / ((curve.at_ns[-1] - curve.at_ns[0]) / 1e9)
    assert grown == pytest.approx(200, rel=0.1)


def test_every_meter_is_read_once_more_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    ctx = scratch_context("energy", tmp_path / "run", host=plain_host(gpus=(H200,)))
    places = Places(powercap=rapl(tmp_path / "powercap"), kfd=tmp_path / "kfd")
    with metering(ctx, interval_s=30.0, places=places) as found:
        time.sleep(0.05)
        ended_ns = time.monotonic_ns()
    assert [len(meter.readings) for meter in found] == [2, 2, 2]
    assert all(meter.readings[-1].at_ns >= ended_ns for meter in found)


def test_where_nothing_tells_energy_all_that_was_looked_for_is_named(tmp_path: Path) -> None:
    ctx = scratch_context("energy", tmp_path / "run", config=plain_config(tmp_path))
    places = Places(powercap=tmp_path, kfd=tmp_path / "kfd")
    with metering(ctx, interval_s=0.01, places=places) as found:
        time.sleep(0.01)
    assert found == []
    assert looked_for(ctx, places) == (
        "NVIDIA's driver (no GPU of this run)",
        f"RAPL (no {tmp_path}/intel-rapl:* with a package)",
        f"AMD's library (no {tmp_path}/kfd, so no GPU of AMD)",
    )


def test_the_clocks_of_workload_and_meters_are_one() -> None:
    clocks = [time.get_clock_info(name).implementation for name in ("perf_counter", "monotonic")]
    assert clocks[0] == clocks[1]
    # Between the two readings another process may run.
    assert min(abs(time.perf_counter_ns() - time.monotonic_ns()) for _ in range(50)) < 5e7
