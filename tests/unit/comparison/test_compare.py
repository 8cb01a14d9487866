"""Comparing two sides: statistics against simulated truth, matching of names, differences that add up, gates."""

import gzip
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.rows import Idle, RangeInstance, RangeRow
from llm_perf_opt.commands.compare import AUTO_LOOKS
from llm_perf_opt.comparison.comparison import (
    CompareDocument,
    SideInput,
    change_text,
    compare_sides,
    overall,
    refuse_unknown_metrics,
)
from llm_perf_opt.comparison.differences import (
    DifferenceWaterfall,
    capture_waterfall,
    kernel_changes,
    once,
    over_passes,
    phase_waterfall,
    rows_by_name,
)
from llm_perf_opt.comparison.gate import GateResult, check_condition, exit_code, parse_condition
from llm_perf_opt.comparison.matching import NameMatch, match_names, without_numbers
from llm_perf_opt.comparison.settings import incomparable, setting_changes
from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.comparison.statistics import (
    GIVEN,
    ChangeEstimate,
    StartVariation,
    estimate,
    holm,
    judge,
    level_interval,
    repeats_needed,
    shared_among,
    start_variation,
)
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.errors import ConfigError
from tests.support.fixtures_dir import shared_fixtures
from tests.support.report_runs import capture

Passes = list[list[RepeatedValue]]


def one_pass(values: Sequence[float], sizes: Sequence[float] = (1.0,)) -> list[RepeatedValue]:
    """A pass with a repeat for each value, over samples of these sizes."""
    return [
        RepeatedValue(sample_id=f"s{size}", repeat=repeat, value=value * size)
        for repeat, value in enumerate(values)
        for size in sizes
    ]


def noisy(seed: int, passes: int, *, factor: float, interleaved: bool) -> tuple[Passes, Passes]:
    """Two sides on a machine that drifts and is disturbed now and then; the candidate is `factor` slower."""
    random = np.random.default_rng(seed)
    drift = np.cumsum(random.normal(0, 0.01, 2 * passes))
    moments = (drift[0::2], drift[1::2]) if interleaved else (drift[:passes], drift[passes:])
    return tuple(  # type: ignore[return-value]
        [
            one_pass(
                speed * np.exp(moment + 0.01 * random.standard_t(3) + 0.02 * np.abs(random.standard_t(3, 3))), (1, 4)
            )
            for moment in when
        ]
        for when, speed in zip(moments, (1.0, factor), strict=True)
    )


def verdicts(factor: float, *, interleaved: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in range(100):
        one = estimate(*noisy(seed, 8, factor=factor, interleaved=interleaved), paired=interleaved, seed=seed)
        found[judge(one, one.p_value, lower_is_better=True)] += 1
    return found


@pytest.mark.slow
def test_interleaved_pairs_find_a_slowdown_of_eight_percent_and_raise_few_false_alarms() -> None:
    same, slower = verdicts(1.0, interleaved=True), verdicts(1.08, interleaved=True)
    assert same["worse"] + same["better"] <= 5
    assert slower["worse"] >= 85 and slower["better"] == 0


def test_a_change_of_the_size_of_the_threshold_is_not_beyond_it() -> None:
    """The whole interval must lie beyond the threshold: of true changes of 2 % one in forty may be called worse."""
    found = verdicts(1.02, interleaved=True)
    assert found["worse"] <= 8 and found["better"] == 0


def shaken(seed: int, pairs: int, *, factor: float) -> tuple[Passes, Passes]:
    """Pairs on a machine that drifts slowly, sits on one of two speeds for a while, and is held up now and then."""
    random = np.random.default_rng(seed)
    moments, drift, is_slow = [], 0.0, False
    for _ in range(2 * pairs):
        drift = 0.95 * drift + random.normal(0, 0.015)
        is_slow = random.random() < (0.9 if is_slow else 0.1)
        held_up = random.exponential(0.3) if random.random() < 0.1 else 0.0
        moments.append(drift + 0.1 * is_slow + held_up)
    sides: tuple[Passes, Passes] = ([], [])
    for number, (first, second) in enumerate(zip(moments[0::2], moments[1::2], strict=True)):
        order = (first, second) if number % 2 == 0 else (second, first)
        for side, moment, speed in zip(sides, order, (1.0, factor), strict=True):
            side.append(one_pass((speed * np.exp(moment + 0.01 * np.abs(random.standard_t(3, 5)))).tolist()))
    return sides


def looked_at(factor: float) -> Counter[str]:
    """What `--interleave auto` says, stopping at its first answer."""
    found: Counter[str] = Counter()
    for seed in range(80):
        base, candidate = shaken(seed, AUTO_LOOKS[-1], factor=factor)
        for pairs, spent in zip(AUTO_LOOKS, shared_among(AUTO_LOOKS), strict=True):
            one = estimate(base[:pairs], candidate[:pairs], paired=True, seed=seed)
            verdict = judge(one, one.p_beyond(0.02), lower_is_better=True, spent=spent)
            if verdict != "inconclusive":
                break
        found[verdict] += 1
    return found


@pytest.mark.slow
def test_looking_several_times_on_a_shaken_machine_errs_in_one_of_twenty_at_most() -> None:
    same, slower = looked_at(1.0), looked_at(1.08)
    assert same["worse"] + same["better"] <= 4
    assert slower["worse"] >= 72 and slower["better"] == 0, slower


def test_drift_between_sides_that_are_not_interleaved_looks_like_a_difference() -> None:
    found = [estimate(*noisy(seed, 8, factor=1.0, interleaved=False), seed=seed) for seed in range(100)]
    assert sum((one.p_value or 1.0) < 0.05 for one in found) > 15


@pytest.mark.parametrize("pairs", [2, 3])
def test_two_pairs_settle_a_change_of_a_factor_and_not_one_of_five_percent(pairs: int) -> None:
    random = np.random.default_rng(7)

    def side(level: float) -> Passes:
        starts = level * np.exp(random.normal(0, 0.02, pairs))
        return [one_pass(start * np.exp(random.normal(0, 0.002, 10)), (1, 4)) for start in starts]

    huge = [estimate(side(15.1), side(2.05), paired=True) for _ in range(40)]
    # Corrected for four metrics.
    assert {judge(one, min(1.0, 4 * (one.p_value or 0)), lower_is_better=True) for one in huge} == {"better"}
    same = [estimate(side(15.1), side(15.1), paired=True) for _ in range(60)]
    assert sum(judge(one, one.p_value, lower_is_better=True) in ("better", "worse") for one in same) <= 5


def test_passes_that_agree_by_chance_are_as_sure_as_what_differs_inside_them() -> None:
    values = [1.0, 1.2, 0.8, 1.1, 0.9]
    found = estimate([one_pass(values)] * 2, [one_pass([1.03 * v for v in values])] * 2, paired=True)
    assert (found.error or 0) > 0.05
    assert judge(found, found.p_value, lower_is_better=True) == "inconclusive"


def test_several_looks_share_the_chance_to_err() -> None:
    assert shared_among((3, 6, 12, 24)) == pytest.approx((3 / 45, 6 / 45, 12 / 45, 24 / 45))
    base, candidate = (1.0, 1.04, 0.98, 1.01), (1.09, 1.11, 1.10, 1.08)
    found = estimate([one_pass([value]) for value in base], [one_pass([value]) for value in candidate])
    p = found.p_beyond(0.02) or 0.0
    assert 0.005 < p < 0.05
    assert judge(found, p, lower_is_better=True) == "worse"
    assert judge(found, p, lower_is_better=True, spent=0.1) == "inconclusive"


def test_repeats_of_one_pass_are_compared_by_their_medians() -> None:
    found = estimate([one_pass([10.0, 10.1, 9.9, 10.0], (1, 3))], [one_pass([20.0, 20.2, 19.8, 20.0], (1, 3))])
    assert (found.base.median, found.candidate.median, found.base.n) == (pytest.approx(19.9), pytest.approx(39.8), 8)
    assert found.ratio == pytest.approx(2.0)
    assert (found.freedom, found.units, found.how) == (6, 4, "medians of 4 and 4 repeats of one pass each")
    bounds = found.interval
    assert bounds is not None and bounds[0] < 2 < bounds[1]
    # The repeats are those of one start, and say nothing of the next.
    assert (found.knows_starts, judge(found, found.p_value, lower_is_better=True)) == (False, "difference observed")
    started = estimate([one_pass([10.0, 10.1, 9.9, 10.0])], [one_pass([20.0, 20.2, 19.8, 20.0])], repeats_start=True)
    assert judge(started, started.p_value, lower_is_better=True) == "worse"
    assert judge(started, started.p_value, lower_is_better=False) == "better"


def test_without_repeats_the_samples_are_pairs_and_one_value_says_nothing() -> None:
    base, slower = one_pass([1.0], (1, 5, 9, 20)), one_pass([1.1], (1, 5, 9, 20))
    found = estimate([base], [slower])
    assert (found.ratio, found.how) == (pytest.approx(1.1), "4 samples that both ran once, as pairs")
    alone = estimate([one_pass([1.0])], [one_pass([3.0])])
    assert (alone.error, alone.interval, alone.p_value) == (None, None, None)
    assert (judge(alone, None, lower_is_better=True), repeats_needed(alone)) == ("inconclusive", None)


def test_equality_is_shown_and_not_assumed() -> None:
    quiet = [one_pass([1.0, 1.001, 0.999, 1.0, 1.0, 1.001])]
    found = estimate(quiet, quiet)
    assert judge(found, found.p_value, lower_is_better=True) == "no difference observed"
    found = estimate(quiet, quiet, repeats_start=True)
    assert judge(found, found.p_value, lower_is_better=True) == "same"
    loud = [one_pass([1.0, 1.4, 0.7, 1.0, 1.2, 0.9])]
    found = estimate(loud, loud)
    assert judge(found, found.p_value, lower_is_better=True) == "inconclusive"
    assert (repeats_needed(found) or 0) > 6
    # What is needed more of is what the error was computed from.
    several = [one_pass([1.0, 1.4]), one_pass([0.7, 1.0]), one_pass([1.2, 0.9])]
    units = [found.unit, estimate(several, several).unit, estimate(several, several, paired=True).unit]
    assert units == ["repeats", "passes", "pairs"]


def test_one_start_each_decides_only_with_a_known_variation() -> None:
    sides = [one_pass([10.0, 10.01, 9.99, 10.0])], [one_pass([12.0, 12.01, 11.99, 12.0])]
    told = [estimate(*sides, variation=StartVariation(share=share, freedom=GIVEN, source="x")) for share in (0.02, 0.1)]
    assert [judge(one, one.p_beyond(0.02), lower_is_better=True) for one in told] == ["worse", "inconclusive"]
    assert told[0].how == "medians of 4 and 4 repeats of one pass each; start-to-start variation 2 % from x"
    low, high = told[0].interval or (0.0, 0.0)
    # Two starts with 2 % each: 1.96 times 2.83 % to both sides.
    assert (low, high) == (
        pytest.approx(1.2 * math.exp(-0.0555), rel=1e-3),
        pytest.approx(1.2 * math.exp(0.0555), rel=1e-3),
    )
    # Several passes of one side show how the single start of the other varies.
    many = estimate([one_pass([level]) for level in (9.0, 10.0, 11.0, 10.0)], sides[1])
    assert (many.knows_starts, many.freedom) == (True, 3)
    assert judge(many, many.p_beyond(0.02), lower_is_better=True) == "inconclusive"
    assert start_variation([10.0], source="x") is None


def test_base_candidate_and_change_agree_on_one_line() -> None:
    """Long and short samples: the quotient of the medians of all values is not the change of the samples."""
    levels = {"short": (1.0, 1.5), "middle": (10.0, 11.0), "long": (20.0, 20.0)}

    def one(side: int) -> list[RepeatedValue]:
        return [
            RepeatedValue(sample_id=name, repeat=repeat, value=values[side])
            for repeat in range(2)
            for name, values in levels.items()
        ]

    known, renamed = [one(0)], [one(1)]
    found = estimate(known, renamed)
    low, high = found.typical
    assert high / low == pytest.approx(found.ratio)
    assert low * high == pytest.approx(found.base.median * found.candidate.median)
    row = compare_sides(
        SideInput(name="a", passes=[{"tpot_ms": one} for one in known]),
        SideInput(name="b", passes=[{"tpot_ms": one} for one in renamed]),
    ).metrics[0]
    assert row.candidate_value / row.base_value == pytest.approx(row.ratio)
    assert row.candidate_value - row.base_value == pytest.approx(row.difference)


def test_passes_may_have_different_numbers_of_repeats() -> None:
    base = [one_pass([1.0, 1.01]), one_pass([1.0, 0.99, 1.02, 1.0])]
    found = estimate(base, [one_pass([1.2, 1.21, 1.19]), one_pass([1.2])])
    assert found.ratio == pytest.approx(1.2, rel=0.01) and found.freedom == 2 and (found.error or 0) > 0


def test_many_questions_need_better_answers() -> None:
    assert holm([0.01, 0.04, 0.03]) == [pytest.approx(0.03), pytest.approx(0.06), pytest.approx(0.06)]
    assert holm([]) == []


def test_names_are_matched_step_by_step_and_each_once() -> None:
    base = ["gemm<64>", "void at::foo<(int)4>(int)", "triton_poi_fused_add_3", "old_attention", "gone"]
    candidate = ["gemm<64>", "gemm<128>", "void foo<4>(int)", "triton_poi_fused_add_17", "new_attention", "came"]
    places = {"old_attention": "attention", "new_attention": "attention"}
    assert match_names(base, candidate, place=lambda name, _: places.get(name)) == [
        NameMatch(base=("gemm<64>",), candidate=("gemm<64>",), by="name"),
        NameMatch(base=("void at::foo<(int)4>(int)",), candidate=("void foo<4>(int)",), by="demangling"),
        NameMatch(base=("triton_poi_fused_add_3",), candidate=("triton_poi_fused_add_17",), by="numbers"),
        NameMatch(base=("old_attention",), candidate=("new_attention",), by="place"),
        NameMatch(base=("gone",), candidate=(), by="none"),
        NameMatch(base=(), candidate=("gemm<128>",), by="none"),
        NameMatch(base=(), candidate=("came",), by="none"),
    ]


def test_ids_and_addresses_are_noise_and_words_are_not() -> None:
    assert without_numbers("kernel_0a1b2c3d4e_12") == without_numbers("kernel_ffee0011aa_7") == "kernel_#_#"
    assert without_numbers("f(0x7f00)") == without_numbers("f(0xdeadbeef)")
    assert without_numbers("added_facade") == "added_facade"


def test_kernels_appear_vanish_and_change_and_the_rest_is_the_same() -> None:
    base = capture(("gemm", 10, 10_000), ("softmax", 4, 400), ("copy_gone", 1, 50)).kernels
    candidate = capture(("gemm", 10, 12_000), ("softmax", 4, 401), ("fused_new", 7, 70)).kernels
    rows = kernel_changes(base, candidate)
    assert [(r.name, r.verdict, r.difference_ns, r.base_launches, r.candidate_launches) for r in rows] == [
        ("gemm", "slower", 2000, 10, 10),
        ("fused_new", "appeared", 70, 0, 7),
        ("copy_gone", "vanished", -50, 1, 0),
        ("softmax", "same", 1, 4, 4),
    ]


def adds_up(found: DifferenceWaterfall) -> bool:
    total = found.base_ms + math.fsum(step.difference_ms for step in found.steps)
    return math.isclose(total, found.candidate_ms, rel_tol=1e-9, abs_tol=1e-9)


def test_the_steps_of_a_phase_add_up_to_the_clean_difference() -> None:
    found = phase_waterfall("decode", clean_ms=(10.0, 13.1), base=None, candidate=None)
    assert adds_up(found)
    assert [(s.label, s.difference_ms) for s in found.steps] == [
        ("unattributed: no trace was recorded", pytest.approx(3.1))
    ]


def test_idle_time_is_what_kernels_leave_of_the_clean_pass_not_what_a_profiler_made_of_it() -> None:
    """Of 20 ms 2 ms are kernels; under the profiler the same step idled 38 ms."""

    def row(busy_ms: float, host_ms: float) -> RangeRow:
        idle = Idle(
            waiting_for_host_ns=int(host_ms * 1e6),
            between_kernels_ns=0,
            waiting_for_copy_or_sync_ns=0,
            copy_ns=0,
            sync_ns=0,
            unattributed_ns=0,
        )
        unused: Any = None
        return RangeRow(
            name="decode_step", style="push/pop", parent=None, instances=1, wall_ns=0, kernel_count=1, kernel_ns=0,
            graph_launches=0, gpu_busy_ns=int(busy_ms * 1e6), gpu_idle_ns=int(host_ms * 1e6), launch_calls=1,
            launch_ns=0, idle=idle, last=unused, typical=unused, kernels=(),
        )  # fmt: skip

    found = phase_waterfall("decode", clean_ms=(20.0, 3.0), base=row(2.0, 38.0), candidate=row(2.0, 0.0))
    assert adds_up(found)
    assert [(s.label, s.difference_ms) for s in found.steps if s.difference_ms] == [
        ("idle: waiting for the host", -18.0),
        ("not in the captures: overlap, what the profiler changed", 1.0),
    ]


def test_without_captures_modules_share_the_difference_out() -> None:
    shares: tuple[dict[str, float], dict[str, float]] = (
        {"attention": 0.5, "mlp": 0.5},
        {"attention": 0.25, "experts": 0.75},
    )
    found = phase_waterfall("decode", clean_ms=(10.0, 20.0), base=None, candidate=None, modules=shares)
    assert adds_up(found)
    assert [(s.label.split()[0], s.difference_ms) for s in found.steps] == [
        ("experts", 15.0), ("mlp", -5.0), ("attention", 0.0),
    ]  # fmt: skip


def condition(text: str, base: Sequence[float], candidate: Sequence[float]) -> GateResult:
    sides = [one_pass([value]) for value in base], [one_pass([value]) for value in candidate]
    return check_condition(parse_condition(text), estimate(*sides), sides[1])


def test_a_gate_passes_fails_or_is_inconclusive() -> None:
    steady = [10.0, 10.01, 9.99, 10.0, 10.0]
    slower = [value * 1.2 for value in steady]
    loud = [8.0, 12.0, 9.0, 13.0, 10.0]
    results = [
        condition("tpot_ms<=+5%", steady, steady),
        condition("tpot_ms<=+5%", steady, slower),
        condition("tpot_ms<=+5%", steady, loud),
        condition("tpot_ms<=10.5", steady, steady),
        condition("tpot_ms <= 10.5", steady, slower),
        condition("decode_tokens_per_s>=-5%", steady, slower),
        condition("tpot_ms<=50", [1.0], [1.0]),
    ]
    assert [r.status for r in results] == [
        "passed", "failed", "inconclusive", "passed", "failed", "passed", "inconclusive",
    ]  # fmt: skip
    assert results[1].measured == pytest.approx(1.2) and results[1].limit == 1.05
    assert [exit_code(results), exit_code([results[0], results[2]]), exit_code([results[0]]), exit_code([])] == [
        1,
        3,
        0,
        0,
    ]


def test_a_gate_on_one_start_each_is_inconclusive_unless_the_variation_is_known() -> None:
    sides = [one_pass([10.0, 10.01, 9.99, 10.0])], [one_pass([12.0, 12.01, 11.99, 12.0])]
    known = StartVariation(share=0.01, freedom=GIVEN, source="x")
    answers = [
        check_condition(parse_condition(text), estimate(*sides, variation=variation), sides[1], variation=variation)
        for variation in (None, known)
        for text in ("tpot_ms<=+5%", "tpot_ms<=50")
    ]
    assert [one.status for one in answers] == ["inconclusive", "inconclusive", "failed", "passed"]
    assert answers[0].reason.startswith("one start: how much one start differs from the next is unknown")


def test_a_gate_on_an_unknown_metric_is_refused_with_the_nearest_name() -> None:
    measured = side("base", [10.0, 10.1])
    with pytest.raises(ConfigError, match=r"^--gate: unknown metric 'tpot'; did you mean tpot_ms\?$"):
        refuse_unknown_metrics([parse_condition("tpot<=+5%")], measured, measured)
    # One that a run may have, and one that these have.
    other = SideInput(name="x", passes=[{"plugin_us": one_pass([1.0])}])
    refuse_unknown_metrics([parse_condition("ttft_ms<=5"), parse_condition("plugin_us<=5")], measured, other)


def test_the_interval_of_one_side_is_around_its_median() -> None:
    low, high = level_interval([one_pass([10.0, 10.1, 9.9, 10.2, 9.8])], repeats_start=True) or (0.0, 0.0)
    assert 9.5 < low < 10.0 < high < 10.5
    assert level_interval([one_pass([10.0, 10.1, 9.9, 10.2, 9.8])]) is None
    assert level_interval([one_pass([10.0])]) is None


@pytest.mark.parametrize("text", ["tpot_ms", "tpot_ms<5", "tpot_ms==5%", "<=5", "tpot_ms<=-100%", "tpot_ms<=x"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--gate: "):
        parse_condition(text)


def side(name: str, *passes: Sequence[float], **parts: Any) -> SideInput:
    return SideInput(name=name, passes=[{"tpot_ms": one_pass(values)} for values in passes], **parts)


def started(name: str, values: Sequence[float], *, memory: float | None = None) -> SideInput:
    """A side with a start for each value."""
    more = {} if memory is None else {"peak_memory_bytes": one_pass([memory])}
    return SideInput(name=name, passes=[{"tpot_ms": one_pass([value]), **more} for value in values])


def test_preparing_is_asked_where_it_is_a_part_of_a_request() -> None:
    def one(prepare: float) -> SideInput:
        values = {"e2e_ms": [100.0, 101.0, 102.0], "prepare_ms": [prepare, prepare * 1.01, prepare * 1.02]}
        return SideInput(name="side", passes=[{name: one_pass(of) for name, of in values.items()}] * 2)

    assert [row.metric for row in compare_sides(one(50.0), one(5.0)).metrics] == ["e2e_ms", "prepare_ms"]
    assert [row.metric for row in compare_sides(one(5.0), one(4.0)).metrics] == ["e2e_ms"]


def test_a_side_that_was_measured_on_a_shared_gpu_says_so() -> None:
    quiet, shared = side("base", [10.0, 10.1]), side("candidate", [12.0, 12.1], shared=("GPU 0 was 97 % busy",))
    assert "candidate: GPU 0 was 97 % busy" in compare_sides(quiet, shared).notes
    made = [
        RunManifest(run_id="r", created_at="", status="ok", config={}, environment=environment)
        for environment in ({"cpu": "x"}, {"cpu": "x", "gpu_busy_pct": {"0": 97}})
    ]
    assert setting_changes(*made) == ()


def test_a_failed_or_empty_run_never_wins() -> None:
    good = side("base", [10.0, 10.1, 9.9])
    bad = side("candidate", problem="the run failed")
    found = compare_sides(good, bad, conditions=[parse_condition("tpot_ms<=+5%")])
    assert (found.verdict, found.metrics, found.gates[0].status) == ("failed", (), "failed")
    assert found.sentence == "No verdict, because a side did not finish or measured nothing: candidate: the run failed."
    back = compare_sides(bad, good, conditions=[parse_condition("tpot_ms<=+5%")])
    assert (back.verdict, back.gates[0].status) == ("failed", "inconclusive")


def test_the_verdict_of_all_is_the_worst_that_is_known() -> None:
    steady, slow = [10.0, 10.01, 9.99, 10.0], [12.0, 12.01, 11.99, 12.0]
    assert compare_sides(started("a", steady), started("b", slow)).verdict == "worse"
    assert compare_sides(started("a", slow), started("b", steady)).verdict == "better"
    assert compare_sides(started("a", steady), started("b", steady)).verdict == "same"
    mixed = compare_sides(started("a", steady, memory=100.0), started("b", slow, memory=50.0))
    assert (mixed.verdict, [row.verdict for row in mixed.metrics]) == ("mixed", ["worse", "better"])


def test_one_run_each_shows_at_most_that_they_differ() -> None:
    steady, slow = [10.0, 10.01, 9.99, 10.0], [12.0, 12.01, 11.99, 12.0]
    gates = [parse_condition("tpot_ms<=+5%")]
    found = compare_sides(side("a", steady), side("b", slow), conditions=gates)
    assert (found.verdict, found.gates[0].status) == ("difference observed", "inconclusive")
    assert found.sentence.startswith("tpot_ms 10.00 ms → 12.00 ms, +20.0 % (within one start: +19.")
    assert found.notes[0].startswith("one start on a side: how much one start differs from the next is unknown")
    assert compare_sides(side("a", steady), side("b", steady)).verdict == "no difference observed"
    stated = StartVariation(share=0.02, freedom=GIVEN, source="--start-variation")
    known = compare_sides(side("a", steady), side("b", slow), conditions=gates, variation=lambda metric: stated)
    assert (known.verdict, known.gates[0].status) == ("worse", "failed")
    assert "95 %: +1" in known.sentence and not any(note.startswith("one start") for note in known.notes)


def test_rates_of_a_whole_load_are_observed_and_tails_decide_nothing() -> None:
    def load(rate: float, tail: float) -> SideInput:
        values = {"output_tokens_per_s": rate, "ttft_p99_ms": tail, "ttft_ms": 50.0}
        return SideInput(
            name="load",
            passes=[{name: one_pass([value]) for name, value in values.items()}],
            errors={"ttft_ms": 0.001},
            load="concurrency 2",
        )

    found = compare_sides(load(90.0, 700.0), load(190.0, 75.0))
    assert (found.verdict, {row.metric: row.verdict for row in found.metrics}) == (
        "difference observed",
        {
            "ttft_ms": "no difference observed",
            "output_tokens_per_s": "difference observed",
            "ttft_p99_ms": "inconclusive",
        },
    )


def test_the_sentence_names_the_largest_change_first_and_steps_too() -> None:
    def both(name: str, ttft: float, tpot: float) -> SideInput:
        noise = (1.0, 1.001, 0.999, 1.0)
        values = {"ttft_ms": ttft, "prefill_ms": ttft, "e2e_ms": ttft + 9 * tpot, "tpot_ms": tpot}
        return SideInput(
            name=name,
            passes=[{k: one_pass([v * n for n in noise]) for k, v in values.items()}],
            modules={phase: {"attention": 1.0} for phase in ("prefill", "decode")},
            repeats_start=True,
        )

    found = compare_sides(both("base", 20.0, 20.0), both("candidate", 18.0, 2.0))
    parts = found.sentence.split("; ")
    assert [part.split(" (")[0] for part in parts[:3]] == [
        "tpot_ms 20.00 ms → 2.000 ms, -90.0 %",
        "e2e_ms 200.0 ms → 36.00 ms, -82.0 %",
        "ttft_ms 20.00 ms → 18.00 ms, -10.0 %",
    ]
    assert parts[3] == "1 more changed."
    assert [fall.title for fall in found.waterfalls] == ["decode", "prefill"]
    mixed = compare_sides(both("base", 20.0, 20.0), both("candidate", 30.0, 10.0))
    assert [(part.split(" ")[0], part.rsplit(", ", 1)[-1].rstrip(").")) for part in mixed.sentence.split("; ")[:3]] == [
        ("tpot_ms", "better"),
        ("e2e_ms", "better"),
        ("ttft_ms", "worse"),
    ]
    assert overall(side("a"), side("b"), (), ()) == "inconclusive"


def test_all_that_changed_is_listed_and_other_work_cannot_be_compared() -> None:
    def manifest(config: dict[str, Any], environment: dict[str, Any]) -> RunManifest:
        return RunManifest(run_id="r", created_at="2025-01-01", status="ok", config=config, environment=environment)

    base = manifest(
        {"model": {"name": "a", "dtype": "bfloat16"}, "artifacts": {"runs_dir": "x"}, "infer": {"max_new_tokens": 8}},
        {"gpus": [{"name": "H200", "driver": "570"}], "packages": {"torch": "2.11"}},
    )
    other = manifest(
        {"model": {"name": "b", "dtype": "float16"}, "artifacts": {"runs_dir": "y"}, "infer": {"max_new_tokens": 8}},
        {"gpus": [{"name": "H100", "driver": "570"}], "packages": {"torch": "2.12"}},
    )
    found = setting_changes(base, other)
    assert [change.text for change in found] == [
        "model.name: a → b",
        "environment.gpus.0.name: H200 → H100",
        "environment.packages.torch: 2.11 → 2.12",
        "model.dtype: bfloat16 → float16",
    ]
    # Another GPU is a difference with a name, and no other work.
    assert incomparable(found) == ("model.name: a → b",)
    meant = setting_changes(base, other, meant=frozenset({"model.name"}))
    assert incomparable(meant) == ()


def test_programs_do_not_list_the_defaults_of_a_model_they_do_not_run() -> None:
    def manifest(root: str, *overrides: str) -> RunManifest:
        config = {"workload": {"command": ["python", "gen.py"]}, "dataset": {"root": root}, "model": {"path": root}}
        return RunManifest(run_id="r", created_at="", status="ok", config=config, environment={}, overrides=overrides)

    assert setting_changes(manifest("/a"), manifest("/b")) == ()
    given = setting_changes(manifest("/a", "model=llama_tiny"), manifest("/b"))
    assert [change.key for change in given] == ["model.path"]


def _counted(path: Path) -> dict[str, tuple[int, float]]:
    """Kernels of a trace counted by hand: launches and microseconds by name."""
    found: dict[str, tuple[int, float]] = {}
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") == "kernel":
            count, time = found.get(event["name"], (0, 0.0))
            found[event["name"]] = (count + 1, time + event["dur"])
    return found


@pytest.mark.slow
def test_two_real_traces_differ_by_what_an_independent_count_finds() -> None:
    shared = shared_fixtures()
    paths = [shared / "wild" / f"hta_diff_{name}.json.gz" for name in ("control", "test")] if shared else []
    if not paths or not all(path.is_file() for path in paths):
        pytest.skip("the two traces are not here")
    counts = [_counted(path) for path in paths]
    analyses = [analyze_timelines([read_torch_trace(path).timeline]) for path in paths]
    rows = kernel_changes(analyses[0].kernels, analyses[1].kernels)
    assert sorted(n for r in rows for n in r.base_names) == sorted(counts[0])
    assert sorted(n for r in rows for n in r.candidate_names) == sorted(counts[1])
    for row in rows:
        before = [counts[0][name] for name in row.base_names]
        after = [counts[1][name] for name in row.candidate_names]
        assert (row.base_launches, row.candidate_launches) == (sum(c for c, _ in before), sum(c for c, _ in after))
        assert row.base_ns == pytest.approx(1000 * sum(t for _, t in before), abs=1)
        assert row.candidate_ns == pytest.approx(1000 * sum(t for _, t in after), abs=1)
    both = counts[0].keys() & counts[1].keys()
    by_name = {row.base_names[0]: row for row in rows if row.matched_by == "name"}
    assert by_name.keys() == both
    moved = {name for name in both if counts[0][name] != counts[1][name]}
    ours = {n for n, r in by_name.items() if r.difference_ns or r.base_launches != r.candidate_launches}
    assert (len(moved), ours) == (len(ours), moved)
    whole = capture_waterfall(analyses[0], analyses[1], rows)
    assert whole is not None and adds_up(whole)
    total = [1000 * math.fsum(t for _, t in count.values()) for count in counts]
    assert sum(row.difference_ns for row in rows) == pytest.approx(total[1] - total[0], abs=10)


def test_a_document_names_its_parts(tmp_path: Path) -> None:
    found = compare_sides(
        SideInput(name="a", capture=capture(("gemm", 10, 10_000))),
        SideInput(name="b", capture=capture(("gemm", 5, 5_000))),
    )
    assert isinstance(found, CompareDocument)
    assert found.sentence.startswith("kernel_time_ms 10.0 µs → 5.00 µs, -50.0 % (95 %: -50.0 to -50.0 %)")
    assert (found.verdict, found.notes) == (
        "inconclusive",
        (
            "captures hold no clean times, so only what they recorded is compared",
            "kernel_time_ms decides nothing: 10 and 5 kernels were launched: the captures may not hold the same work",
            "one capture of each side: clocks and start-to-start variation are not in the interval",
        ),
    )


def test_captures_are_better_or_worse_by_their_launches() -> None:
    """A kernel that became 3.2 times as fast over 4,095 launches; its name leads, not the number of kernels."""

    def gaussian(fan2_ns: int) -> SideInput:
        rows = (("Fan2", 4095, 4095 * fan2_ns), ("Fan1", 4095, 4095 * 2_000))
        return SideInput(name="side", capture=capture(*rows))

    found = compare_sides(gaussian(680_000), gaussian(210_000))
    assert (found.verdict, [row.metric for row in found.metrics]) == ("better", ["kernel_time_ms"])
    assert found.sentence.endswith("; largest changes: Fan2 −1,925 ms.")
    back = compare_sides(gaussian(210_000), gaussian(680_000), conditions=[parse_condition("kernel_time_ms<=+5%")])
    assert (back.verdict, back.gates[0].status) == ("worse", "failed")
    assert compare_sides(gaussian(680_000), gaussian(680_000)).verdict == "same"


def step_capture(step_ms: float, *, spread: float, loader: str, loading_ms: float, instances: int = 6) -> SideInput:
    """A trace of training steps with a data loader inside them."""

    def row(name: str, parent: str | None, wall_ms: float, wall_spread: float) -> RangeRow:
        one = RangeInstance(
            source=0, start_ns=0, wall_ns=int(wall_ms * 1e6), kernel_count=1, gpu_busy_ns=None, gpu_idle_ns=None,
            launch_ns=0, idle=None,
        )  # fmt: skip
        return RangeRow(
            name=name, style="push/pop", parent=parent, instances=instances, wall_ns=instances * one.wall_ns,
            kernel_count=1, kernel_ns=0, graph_launches=0, gpu_busy_ns=None, gpu_idle_ns=None, launch_calls=0,
            launch_ns=0, idle=None, last=one, typical=one, kernels=(), wall_spread=wall_spread,
        )  # fmt: skip

    found = capture(("gemm", 40, 4_000_000))
    ranges = (
        row("ProfilerStep#N", None, step_ms, spread),
        row(f"enumerate(DataLoader)#{loader}.__next__", "ProfilerStep#N", loading_ms, 0.1),
    )
    gpu = replace(found.gpu, span_ns=int(instances * step_ms * 1e6))
    return SideInput(name="side", capture=replace(found, ranges=ranges, gpu=gpu))


def test_captures_are_better_or_worse_by_the_step_they_repeat_and_name_what_went_away() -> None:
    slow = step_capture(211.0, spread=0.05, loader="_SingleProcessDataLoaderIter", loading_ms=52.0)
    fast = step_capture(174.0, spread=0.05, loader="_MultiProcessingDataLoaderIter", loading_ms=1.6)
    found = compare_sides(slow, fast)
    assert found.verdict == "better"
    assert found.sentence.startswith("ProfilerStep#N wall_ms 211.0 ms → 174.0 ms, -17.5 % (95 %: ")
    assert found.sentence.endswith("; largest changes: data loading (DataLoader) −302.4 ms.")
    [loading] = [row for row in found.tables["ranges"] if row.name == "data loading (DataLoader)"]
    assert (loading.base_count, loading.candidate_count, loading.verdict) == (6, 6, "faster")
    # A step that varies by more than it changed decides nothing, and neither does one with few instances.
    loud = step_capture(211.0, spread=0.6, loader="_SingleProcessDataLoaderIter", loading_ms=52.0)
    assert [row.verdict for row in compare_sides(loud, fast).metrics] == ["inconclusive", "same"]
    few = step_capture(211.0, spread=0.05, loader="_SingleProcessDataLoaderIter", loading_ms=52.0, instances=3)
    assert [row.metric for row in compare_sides(few, fast).metrics] == ["kernel_time_ms"]


def test_an_estimate_without_noise_is_certain() -> None:
    found: ChangeEstimate = estimate([one_pass([2.0, 2.0])], [one_pass([3.0, 3.0])])
    assert (found.error, found.p_value, found.interval) == (
        pytest.approx(0.0),
        0.0,
        (pytest.approx(1.5), pytest.approx(1.5)),
    )


def test_rows_of_other_tables_get_the_verdict_their_samples_allow() -> None:
    base = {
        "steady": over_passes([(10, 1_000), (10, 1_010), (10, 990)]),
        "slower": over_passes([(10, 5_000), (10, 5_010), (10, 4_990)]),
        "noisy": over_passes([(10, 5_000), (10, 9_000), (10, 2_000)]),
        "gone": once(1, 50),
        "single": once(5, 5_000),
    }
    candidate = {
        "steady": over_passes([(10, 1_000), (10, 1_001), (10, 999)]),
        "slower": over_passes([(10, 7_000), (10, 7_010), (10, 6_990)]),
        "noisy": over_passes([(10, 9_000), (10, 5_000), (10, 12_000)]),
        "came": once(1, 70),
        "single": once(5, 9_000),
    }
    rows = {row.name: (row.verdict, row.samples) for row in rows_by_name(base, candidate)}
    assert rows == {
        "steady": ("same", 3),
        "slower": ("slower", 3),
        "noisy": ("inconclusive", 3),
        "gone": ("vanished", 1),
        "came": ("appeared", 1),
        "single": ("inconclusive", 1),
    }


def test_bounds_are_computed_so_what_differs_differs() -> None:
    bounds = (
        {"decode, datasheet": 1.0, "prefill, datasheet": 2.0},
        {"decode, datasheet": 2.0, "prefill, datasheet": 2.0},
    )
    sides = [SideInput(name=name, bounds_ms=of) for name, of in zip("ab", bounds, strict=True)]
    found = compare_sides(*sides).tables["bounds"]
    assert [(row.name, row.verdict) for row in found] == [
        ("decode, datasheet", "slower"),
        ("prefill, datasheet", "same"),
    ]


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.05, "+5.0 %"), (0.5, "-50.0 %"), (999.0, "+99800.0 %"), (5.7e25, "over +99,900 %")]
)
def test_a_change_that_few_samples_leave_open_is_no_endless_figure(ratio: float, text: str) -> None:
    assert change_text(ratio) == text
