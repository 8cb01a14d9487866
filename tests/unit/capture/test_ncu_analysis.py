"""From launches to rows: figures, rooflines, bounds, names across tools, drawings and pages."""

import csv
import json
import lzma
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace

import pytest

from llm_perf_opt.capture.kernels.match import base_name, match_kernels, normalise, tolerant_regex
from llm_perf_opt.capture.kernels.ncu_analysis import (
    analyze_ncu,
    bound_class,
    headroom_by_name,
    join_nsys,
    occupancy_limiter,
)
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NcuLaunch, NcuRule, NcuValue, NsysKernel
from llm_perf_opt.capture.readers.ncu_csv import merge_launches, parse_ncu_csv
from llm_perf_opt.capture.readers.ncu_report import load_ncu_dir
from llm_perf_opt.core.manifest import strict_json
from llm_perf_opt.diagnosis.kernels_alone import verdict_of_ncu
from llm_perf_opt.profiling.ncu.ncu_results import kernels_csv
from llm_perf_opt.report.draw import roofline_svg
from llm_perf_opt.report.render.kernels_md import render_kernels_md
from tests.support.fixtures_dir import DATA, shared_fixtures

NSYS = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::silu_kernel(at::TensorIteratorBase &)::[lambda() (instance 1)]::operator ()() const::[lambda(c10::BFloat16) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)"  # noqa: E501
NCU_2025_1 = "void vectorized_elementwise_kernel<4, unnamed>::silu_kernel(TensorIteratorBase &)::[lambda() (instance 1)]::operator ()() lambda(BFloat16) (instance 1)], array<char *, 2>>(int, T2, T3)"  # noqa: E501
NCU_2025_3 = "void at::vectorized_elementwise_kernel<4, at::<unnamed>::silu_kernel(at::TensorIteratorBase &)::[lambda() (instance 1)]::operator ()() const::[lambda(c10::BFloat16) (instance 1)], std::array<char *, 2>>(int, T2, T3)"  # noqa: E501
CUFILT = "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::[lambda()(instance 1)]::operator()()const::[lambda(c10::BFloat16)(instance 1)], std::array<char*, 2> >(int, T2, T3)"  # noqa: E501


def launch(metrics: Mapping[str, float], *, kernel: str = "k", rules: tuple[NcuRule, ...] = ()) -> NcuLaunch:
    values = {name: NcuValue(value=value, unit="", text=str(value)) for name, value in metrics.items()}
    return NcuLaunch(launch_id="0", kernel=kernel, metrics=values, rules=rules)


def undefined(*names: str) -> dict[str, NcuValue]:
    return {name: NcuValue(value=None, unit="", text="nan", is_undefined=True) for name in names}


def h200() -> list[NcuLaunch]:
    pages = (lzma.decompress((DATA / f"ncu_{name}.csv.xz").read_bytes()).decode() for name in ("raw", "details"))
    return merge_launches([parse_ncu_csv(page, source="h200") for page in pages])


def timeline() -> list[NsysKernel]:
    with (DATA / "ncu_decode_kern_sum.csv").open() as file:
        return [
            NsysKernel(name=r["Name"], instances=int(r["Instances"]), total_ns=float(r["Total Time (ns)"]))
            for r in csv.DictReader(file)
        ]


def test_every_kernel_of_the_h200_capture_has_figures_and_a_bound() -> None:
    analysis = analyze_ncu(h200())
    assert (len(analysis.kernels), analysis.launches, analysis.device) == (16, 24, "NVIDIA H200")
    gemv = analysis.kernels[0]
    assert gemv.kernel == "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"
    # Two launches over an 8192 x 2048 bf16 matrix: 33.6 MB each, the output padded to eight columns.
    assert (gemv.launches, gemv.duration_ns, gemv.duration_min_ns) == (2, 11936.0, 11744.0)
    assert gemv.duration_ns is not None
    assert gemv.flop_per_s_by_pipe["tensor_bf16"] * gemv.duration_ns / 1e9 == pytest.approx(
        2 * 8192 * 2048 * 8, rel=1e-6
    )
    assert gemv.dram_bytes == pytest.approx(8192 * 2048 * 2, rel=0.03)
    assert gemv.peak_dram_bytes_per_s == pytest.approx(4.8e12, rel=0.001)
    assert gemv.memory_roof_pct == pytest.approx(59.4, abs=0.05)
    assert (gemv.bound, gemv.occupancy_limiter, gemv.passes) == ("latency", "registers and shared memory", 18.0)
    assert all(k.missing == {"stalls_pct": "the section WarpStateStats was not collected"} for k in analysis.kernels)


def test_the_compute_roof_is_the_dense_one() -> None:
    peaks = analyze_ncu(h200()).kernels[0].peak_flop_per_s
    # 4096 dense bf16 operations per SM and clock; the counter without a sparsity suffix would say twice as much.
    clock_hz = peaks["fp32"] / (132 * 128 * 2)
    assert peaks["tensor_bf16"] == pytest.approx(132 * 4096 * clock_hz, rel=0.01)
    assert peaks["tensor_fp8"] == pytest.approx(2 * peaks["tensor_bf16"], rel=1e-6)


def test_work_is_summed_before_it_is_divided() -> None:
    common = {
        "smsp__cycles_elapsed.avg.per_second": 1e9,
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 0.0,
    }
    ops = {f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed": 0.0 for op in ("fadd", "fmul")}
    ffma = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed"
    slow = launch({**common, **ops, ffma: 1.0, "gpu__time_duration.sum": 3000.0, "dram__bytes.sum": 3000.0})
    fast = launch({**common, **ops, ffma: 5.0, "gpu__time_duration.sum": 1000.0, "dram__bytes.sum": 1000.0})
    (kernel,) = analyze_ncu([slow, fast]).kernels
    # 2 FLOP per FFMA: 2e9/s for 3 us and 10e9/s for 1 us are 16,000 FLOP in 4 us, over 4,000 bytes.
    assert (kernel.flop, kernel.flop_per_s, kernel.intensity_flop_per_byte) == (8000.0, 4e9, 4.0)
    assert (kernel.dram_bytes, kernel.dram_bytes_per_s) == (2000.0, 1e9)


def test_tensor_work_that_cannot_be_counted_is_not_taken_for_none() -> None:
    ops = {f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": 10.0 for op in ("fadd", "fmul", "ffma")}
    busy = launch({**ops, "gpu__time_duration.sum": 1000.0, "sm__inst_executed_pipe_tensor.sum": 5.0})
    unknown = launch({**ops, "gpu__time_duration.sum": 1000.0})
    (first,), (second,) = analyze_ncu([busy]).kernels, analyze_ncu([unknown]).kernels
    assert (first.flop_per_s, second.flop_per_s, first.intensity_flop_per_byte) == (None, None, None)
    assert (
        first.missing["flop_per_s"]
        == "the tensor cores were busy, but this ncu version has no counts of their operations"
    )
    assert (
        second.missing["flop_per_s"] == "tensor operations were not collected, a sum without them could be far too low"
    )


def test_operations_by_instruction_and_their_sum_are_not_counted_twice() -> None:
    metrics = {
        "gpu__time_duration.sum": 1000.0,
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum": 600.0,
        "sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32_sparsity_off.sum": 400.0,
        "sm__ops_path_tensor_op_hgmma_src_bf16_dst_fp32_sparsity_off.sum": 200.0,
        "sm__ops_path_tensor_op_imma_src_int8_sparsity_off.sum": 50.0,
    }
    (kernel,) = analyze_ncu([launch(metrics)]).kernels
    assert kernel.flop_per_s_by_pipe == {"tensor_bf16": 600.0 * 1e6, "tensor_int8": 50.0 * 1e6}


@pytest.mark.parametrize(
    ("compute", "memory", "bound"),
    [
        (80.0, 30.0, "compute"),
        (30.0, 80.0, "memory"),
        (75.0, 66.0, "balanced"),
        (59.9, 10.0, "latency"),
        (None, 80.0, "unknown"),
    ],
)
def test_the_bound_follows_the_stated_margins(compute: float | None, memory: float, bound: str) -> None:
    assert bound_class(compute, memory) == bound


def test_the_limiter_is_the_smallest_block_limit() -> None:
    limits = {"registers": 4.0, "shared_mem": 5.0, "warps": 16.0, "blocks": 32.0, "barriers": 32.0}
    metrics = {f"launch__occupancy_limit_{name}": value for name, value in limits.items()}
    full = "sm__maximum_warps_per_active_cycle_pct"
    assert occupancy_limiter(launch({**metrics, full: 25.0})) == "registers"
    assert occupancy_limiter(launch({**metrics, full: 100.0})) == "none"
    assert occupancy_limiter(launch({full: 25.0})) is None


def test_advice_names_each_rule_once_with_its_largest_estimate() -> None:
    rules = (
        NcuRule(rule="A", section="s", kind="OPT", text="local", scope="local", speedup_pct=90.0),
        NcuRule(rule="B", section="s", kind="OPT", text="small", scope="global", speedup_pct=5.0),
        NcuRule(rule="B", section="s", kind="OPT", text="large", scope="global", speedup_pct=7.0),
        NcuRule(rule="C", section="s", kind="INF", text="for information"),
    )
    (kernel,) = analyze_ncu([launch({}, rules=rules)]).kernels
    assert [(a.rule, a.text, a.speedup_pct) for a in kernel.advice] == [("B", "large", 7.0), ("A", "local", 90.0)]


@pytest.mark.parametrize("name", [NCU_2025_1, NCU_2025_3, CUFILT])
def test_one_kernel_is_recognised_under_every_demangler(name: str) -> None:
    assert normalise(name) == normalise(NSYS)
    assert re.fullmatch(tolerant_regex(NSYS), name)


def test_names_that_differ_in_a_value_stay_apart() -> None:
    a, b = "void f<(int)4, (bool)1>(T1)", "void f<(int)8, (bool)1>(T1)"
    assert normalise(a) != normalise(b)
    assert not re.fullmatch(tolerant_regex(a), b)
    assert normalise(a) == normalise("void f<4, true>(T1)")
    assert re.fullmatch(tolerant_regex(a), "void ns::f<4, true>(T1)") is None
    assert re.fullmatch(tolerant_regex(a), "void f<4, true>(T1)")


def test_no_pattern_holds_a_colon_because_ncu_splits_there() -> None:
    assert all(":" not in tolerant_regex(k.name) for k in timeline())


@pytest.mark.parametrize(
    ("name", "base"),
    [
        (NSYS, "vectorized_elementwise_kernel"),
        (NCU_2025_1, "vectorized_elementwise_kernel"),
        ("nvjet_sm90_tst_64x8", "nvjet_sm90_tst_64x8"),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int, (bool)0>(T13)", "kernel"),
        ("void cutlass::Kernel2<cutlass_80_wmma>(T1::Params)", "Kernel2"),
        ("void <unnamed>::elementwise_kernel_with_index<int>(T1)", "elementwise_kernel_with_index"),
    ],
)
def test_the_base_name_is_the_functions_own(name: str, base: str) -> None:
    assert base_name(name) == base


def test_all_profiled_kernels_are_found_on_the_timeline() -> None:
    analysis = join_nsys(analyze_ncu(h200()), timeline())
    assert (analysis.match_rate, analysis.matched, analysis.unmatched, analysis.notes) == (1.0, 16, (), ())
    shares = [k.nsys_time_pct for k in analysis.kernels]
    # Added up by hand from the summary: 10,495,008 of 15,608,322 ns.
    assert sum(s for s in shares if s is not None) == pytest.approx(10_495_008 / 15_608_322 * 100, rel=1e-9)
    headroom = [k.headroom_ns for k in analysis.kernels if k.headroom_ns is not None]
    assert headroom == sorted(headroom, reverse=True)
    top = analysis.kernels[0]
    assert top.nsys_total_ns is not None and top.roof_pct is not None
    assert top.headroom_ns == pytest.approx(top.nsys_total_ns * (1 - top.roof_pct / 100))


def test_published_names_match_after_normalising_and_none_before() -> None:
    shared = shared_fixtures()
    if shared is None:
        pytest.skip("the captures are not here")
    with (shared / "rtx5090" / "nsys_kern_sum.all.csv").open() as file:
        names = [row["Name"] for row in csv.DictReader(file)]
    profiled = [load_ncu_dir(folder)[0].kernel for folder in sorted((shared / "rtx5090" / "ncu").iterdir())]
    assert set(profiled) & set(names) == set()
    assert match_kernels(profiled, names).rate == 1.0
    assert len(set(map(normalise, names))) == len(names) == 113


def test_a_name_that_fits_twice_adds_the_times_and_says_so() -> None:
    kernels = [
        NsysKernel(name="a::f(int)", instances=1, total_ns=10),
        NsysKernel(name="b::f(int)", instances=2, total_ns=30),
    ]
    analysis = join_nsys(analyze_ncu([launch({}, kernel="f(int)"), launch({}, kernel="g()")]), kernels)
    row = next(k for k in analysis.kernels if k.kernel == "f(int)")
    assert (row.nsys_total_ns, row.nsys_instances, row.nsys_time_pct) == (40, 3, 100.0)
    assert (analysis.match_rate, analysis.unmatched) == (0.5, ("g()",))
    assert analysis.notes == ("f(int): fits 2 kernels of the timeline, their times are added",)


def test_headroom_of_an_earlier_result_is_found_by_name() -> None:
    analysis = analyze_ncu([launch({}, kernel="a::f<(int)4>()"), launch({}, kernel="g")])
    near, unknown = analysis.kernels
    earlier = replace(analysis, kernels=(replace(near, roof_pct=75.0), unknown))
    assert headroom_by_name(earlier) == {"f<4>()": 0.25}


def test_the_roofline_is_valid_svg_with_escaped_names_and_says_what_it_left_out() -> None:
    analysis = join_nsys(analyze_ncu(h200()), timeline())
    odd = analyze_ncu([launch({"gpu__time_duration.sum": 1.0}, kernel='<script>"&')]).kernels
    svg = roofline_svg([*analysis.kernels, *odd], title='A "title" <b>')
    root = ET.fromstring(svg)
    points = [
        g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.find("{http://www.w3.org/2000/svg}title") is not None
    ]
    # Two copies have no operations at all, and the odd one was not measured.
    assert len(points) == 14
    assert "Not drawn, no operations or traffic counted: 3." in svg
    assert "<script>" not in svg
    labels = re.findall(r"(\w+ [\d.]+ [A-Z]+(?:FLOP|B)/s)</text>", svg)
    assert labels == ["tensor_bf16 991 TFLOP/s", "fp16 133 TFLOP/s", "fp32 66.4 TFLOP/s", "DRAM 4.8 TB/s"]


def test_a_roofline_without_kernels_says_so() -> None:
    assert "No kernel with counted operations" in roofline_svg([], title="t")
    ET.fromstring(roofline_svg([], title="t"))


def test_kernels_md_shows_times_of_nsys_and_counters_of_ncu() -> None:
    joined = join_nsys(analyze_ncu(h200()), timeline(), source="the last decode")
    text = render_kernels_md(replace(joined, capture_notes=("a note",), plots=("ncu/roofline.svg",)))
    row = next(line for line in text.splitlines() if line.startswith("| 1 |"))
    assert row == (
        r"| 1 | nvjet\_sm90\_tst\_64x8\_64x16\_2x1\_v\_bz\_TNT | 17.8 % | 256 | 10.86 µs | latency | 59.4 % | "
        "2,850.4 GB/s | 22,489.6 G | 7.89 | 14.3 % |"
    )
    assert "- They make up 67.2 % of the GPU time of the last decode." in text
    assert "- 16 of 16 kernels found on the nsys timeline (100 %)" in text
    assert "- a note" in text and "![ncu/roofline.svg](ncu/roofline.svg)" in text
    assert "- TheoreticalOccupancy (estimated global speed-up" in text


def test_kernels_md_of_nothing_is_a_page_all_the_same() -> None:
    empty = NcuAnalysis(kernels=(), launches=0, device=None)
    assert render_kernels_md(empty).endswith("No kernel was profiled.\n")


def test_kernels_csv_has_one_row_per_kernel_and_empty_cells_for_unknown_values() -> None:
    analysis = analyze_ncu([launch({"gpu__time_duration.sum": 1500.0}, kernel="f(int, char *)")])
    (row,) = csv.DictReader(kernels_csv(analysis.kernels).splitlines())
    assert (row["kernel"], row["duration_ns"], row["flop_per_s"], row["bound"]) == (
        "f(int, char *)",
        "1500.0",
        "",
        "unknown",
    )


DURATION = "gpu__time_duration.sum"
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
HITS = "lts__t_sector_hit_rate.pct"


def test_a_launch_whose_metrics_are_nan_leaves_the_other_launches_and_kernels_as_they_are() -> None:
    sound = launch({DURATION: 2000.0, COMPUTE: 90.0, MEMORY: 20.0, HITS: 40.0, "dram__bytes.sum": 64.0})
    nan = replace(sound, launch_id="1", metrics=undefined(*sound.metrics))
    lost = replace(nan, kernel="lost")
    found = analyze_ncu([nan, sound, lost])
    rows = {row.kernel: row for row in found.kernels}
    assert rows["k"] == analyze_ncu([sound]).kernels[0]
    assert (rows["lost"].bound, rows["lost"].duration_ns, rows["lost"].roof_pct) == ("unknown", None, None)
    assert rows["lost"].missing["duration_ns"] == "gpu__time_duration.sum is not a number (NaN)"
    assert found.notes == (
        "k: ncu's time of 1 of 2 launches is not a number (NaN); these launches are left out",
        "lost: ncu's time of it is not a number (NaN), so it is not classified",
    )
    assert verdict_of_ncu(found).text == (
        "ncu measured 3 launches of 2 kernels, 2.00 µs without 1 kernel whose time is not known: 100.0 % is "
        "compute-bound. Largest: k (100.0 %). There is no timeline: how often they run is not known."
    )
    assert json.loads(strict_json(found), parse_constant=pytest.fail)["kernels"][1]["duration_ns"] is None


def test_a_ratio_over_nothing_is_unknown_for_its_launch_alone() -> None:
    one = launch({DURATION: 1000.0, COMPUTE: 10.0, MEMORY: 80.0, HITS: 40.0, "dram__bytes.sum": 100.0})
    other = launch({DURATION: 3000.0, COMPUTE: 50.0, MEMORY: 80.0})
    other = replace(other, metrics={**other.metrics, **undefined(HITS, "dram__bytes.sum")})
    (row,) = analyze_ncu([one, other]).kernels
    assert (row.launches, row.duration_ns, row.compute_sol_pct, row.memory_sol_pct) == (2, 2000.0, 40.0, 80.0)
    assert (row.hit_rates_pct, row.dram_bytes, row.dram_bytes_per_s) == ({"L2": 40.0}, 100.0, 1e8)
    assert "dram_bytes_per_s" not in row.missing
