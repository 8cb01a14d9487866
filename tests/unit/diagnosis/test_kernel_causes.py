"""Causes in the time of kernels: what they claim, the least that remains, and advice that fits the GPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.capture.readers.kinds import kind_of
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.pipeline.analyze.read import read_captures
from tests.support.answers import claim_of, diagnosis_of, rules
from tests.support.nsys_builder import Export
from tests.support.trace_builder import event, write_trace
from tests.support.verdicts import analyze, captures

AT_HAND = dict(captures())
MS = 1_000_000
PRODUCT = "nvjet_tst_128x64_TNT"


def _planted(name: str) -> CaptureAnalysis:
    path = AT_HAND.get(name)
    if path is None:
        pytest.skip(f"{name} is not at hand")
    return analyze(path)


def _busy(
    tmp_path: Path,
    kernels: Sequence[tuple[str, int]],
    *,
    gpu: str = "NVIDIA H200",
    grid: Sequence[int] = (264, 1, 1),
    block: Sequence[int] = (128, 1, 1),
    operator: str = "aten::op",
) -> CaptureAnalysis:
    """Thirty rounds of kernels `(name, µs)`, all launched ahead of a GPU that is always busy."""
    events: list[str] = []
    number, at = 0, 10_000
    for _ in range(30):
        for name, length in kernels:
            number += 1
            events.append(event("cpu_op", operator, f"{5 * number}", "4"))
            events.append(event("cuda_runtime", "cudaLaunchKernel", f"{5 * number + 1}", "1", correlation=number))
            lane = {"pid": 0, "tid": 7, "device": 0, "correlation": number, "stream": 7}
            shape = [list(grid), list(block)]
            events.append(event("kernel", name, f"{at}", f"{length}", **lane, grid=shape[0], block=shape[1]))
            at += length
    path = write_trace(tmp_path / "t.json", events)
    path.write_text(path.read_text(encoding="utf-8").replace("NVIDIA H200", gpu), encoding="utf-8")
    return analyze_timelines([read_torch_trace(path, detailed=True).timeline])


@pytest.mark.parametrize(
    ("name", "rule", "endings"),
    [
        ("misaligned_gemm", "misaligned_gemm", (".json.gz", ".sqlite.xz")),
        ("transposes", "layout_copies", (".json.gz", ".sqlite.xz")),
        ("scatter_contention", "scatter_contention", (".json.gz", ".sqlite.xz")),
        ("elementwise_chain", "unfused_elementwise", (".json.gz", ".sqlite.xz")),
    ],
)
def test_a_planted_cause_in_the_kernels_is_the_first_finding(name: str, rule: str, endings: tuple[str, ...]) -> None:
    for ending in endings:
        analysis = _planted(f"planted/{name}{ending}")
        first = analysis.findings[0]
        assert (first.rule, diagnosis_of(analysis).verdict.rule) == (rule, rule)
        assert first.share is not None and first.share > 0.75
        assert first.max_gain is None or 1.0 < first.max_gain < 10.0


@pytest.mark.parametrize("ending", [".json.gz", ".sqlite.xz"])
def test_a_planted_healthy_program_has_no_finding(ending: str) -> None:
    analysis = _planted(f"planted/healthy_gemm{ending}")
    assert (analysis.findings, diagnosis_of(analysis).verdict.kind) == ((), "healthy")


def test_kernels_for_misaligned_operands_are_claimed_whole(tmp_path: Path) -> None:
    odd = "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align1"
    analysis = _busy(tmp_path, [(odd, 80), (PRODUCT, 20)])
    claim = claim_of(analysis, "misaligned_gemm")
    assert (claim.share, claim.cells) == (pytest.approx(0.8), {"gpu.compute.GEMM": 30 * 80_000})
    # Without shapes the least time of the work is not known.
    assert (claim.floor_ns, claim.max_gain, claim.confidence) == (None, None, "high")
    assert "multiple" in claim.remedy


@pytest.mark.parametrize(
    ("gpu", "hint", "factor"),
    [
        ("NVIDIA A100-SXM4-80GB", "TF32 or bfloat16", 8.0),
        ("Tesla V100-SXM2-16GB", "float16 on the tensor cores", 8.0),
        ("NVIDIA GeForce RTX 4090", "16-bit dtypes", 2.0),
        ("Tesla P100-PCIE-16GB", None, None),
    ],
)
def test_what_a_wide_product_could_gain_follows_from_the_gpu(
    tmp_path: Path, gpu: str, hint: str | None, factor: float | None
) -> None:
    analysis = _busy(tmp_path, [("volta_sgemm_128x64_nn", 100)], gpu=gpu)
    found = [finding for finding in analysis.findings if finding.rule == "fp32_gemm"]
    assert [finding.hint for finding in found] == ([] if hint is None else [hint])
    for finding in found:
        assert finding.stake_ns == 3_000_000
        assert finding.floor_ns is not None and factor is not None
        assert finding.stake_ns / finding.floor_ns == pytest.approx(factor, rel=0.05)
        assert "bf" not in finding.remedy.split("float16")[0] or "V100" not in gpu


def test_a_wide_format_explains_more_than_the_distance_from_the_peak(tmp_path: Path) -> None:
    """A matmul in fp32 at a fifth of the fp32 peak: the format comes first, and nothing is promised twice."""
    events: list[str] = []
    for i in range(30):
        dims: dict[str, Any] = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["float", "float"]}
        events.append(event("cpu_op", "aten::mm", f"{5 * i}", "4", **dims))
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{5 * i + 1}", "1", correlation=i + 1))
        lane = {"pid": 0, "tid": 7, "device": 0, "correlation": i + 1, "stream": 7}
        events.append(event("kernel", "ampere_sgemm_128x128_nn", f"{10_000 + 10_000 * i}", "10000", **lane))
    path = write_trace(tmp_path / "t.json", events)
    found = read_captures([path], [kind_of(path)], tmp_path).analysis
    assert rules(found) == ["fp32_gemm"]
    assert found.shapes and (found.shapes.rows[0].roof_pct or 100.0) < 50


@pytest.mark.parametrize(("kernel", "is_named"), [("matmulNaive(float*, int)", True), ("volta_dgemm_64x64_nn", False)])
def test_a_product_written_by_hand_is_named_as_the_hottest_kernel(tmp_path: Path, kernel: str, is_named: bool) -> None:
    export = Export()
    for i in range(30):
        export.call(1_000 * i, 1_000 * i + 300, i + 1)
        export.kernel(kernel, 100_000 + MS * i, 100_000 + MS * (i + 1), i + 1)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))])
    assert [f.rule for f in analysis.findings] == (["hottest_kernel"] if is_named else [])


DOUBLE = "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>(X)"


def test_doubles_of_a_torch_program_may_be_an_accident(tmp_path: Path) -> None:
    claim = claim_of(_busy(tmp_path, [(DOUBLE, 100)], operator="aten::mm"), "fp32_gemm")
    assert (claim.title, claim.max_gain) == ("GEMMs in fp64: 100 % of kernel time in the capture", None)
    assert "numpy" in claim.remedy


@pytest.mark.parametrize(
    ("grid", "block", "rule"),
    [
        ((1, 1, 1), (256, 1, 1), "small_blocks"),
        ((4096, 1, 1), (8, 1, 1), "small_blocks"),
        ((12, 1, 1), (256, 1, 1), "small_grid"),
        ((4096, 1, 1), (256, 1, 1), None),
    ],
)
def test_launch_shapes_that_leave_the_gpu_empty(
    tmp_path: Path, grid: tuple[int, int, int], block: tuple[int, int, int], rule: str | None
) -> None:
    analysis = _busy(tmp_path, [("my_scan(float*)", 400)], grid=grid, block=block)
    assert rules(analysis) == ([] if rule is None else [rule])
    if rule is not None:
        claim = claim_of(analysis, rule)
        assert (claim.share, claim.hint) == (pytest.approx(1.0), claim.hint)
        assert claim.floor_ns is None or 0 < claim.floor_ns < 12_000_000
        # The kernel is named once, with what is wrong with it.
        assert "hottest_kernel" not in [finding.rule for finding in analysis.findings]


COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4>(X)"
INDEX_ADD = "void at::native::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true, ReduceAdd>(X)"


@pytest.mark.parametrize(
    ("kernel", "operator", "rule", "advice"),
    [
        (COPY, "aten::contiguous", "layout_copies", "contiguous"),
        (COPY, "aten::_to_copy", "dtype_casts", "dtype"),
        (CAT, "aten::cat", "growing_cat", "concatenating"),
    ],
)
def test_copies_are_told_apart_by_what_they_are_for(
    tmp_path: Path, kernel: str, operator: str, rule: str, advice: str
) -> None:
    events: list[str] = []
    number, at = 0, 10_000
    for _ in range(30):
        for name, length, around in ((PRODUCT, 60, "aten::mm"), (kernel, 40, operator)):
            number += 1
            events.append(event("cpu_op", around, f"{5 * number}", "4"))
            events.append(event("cuda_runtime", "cudaLaunchKernel", f"{5 * number + 1}", "1", correlation=number))
            lane = {"pid": 0, "tid": 7, "device": 0, "correlation": number}
            events.append(event("kernel", name, f"{at}", f"{length}", **lane))
            at += length
    analysis = analyze_timelines([read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline])
    claim = claim_of(analysis, rule)
    assert (claim.share, claim.stake_ns) == (pytest.approx(0.4, abs=0.001), 30 * 40_000)
    assert advice in claim.remedy
    assert rules(analysis) == [rule]


def test_a_decode_with_a_growing_cache_is_told_of_it() -> None:
    analysis = _planted("wild/tracelens_h100_qwen05b.json.gz")
    claim = claim_of(analysis, "growing_cat")
    assert "KV cache" in claim.remedy and "static_cache" not in claim.cells
    # What is fused with its neighbours is not claimed again.
    assert (claim.share or 0.0) < 0.07


@pytest.mark.parametrize(("name", "is_named"), [("my_stencil(float*)", True), (PRODUCT, False)])
def test_the_hottest_kernel_is_a_finding_only_where_nothing_else_explains_it(
    tmp_path: Path, name: str, is_named: bool
) -> None:
    analysis = _busy(tmp_path, [(name, 100)], grid=(4096, 1, 1))
    assert [finding.rule for finding in analysis.findings] == (["hottest_kernel"] if is_named else [])
    verdict = diagnosis_of(analysis).verdict
    assert verdict.hottest_kernel == ("my_stencil" if is_named else PRODUCT)
    assert verdict.kind == ("finding" if is_named else "healthy")
    # A better kernel may be faster: how much is not known.
    assert all(finding.max_gain is None for finding in analysis.findings)
