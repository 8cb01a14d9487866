"""Statistics and per-pass metrics: whole values, and reasons where there are none."""

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from llm_perf_opt.core.documents import PassTotals, Stats
from llm_perf_opt.workload.device import ResidentPeak
from llm_perf_opt.workload.generation import Generation
from llm_perf_opt.workload.results import (
    ONE_TOKEN,
    SampleResult,
    compare_passes,
    pass_metrics,
    peak_memory,
    summarise,
    tokens_differ,
    totals,
)


def near(value: float) -> Any:
    """A number a record may hold here, though pytest means a comparison by it."""
    return pytest.approx(value)


def result(
    name: str = "s", *, pass_name: str = "clean", prefill: float = 10.0, gaps: tuple[float, ...] = (2.0, 4.0)
) -> SampleResult:
    generation = Generation(
        token_ids=tuple(range(len(gaps) + 1)),
        prefill_ms=prefill,
        ttft_ms=prefill + 1,
        decode_ms=sum(gaps) if gaps else None,
        itl_ms=gaps,
        parts_ms={"sam": 3.0},
    )
    return SampleResult(
        sample_id=name,
        pass_name=pass_name,
        repeat=0,
        epoch=0,
        prompt_tokens=50,
        prepare_ms=5.0,
        generation=generation,
        peak_memory_bytes=None,
    )


def test_percentiles_interpolate_and_the_deviation_is_that_of_a_sample() -> None:
    assert asdict(summarise([4.0, 1.0, 3.0, 2.0], reason="")) == {
        "mean": 2.5,
        "std": near(statistics.stdev([1, 2, 3, 4])),
        "p10": near(1.3),
        "p50": 2.5,
        "p90": near(3.7),
        "p99": near(3.97),
        "n": 4,
        "reason": UNSET,
    }


def test_one_value_has_no_deviation_and_no_value_has_a_reason() -> None:
    assert summarise([7.0], reason="") == Stats(mean=7.0, std=None, p10=7.0, p50=7.0, p90=7.0, p99=7.0, n=1)
    empty = Stats(mean=None, std=None, p10=None, p50=None, p90=None, p99=None, n=0, reason="why")
    assert summarise([], reason="why") == empty


def test_a_sample_line_holds_every_time_and_rate() -> None:
    line = result().line()
    gaps = line.pop("itl_ms")
    assert line == {
        "sample_id": "s",
        "pass": "clean",
        "repeat": 0,
        "epoch": 0,
        "prompt_tokens": 50,
        "tokens": 3,
        "start_ns": 0,
        "prepare_ms": 5.0,
        "prefill_ms": 10.0,
        "ttft_ms": 11.0,
        "decode_ms": 6.0,
        "tpot_ms": 3.0,
        "e2e_ms": 22.0,
        "prefill_tokens_per_s": 5000.0,
        "decode_tokens_per_s": near(1000 / 3),
        "sam_ms": 3.0,
        "peak_memory_bytes": None,
        "itl_values_ms": [2.0, 4.0],
    }
    assert (gaps.mean, gaps.n) == (3.0, 2)


def test_a_single_token_leaves_decode_metrics_empty_with_the_reason() -> None:
    metrics = pass_metrics([result(gaps=())], parts=("sam",))
    for name in ("decode_ms", "tpot_ms", "itl_ms", "decode_tokens_per_s"):
        assert (metrics[name].p50, metrics[name].reason) == (None, ONE_TOKEN)
    assert metrics["e2e_ms"].p50 == 16.0
    assert metrics["sam_ms"].p50 == 3.0


def test_totals_divide_all_tokens_by_all_time() -> None:
    assert totals([result(), result(gaps=(1.0,))]) == PassTotals(
        prompt_tokens=100,
        tokens=5,
        prefill_s=0.02,
        decode_s=0.007,
        prefill_tokens_per_s=5000.0,
        decode_tokens_per_s=near(3 / 0.007),
    )


def test_slowdown_compares_the_same_samples_and_the_same_first_steps() -> None:
    clean = [result("a", prefill=p, gaps=(1.0, 2.0, 50.0)) for p in (10.0, 12.0, 90.0)] + [result("b", prefill=999.0)]
    profiled = [result("a", pass_name="profiled", prefill=24.0, gaps=(3.0, 6.0))]
    assert compare_passes(clean, profiled) == {"prefill": 2.0, "decode": 3.0}
    assert compare_passes(clean, []) == {"prefill": None, "decode": None}


def test_other_tokens_in_the_profiled_pass_are_noticed() -> None:
    assert not tokens_differ([result("a", gaps=(1.0, 1.0, 1.0))], [result("a", gaps=(1.0,))])
    assert tokens_differ([result("a", gaps=(1.0,))], [result("a", gaps=(1.0, 1.0))])


def test_a_peak_that_cannot_be_reset_is_absent_with_the_reason(tmp_path: Path) -> None:
    meter = ResidentPeak(clear_refs=tmp_path / "absent" / "clear_refs")
    meter.reset()
    assert meter.peak_bytes() is None
    peak_bytes, reason = peak_memory([result()], reason=meter.reason)
    assert peak_bytes is None
    assert "cannot be reset here" in str(reason)


def test_the_resident_peak_of_this_process_is_real() -> None:
    meter = ResidentPeak()
    meter.reset()
    if meter.reason is not None:
        pytest.skip(meter.reason)
    before = meter.peak_bytes()
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    after = meter.peak_bytes()
    assert before is not None
    assert after is not None
    assert after - before > 48 << 20
