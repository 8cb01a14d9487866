"""Rules about a GPU that waits, and about a CPU that does something else than operators."""

from dataclasses import replace

import pytest

from llm_perf_opt.analysis.findings.rules.kernel_gaps import find_kernel_gaps
from llm_perf_opt.analysis.findings.rules.launch_bound import REMEDY, REMEDY_OF_PROMPTS, find_launch_bound
from llm_perf_opt.analysis.findings.rules.long_gaps import find_host_work
from llm_perf_opt.analysis.findings.rules.on_the_host import find_framework_overhead, find_outside_operators
from llm_perf_opt.analysis.findings.rules.wait_bound import find_wait_bound
from llm_perf_opt.core.documents import Deployment
from tests.support.report_facts import facts, gpu, idle, ms, phase


def test_a_step_that_mostly_waits_for_launches_is_launch_bound() -> None:
    decode = phase(wall=ms(15.0), gpu=gpu(2.0, wall=23.0, idle=idle(host=21.0), count=694))
    (found,) = find_launch_bound(facts(decode))
    assert found.title == "Decode is launch-bound: the GPU idles 87 % of each step"
    assert found.saves_ms == pytest.approx(13.0)
    assert found.gain == pytest.approx(7.5)
    assert (found.rule, found.phase, found.confidence, found.caveat) == ("launch_bound", "decode", "high", None)
    assert [e.source for e in found.evidence] == [
        "torch_profiler/metrics.json",
        "nsys/analysis.json",
        "nsys/analysis.json",
    ]
    assert "694 kernels of 2.9 µs on average, one launched every 21.6 µs" in found.evidence[2].text


def test_a_step_that_is_a_graph_is_told_what_helps_a_graph() -> None:
    replayed = replace(gpu(2.0, wall=23.0, idle=idle(host=21.0), count=694), is_graph=True)
    (found,) = find_launch_bound(facts(phase(wall=ms(15.0), gpu=replayed)))
    assert "torch.cuda.graph" not in found.remedy
    assert found.hint == "Larger graphs or a larger batch"


def test_prompts_beside_replayed_steps_get_advice_of_their_own() -> None:
    prefill = phase("prefill", wall=ms(78.0), gpu=gpu(29.0, wall=100.0, idle=idle(host=70.0)))
    graphs = Deployment(cache="static", compile="reduce-overhead")
    (found,) = find_launch_bound(facts(prefill, deployment=graphs))
    assert found.remedy == REMEDY_OF_PROMPTS
    (plain,) = find_launch_bound(facts(prefill, deployment=Deployment()))
    assert plain.remedy == REMEDY


def test_gaps_too_long_for_a_launch_are_host_work() -> None:
    split = replace(idle(host=21.0), long_gaps_ns=14_000_000)
    decode = phase(wall=ms(15.0), gpu=gpu(2.0, wall=23.0, idle=split, count=694))
    assert find_launch_bound(facts(decode)) == []
    (found,) = find_host_work(facts(decode))
    assert found.title == "Decode waits for other work of the host, 58 % of it"
    assert found.saves_ms == pytest.approx(13.0 * 14 / 21)
    assert found.gain == pytest.approx(15.0 / (15.0 - 13.0 * 14 / 21))


def test_one_instance_is_never_certain() -> None:
    once = replace(gpu(0.1, wall=23.0, idle=idle(host=22.9), count=694), instances=1)
    (found,) = find_launch_bound(facts(phase(wall=ms(15.0), gpu=once)))
    assert found.confidence == "medium"


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
def test_a_step_is_not_launch_bound_otherwise(decode: object) -> None:
    assert find_launch_bound(facts(decode)) == []  # type: ignore[arg-type]


def test_a_step_that_waits_in_synchronisation_is_wait_bound() -> None:
    decode = phase(wall=ms(10.0), gpu=gpu(4.0, wall=12.0, idle=idle(host=2.0, sync=4.0, copy=2.0)))
    (found,) = find_wait_bound(facts(decode))
    # The copy is the device's own time; the four milliseconds left are shared two to four by host and wait.
    assert found.saves_ms == pytest.approx(2.0 + 4.0 * 4 / 6)
    assert found.saves_ms is not None
    assert found.gain == pytest.approx(10.0 / (10.0 - found.saves_ms))
    assert found.title == "Decode waits for copies or synchronisation, 47 % of it"


def test_a_step_that_hardly_waits_is_not_wait_bound() -> None:
    decode = phase(wall=ms(10.0), gpu=gpu(4.0, wall=12.0, idle=idle(host=7.9, sync=0.1)))
    assert find_wait_bound(facts(decode)) == []


def test_gaps_between_queued_kernels_are_found() -> None:
    decode = phase(wall=ms(5.0), gpu=gpu(4.0, wall=5.1, idle=idle(between=1.0), count=1000))
    (found,) = find_kernel_gaps(facts(decode))
    assert (found.title, found.saves_ms, found.gain) == (
        "Decode loses 20 % in gaps between queued kernels",
        1.0,
        1.25,
    )
    assert "1.00 µs per kernel over 1000 kernels" in found.evidence[0].text


def test_gaps_that_only_the_capture_shows_are_not_lost_in_the_clean_time() -> None:
    decode = phase(wall=ms(10.0), gpu=gpu(9.5, wall=12.5, idle=idle(between=3.0), count=1000))
    assert find_kernel_gaps(facts(decode)) == []
    overlapped = phase(wall=ms(10.0), gpu=gpu(10.5, wall=13.5, idle=idle(between=3.0), count=1000))
    assert find_kernel_gaps(facts(overlapped)) == []
    # Three captured milliseconds cannot all lie in two idle ones.
    partly = phase(wall=ms(10.0), gpu=gpu(8.0, wall=11.0, idle=idle(between=3.0), count=1000))
    (found,) = find_kernel_gaps(facts(partly))
    assert (found.saves_ms, found.gain) == (pytest.approx(2.0), pytest.approx(1.25))
    assert found.evidence[0].text.startswith("2.000 ms of 2.000 ms idle time")


def test_short_gaps_between_kernels_are_left_alone() -> None:
    decode = phase(wall=ms(5.0), gpu=gpu(4.7, wall=5.1, idle=idle(between=0.3), count=1000))
    assert find_kernel_gaps(facts(decode)) == []


def test_time_outside_operators_on_a_cpu_is_found() -> None:
    decode = phase(wall=ms(10.0), operators=ms(6.0), is_cpu=True)
    (found,) = find_framework_overhead(facts(decode, is_cpu=True))
    assert found.title == "Decode spends 40 % outside operators"
    assert (found.saves_ms, found.gain) == (4.0, pytest.approx(10 / 6))


def test_a_program_that_does_something_else_is_not_told_to_compile() -> None:
    decode = phase(wall=ms(10.0), operators=ms(1.0), is_cpu=True, between_operators_ms=4.5)
    assert find_framework_overhead(facts(decode, is_cpu=True)) == []
    (found,) = find_outside_operators(facts(decode, is_cpu=True))
    assert (found.title, found.saves_ms) == ("Decode spends 90 % outside operators", 9.0)
    assert found.evidence[-1].text == "4.5 ms pass from one operator to the next, on average under the profiler"
    assert "torch.compile" not in found.remedy and "py-spy" in found.remedy
    assert find_outside_operators(facts(phase(wall=ms(10.0), operators=ms(1.0), is_cpu=True), is_cpu=True)) == []


def test_a_cpu_that_is_inside_operators_is_left_alone() -> None:
    assert find_framework_overhead(facts(phase(wall=ms(10.0), operators=ms(9.5), is_cpu=True))) == []
    assert find_framework_overhead(facts(phase(wall=ms(10.0), operators=ms(5.0)))) == []
