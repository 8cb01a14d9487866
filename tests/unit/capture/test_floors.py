"""The least time that remains: of fused chains, of fused attention, of an optimiser's passes, of copies."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.capture.floors import OptimizerPasses, copy_floors, optimizer_passes
from llm_perf_opt.capture.fusion import (
    FUSED_FLOOR,
    PRODUCTS_REMAIN,
    Chains,
    attention_in_pieces,
    chains_of,
)
from llm_perf_opt.capture.kernels.names import is_fusible
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.rows import CopyRow, KernelRow
from llm_perf_opt.capture.shapes import least_fused_ns, roof_of
from llm_perf_opt.model.hardware.gpu_generation import gpu_generation
from llm_perf_opt.model.hardware.hardware import find_by_device_name, load_catalogue
from tests.support.fixtures_dir import DATA, REPO
from tests.support.trace_builder import event, write_trace

GEMM = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT"
ADD, MUL, TANH, NORM = "add_kernel", "mul_kernel", "tanh_kernel", "rms_norm_kernel"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)"
STRIDED = "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<direct_copy_kernel_cuda>>(int)"


def _chains(tmp_path: Path, kernels: Sequence[tuple[str, int]]) -> Chains:
    """Of kernels `(name, µs)` one after the other."""
    events, at = [], 1_000
    for number, (name, length) in enumerate(kernels, start=1):
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{number}", "0.5", correlation=number))
        events.append(event("kernel", name, f"{at}", f"{length}", pid=0, tid=7, correlation=number, device=0))
        at += length
    return chains_of(read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline, is_fusible)


def _found(count: int, kernel_count: int, time_us: int, floor_us: int) -> Chains:
    return Chains(
        count=count, kernel_count=kernel_count, time_ns=1000 * time_us, floor_ns=1000 * floor_us, how=FUSED_FLOOR
    )


def test_fusing_two_kernels_saves_the_shorter_of_them_at_most(tmp_path: Path) -> None:
    found = _chains(tmp_path, [(GEMM, 100), (ADD, 20), (MUL, 30), (TANH, 20), (GEMM, 100), (ADD, 5)])
    # 20 between the first two, 20 between the last two; a kernel alone is not a chain.
    assert found == _found(1, 3, 70, 30)


def test_a_chain_of_equal_kernels_takes_as_long_as_one(tmp_path: Path) -> None:
    assert _chains(tmp_path, [(ADD, 20), (MUL, 20), (TANH, 20), (NORM, 20)]) == _found(1, 4, 80, 20)


def test_steps_that_repeat_are_not_fused_with_each_other(tmp_path: Path) -> None:
    step = [(ADD, 20), (MUL, 20), (TANH, 30)]
    assert _chains(tmp_path, step * 10) == _found(1, 30, 700, 300)
    # One kernel again and again is one tensor after the other.
    assert _chains(tmp_path, [(ADD, 20)] * 10) == _found(1, 10, 200, 200)


def test_equal_chains_have_equal_floors_wherever_they_run(tmp_path: Path) -> None:
    layer = [(GEMM, 100), *[(ADD, 20), (MUL, 20)] * 3]
    assert _chains(tmp_path, [*layer * 4, (GEMM, 100), (ADD, 20), (TANH, 20), (MUL, 20), (NORM, 20)]) == _found(
        5, 28, 560, 4 * 60 + 20
    )


def test_copies_in_a_row_are_no_chain_and_beside_other_work_they_are(tmp_path: Path) -> None:
    assert _chains(tmp_path, [(STRIDED, 100), (STRIDED, 100), (GEMM, 100), (CAT, 50), (STRIDED, 50)]).count == 0
    assert _chains(tmp_path, [(STRIDED, 100), (ADD, 100), (GEMM, 10)]) == _found(1, 2, 200, 100)


def test_ten_pointwise_kernels_over_one_tensor_are_at_most_five_times_as_fast_fused() -> None:
    """Seven that read and write it, and three that read a second one as well; fifteen steps of them."""
    timeline = read_torch_trace(DATA / "planted" / "elementwise_chain.json.gz").timeline
    found = chains_of(timeline, is_fusible)
    assert (found.count, found.kernel_count, found.time_ns) == (1, 150, 43_463_224)
    assert found.time_ns / found.floor_ns == pytest.approx(5.0, abs=0.05)


def _attention(path: Path) -> Path:
    """Scores, softmax and values of 16 heads over 2,048 keys of size 64 in bf16, three times."""
    events, number, at = [], 0, 100_000
    scores: dict[str, Any] = {"Input Dims": [[16, 2048, 64], [16, 64, 2048]], "Input type": ["c10::BFloat16"] * 2}
    values: dict[str, Any] = {"Input Dims": [[16, 2048, 2048], [16, 2048, 64]], "Input type": ["c10::BFloat16"] * 2}
    for _ in range(3):
        for operator, inputs, kernel, length in (
            ("aten::bmm", scores, GEMM, 100),
            ("aten::_softmax", {}, "void softmax_warp_forward<float>(int)", 80),
            ("aten::bmm", values, GEMM, 90),
        ):
            number += 1
            events += [
                event("cpu_op", operator, f"{100 * number}", "50", **inputs),
                event("cuda_runtime", "cudaLaunchKernel", f"{100 * number + 5}", "5", correlation=number),
                event("kernel", kernel, f"{at}", f"{length}", pid=0, tid=7, correlation=number, device=0),
            ]
            at += length + 1
    return write_trace(path, events)


def test_fused_attention_still_multiplies(tmp_path: Path) -> None:
    trace = read_torch_trace(_attention(tmp_path / "t.json"), detailed=True)
    found = attention_in_pieces(trace.timeline)
    assert (found.count, found.product_ns, found.softmax_ns, found.between_ns) == (3, 570_000, 240_000, 0)
    assert (found.floor_ns, found.how) == (570_000, PRODUCTS_REMAIN)


def test_the_products_of_fused_attention_take_what_their_shapes_need(tmp_path: Path) -> None:
    trace = read_torch_trace(_attention(tmp_path / "t.json"), detailed=True)
    assert trace.detail is not None
    hardware = find_by_device_name(load_catalogue(REPO / "conf" / "hardware"), "NVIDIA H200")
    least = least_fused_ns(trace.timeline, trace.detail, roof_of("NVIDIA H200", hardware))
    found = attention_in_pieces(trace.timeline, least)
    # 8.6 GFLOP each: at three quarters of 989.4 TFLOP/s longer than reading 8 MB at 4.8 TB/s.
    each = 2 * 16 * 2048 * 2048 * 64 / (0.75 * 989.4) / 1e3
    assert found.floor_ns == pytest.approx(6 * each, rel=1e-3)
    assert found.how == "FLOPs and operands of the GEMMs remain, at three quarters of the data-sheet peak"


def _row(name: str, total_ns: int) -> KernelRow:
    return KernelRow(
        name=name,
        short_name=name[:20],
        kernel_class="elementwise",
        instances=10,
        total_ns=total_ns,
        avg_ns=total_ns / 10,
        med_ns=None,
        min_ns=1,
        max_ns=1,
        stddev_ns=None,
        time_pct=0.0,
    )


APPLY = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<3>, at::native::{}>(X)"
ADAM = [
    ("BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>", 2),
    ("TernaryOpScalarFunctor<float, 3, 3, 2>, at::native::LerpFunctor<float>", 4),
    ("PointwiseOpScalarFunctor<float, 3, 3, 0>, std::multiplies<float>", 4),
    ("UnaryOpFunctor<float, (int)2, (int)1, (int)1>, at::native::Sqrt<float>", 2),
    ("BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::divides<float>", 3),
]


def test_an_optimiser_in_one_pass_reads_and_writes_its_state_once() -> None:
    rows = [_row(APPLY.format(functor), 100 * moved) for functor, moved in ADAM]
    assert optimizer_passes(rows, "AdamW") == OptimizerPasses(
        optimizer="AdamW",
        kinds=5,
        instances=50,
        time_ns=1_500,
        names=tuple(row.name for row in sorted(rows, key=lambda row: (-row.total_ns, row.name))),
        moved=15,
        least_moved=7,
        floor_ns=700,
        how="one pass of AdamW moves 7 numbers for each parameter, these kinds of passes 15",
    )
    unknown = optimizer_passes(rows)
    assert unknown is not None
    assert (unknown.least_moved, unknown.floor_ns) == (3, 300)


def test_a_fused_optimiser_and_copies_of_lists_are_no_passes() -> None:
    fused = _row("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(X)", 100)
    assert optimizer_passes([fused, _row(APPLY.format(ADAM[0][0]), 100)], "Adam") is None
    copies = APPLY.format("UnaryOpFunctor<long, 2, 1, 1>, at::native::Copy<long, long>")
    assert optimizer_passes([_row(copies, 100)]) is None


def _copy(kind: str, size_bytes: int | None = 64_000_000) -> CopyRow:
    return CopyRow(
        kind=kind,
        instances=1,
        total_ns=10_000_000,
        size_bytes=size_bytes,
        avg_ns=1.0,
        min_ns=1,
        max_ns=1,
        bytes_per_s=None,
    )


@pytest.mark.parametrize(
    ("gpu", "kind", "floor_ns", "how"),
    [
        ("NVIDIA GeForce RTX 4090", "Memcpy HtoD (Pageable -> Device)", 2_000_000,
         "bytes at 32 GB/s (PCIe 4 x16 of rtx4090, one direction)"),
        ("NVIDIA H200", "Copy Device-to-Host (Pinned)", 1_015_873,
         "bytes at 63 GB/s (the fastest host link of Hopper, one direction)"),
        ("NVIDIA GH200 480GB", "Copy Host-to-Device (Pinned)", 142_222,
         "bytes at 450 GB/s (the fastest host link of Hopper, one direction)"),
        ("NVIDIA H200", "Memcpy DtoD (Device -> Device)", 26_667,
         "bytes read and written at the memory bandwidth of h200"),
        ("NVIDIA H200", "Memset (Device)", 13_333, "bytes written at the memory bandwidth of h200"),
        ("NVIDIA H200", "Peer-to-Peer", None, "unknown: the peak of the way these copies take is not known"),
    ],
)  # fmt: skip
def test_a_copy_takes_at_least_its_bytes_over_the_way_it_takes(
    gpu: str, kind: str, floor_ns: int | None, how: str
) -> None:
    hardware = find_by_device_name(load_catalogue(REPO / "conf" / "hardware"), gpu)
    (found,) = copy_floors([_copy(kind)], gpu_generation(gpu, None, (), hardware), hardware)
    assert (found.floor_ns, found.how) == (floor_ns, how)


def test_copies_without_a_size_or_on_an_unknown_gpu_have_no_floor() -> None:
    generation = gpu_generation("NVIDIA H200")
    (unsized,) = copy_floors([_copy("Memcpy HtoD (Pageable -> Device)", None)], generation)
    assert (unsized.floor_ns, unsized.how) == (None, "unknown: the capture does not say how many bytes")
    oldest = gpu_generation(None, None, ("volta_sgemm_128x64_nn",))
    assert oldest is not None
    for known in (None, oldest, replace(oldest, is_oldest=True)):
        (found,) = copy_floors([_copy("Memcpy HtoD (Pageable -> Device)")], known)
        assert (found.floor_ns, found.how) == (None, "unknown: the link of this GPU to the host is not known")
