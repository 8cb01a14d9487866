"""Rules about the run as a whole, and the order of all findings."""

import pkgutil
import re
from dataclasses import replace

import pytest

from llm_perf_opt.analysis.findings import rules
from llm_perf_opt.analysis.findings.finding import (
    UNDER_PROFILER,
    Evidence,
    Finding,
    FindingRecord,
    Rule,
    saved_in_request_ms,
)
from llm_perf_opt.analysis.findings.rules import RULES, diagnose
from llm_perf_opt.analysis.findings.rules.kv_growth import find_fragmentation, find_kv_growth
from llm_perf_opt.analysis.findings.rules.on_the_host import find_preparation
from llm_perf_opt.analysis.findings.rules.profiler_overhead import find_profiler_overhead
from llm_perf_opt.analysis.findings.rules.throttling import find_throttling
from llm_perf_opt.core.documents import ClockDocument, ClockSample
from llm_perf_opt.core.records import Spread
from llm_perf_opt.diagnosis.facts import ClockFacts, CopyFacts, Known, Quantity, RunFacts, Unknown
from llm_perf_opt.report.facts import clock_facts
from llm_perf_opt.report.view.findings import findings_view, gain_text
from llm_perf_opt.report.view.headline import best_finding
from tests.support.fixtures_dir import REPO
from tests.support.report_facts import NO_MEMORY, bound, facts, gpu, idle, kernel, ms, phase, size, whole


def test_an_input_that_takes_long_to_prepare_comes_first() -> None:
    phases = (phase("prefill", wall=ms(60.0)), phase(wall=ms(3.0)))
    made = facts(*phases, request_ms=300.0, prepare=replace(ms(210.0), spread=Spread(p10=200.0, p90=220.0, n=3)))
    found = diagnose(made)[0]
    assert found.title == "Preparing the input on the host takes 70 % of a request"
    assert (found.rule, found.confidence, saved_in_request_ms(found, made)) == ("preparation", "high", 210.0)
    assert found.gain == pytest.approx(300 / 90)
    assert gain_text(found, made) == "3.3× over a request"
    assert [evidence.text for evidence in found.evidence] == [
        "210.0 of 300.0 ms pass before the model has its input (clean pass, median of 3)",
        "prepared ahead by one worker, requests one after the other would come at most 1.43× as fast",
    ]
    (shown,) = findings_view((found,), made)
    assert (shown.saves, shown.saves_each, shown.phase) == ("up to 210.0 ms per request", "", "request")


def test_the_verdict_speaks_of_what_loses_most_and_of_nothing_uncertain() -> None:
    # A prefill seen once that could save more is a guess; the steps were seen often.
    seen_once = replace(gpu(30.0, wall=90.0, idle=idle(host=60.0)), instances=1)
    made = facts(
        phase("prefill", wall=ms(90.0), achievable=bound(30.0), gpu=seen_once),
        phase("decode", wall=ms(9.0), achievable=bound(4.0), gpu=gpu(4.0, wall=9.0, idle=idle(host=5.0))),
    )
    found = diagnose(made)
    assert [(f.phase, f.confidence) for f in found if f.rule == "launch_bound"] == [
        ("prefill", "low"),
        ("decode", "medium"),
    ]
    best = best_finding(found, made)
    assert best is not None and best.phase == "decode"


def test_on_a_cpu_nothing_prepares_ahead() -> None:
    (found,) = find_preparation(facts(phase(wall=ms(3.0)), request_ms=300.0, prepare=ms(90.0), is_cpu=True))
    words = " ".join((found.title, found.remedy, found.caveat or "", *(e.text for e in found.evidence)))
    assert "ahead" not in words and "GPU" not in words
    assert found.remedy.startswith("make preparing cheaper")


@pytest.mark.parametrize(
    ("prepare", "request_ms"), [(ms(29.0), 300.0), (ms(210.0), None), (Unknown(reason="not timed"), 300.0)]
)
def test_an_input_that_is_ready_soon_or_not_timed_is_no_finding(prepare: Quantity, request_ms: float | None) -> None:
    assert find_preparation(facts(phase(wall=ms(3.0)), request_ms=request_ms, prepare=prepare)) == []


def test_a_cache_that_dominates_the_reads_of_a_step_is_found() -> None:
    memory = replace(
        NO_MEMORY, kv_read_per_step=size(4e9), kv_per_token=size(131072), kv_cache=size(4e9), kv_dtype="bf16"
    )
    decode = phase(wall=ms(10.0), bytes=size(8e9))
    (found,) = find_kv_growth(facts(decode, memory=memory, bytes_per_s=1e12))
    assert found.title == "The KV cache decides: reading the cache is 50 % of the bytes a decode step needs"
    assert found.saves_ms == pytest.approx(2.0)
    assert found.gain == pytest.approx(10 / 8)
    assert found.evidence[-1].text == "each token adds 131,072 bytes"
    assert found.remedy.startswith("shrink the cache: keep it in fp8 or int8 instead of bf16 (half the bytes), a model")


@pytest.mark.parametrize(
    ("dtype", "saves_ms", "remedy"),
    [
        ("fp32", 2.0, "shrink the cache: keep it in bf16 instead of fp32 (half the bytes), a model"),
        ("fp8", None, "shrink the cache: a model with fewer KV heads"),
        (None, None, "shrink the cache: a model with fewer KV heads"),
    ],
)
def test_what_halves_a_cache_depends_on_the_format_it_has(
    dtype: str | None, saves_ms: float | None, remedy: str
) -> None:
    memory = replace(NO_MEMORY, kv_read_per_step=size(4e9), kv_cache=size(4e9), kv_dtype=dtype)
    (found,) = find_kv_growth(facts(phase(wall=ms(10.0), bytes=size(8e9)), memory=memory, bytes_per_s=1e12))
    assert (found.saves_ms, found.remedy[: len(remedy)]) == (saves_ms, remedy)


def test_a_cache_that_fills_the_memory_is_found() -> None:
    memory = replace(NO_MEMORY, kv_cache=size(5e10), capacity=size(8e10), kv_per_token=size(131072))
    (found,) = find_kv_growth(facts(phase(wall=ms(10.0), bytes=size(8e9)), memory=memory, context=400_000, batch=1))
    assert found.title == ("The KV cache decides: the cache of 400000 tokens and batch 1 fills 62 % of the memory")
    assert found.saves_ms is None


def test_a_small_cache_is_left_alone() -> None:
    memory = replace(NO_MEMORY, kv_read_per_step=size(1e8), kv_cache=size(1e8), capacity=size(8e10))
    assert find_kv_growth(facts(phase(wall=ms(10.0), bytes=size(8e9)), memory=memory, bytes_per_s=1e12)) == []
    assert find_kv_growth(facts(phase())) == []


def clocks(*mhz: float, reasons: dict[str, int] | None) -> ClockFacts:
    return ClockFacts(
        sm_clock_mhz=mhz,
        max_sm_clock_mhz=1980,
        throttle_reasons=reasons,
        samples=100,
        idle_samples=0,
        source="torch_profiler/gpu_samples.json",
    )


def test_memory_the_allocator_keeps_and_cannot_use_is_found() -> None:
    memory = replace(NO_MEMORY, reserved=size(12e9), allocated=size(8e9))
    (found,) = find_fragmentation(facts(memory=memory))
    assert (found.rule, found.saves_ms, found.gain) == ("fragmentation", None, None)
    assert found.title == "The allocator keeps 4.00 GB of GPU memory that holds nothing"
    # Rounding of the allocator, a small model, and a run nobody watched.
    for kept, used in ((12e9, 10.5e9), (1e9, 0.3e9)):
        assert find_fragmentation(facts(memory=replace(memory, reserved=size(kept), allocated=size(used)))) == []
    assert find_fragmentation(facts(memory=NO_MEMORY)) == []


def test_a_throttled_gpu_is_found() -> None:
    (found,) = find_throttling(facts(clocks=clocks(1200, 1200, 1980, reasons={"sw_thermal_slowdown": 40})))
    assert [e.text for e in found.evidence] == [
        "sw_thermal_slowdown: in 40 of 100 samples of a working GPU",
        "median SM clock 1200 MHz of 1980 MHz",
    ]
    assert (found.confidence, found.gain) == ("high", pytest.approx(1.65))


def test_an_idle_or_free_running_gpu_is_not_throttled() -> None:
    assert find_throttling(facts(clocks=clocks(345, 345, reasons={"gpu_idle": 90}))) == []
    assert find_throttling(facts(clocks=clocks(1980, reasons={"sw_power_cap": 1}))) == []
    assert find_throttling(facts(clocks=clocks(1200, reasons=None))) == []
    assert find_throttling(facts()) == []


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
    (found,) = find_throttling(facts(clocks=sampled(loading, (34, 1980, (), 95), (6, 1980, ("sw_power_cap",), 95))))
    assert [e.text for e in found.evidence] == [
        "sw_power_cap: in 6 of 40 samples of a working GPU",
        "median SM clock 1980 MHz of 1980 MHz (60 idle samples left out)",
    ]
    assert (found.confidence, found.gain) == ("medium", None)
    assert find_throttling(facts(clocks=sampled(loading, (40, 1980, (), 95)))) == []
    assert find_throttling(facts(clocks=sampled(loading))) == []


def test_reasons_the_driver_never_gave_are_not_known() -> None:
    assert sampled((10, 1200, None, None)).throttle_reasons is None
    assert sampled((10, 1200, None, None), (1, 1200, (), None)).throttle_reasons == {}


def test_a_profiler_that_slows_the_run_too_much_is_named() -> None:
    slow = {"nsys, decode": Known(value=1.57, unit="×", how="", source="nsys/analysis.json")}
    (found,) = find_profiler_overhead(facts(slowdowns=slow))
    assert found.title == "Profiling slowed the run up to 1.6× (nsys, decode): read host-time shares with care"
    assert (found.saves_ms, found.gain, found.confidence) == (None, None, "medium")


def test_a_light_profiler_is_not_named() -> None:
    assert find_profiler_overhead(facts(slowdowns={"nsys, decode": Known(value=1.2, unit="×", how="")})) == []


def launch_bound_run() -> RunFacts:
    kernels = (kernel("nvjet", "GEMM", 1.0, 700),)
    decode = phase(wall=ms(10.0), achievable=bound(0.5), gpu=gpu(1.0, wall=14, idle=idle(host=13), kernels=kernels))
    prefill = phase("prefill", wall=ms(40.0), gpu=gpu(10.0, wall=45, idle=idle(host=35), count=700))
    slow = {"nsys, decode": Known(value=1.6, unit="×", how="")}
    return facts(decode, prefill, slowdowns=slow)


def test_findings_come_in_the_order_of_the_time_of_a_request_they_could_save() -> None:
    run = launch_bound_run()
    found = diagnose(run)
    saved = [saved_in_request_ms(d, run) for d in found]
    assert [(d.rule, d.phase) for d in found][:2] == [("launch_bound", "decode"), ("launch_bound", "prefill")]
    # Nine milliseconds in each of ten steps weigh more than thirty in one prefill.
    assert saved[:2] == [pytest.approx(90.0), pytest.approx(30.0)]
    known = [s for s in saved if s is not None]
    assert known == sorted(known, reverse=True)
    assert found[-1].rule == "profiler_overhead"


def test_a_time_of_the_whole_capture_never_outranks_a_time_of_a_request() -> None:
    load = CopyFacts(kind="[CUDA memcpy HtoD]", instances=146, total_ns=1_612_000_000, size_bytes=2_472_000_000)
    run = replace(launch_bound_run(), copies=(load,), kernels=(whole(kernel("nvjet", "GEMM", 28.0)),))
    hot = ClockFacts(
        sm_clock_mhz=(1200.0,) * 10,
        max_sm_clock_mhz=1980,
        throttle_reasons={"hw_thermal_slowdown": 10},
        samples=10,
        idle_samples=0,
        source="torch_profiler/gpu_samples.json",
    )
    found = diagnose(replace(run, clocks=hot))
    # All that is known per request, then what has a gain, then the capture's own time, then what has neither.
    assert [d.rule for d in found][-3:] == ["throttling", "host_device_transfers", "profiler_overhead"]
    assert all(saved_in_request_ms(d, run) is not None for d in found[:-3]) and len(found) > 5


def test_a_step_of_a_phase_outranks_the_whole_capture_when_the_number_of_steps_is_not_known() -> None:
    load = CopyFacts(kind="[CUDA memcpy HtoD]", instances=146, total_ns=1_612_000_000, size_bytes=2_472_000_000)
    step = gpu(1.0, wall=14, idle=idle(host=13))
    run = facts(phase(wall=ms(10.0), gpu=step, steps_per_request=None), copies=(load,))
    found = diagnose(replace(run, kernels=(whole(kernel("nvjet", "GEMM", 28.0)),)))
    assert [(d.rule, d.saves_ms) for d in found] == [
        ("launch_bound", pytest.approx(9.0)),
        ("host_device_transfers", 1612.0),
    ]


def captured(name: str) -> FindingRecord:
    """What analysis.json says of one range."""
    return FindingRecord(
        rule="launch_bound",
        title=f"In {name} the GPU idles for 92% of the time",
        evidence=("x",),
        remedy="y",
        max_gain=12.0,
        confidence="high",
        source="nsys/analysis.json",
        range_name=name,
    )


def test_a_finding_of_a_capture_promises_no_milliseconds_and_its_record_holds_all_of_it() -> None:
    finding = captured("decode").finding()
    assert finding == Finding(
        rule="launch_bound",
        title="In decode the GPU idles for 92% of the time",
        phase=None,
        evidence=(Evidence(text="x", source="nsys/analysis.json"),),
        remedy="y",
        saves_ms=None,
        gain=12.0,
        confidence="high",
        caveat=UNDER_PROFILER,
        range_name="decode",
    )
    assert FindingRecord.of(finding) == captured("decode")


def test_a_finding_of_the_capture_stays_only_where_no_clean_time_speaks() -> None:
    of_capture = [captured(name).finding() for name in ("decode", "decode_step", "sam")]
    found = diagnose(facts(phase(wall=ms(10.0))), of_capture)
    assert [d.title.split()[1] for d in found] == ["sam"]
    assert found[0].caveat == UNDER_PROFILER
    found = diagnose(facts(phase()), of_capture[:1])
    assert [(d.title.split()[1], d.saves_ms, d.gain) for d in found] == [("decode", None, 12.0)]


def test_a_run_without_figures_has_no_findings() -> None:
    assert diagnose(facts(phase("prefill"), phase("decode"))) == ()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_words_for_everybody_a_remedy_and_a_row_in_the_documentation(rule: Rule) -> None:
    assert rule.plain_words.endswith(".") and rule.plain_words[0].isupper()
    assert rule.remedy and not rule.remedy.endswith(".")
    assert rule.hint and not rule.hint.endswith(".")
    assert rule.id in documented_rules()


def test_the_documentation_names_no_rule_that_does_not_exist() -> None:
    assert documented_rules() == [rule.id for rule in RULES]


def test_every_rule_module_is_in_the_list_of_rules() -> None:
    modules = {module.name for module in pkgutil.iter_modules(rules.__path__)}
    assert modules == {rule.find.__module__.rpartition(".")[2] for rule in RULES}


def documented_rules() -> list[str]:
    """The ids in the first column of the table of rules."""
    text = (REPO / "docs" / "report.md").read_text(encoding="utf-8")
    table = text.partition("| rule | finds | needs |\n")[2].partition("\n\n")[0]
    return [name for row in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
