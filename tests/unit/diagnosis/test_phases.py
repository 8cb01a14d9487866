"""Causes in clean phases: what is claimed, the lower bound, the gain."""

from dataclasses import replace
from typing import Any

import pytest

from llm_perf_opt.core.documents import ClockDocument, ClockSample, Deployment
from llm_perf_opt.core.records import Spread
from llm_perf_opt.diagnosis.facts import ClockFacts, Known, PhaseFacts, Quantity, RunFacts, Unknown
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.diagnosis.run import diagnose_run
from llm_perf_opt.report.run_facts import clock_facts
from llm_perf_opt.report.view.findings import findings_view, gain_of, saved_in_request_ms
from llm_perf_opt.report.view.headline import best_finding
from tests.support.report_facts import (
    NO_MEMORY,
    bound,
    busy_decode,
    facts,
    gpu,
    idle,
    kernel,
    ms,
    ncu,
    phase,
    size,
    whole,
)

GEMM = kernel("nvjet_tst_64x8", "GEMM", 0.8, 32)
REST = kernel("flash_fprop", "attention", 0.2, 16)


def found_in(run: RunFacts) -> dict[str, Finding]:
    """The findings of a run by cause; each cause once."""
    findings = diagnose_run(run, None).claims
    assert len({(f.rule, f.phase) for f in findings}) == len(findings)
    return {f.rule: f for f in findings}


def measured(**values: Any) -> RunFacts:
    """A decode step of one GEMM, measured by ncu, and something else."""
    return busy_decode(GEMM, REST, kernels=(whole(GEMM, ncu(GEMM.name, **values)), whole(REST)))


def test_a_step_that_mostly_waits_for_launches_is_launch_bound() -> None:
    decode = phase(wall=ms(15.0), gpu=gpu(2.0, wall=23.0, idle=idle(host=21.0), count=694))
    found = found_in(facts(decode))["launch_bound"]
    assert found.title == "Launch-bound decode: GPU idle 87 % of each step"
    assert (found.saves_ms, found.max_gain) == (pytest.approx(13.0), pytest.approx(7.5))
    assert (found.phase, found.confidence, found.caveat, found.floor_ns) == ("decode", "high", None, 0)
    assert [e.source for e in found.cited] == ["nsys/analysis.json", "nsys/analysis.json"]
    assert found.evidence[1] == "694 kernels of 2.9 µs on average, one launched every 21.6 µs"


def test_a_step_that_is_a_graph_gets_advice_for_graphs() -> None:
    replayed = replace(gpu(2.0, wall=23.0, idle=idle(host=21.0), count=694), is_graph=True)
    found = found_in(facts(phase(wall=ms(15.0), gpu=replayed)))["launch_bound"]
    assert "torch.cuda.graph" not in found.remedy
    assert found.hint == "Larger graphs or a larger batch"


def test_a_prefill_next_to_replayed_steps_gets_advice_of_its_own() -> None:
    prefill = phase("prefill", wall=ms(78.0), gpu=gpu(29.0, wall=100.0, idle=idle(host=70.0)))
    graphs = Deployment(cache="static", compile="reduce-overhead")
    assert found_in(facts(prefill, deployment=graphs))["launch_bound"].hint == "Compiling the prefill"
    assert found_in(facts(prefill, deployment=Deployment()))["launch_bound"].hint == "CUDA graphs or torch.compile"


def test_gaps_too_long_for_a_launch_are_host_work() -> None:
    split = replace(idle(host=21.0), long_gaps_ns=14_000_000)
    found = found_in(facts(phase(wall=ms(15.0), gpu=gpu(2.0, wall=23.0, idle=split, count=694))))
    assert "launch_bound" not in found
    assert found["host_work"].saves_ms == pytest.approx(13.0 * 14 / 21)
    # The part that must remain is not known: no factor.
    assert found["host_work"].max_gain is None


def test_one_instance_is_never_certain() -> None:
    once = replace(gpu(0.1, wall=23.0, idle=idle(host=22.9), count=694), instances=1)
    assert found_in(facts(phase(wall=ms(15.0), gpu=once)))["launch_bound"].confidence == "medium"


@pytest.mark.parametrize(
    "decode",
    [
        phase(wall=ms(2.5), gpu=gpu(2.0, wall=23.0, idle=idle(host=21.0), count=694)),
        phase(wall=ms(15.0), gpu=gpu(2.0, wall=23.0, idle=idle(host=21.0), count=5)),
        phase(wall=ms(15.0), gpu=gpu(2.0, wall=23.0, idle=idle(sync=21.0), count=694)),
        phase(gpu=gpu(2.0, wall=23.0, idle=idle(host=21.0), count=694)),
        phase(wall=ms(15.0)),
    ],
    ids=["busy", "few kernels", "waits for something else", "no clean time", "no capture"],
)
def test_a_step_is_not_launch_bound_otherwise(decode: PhaseFacts) -> None:
    assert "launch_bound" not in found_in(facts(decode))


def test_a_step_that_waits_in_synchronization_and_copies_has_two_causes() -> None:
    decode = phase(wall=ms(10.0), gpu=gpu(4.0, wall=12.0, idle=idle(host=2.0, sync=4.0, copy=2.0)))
    found = found_in(facts(decode))
    # The copy is the device's own time; the four milliseconds left are shared two to four by host and wait.
    assert found["wait_bound"].saves_ms == pytest.approx(4.0 * 4 / 6, rel=1e-5)
    assert found["exposed_memcpy"].saves_ms == pytest.approx(2.0)
    hardly = phase(wall=ms(10.0), gpu=gpu(4.0, wall=12.0, idle=idle(host=7.9, sync=0.1)))
    assert "wait_bound" not in found_in(facts(hardly))


@pytest.mark.parametrize(
    ("decode", "saves_ms"),
    [
        (phase(wall=ms(5.0), gpu=gpu(4.0, wall=5.1, idle=idle(between=1.0), count=1000)), 1.0),
        # Three captured milliseconds cannot all lie in two idle ones.
        (phase(wall=ms(10.0), gpu=gpu(8.0, wall=11.0, idle=idle(between=3.0), count=1000)), 2.0),
        # What only the capture shows is not lost in the clean time.
        (phase(wall=ms(10.0), gpu=gpu(9.5, wall=12.5, idle=idle(between=3.0), count=1000)), None),
        (phase(wall=ms(10.0), gpu=gpu(10.5, wall=13.5, idle=idle(between=3.0), count=1000)), None),
        (phase(wall=ms(5.0), gpu=gpu(4.7, wall=5.1, idle=idle(between=0.3), count=1000)), None),
    ],
)
def test_gaps_between_queued_kernels(decode: PhaseFacts, saves_ms: float | None) -> None:
    found = found_in(facts(decode)).get("kernel_gaps")
    assert (None if found is None else found.saves_ms) == (None if saves_ms is None else pytest.approx(saves_ms))


def test_time_outside_operators_on_a_cpu() -> None:
    found = found_in(facts(phase(wall=ms(10.0), operators=ms(6.0), is_cpu=True), is_cpu=True))["framework_overhead"]
    assert (found.title, found.saves_ms) == ("Framework overhead: 40 % of each step outside operators", 4.0)
    assert found.max_gain == pytest.approx(10 / 6)
    assert "framework_overhead" not in found_in(facts(phase(wall=ms(10.0), operators=ms(9.5), is_cpu=True)))
    assert "framework_overhead" not in found_in(facts(phase(wall=ms(10.0), operators=ms(5.0))))


def test_a_program_that_does_something_else_is_not_advised_to_compile() -> None:
    decode = phase(wall=ms(10.0), operators=ms(1.0), is_cpu=True, between_operators_ms=4.5)
    found = found_in(facts(decode, is_cpu=True))
    assert "framework_overhead" not in found
    assert (found["outside_operators"].saves_ms, found["outside_operators"].max_gain) == (9.0, None)
    assert "torch.compile" not in found["outside_operators"].remedy


def test_kernels_far_above_the_bound_with_their_classes() -> None:
    decode = phase(wall=ms(1.2), achievable=bound(0.4), gpu=gpu(1.0, wall=1.2, kernels=(GEMM, REST)))
    found = found_in(facts(decode))["above_bound"]
    assert found.title == "Decode kernels take 2.5× the lower bound"
    assert (found.saves_ms, found.max_gain) == (pytest.approx(0.6), pytest.approx(2.0))
    assert (found.floor_ns, found.caveat) == (400_000, None)
    assert found.evidence[1] == "kernels 1.000 ms: GEMM 0.800 ms, attention 0.200 ms"
    near = phase(wall=ms(1.2), achievable=bound(0.9), gpu=gpu(1.0, wall=1.2, kernels=(GEMM, REST)))
    assert "above_bound" not in found_in(facts(near))


def test_slow_operators_on_a_cpu() -> None:
    slow = phase(wall=ms(10.0), achievable=bound(1.0), operators=ms(8.0), is_cpu=True)
    found = found_in(facts(slow, is_cpu=True))["above_bound"]
    assert (found.saves_ms, found.max_gain, found.confidence) == (7.0, pytest.approx(10 / 3), "low")
    fast = phase(wall=ms(10.0), achievable=bound(7.0), operators=ms(8.0), is_cpu=True)
    assert "above_bound" not in found_in(facts(fast, is_cpu=True))


def test_kernel_time_that_the_host_hides_saves_nothing() -> None:
    decode = phase(
        wall=ms(15.0), achievable=bound(0.4), gpu=gpu(1.0, wall=20.0, idle=idle(host=19.0), kernels=(GEMM, REST))
    )
    assert list(found_in(facts(decode))) == ["launch_bound"]


def test_memory_bound_kernels_near_and_far_from_the_roofline() -> None:
    near = found_in(measured(bound="memory", memory_roof_pct=90.0))["memory_bound_near"]
    assert near.title == "Memory-bound kernels near the memory roofline: 80 % of kernel time in decode"
    assert (near.saves_ms, near.cited[0].source) == (pytest.approx(0.08), "ncu/kernels.json")
    far = found_in(measured(bound="memory", memory_roof_pct=25.0))["memory_bound_far"]
    assert far.saves_ms == pytest.approx(0.6)


@pytest.mark.parametrize(
    "values",
    [
        {"bound": "compute", "memory_roof_pct": 90.0},
        {"bound": "memory", "memory_roof_pct": 60.0},
        {"bound": "memory", "memory_roof_pct": 90.0, "ranges": ("prefill",)},
    ],
    ids=["compute-bound", "neither near nor far", "measured in another phase"],
)
def test_other_kernels_are_not_called_memory_bound(values: dict[str, Any]) -> None:
    assert not {"memory_bound_near", "memory_bound_far"} & found_in(measured(**values)).keys()


def test_gemms_of_less_than_one_wave_are_small() -> None:
    found = found_in(measured(waves_per_sm=0.24, roof_pct=25.0))["small_gemm"]
    assert found.saves_ms == pytest.approx(0.6)
    assert found.evidence[0] == "`nvjet_tst_64x8`: 0.800 ms in 32 launches of 25.0 µs, 0.24 waves of blocks"
    # One that moves bytes as fast as the memory can does not get faster by being larger.
    assert "small_gemm" not in found_in(measured(waves_per_sm=0.97, roof_pct=81.0))
    assert "small_gemm" not in found_in(measured(waves_per_sm=3.0))


def test_short_gemms_are_small_without_ncu_and_promise_nothing() -> None:
    found = found_in(busy_decode(kernel("nvjet_a", "GEMM", 0.8, 200), REST))["small_gemm"]
    assert (found.confidence, found.max_gain) == ("low", None)
    assert "small_gemm" not in found_in(busy_decode(GEMM, REST))


def test_many_elementwise_kernels_should_be_fused() -> None:
    chain = kernel("vectorized_elementwise_kernel[Mul]", "elementwise", 0.5, 120)
    found = found_in(busy_decode(GEMM, chain, wall=1.4))["unfused_elementwise"]
    assert found.title == "Unfused elementwise kernels: 38 % of kernel time in decode"
    # Without the chains of a capture it is not known what fused kernels would still read and write.
    assert (found.saves_ms, found.max_gain) == (pytest.approx(0.5), None)
    few = kernel("vectorized_elementwise_kernel[Mul]", "elementwise", 0.5, 20)
    cheap = kernel("vectorized_elementwise_kernel[Mul]", "elementwise", 0.05, 120)
    assert "unfused_elementwise" not in found_in(busy_decode(GEMM, few))
    assert "unfused_elementwise" not in found_in(busy_decode(GEMM, cheap))


def test_low_occupancy_names_its_limiter_and_the_fix_for_it() -> None:
    low = {"occupancy_pct": 12.0, "compute_sol_pct": 20.0, "memory_sol_pct": 25.0}
    found = found_in(measured(**low, occupancy_limiter="registers", waves_per_sm=4.0))["low_occupancy"]
    assert found.evidence[0].endswith("occupancy 12 %, limited by registers")
    assert found.remedy.startswith("use fewer registers per thread")
    assert found.saves_ms == pytest.approx(0.6)
    small = found_in(measured(**low, occupancy_limiter="registers", waves_per_sm=0.5, roof_pct=90.0))["low_occupancy"]
    assert small.remedy.startswith("launch more blocks")


@pytest.mark.parametrize(
    "values",
    [
        {"occupancy_pct": 12.0, "compute_sol_pct": 80.0, "memory_sol_pct": 10.0},
        {"occupancy_pct": 70.0, "compute_sol_pct": 20.0, "memory_sol_pct": 25.0},
        {"occupancy_pct": 12.0},
        {"occupancy_pct": 12.0, "memory_sol_pct": 25.0},
        {},
    ],
)
def test_a_kernel_near_its_roofline_or_not_measured_needs_no_occupancy(values: dict[str, Any]) -> None:
    assert "low_occupancy" not in found_in(measured(**values))


def test_decode_that_reads_weights_alone_could_read_narrower_ones() -> None:
    kernels = (kernel("nvjet", "GEMM", 1.6, 32),)
    decode = phase("decode", wall=ms(2.0), gpu=gpu(1.6, wall=2.0, kernels=kernels), bytes=size(2.5e9), limit="memory")
    memory = replace(NO_MEMORY, kv_read_per_step=size(0.1e9), weight_dtype="bf16")
    found = found_in(facts(decode, memory=memory))["weight_reads"]
    assert found.title == "Weight reads: 2.40 GB of bf16 weights in each decode step, 96 % of its bytes"
    assert (found.saves_ms, found.max_gain) == (pytest.approx(0.8), pytest.approx(2 / 1.2))
    for other in (
        facts(decode, memory=replace(memory, weight_dtype="fp8")),
        facts(decode, memory=replace(memory, kv_read_per_step=size(2e9))),
        facts(replace(decode, limit="compute"), memory=memory),
    ):
        assert "weight_reads" not in found_in(other)


def test_an_input_that_takes_long_to_prepare_comes_first() -> None:
    phases = (phase("prefill", wall=ms(60.0)), phase(wall=ms(3.0)))
    made = facts(*phases, request_ms=300.0, prepare=replace(ms(210.0), spread=Spread(p10=200.0, p90=220.0, n=3)))
    found = diagnose_run(made, None).claims[0]
    assert found.title == "Input preparation on the host: 70 % of a request"
    assert (found.rule, found.confidence, saved_in_request_ms(found, made)) == ("preparation", "high", 210.0)
    assert (found.max_gain, gain_of((found,), made)) == (None, "")
    assert found.evidence[1] == (
        "prepared ahead by one worker, sequential requests would be served up to 1.43× as fast"
    )
    (shown,) = findings_view((found,), made)
    assert (shown.saves, shown.saves_each, shown.phase) == ("up to 210.0 ms per request", "", "request")


def test_on_a_cpu_nothing_prepares_ahead() -> None:
    found = found_in(facts(phase(wall=ms(3.0)), request_ms=300.0, prepare=ms(90.0), is_cpu=True))["preparation"]
    text = " ".join((found.title, found.remedy, found.caveat or "", *found.evidence))
    assert "ahead" not in text and "GPU" not in text


@pytest.mark.parametrize(
    ("prepare", "request_ms"), [(ms(29.0), 300.0), (ms(210.0), None), (Unknown(reason="not timed"), 300.0)]
)
def test_an_input_that_is_ready_soon_or_not_timed_is_no_finding(prepare: Quantity, request_ms: float | None) -> None:
    run = facts(phase(wall=ms(3.0)), request_ms=request_ms, prepare=prepare)
    assert found_in(run) == {}


def test_the_verdict_is_about_what_loses_most_and_about_nothing_uncertain() -> None:
    # A prefill seen once that could save more is a guess; the steps were seen often.
    seen_once = replace(gpu(30.0, wall=90.0, idle=idle(host=60.0)), instances=1)
    made = facts(
        phase("prefill", wall=ms(90.0), achievable=bound(30.0), gpu=seen_once),
        phase("decode", wall=ms(9.0), achievable=bound(4.0), gpu=gpu(4.0, wall=9.0, idle=idle(host=5.0))),
    )
    best = best_finding(diagnose_run(made, None).claims, made)
    assert best is not None and (best.rule, best.phase) == ("launch_bound", "decode")


def test_a_cache_that_dominates_the_reads_of_a_step() -> None:
    memory = replace(
        NO_MEMORY, kv_read_per_step=size(4e9), kv_per_token=size(131072), kv_cache=size(4e9), kv_dtype="bf16"
    )
    kernels = (kernel("flash_fprop", "attention", 6.0, 16), kernel("nvjet", "GEMM", 3.0, 16))
    decode = phase(wall=ms(10.0), bytes=size(8e9), gpu=gpu(9.0, wall=10.0, kernels=kernels))
    found = found_in(facts(decode, memory=memory, bytes_per_s=1e12))["kv_growth"]
    assert found.title == "KV cache: 50 % of the bytes a decode step reads"
    # Four milliseconds of attention read the cache; half of them remain.
    assert (found.saves_ms, found.floor_ns, found.max_gain) == (
        pytest.approx(2.0),
        2_000_000,
        pytest.approx(10 / 8),
    )
    assert found.evidence[-1] == "each token adds 131,072 bytes"
    assert found.remedy.startswith("shrink the cache: fp8 or int8 instead of 16 bits")


def test_a_cache_that_fills_the_memory_promises_no_time() -> None:
    memory = replace(NO_MEMORY, kv_cache=size(5e10), capacity=size(8e10), kv_per_token=size(131072))
    decode = phase(wall=ms(10.0), bytes=size(8e9), gpu=gpu(9.0, wall=10.0, kernels=(GEMM, REST)))
    found = found_in(facts(decode, memory=memory, context=400_000, batch=1))["kv_growth"]
    assert found.title == "KV cache: 62 % of the GPU's memory at 400,000 tokens and batch 1"
    assert (found.saves_ms, found.max_gain) == (None, None)
    unsized = found_in(facts(decode, memory=memory, context=None, batch=None))["kv_growth"]
    assert unsized.title == "KV cache: 62 % of the GPU's memory"
    assert unsized.evidence[0] == "the cache fills 62 % of the memory"
    small = replace(NO_MEMORY, kv_read_per_step=size(1e8), kv_cache=size(1e8), capacity=size(8e10))
    assert "kv_growth" not in found_in(facts(decode, memory=small, bytes_per_s=1e12))


def clocks(*mhz: float, reasons: dict[str, int] | None) -> ClockFacts:
    return ClockFacts(
        sm_clock_mhz=mhz,
        max_sm_clock_mhz=1980,
        throttle_reasons=reasons,
        samples=100,
        idle_samples=0,
        source="torch_profiler/gpu_samples.json",
    )


def test_memory_the_allocator_keeps_and_cannot_use() -> None:
    memory = replace(NO_MEMORY, reserved=size(12e9), allocated=size(8e9))
    found = found_in(facts(memory=memory))["fragmentation"]
    assert (found.saves_ms, found.max_gain, found.share) == (None, None, None)
    assert found.title == "Allocator fragmentation: 4.00 GB of GPU memory reserved and unused"
    # Rounding of the allocator, a small model, and a run without a sampler.
    for kept, used in ((12e9, 10.5e9), (1e9, 0.3e9)):
        assert found_in(facts(memory=replace(memory, reserved=size(kept), allocated=size(used)))) == {}
    assert found_in(facts(memory=NO_MEMORY)) == {}


def test_a_throttled_gpu() -> None:
    found = found_in(facts(clocks=clocks(1200, 1200, 1980, reasons={"sw_thermal_slowdown": 40})))["throttling"]
    assert found.evidence == (
        "sw_thermal_slowdown: in 40 of 100 samples of a working GPU",
        "median SM clock 1,200 MHz of 1,980 MHz (0 idle samples left out)",
    )
    assert found.confidence == "high"
    for fine in (
        clocks(345, 345, reasons={"gpu_idle": 90}),
        clocks(1980, reasons={"sw_power_cap": 1}),
        clocks(1200, reasons=None),
    ):
        assert found_in(facts(clocks=fine)) == {}


def sampled(*runs: tuple[int, int, tuple[str, ...] | None, int | None]) -> ClockFacts:
    """A file of samples: how many, at which clock, with which reasons and utilisation."""
    samples = [
        ClockSample(at_ns=0, sm_clock_mhz=mhz, throttle_reasons=reasons, utilisation_pct=busy)
        for count, mhz, reasons, busy in runs
        for _ in range(count)
    ]
    file = ClockDocument(device="NVIDIA H200", interval_ms=100.0, samples=tuple(samples), max_sm_clock_mhz=1980)
    return clock_facts(file, "torch_profiler/gpu_samples.json")


@pytest.mark.parametrize(
    "loading",
    [(60, 345, ("gpu_idle",), None), (60, 345, (), 0)],
    ids=["the driver calls it idle", "nothing ran"],
)
def test_the_clock_of_a_gpu_that_waits_for_the_model_to_load_is_no_throttling(
    loading: tuple[int, int, tuple[str, ...], int | None],
) -> None:
    run = facts(clocks=sampled(loading, (34, 1980, (), 95), (6, 1980, ("sw_power_cap",), 95)))
    found = found_in(run)["throttling"]
    assert found.evidence == (
        "sw_power_cap: in 6 of 40 samples of a working GPU",
        "median SM clock 1,980 MHz of 1,980 MHz (60 idle samples left out)",
    )
    assert found.confidence == "medium"
    assert found_in(facts(clocks=sampled(loading, (40, 1980, (), 95)))) == {}
    assert found_in(facts(clocks=sampled(loading))) == {}


def test_reasons_the_driver_never_gave_are_not_known() -> None:
    assert sampled((10, 1200, None, None)).throttle_reasons is None
    assert sampled((10, 1200, None, None), (1, 1200, (), None)).throttle_reasons == {}


def test_a_profiler_that_slows_the_run_too_much_is_named() -> None:
    slow = {"nsys, decode": Known(value=1.57, unit="×", how="", source="nsys/analysis.json")}
    found = found_in(facts(slowdowns=slow))["profiler_overhead"]
    assert found.title == "Profiler overhead: nsys, decode slowed the run 1.57×; read shares of host time with care"
    assert (found.saves_ms, found.max_gain, found.confidence) == (None, None, "medium")
    assert found_in(facts(slowdowns={"nsys, decode": Known(value=1.2, unit="×", how="")})) == {}


def test_findings_come_in_the_order_of_the_time_of_a_request_at_stake() -> None:
    kernels = (kernel("nvjet", "GEMM", 1.0, 700),)
    decode = phase(wall=ms(10.0), achievable=bound(0.5), gpu=gpu(1.0, wall=14, idle=idle(host=13), kernels=kernels))
    prefill = phase("prefill", wall=ms(40.0), gpu=gpu(10.0, wall=45, idle=idle(host=35), count=700))
    run = facts(decode, prefill, slowdowns={"nsys, decode": Known(value=1.6, unit="×", how="")})
    found = diagnose_run(run, None).claims
    # Nine milliseconds in each of ten steps weigh more than thirty in one prefill.
    assert [(f.rule, f.phase) for f in found[:2]] == [("launch_bound", "decode"), ("launch_bound", "prefill")]
    assert [saved_in_request_ms(f, run) for f in found[:2]] == [pytest.approx(90.0), pytest.approx(30.0)]
    assert found[-1].rule == "profiler_overhead"


def test_a_run_without_figures_has_no_findings() -> None:
    assert diagnose_run(facts(phase("prefill"), phase("decode")), None).claims == ()


def test_the_promise_is_about_the_scope_of_the_finding_and_not_the_last_one() -> None:
    prefill = phase("prefill", wall=ms(500.0), gpu=gpu(29.0, wall=600.0, idle=idle(host=560.0), count=694))
    made = diagnose_run(facts(prefill, phase(wall=ms(2.1), gpu=gpu(2.0, wall=2.2, kernels=(GEMM, REST)))), None)
    assert (made.verdict.rule, made.verdict.scope) == ("launch_bound", "prefill")
    assert "could speed up prefill by up to" in made.verdict.text


def test_a_run_in_which_nothing_was_timed_does_not_say_that_the_gpu_was_traced() -> None:
    made = diagnose_run(facts(), None)
    assert (made.verdict.kind, made.coverage.gpu_was_traced) == ("nothing_measured", False)
    assert made.verdict.text.startswith("Nothing was timed, and no capture was recorded: enable pipeline.")


def test_a_gemm_whose_roofline_nobody_measured_is_not_called_small() -> None:
    waves = {"waves_per_sm": 0.5, "duration_ns": 25_000.0}
    assert "small_gemm" not in found_in(measured(**waves))
    assert "small_gemm" in found_in(measured(**waves, compute_sol_pct=20.0, memory_sol_pct=30.0, roof_pct=30.0))
