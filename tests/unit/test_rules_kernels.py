"""Rules about kernels: too slow, too small, too many, too wide."""

from dataclasses import replace
from typing import Any

import pytest

from llm_perf_opt.analysis.findings.phase_kernels import HIDDEN
from llm_perf_opt.analysis.findings.rules.above_bound import find_above_bound
from llm_perf_opt.analysis.findings.rules.dtype_miss import find_dtype_misses, find_wide_format
from llm_perf_opt.analysis.findings.rules.kv_growth import find_weight_reads
from llm_perf_opt.analysis.findings.rules.low_occupancy import find_low_occupancy
from llm_perf_opt.analysis.findings.rules.memory_bound import find_far, find_near
from llm_perf_opt.analysis.findings.rules.needless_copies import find_needless_copies, find_transfers
from llm_perf_opt.analysis.findings.rules.small_gemm import find_small_gemms
from llm_perf_opt.analysis.findings.rules.unfused_elementwise import find_unfused_elementwise
from llm_perf_opt.diagnosis.facts import CopyFacts, RunFacts
from tests.support.report_facts import NO_MEMORY, bound, busy_decode, facts, gpu, kernel, ms, ncu, phase, size, whole

GEMM = kernel("nvjet_tst_64x8", "GEMM", 0.8, 32)
REST = kernel("flash_fprop", "attention", 0.2, 16)


def measured(**values: Any) -> RunFacts:
    """A decode step of one GEMM, measured by ncu, and something else."""
    return busy_decode(GEMM, REST, kernels=(whole(GEMM, ncu(GEMM.name, **values)), whole(REST)))


def test_kernels_far_above_the_bound_are_found_with_their_classes() -> None:
    decode = phase(wall=ms(1.2), achievable=bound(0.4), gpu=gpu(1.0, wall=1.2, kernels=(GEMM, REST)))
    (found,) = find_above_bound(facts(decode))
    assert found.title == "Decode kernels take 2.5× what the hardware needs"
    assert found.saves_ms == pytest.approx(0.6)
    assert found.gain == pytest.approx(2.0)
    assert found.evidence[1].text == "kernels 1.000 ms: GEMM 0.800 ms, attention 0.200 ms"
    assert found.caveat is None


def test_kernels_near_the_bound_or_without_one_are_left_alone() -> None:
    assert find_above_bound(facts(phase(wall=ms(1.2), achievable=bound(0.9), gpu=gpu(1.0, wall=1.2)))) == []
    assert find_above_bound(facts(phase(wall=ms(1.2), gpu=gpu(1.0, wall=1.2)))) == []


def test_slow_operators_on_a_cpu_are_found_and_fast_ones_are_not() -> None:
    slow = phase(wall=ms(10.0), achievable=bound(1.0), operators=ms(8.0), is_cpu=True)
    (found,) = find_above_bound(facts(slow, is_cpu=True))
    assert found.title == "Decode operators take 8.0× what the CPU needs"
    assert (found.saves_ms, found.gain, found.confidence) == (7.0, pytest.approx(10 / 3), "low")
    fast = phase(wall=ms(10.0), achievable=bound(7.0), operators=ms(8.0), is_cpu=True)
    assert find_above_bound(facts(fast, is_cpu=True)) == []


def test_a_gain_hidden_behind_launches_says_so() -> None:
    decode = phase(wall=ms(15.0), achievable=bound(0.4), gpu=gpu(1.0, wall=20.0, kernels=(GEMM,)))
    (found,) = find_above_bound(facts(decode))
    assert found.caveat == HIDDEN


def test_memory_bound_kernels_near_the_roof_should_move_less() -> None:
    (found,) = find_near(measured(bound="memory", memory_roof_pct=90.0))
    assert found.rule == "memory_bound_near"
    assert found.title == "Memory-bound kernels near the roof take 80 % of decode kernel time"
    assert found.saves_ms == pytest.approx(0.08)
    assert found.evidence[0].source == "ncu/kernels.json"


def test_memory_bound_kernels_far_from_the_roof_should_move_better() -> None:
    (found,) = find_far(measured(bound="memory", memory_roof_pct=25.0))
    assert (found.rule, found.saves_ms) == ("memory_bound_far", pytest.approx(0.6))


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
    assert (find_near(measured(**values)), find_far(measured(**values))) == ([], [])


def test_products_of_less_than_one_wave_are_small() -> None:
    (found,) = find_small_gemms(measured(waves_per_sm=0.24, roof_pct=25.0))
    assert found.title == "Small matrix products take 80 % of decode kernel time"
    assert found.saves_ms == pytest.approx(0.6)
    assert found.evidence[0].text == "`nvjet_tst_64x8`: 0.8 ms in 32 launch(es), 25.0 µs each, 0.24 waves of blocks"
    # One that moves bytes as fast as the memory can does not get faster by being larger.
    assert find_small_gemms(measured(waves_per_sm=0.97, roof_pct=81.0)) == []


def test_short_products_are_small_without_ncu_and_long_or_wide_ones_are_not() -> None:
    short = kernel("nvjet_a", "GEMM", 0.8, 200)
    (found,) = find_small_gemms(busy_decode(short, REST))
    assert (found.confidence, found.saves_ms) == ("low", pytest.approx(0.8))
    assert find_small_gemms(busy_decode(GEMM, REST)) == []
    assert find_small_gemms(measured(waves_per_sm=3.0)) == []


def test_many_elementwise_kernels_should_be_fused() -> None:
    chain = kernel("vectorized_elementwise_kernel[Mul]", "elementwise", 0.5, 120)
    (found,) = find_unfused_elementwise(busy_decode(GEMM, chain, wall=1.4))
    assert found.title == "Unfused elementwise work takes 38 % of decode kernel time"
    assert found.saves_ms == 0.5
    assert found.evidence[0].text.startswith("120 of 152 launches, 0.5 of 1.3 ms kernel time")


def test_few_or_cheap_elementwise_kernels_are_left_alone() -> None:
    few = kernel("vectorized_elementwise_kernel[Mul]", "elementwise", 0.5, 20)
    cheap = kernel("vectorized_elementwise_kernel[Mul]", "elementwise", 0.05, 120)
    assert find_unfused_elementwise(busy_decode(GEMM, few)) == []
    assert find_unfused_elementwise(busy_decode(GEMM, cheap)) == []


def test_copy_kernels_and_transfers_are_found() -> None:
    cat = kernel("CatArrayBatchedCopy", "copy", 0.2, 32)
    copies = (CopyFacts(kind="Copy Host-to-Device", instances=4, total_ns=300_000, size_bytes=2_000_000),)
    run = busy_decode(GEMM, cat, wall=1.2, kernels=(whole(GEMM), whole(cat)), copies=copies)
    (kernels,) = find_needless_copies(run)
    (transfers,) = find_transfers(run)
    assert (kernels.title, kernels.saves_ms) == ("Kernels that only copy take 20 % of decode kernel time", 0.2)
    assert transfers.title == "Host-device copies of 2 MB take 0.3 ms, 0.3× as long as all kernels of the capture"
    assert transfers.evidence[0].text == "Copy Host-to-Device: 4 copies, 0.3 ms, 2 MB"


def test_transfers_longer_than_the_kernels_are_given_in_milliseconds_and_as_a_factor() -> None:
    load = (CopyFacts(kind="[CUDA memcpy HtoD]", instances=146, total_ns=1_612_000_000, size_bytes=2_472_000_000),)
    run = busy_decode(GEMM, REST, kernels=(whole(GEMM), whole(kernel("rest", "GEMM", 28.0))), copies=load)
    (found,) = find_transfers(run)
    assert found.title == "Host-device copies of 2,472 MB take 1,612 ms, 56× as long as all kernels of the capture"
    unsized = (*load, CopyFacts(kind="[CUDA memcpy DtoH]", instances=1, total_ns=1000, size_bytes=None))
    (found,) = find_transfers(busy_decode(GEMM, REST, kernels=(whole(GEMM),), copies=unsized))
    assert found.title == "Host-device copies take 1,612 ms, 2,015× as long as all kernels of the capture"


def test_copies_on_the_device_are_no_transfers() -> None:
    copies = (CopyFacts(kind="Copy Device-to-Device", instances=4, total_ns=300_000, size_bytes=None),)
    assert find_transfers(busy_decode(GEMM, REST, kernels=(whole(GEMM), whole(REST)), copies=copies)) == []


def test_low_occupancy_names_its_limiter_and_the_remedy_that_fits() -> None:
    low = {"occupancy_pct": 12.0, "compute_sol_pct": 20.0, "memory_sol_pct": 25.0}
    (found,) = find_low_occupancy(measured(**low, occupancy_limiter="registers", waves_per_sm=4.0))
    assert found.evidence[0].text.endswith("occupancy 12 %, limited by registers")
    assert found.remedy.startswith("cut registers per thread")
    assert found.saves_ms == pytest.approx(0.6)
    (small,) = find_low_occupancy(measured(**low, occupancy_limiter="registers", waves_per_sm=0.5))
    assert small.evidence[0].text.endswith("limited by small grid")
    assert small.remedy.startswith("launch more blocks")


def test_a_kernel_near_its_roof_needs_no_occupancy() -> None:
    assert find_low_occupancy(measured(occupancy_pct=12.0, compute_sol_pct=80.0, memory_sol_pct=10.0)) == []
    assert find_low_occupancy(measured(occupancy_pct=70.0, compute_sol_pct=20.0, memory_sol_pct=25.0)) == []
    # A roof that was not measured is not one the kernel is far from.
    assert find_low_occupancy(measured(occupancy_pct=12.0)) == []
    assert find_low_occupancy(measured(occupancy_pct=12.0, memory_sol_pct=25.0)) == []
    assert find_low_occupancy(measured()) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_tn_align1>(T1::Params)", "fp32 on CUDA cores"),
        ("ampere_sgemm_128x64_tn", "fp32 on CUDA cores"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_aligna4", "fp32 on CUDA cores"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", "TF32"),
        ("ampere_dgemm_64x64", "fp64"),
    ],
)
def test_products_in_a_wider_format_than_meant_are_found(name: str, kind: str) -> None:
    wide = kernel(name, "GEMM", 0.4)
    (found,) = find_dtype_misses(busy_decode(GEMM, wide, wall=1.3))
    assert found.title == f"Products in {kind}, not bf16, take 33.3 % of decode kernel time"
    assert found.saves_ms is not None and 0.2 <= found.saves_ms < 0.4


@pytest.mark.parametrize(
    "name",
    [
        "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT",
        "ampere_bf16_s16816gemm_bf16_128x64",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32",
    ],
)
def test_products_in_the_format_meant_are_left_alone(name: str) -> None:
    assert find_dtype_misses(busy_decode(kernel(name, "GEMM", 0.4))) == []
    wide = kernel("ampere_sgemm_128x64_tn", "GEMM", 0.4)
    assert find_dtype_misses(busy_decode(wide, dtype="float32")) == []


def test_a_capture_without_phases_is_judged_as_a_whole() -> None:
    cat = kernel("CatArrayBatchedCopy", "copy", 0.2, 32)
    (found,) = find_needless_copies(facts(phase("decode"), kernels=(whole(GEMM), whole(cat))))
    assert (found.phase, found.gain) == ("capture", None)
    assert found.title == "Kernels that only copy take 20 % of the capture's kernel time"


def test_a_model_in_float32_on_a_gpu_may_be_narrower_and_one_on_a_cpu_is_left_alone() -> None:
    wide = busy_decode(
        kernel("ampere_sgemm_128x64_tn", "GEMM", 0.8), kernel("add", "elementwise", 0.2), dtype="float32"
    )
    (found,) = find_wide_format(wide)
    assert found.saves_ms == pytest.approx(0.8 * 15 / 16 + 0.1)
    assert found.title == "The model runs in float32: 80 % of decode kernel time are its products"
    assert find_wide_format(replace(wide, is_cpu=True)) == find_wide_format(replace(wide, dtype="bfloat16")) == []


def test_decode_that_reads_weights_alone_could_read_narrower_ones() -> None:
    decode = phase("decode", wall=ms(2.0), gpu=gpu(1.6, wall=2.0), bytes=size(2.5e9), limit="memory")
    memory = replace(NO_MEMORY, kv_read_per_step=size(0.1e9), weight_dtype="bf16")
    (found,) = find_weight_reads(facts(decode, memory=memory))
    assert found.title == "Decode reads 2.40 GB of bf16 weights in each step, 96 % of its bytes"
    assert found.saves_ms == pytest.approx(1.6 * 0.96 / 2) and found.gain == pytest.approx(2 / (2 - 0.768))
    assert find_weight_reads(facts(decode, memory=replace(memory, weight_dtype="fp8"))) == []
    assert find_weight_reads(facts(decode, memory=replace(memory, kv_read_per_step=size(2e9)))) == []
    assert find_weight_reads(facts(replace(decode, limit="compute"), memory=memory)) == []
