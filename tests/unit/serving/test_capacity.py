"""The capacity of a simulated server: found within 5 % in at most eight levels, for every seed."""

from dataclasses import replace

import pytest

from llm_perf_opt.serving.capacity import CapacitySearch, Trial, binding_limit, limiting_resource, quantile, ratios_of
from llm_perf_opt.serving.counters import ServerCounter
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import CapacityResult, GpuFigures, LatencyFigures, LevelResult, level_result
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection, SloSection
from tests.support.simulated_server import simulate

LOAD = LoadSection(requests=2500, duration_s=60)
LONG = LoadSection(requests=40_000, duration_s=1e6)
# Limits of both kinds: TTFT grows with the queue at the end of the server's rate, TPOT evenly with the batch.
TTFT, TPOT = SloSection(ttft_ms=100), SloSection(tpot_ms=22)


def _search(by: str, slo: SloSection, seed: int) -> tuple[CapacityResult, list[LoadLevel]]:
    search = CapacitySearch(by=by, slo=slo)  # type: ignore[arg-type]
    runs: list[LoadRun] = []
    levels: list[LevelResult] = []
    while (level := search.next()) is not None:
        runs.append(simulate(level, LOAD, seed=1000 * seed + len(runs)))
        levels.append(level_result(runs[-1], slo))
        search.add(runs[-1], levels[-1])
    return search.result(runs, levels), [run.level for run in runs]


def _true_ratio(level: LoadLevel, slo: SloSection) -> float:
    return quantile(ratios_of(simulate(level, LONG, seed=99), slo), slo.share)


@pytest.mark.long
@pytest.mark.parametrize(("slo", "limit", "knee"), [(TTFT, "TTFT", 37.9), (TPOT, "TPOT", 26.1)], ids=["ttft", "tpot"])
def test_the_capacity_is_found_within_5_percent_for_every_seed(slo: SloSection, limit: str, knee: float) -> None:
    # What is true of the simulated server, by 40,000 requests on each side.
    assert _true_ratio(LoadLevel(rate=0.99 * knee), slo) <= 1.0 < _true_ratio(LoadLevel(rate=1.01 * knee), slo)
    found = [_search("rate", slo, seed) for seed in range(20)]
    errors = {seed: (result.value or 0.0) / knee - 1 for seed, (result, _) in enumerate(found)}
    assert {seed: error for seed, error in errors.items() if abs(error) > 0.05} == {}
    assert max(len(levels) for _, levels in found) <= 8
    assert {result.limit for result, _ in found} == {limit}
    # Nine of ten intervals hold the truth; a search that stops early has one that is too narrow now and then.
    held = [(result.low or 0.0) <= knee <= (result.high or 0.0) for result, _ in found]
    assert sum(held) >= 15


def test_the_capacity_in_concurrency_is_a_whole_number_next_to_a_miss() -> None:
    result, levels = _search("concurrency", TPOT, seed=1)
    # A step takes 10 ms and 0.4 more for each sequence and 4 for each that joins: 22 ms are reached at about 26.
    assert result.met is not None and result.missed is not None and 18 <= result.met < result.missed <= 30
    assert result.value is not None and result.low is not None and result.high is not None
    assert result.value == int(result.value) and result.met <= result.value < result.missed
    assert result.low <= result.value <= result.high
    assert all(level.concurrency is not None for level in levels) and len(levels) <= 8


def test_a_server_that_meets_every_load_has_no_upper_end() -> None:
    search = CapacitySearch(by="rate", slo=TTFT)
    loads = []
    while (level := search.next()) is not None:
        loads.append(level)
        load = level.rate or float(level.concurrency or 0)
        search.trials.append(
            Trial(
                number=len(search.trials),
                load=load,
                ratios=(0.1,) * 50,
                share=0.9,
                throughput=load,
                is_exploring=level.rate is None,
            )
        )
    assert [level.concurrency for level in loads[:4]] == [32, 128, 512, 2048]
    assert [level.rate is not None for level in loads[4:]] == [True] * 4
    assert search.bracket[1] is None


def test_no_level_that_meets_the_slo_is_said_with_the_lowest_that_was_tried() -> None:
    result, levels = _search("rate", SloSection(ttft_ms=5), seed=0)
    assert (result.value, result.high, len(levels)) == (None, None, 8)
    assert result.text.startswith("Capacity: no load met the SLO, down to 0.")


def test_a_client_that_is_late_bounds_the_search() -> None:
    search = CapacitySearch(by="rate", slo=TTFT)
    late = Trial(number=0, load=32, ratios=(0.1,), share=0.9, throughput=9.0, is_exploring=True, is_valid=False)
    search.trials.append(late)
    assert search.next() == LoadLevel(concurrency=32, repeat=2)
    runs, levels = [LoadRun(level=LoadLevel(concurrency=32))], [LevelResult(label="x", concurrency=32, completed=9)]
    assert search.result(runs, levels).text == "Capacity: not found, because no level at a rate was measured."
    # Late twice: what it completed is less than the server can, and a start.
    search.trials[:] = [late, replace(late, number=1)]
    assert search.next() == LoadLevel(rate=7.2)
    # One stream less than it can read is as far as it goes.
    search.trials[:] = [replace(late, throughput=20.0, is_valid=True), *[replace(late, number=1, load=128)] * 2]
    assert search.next() == LoadLevel(rate=16.0)
    # Of a rate the client could not send only what was answered is known.
    search.trials[:] = [replace(late, load=379.0, throughput=254.0, is_exploring=False, number=n) for n in (0, 1)]
    runs, levels = [LoadRun(level=LoadLevel(rate=379.0))] * 2, [replace(_level(), client_lag_mean_ms=9.0)] * 2
    assert search.result(runs, levels).text.startswith(
        "Capacity: at least 254 requests/s, as much as the late client got answered. Limited by the client: "
    )
    # Without a completed request no rate is known to try.
    search.trials[:] = [replace(late, throughput=None, ratios=(9.0,), is_valid=True)]
    assert search.next() is None


def test_a_client_that_was_late_once_does_not_end_the_search() -> None:
    search = CapacitySearch(by="concurrency", slo=TTFT)
    fine = Trial(number=0, load=32, ratios=(0.1,) * 50, share=0.9, throughput=9.0)
    late = replace(fine, number=1, load=128, ratios=(9.0,) * 50, is_valid=False)
    search.trials += [fine, late]
    assert search.next() == LoadLevel(concurrency=128, repeat=2)
    # What the late measurement says of the SLO is dropped where another is available.
    search.trials.append(replace(late, number=2, ratios=(0.2,) * 50, is_valid=True))
    assert search.bracket == (search.trials[2], None)
    assert search.next() == LoadLevel(concurrency=512)
    runs = [LoadRun(level=LoadLevel(concurrency=one)) for one in (32, 128, 128)]
    levels = [LevelResult(label="x", concurrency=32, completed=9)] * 3
    assert search.result(runs, levels).text == (
        "Capacity: at least 128 requests under way, the highest load tried. "
        "It is not limited by the server up to there."
    )
    # Late again: an upper end, below which the search continues; more than that only makes the client later.
    search.trials[2:] = [replace(late, number=2)]
    assert search.next() == LoadLevel(concurrency=81)
    search.trials[1:] = [replace(late, ratios=(0.5,) * 50), replace(late, number=2, ratios=(0.5,) * 50)]
    assert search.next() is None


def test_a_load_that_is_given_twice_is_two_levels() -> None:
    levels = LoadSection(concurrency=(4, 8, 4)).levels()
    assert [level.key for level in levels] == ["concurrency=4", "concurrency=8", "concurrency=4;repeat=2"]
    assert [level.label for level in levels] == ["concurrency 4", "concurrency 8", "concurrency 4, repeat 2"]


def test_a_rate_is_not_taken_for_the_concurrency_of_the_same_number() -> None:
    search = CapacitySearch(by="rate", slo=TTFT)
    exploring = Trial(number=0, load=32, ratios=(9.0,) * 50, share=0.9, throughput=40.0, is_exploring=True)
    met = Trial(number=1, load=32, ratios=(0.5,) * 50, share=0.9, throughput=32.0)
    search.trials += [exploring, met, replace(met, number=2, load=40, ratios=(2.0,) * 50)]
    runs = [LoadRun(level=one) for one in (LoadLevel(concurrency=32), LoadLevel(rate=32.0), LoadLevel(rate=40.0))]
    levels = [
        LevelResult(label="a", concurrency=32, completed=9, client_lag_mean_ms=9.0, latencies=_level().latencies),
        LevelResult(label="b", rate=32.0, completed=9),
        LevelResult(label="c", rate=40.0, completed=9),
    ]
    # The level furthest from its limits is the one at a concurrency, whose client was late.
    assert search.result(runs, levels).resource == "client"
    levels = [replace(levels[0], client_lag_mean_ms=None), replace(levels[1], client_lag_mean_ms=9.0), levels[2]]
    assert search.result(runs, levels).resource == "unknown"


def test_the_limit_that_decides_is_the_one_that_is_missed_however_near_the_others_are() -> None:
    # Every request is nearer to its limit of TPOT, but for the slowest tenth, whose TTFT misses.
    records = [
        RequestRecord(
            index=number,
            started_s=float(number),
            status="ok",
            ttft_s=0.4 if number % 8 == 0 else 0.02,
            latency_s=(0.4 if number % 8 == 0 else 0.02) + 0.8,
            output_tokens=17,
        )
        for number in range(80)
    ]
    run = LoadRun(level=LoadLevel(rate=4.0), records=records)
    assert binding_limit(run, SloSection(ttft_ms=300, tpot_ms=60)) == "TTFT"
    assert binding_limit(run, SloSection(ttft_ms=500, tpot_ms=52)) == "TPOT"


def _level(**counters: tuple[float, float]) -> LevelResult:
    rows = tuple(
        ServerCounter(name=name.replace("_", " "), kind="gauge", mean=mean, most=most, last=most)
        for name, (mean, most) in counters.items()
    )
    return LevelResult(
        label="x", rate=4.0, completed=9, counters=rows, latencies={"ttft": LatencyFigures(median_ms=50.0)}
    )


def test_what_limits_a_level_is_what_the_server_reported() -> None:
    level = _level(waiting=(0.2, 3.0), KV_cache_use=(0.5, 0.6))
    cases = {
        "client": replace(level, client_lag_mean_ms=9.0),
        "KV cache": _level(waiting=(7.0, 9.0), KV_cache_use=(0.8, 0.97), preemptions=(2.0, 4.0)),
        "queue": _level(waiting=(7.0, 9.0), KV_cache_use=(0.2, 0.3)),
        "GPU": replace(level, gpus=(GpuFigures(device="H200", utilisation_pct=98.0),)),
        "unknown": level,
    }
    found = {name: limiting_resource(one, "TTFT") for name, one in cases.items()}
    assert {name: resource for name, (resource, _) in found.items()} == {name: name for name in cases}
    assert [text for _, text in found.values()] == [
        "Limited by the client: the client's event loop was late by 9.000 ms (p99 0 ms), more than 5 % of the median "
        "TTFT (50.00 ms).",
        "Limited by the KV cache, use up to 97 %, 4 preemptions.",
        "Limited by the queue: 7.00 requests waited on average; TTFT reaches its limit first.",
        "Limited by the GPU, busy 98 % of the time; TTFT reaches its limit first.",
        "TTFT reaches its limit first.",
    ]
