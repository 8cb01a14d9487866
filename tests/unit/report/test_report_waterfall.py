"""The waterfall: levels, idle time by cause, unknown steps, contradictions."""

import pytest

from llm_perf_opt.diagnosis.waterfall import KnownStep, UnknownStep, Waterfall, build_waterfall, split_idle
from llm_perf_opt.report.view.shown import BoundDistance, TimePart
from llm_perf_opt.report.view.waterfall_view import distance_of, split_of, waterfall_view
from tests.support.report_facts import UNKNOWN, bound, gpu, idle, ms, phase


def levels(fall: Waterfall) -> list[tuple[str, float, float] | tuple[str, str]]:
    return [(s.key, s.from_ms, s.to_ms) if isinstance(s, KnownStep) else (s.key, s.why.reason) for s in fall.steps]


def test_every_level_starts_where_the_last_one_ended_and_idle_fills_up_to_the_clean_time() -> None:
    decode = phase(
        wall=ms(15.0),
        datasheet=bound(0.5),
        achievable=bound(0.6),
        gpu=gpu(2.0, wall=24.0, idle=idle(host=18.0, sync=3.0, between=1.0)),
    )
    fall = build_waterfall(decode)
    # The gaps between kernels are the device's; twelve milliseconds are shared six to one by launches and waits.
    assert levels(fall) == [
        ("datasheet", 0.0, 0.5),
        ("achievable", 0.5, 0.6),
        ("kernels", 0.6, 2.0),
        ("host", 2.0, pytest.approx(2.0 + 12 * 18 / 21)),
        ("sync", pytest.approx(2.0 + 12 * 18 / 21), pytest.approx(14.0)),
        ("between", pytest.approx(14.0), pytest.approx(15.0)),
        ("wall", 0.0, 15.0),
    ]
    assert fall.idle_share == pytest.approx(13 / 15)
    assert fall.notes == ()


def test_idle_time_nobody_explains_is_shown_as_such() -> None:
    assert split_idle(idle(host=6.0, lost=4.0), 5.0) == [
        ("host", "GPU idle: waiting for the host to launch", pytest.approx(3.0)),
        ("unexplained", "Not explained", pytest.approx(2.0)),
    ]
    assert split_idle(idle(), 5.0) == [("unexplained", "Not explained", 5.0)]


def test_device_gaps_larger_than_the_clean_idle_time_are_scaled_down() -> None:
    parts = split_idle(idle(between=4.0, copy=4.0, host=2.0), 5.0)
    assert {key: value for key, _, value in parts} == pytest.approx({"between": 2.0, "copy": 2.0, "host": 1.0})


def test_causes_add_up_to_the_clean_idle_time_whatever_the_capture_says() -> None:
    for split in (idle(host=9.9, copy=0.001), idle(sync=3.0, lost=0.5), idle(between=7.0), idle(host=1e-6)):
        assert sum(value for _, _, value in split_idle(split, 5.0)) == pytest.approx(5.0)


def test_without_a_capture_the_rest_is_not_explained_and_the_unknown_steps_stay_in_place() -> None:
    fall = build_waterfall(phase(wall=ms(10.0), datasheet=bound(1.0)))
    assert levels(fall) == [
        ("datasheet", 0.0, 1.0),
        ("achievable", "not measured"),
        ("kernels", "not measured"),
        ("idle", "not measured"),
        ("rest", 1.0, 10.0),
        ("wall", 0.0, 10.0),
    ]
    rest = fall.known("rest")
    assert rest is not None and rest.kind == "unexplained"


def test_without_a_clean_time_nothing_of_the_profiled_pass_is_shown_as_one() -> None:
    fall = build_waterfall(phase(achievable=bound(1.0), gpu=gpu(2.0, wall=24.0, idle=idle(host=22.0))))
    assert levels(fall) == [
        ("datasheet", "not measured"),
        ("achievable", 0.0, 1.0),
        ("kernels", 1.0, 2.0),
        ("idle", "not measured"),
        ("wall", "not measured"),
    ]
    assert fall.idle_share is None


def test_a_cpu_has_operators_and_the_rest() -> None:
    fall = build_waterfall(phase(wall=ms(10.0), achievable=bound(1.0), operators=ms(7.0), is_cpu=True))
    assert levels(fall)[1:] == [
        ("achievable", 0.0, 1.0),
        ("operators", 1.0, 7.0),
        ("rest", 7.0, 10.0),
        ("wall", 0.0, 10.0),
    ]
    unknown = build_waterfall(phase(wall=ms(10.0), achievable=bound(1.0), is_cpu=True))
    assert [s.kind for s in unknown.steps if s.key == "rest"] == ["unexplained"]


def test_levels_that_contradict_each_other_are_named() -> None:
    fall = build_waterfall(phase(wall=ms(1.5), achievable=bound(3.0), gpu=gpu(2.0, wall=2.5)))
    assert fall.notes == (
        "the kernel time (2 ms) is below the achievable bound (3 ms): the data came from a cache, or the bound was "
        "computed for another prompt or context than was measured",
        "the clean wall time (1.5 ms) is below the kernel time (2 ms): kernels ran at the same time, or ran faster "
        "without the profiler",
    )


def test_bars_lie_on_one_scale_and_unknown_ones_say_what_to_enable() -> None:
    fall = build_waterfall(
        phase(wall=ms(10.0), datasheet=bound(1.0), achievable=bound(2.0), gpu=gpu(5.0, wall=12.0, idle=idle(host=7.0)))
    )
    rows = waterfall_view(fall).rows
    assert [(r.key, r.left_pct, r.width_pct, r.total, r.added, r.factor) for r in rows] == [
        ("datasheet", 0.0, 10.0, "1.000 ms", "", ""),
        ("achievable", 10.0, 10.0, "2.000 ms", "+1.000 ms", "2.0×"),
        ("kernels", 20.0, pytest.approx(30.0), "5.000 ms", "+3.000 ms", "2.5×"),
        ("host", 50.0, 50.0, "10.00 ms", "+5.000 ms", "2.0×"),
        ("wall", 0.0, 100.0, "10.00 ms", "", ""),
    ]
    assert [r.is_estimate for r in rows] == [False, False, False, True, False]
    view = waterfall_view(build_waterfall(phase()))
    assert all(row.missing is not None and row.total == "unknown" for row in view.rows)
    assert view.summary == "The clean wall time is not known."


def test_the_first_screen_says_where_a_token_goes_and_how_far_it_is_from_its_bound() -> None:
    fall = build_waterfall(
        phase(wall=ms(10.0), datasheet=bound(1.0), achievable=bound(2.0), gpu=gpu(5.0, wall=12.0, idle=idle(host=7.0)))
    )
    split = split_of(fall)
    assert split is not None and (split.what, split.total, split.is_estimate) == ("one token", "10.00 ms", True)
    assert split.parts == (
        TimePart(label="hardware limit", kind="bound", share=0.2),
        TimePart(label="GPU kernels above the hardware limit", kind="work", share=0.3),
        TimePart(label="GPU idle: waiting for the host to launch", kind="idle", share=0.5),
    )
    assert [part.share for part in split.largest] == [0.5, pytest.approx(0.3), 0.2]
    assert distance_of(fall) == BoundDistance(
        phase="decode", factor="5.0×", wall="10.00 ms", bound="2.000 ms", per="per token"
    )


def test_steps_that_do_not_add_up_are_no_bar() -> None:
    contradicted = build_waterfall(phase(wall=ms(1.5), achievable=bound(3.0), gpu=gpu(2.0, wall=2.5)))
    assert split_of(contradicted) is None
    assert (split_of(build_waterfall(phase())), distance_of(build_waterfall(phase()))) == (None, None)


def test_without_a_bound_the_bar_is_of_kernels_and_idle_time() -> None:
    fall = build_waterfall(phase(wall=ms(10.0), gpu=gpu(4.0, wall=12.0, idle=idle(host=8.0))))
    split = split_of(fall)
    assert split is not None
    assert [(part.label, part.share) for part in split.parts] == [
        ("GPU kernels", 0.4),
        ("GPU idle: waiting for the host to launch", pytest.approx(0.6)),
    ]
    assert distance_of(fall) is None


def test_a_phase_of_unknowns_is_all_unknown() -> None:
    fall = build_waterfall(phase())
    assert all(isinstance(step, UnknownStep) for step in fall.steps)
    assert fall.wall == UNKNOWN
