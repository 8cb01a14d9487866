"""Student's distribution against tables, and what is reported about repeats that do not agree."""

import math
import random

import pytest

from llm_perf_opt.comparison.stability import (
    RepeatedValue,
    Stability,
    check_stability,
    half_width,
    machine_warnings,
    repeat_levels,
    repeats_for,
)
from llm_perf_opt.comparison.student import t_cdf, t_quantile, two_sided_p


def series(levels: list[float], samples: tuple[float, ...] = (1.0,)) -> list[RepeatedValue]:
    """A value of each sample in each repeat: the sample's own size by the level of the repeat."""
    return [
        RepeatedValue(sample_id=str(size), repeat=repeat, value=size * level)
        for repeat, level in enumerate(levels)
        for size in samples
    ]


# Printed tables of Student's distribution.
@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [
        (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 3, 3.182), (0.975, 4, 2.776), (0.975, 9, 2.262),
        (0.975, 30, 2.042), (0.975, 120, 1.980), (0.95, 5, 2.015), (0.9995, 4, 8.610), (0.5, 7, 0.0),
        (0.025, 4, -2.776),
    ],
)  # fmt: skip
def test_quantiles_are_those_of_the_printed_tables(probability: float, freedom: int, value: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(value, abs=6e-4)
    assert t_cdf(t_quantile(probability, freedom), freedom) == pytest.approx(probability, abs=1e-12)


def test_p_values_are_two_sided() -> None:
    assert two_sided_p(0.0, 5) == 1.0
    assert two_sided_p(-2.776445, 4) == pytest.approx(0.05, abs=1e-7) == two_sided_p(2.776445, 4)
    assert two_sided_p(math.inf, 3) == 0.0


def test_samples_of_different_size_say_nothing_about_the_machine() -> None:
    assert repeat_levels(series([1.0, 1.0, 1.0], samples=(3.0, 70.0, 1000.0))) == [1.0, 1.0, 1.0]
    assert half_width([1.0, 1.0, 1.0]) == 0.0
    assert half_width([1.0]) is None


def test_the_half_width_is_the_one_of_the_text_books() -> None:
    # Deviation 0.1 of a mean of 1.0, four values: 3.1824 * 0.1 / 2.
    levels = [0.9, 1.0, 1.0, 1.1]
    assert half_width(levels) == pytest.approx(3.1824 * math.sqrt(0.02 / 3) / 2, rel=1e-4)
    needed = repeats_for(levels, 0.02)
    assert t_quantile(0.975, needed - 1) * math.sqrt(0.02 / 3) / math.sqrt(needed) <= 0.02
    assert repeats_for(levels, 0.2) == 4


def test_steady_repeats_are_not_warned_about() -> None:
    steady = [1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.001, 0.999, 1.0, 1.0]
    found = check_stability("tpot_ms", series(steady))
    assert found == Stability(
        repeats=10, half_width=half_width(repeat_levels(series(steady))), more_repeats=0, warnings=()
    )


def test_a_slow_first_repeat_is_a_warm_up_that_was_not_over() -> None:
    found = check_stability("tpot_ms", series([1.5, 1.0, 1.01, 1.0]), target=1.0)
    assert found.warnings == (
        "tpot_ms: the first repeat was 50 % above the others: the warm-up was not over; raise "
        "warmup_rounds of the stage",
    )


def test_a_trend_is_told_from_noise() -> None:
    random.seed(1)
    noise = [random.gauss(1, 0.01) for _ in range(20)]
    assert check_stability("x", series(noise), target=1.0).warnings == ()
    rising = [value * (1 + 0.01 * index) for index, value in enumerate(noise)]
    [text] = check_stability("x", series(rising), target=1.0).warnings
    assert text.startswith("x: the values drift: the last third is +")


def test_two_levels_are_told_from_one() -> None:
    values = [1.0, 1.3, 1.001, 1.302, 0.999, 1.301, 1.0, 1.3, 1.001, 1.0]
    [text] = check_stability("x", series(values), target=1.0).warnings
    assert text == (
        "x: the values lie on two levels: 6 of 10 near 100 % and 4 near 130 % of the median; "
        "something switches between them"
    )


def test_too_few_repeats_say_how_many_more_would_do() -> None:
    found = check_stability("ttft_ms", series([1.0, 1.05, 0.95]))
    assert found.more_repeats == repeats_for([1.0, 1.05, 0.95], 0.02) - 3 > 0
    assert found.warnings == (
        f"ttft_ms: uncertain by ±12.4 % (95 % interval of 3 repeats); about {found.more_repeats} more repeats would "
        "narrow it to ±2 %",
    )


def test_noise_that_no_number_of_repeats_can_settle_is_called_so() -> None:
    [text] = check_stability("ttft_ms", series([1.0, 3.0, 0.4, 1.6])).warnings
    assert text.endswith("; no sensible number of repeats narrows it to ±2 %, a quiet machine may")


def test_a_busy_machine_and_a_restless_clock_are_named() -> None:
    assert machine_warnings(other_cpus=0.1, cpu_count=2) == ()
    assert machine_warnings(other_cpus=None, cpu_count=None, clocks_mhz=[1980.0] * 20) == ()
    assert machine_warnings(other_cpus=1.4, cpu_count=2, clocks_mhz=[1500.0] * 5 + [1980.0] * 15) == (
        "other programs kept 1.4 of 2 CPU cores busy during the clean pass; measure on a quiet machine, or compare "
        "with --interleave",
        "the GPU's clock varied between 1500 and 1980 MHz while work was running; lock it (nvidia-smi -lgc) for "
        "comparisons",
    )


def test_cores_that_run_at_several_speeds_are_named() -> None:
    assert machine_warnings(other_cpus=None, cpu_count=None, host_probes_ms=[0.50, 0.52, 0.55]) == ()
    assert machine_warnings(other_cpus=None, cpu_count=None, host_probes_ms=[0.5, 2.5]) == ()
    [text] = machine_warnings(other_cpus=None, cpu_count=None, host_probes_ms=[0.5, 0.5, 2.5])
    assert text.startswith("the CPU cores did not run at one speed: a fixed piece of work took 0.50 to 2.50 ms")
