"""One meaning of a slowdown: the same first steps of the same samples, else the medians, and `how` says which."""

import json
from pathlib import Path

from llm_perf_opt.core.documents import CleanPass, MetricsDocument, RanModel, Stats
from llm_perf_opt.core.records import Metric
from llm_perf_opt.core.slowdown import TimedSample, matched_ratios, no_slowdown, slowdown
from llm_perf_opt.profiling.baseline import CleanBaseline, profiled_slowdown, slowdown_between
from llm_perf_opt.profiling.nsys.nsys_session import nsys_slowdown

MATCHED = "time under nsys by time in the clean pass, same samples, same first steps"
MEDIANS = "median {} under nsys by that of the clean pass, because no sample has the same first steps in both"


def sample(name: str, prefill_ms: float, *steps_ms: float) -> TimedSample:
    return TimedSample(sample_id=name, prefill_ms=prefill_ms, step_ms=steps_ms)


def written(folder: Path, *samples: tuple[str, str, float, list[float]], p50: tuple[float, float]) -> MetricsDocument:
    """A folder our inference left, and its metrics.json."""
    folder.mkdir()
    lines = [
        {"sample_id": name, "pass": kind, "prefill_ms": prefill, "itl_values_ms": steps}
        for name, kind, prefill, steps in samples
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return MetricsDocument(model=RanModel(name="m"), clean=CleanPass(metrics=medians(*p50)))


def medians(prefill_ms: float, tpot_ms: float) -> dict[str, Stats]:
    values = {"prefill_ms": prefill_ms, "tpot_ms": tpot_ms}
    return {key: Stats(mean=None, std=None, p50=value, p90=None, p99=None, n=1) for key, value in values.items()}


def test_the_same_first_steps_of_the_same_samples_are_compared() -> None:
    clean = [sample("a", prefill, 1.0, 2.0, 50.0) for prefill in (10.0, 12.0, 90.0)] + [sample("b", 999.0, 9.0)]
    profiled = [sample("a", 24.0, 3.0, 6.0), sample("unheard of", 1.0, 1.0)]
    assert matched_ratios(clean, profiled) == {"prefill": 2.0, "decode": 3.0}


def test_more_profiled_steps_than_clean_ones_are_not_compared() -> None:
    assert matched_ratios([sample("a", 10.0, 1.0)], [sample("a", 15.0, 1.0, 1.0)]) == {"prefill": 1.5, "decode": None}
    assert matched_ratios([sample("a", 10.0)], []) == {"prefill": None, "decode": None}


def test_a_phase_without_matched_steps_takes_the_medians_and_says_so() -> None:
    found = slowdown(
        {"prefill": 1.5, "decode": None},
        clean_ms={"prefill": 10.0, "decode": 2.0},
        profiled_ms={"prefill": 99.0, "decode": 2.5},
        where="under nsys",
        source="torch_profiler/metrics.json",
    )
    source = "torch_profiler/metrics.json"
    assert found == {
        "slowdown_prefill": Metric(value=1.5, unit="x", how=MATCHED, per="clean prefill time", source=source),
        "slowdown_decode": Metric(
            value=1.25, unit="x", how=MEDIANS.format("tpot_ms"), per="clean decode time", source=source
        ),
    }


def test_without_any_time_there_is_a_reason() -> None:
    nothing = {"prefill": None, "decode": None}
    found = slowdown(nothing, clean_ms=nothing, profiled_ms=nothing, where="under nsys", source="f")
    assert {name: (m.value, m.unit, m.reason) for name, m in found.items()} == {
        "slowdown_prefill": (None, "x", "no prefill step was measured in both passes"),
        "slowdown_decode": (None, "x", "no decode step was measured in both passes"),
    }
    assert {(m.value, m.unit, m.reason) for m in no_slowdown("it was cut short", where="under nsys").values()} == {
        (None, "x", "it was cut short")
    }


def test_the_samples_of_two_folders_are_matched_and_a_profiled_pass_beside_the_clean_one_is_left_out(
    tmp_path: Path,
) -> None:
    clean = written(
        tmp_path / "clean",
        *(("a", "clean", 10.0, [1.0, 1.0, 7.0]), ("a", "profiled", 500.0, [500.0]), ("b", "clean", 70.0, [7.0])),
        p50=(40.0, 5.0),
    )
    under = written(tmp_path / "ncu", ("a", "clean", 30.0, [4.0, 4.0]), p50=(30.0, 4.0))
    folders = (tmp_path / "clean", tmp_path / "ncu")
    found = slowdown_between(clean, under, folders=folders, where="under ncu", source="f")
    # By the medians the workload under ncu would have been faster than without it.
    assert {name: m.value for name, m in found.items()} == {"slowdown_prefill": 3.0, "slowdown_decode": 4.0}


def test_folders_without_samples_are_compared_by_their_medians(tmp_path: Path) -> None:
    clean, under = written(tmp_path / "a", p50=(10.0, 2.0)), written(tmp_path / "b", p50=(15.0, 2.5))
    (tmp_path / "b" / "samples.jsonl").unlink()
    folders = (tmp_path / "a", tmp_path / "b")
    found = slowdown_between(clean, under, folders=folders, where="under nsys", source="f")
    assert {name: (m.value, m.how) for name, m in found.items()} == {
        "slowdown_prefill": (1.5, MEDIANS.format("prefill_ms")),
        "slowdown_decode": (1.25, MEDIANS.format("tpot_ms")),
    }


def test_a_run_that_compared_its_own_passes_is_taken_at_its_word() -> None:
    data = MetricsDocument(
        model=RanModel(name="m"),
        clean=CleanPass(metrics=medians(10.0, 2.0)),
        slowdown={"prefill": 2.0, "decode": 3.0},
    )
    found = profiled_slowdown(data, "torch_profiler/metrics.json")
    how = "time in the profiled pass by time in the clean pass, same samples, same first steps"
    assert {name: (m.value, m.how) for name, m in found.items()} == {
        "slowdown_prefill": (2.0, how),
        "slowdown_decode": (3.0, how),
    }


def test_nsys_says_why_its_slowdown_is_not_known(tmp_path: Path) -> None:
    child_dir = tmp_path / "nsys"
    child = written(child_dir, p50=(10.0, 2.0))
    clean = CleanBaseline(metrics=child, source="timer/metrics.json", folder=child_dir)
    reasons = {
        "your own program is not timed under a profiler": nsys_slowdown(None, None, child_dir, complete=True),
        "the workload did not run to its end under nsys": nsys_slowdown(clean, child, child_dir, complete=False),
        None: nsys_slowdown(clean, child, child_dir, complete=True),
    }
    assert {want: {m.reason for m in found.values()} for want, found in reasons.items()} == {
        want: {want} for want in reasons
    }
    assert {m.value for m in reasons[None].values()} == {1.0}
