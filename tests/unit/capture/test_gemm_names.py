"""What the names of GEMM kernels say, and what generation of GPU they and its own name stand for."""

from pathlib import Path

import pytest

from llm_perf_opt.capture.gemms import MisalignedKernel, misaligned_gemms
from llm_perf_opt.capture.intervals import Ints
from llm_perf_opt.capture.kernels.gemm_names import GemmTraits, gemm_traits
from llm_perf_opt.capture.launch_shapes import hottest_kernel
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.capture.shapes import (
    ShapesAnalysis,
    least_fused_ns,
    roof_of,
    shape_rows,
    sum_shapes,
)
from llm_perf_opt.capture.tables import kernel_rows
from llm_perf_opt.model.hardware.gpu_generation import GpuGeneration, built_for, gpu_generation
from llm_perf_opt.model.hardware.hardware import find_by_device_name, load_catalogue
from tests.support.fixtures_dir import DATA, REPO

GEMV = "void gemv2T_kernel_val<int, int, {0}, {0}, {0}, float, 128, 16, 4, 4, false>(cublasGemvParamsEx<int>)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x64_nn", ("fp32", False, None)),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_ffma_aligna4_alignc4_execute", ("fp32", False, 4)),
        ("volta_scudnn_128x64_relu_interior_nn_v1", ("fp32", False, None)),
        ("ampere_fp16_sgemm_fp16_128x64_tn", ("fp16", False, None)),
        (GEMV.format("float"), ("fp32", False, None)),
        (GEMV.format("__nv_bfloat16"), ("bf16", False, None)),
        (GEMV.format("double"), ("fp64", False, None)),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>(X)", ("tf32", True, 4)),
        ("sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x16", ("tf32", True, None)),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", ("bf16", True, 8)),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", ("bf16", True, None)),
        ("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT", ("bf16", True, None)),
        ("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_NNT", ("fp16", True, None)),
        ("nvjet_qqtst_128x256_128x5_2x1_v_bz_TNT", ("fp8", True, None)),
        ("volta_fp16_s884gemm_fp16_64x64_ldg8_f2f_nn", ("fp16", True, 8)),
        ("sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64", ("fp8", True, None)),
        ("sm80_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize128x256x64", ("int8", True, None)),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1", ("bf16", True, None)),
        ("void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>(X)", ("fp64", True, 1)),
        ("matmul_kernel", (None, None, None)),
        ("void splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(cublasSplitKParams<float>)",
         (None, None, None)),
    ],
)  # fmt: skip
def test_the_name_of_a_gemm_says_what_it_multiplies_on_what(
    name: str, expected: tuple[str | None, bool | None, int | None]
) -> None:
    precision, tensor_cores, alignment = expected
    assert gemm_traits(name) == GemmTraits(precision=precision, tensor_cores=tensor_cores, alignment=alignment)


def test_doubles_are_loaded_by_the_element_whatever_their_alignment() -> None:
    double, narrow = (gemm_traits(f"cutlass_80_tensorop_{kind}_64x64_nn_align1") for kind in ("d884gemm", "s1688gemm"))
    assert double is not None and narrow is not None
    assert (double.is_misaligned, narrow.is_misaligned) == (False, True)


def test_a_kernel_that_is_no_product_has_no_traits() -> None:
    assert gemm_traits("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)") is None


@pytest.mark.parametrize(
    ("name", "misaligned"),
    [
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", True),
        ("cutlass_80_tensorop_f16_s16816gemm_f16_64x64_nn_align2", True),
        ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8", False),
        ("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", False),
        ("cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align1", True),
        # The CUDA cores load by the element anyway.
        ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", False),
        ("cutlass_80_tensorop_z884gemm_32x16_16x3_tt_align1", False),
    ],
)
def test_operands_not_aligned_to_16_bytes_are_misaligned(name: str, misaligned: bool) -> None:
    traits = gemm_traits(name)
    assert traits is not None
    assert traits.is_misaligned is misaligned


def _generation(name: str | None, capability: str | None = None, kernels: tuple[str, ...] = ()) -> GpuGeneration:
    catalogue = load_catalogue(REPO / "conf" / "hardware")
    found = gpu_generation(name, capability, kernels, None if name is None else find_by_device_name(catalogue, name))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("device", "name", "ratio_16", "ratio_tf32"),
    [
        ("NVIDIA H200", "Hopper", 14.8, 7.4),
        ("NVIDIA A100 80GB PCIe", "Ampere", 16.0, 8.0),
        ("NVIDIA GeForce RTX 4090", "Ada", 2.0, 1.0),
        ("NVIDIA GeForce RTX 3070 Ti", "Ampere", 2.0, 1.0),
        ("NVIDIA RTX 5000 Ada Generation Laptop GPU", "Ada", None, None),
        ("Tesla T4", "Turing", 8.0, 0.0),
        ("Tesla V100-PCIE-32GB", "Volta", 8.0, 0.0),
        ("Tesla P100-PCIE-16GB", "Pascal", 0.0, 0.0),
        ("NVIDIA GeForce GTX 1660 Ti", "Turing without tensor cores", 0.0, 0.0),
        ("NVIDIA T1000", "Turing without tensor cores", 0.0, 0.0),
        ("Quadro RTX 5000", "Turing", 8.0, 0.0),
        ("NVIDIA GeForce RTX 5060", "Blackwell", 2.0, 1.0),
        ("AMD Instinct MI300X", "CDNA 3", 8.0, 4.0),
    ],
)
def test_a_named_gpu_has_its_generation_and_ratios(
    device: str, name: str, ratio_16: float | None, ratio_tf32: float | None
) -> None:
    found = _generation(device)
    assert (found.name, found.is_oldest) == (name, False)
    assert found.ratio_16 == (None if ratio_16 is None else pytest.approx(ratio_16, rel=0.01))
    assert found.ratio_tf32 == (None if ratio_tf32 is None else pytest.approx(ratio_tf32, rel=0.01))
    assert (found.ratio_how is None) == (ratio_16 is None)


@pytest.mark.parametrize(
    ("device", "tf32", "bf16", "fp8"),
    [("Tesla V100-SXM2-16GB", False, False, False), ("Tesla T4", False, False, False),
     ("NVIDIA A100-SXM4-80GB", True, True, False), ("NVIDIA L4", True, True, True), ("NVIDIA B200", True, True, True)],
)  # fmt: skip
def test_formats_came_with_generations(device: str, tf32: bool, bf16: bool, fp8: bool) -> None:
    found = _generation(device)
    assert (found.supports("tf32"), found.supports("bf16"), found.supports("fp8")) == (tf32, bf16, fp8)
    assert found.has_tensor_cores


def test_kernels_name_the_oldest_generation_their_gpu_can_be() -> None:
    found = _generation(None, None, ("volta_sgemm_128x64_nn", "void at::native::add(int)"))
    assert (found.name, found.is_oldest, found.supports("tf32"), found.ratio_16) == ("Volta", True, False, None)
    newer = _generation(None, None, ("volta_sgemm_128x64_nn", "ampere_sgemm_128x64_tn", "nvjet_sm90_tst_64x8_v_TNT"))
    assert newer.name == "Hopper"
    assert gpu_generation(None, None, ("void my_kernel(float*)",)) is None


def test_the_compute_capability_counts_where_the_name_says_nothing() -> None:
    assert _generation("NVIDIA Graphics Device", "8.6").name == "Ampere"
    # AMD's numbers are others.
    assert gpu_generation("AMD Radeon Graphics", "9.4") is None


@pytest.mark.parametrize(
    ("kernel", "number"),
    [("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", 75), ("volta_scudnn_128x64_relu_nn_v1", 70),
     ("cutlass3x_sm90_tensorop_s64x256x16gemm_bf16_bf16_f32", 90), ("turing_fp16_s1688gemm_fp16_128x128_nn", 75),
     ("Cijk_Alik_Bljk_BBS_BH_ISA942_IU1", 942), ("gemm_128x128_kernel", None)],
)  # fmt: skip
def test_a_kernel_name_says_what_it_is_built_for(kernel: str, number: int | None) -> None:
    assert built_for(kernel) == number


def _planted(path: Path) -> tuple[tuple[KernelRow, ...], ShapesAnalysis, Ints]:
    trace = read_torch_trace(path, detailed=True)
    assert trace.detail is not None
    timeline = trace.timeline
    hardware = find_by_device_name(load_catalogue(REPO / "conf" / "hardware"), timeline.devices[0].name)
    roof = roof_of(timeline.devices[0].name, hardware)
    shapes = shape_rows([sum_shapes(timeline, trace.detail)], roof)
    assert shapes is not None
    rows = kernel_rows(timeline.names, timeline.kernels.name, timeline.kernels.end_ns - timeline.kernels.start_ns)
    return rows, shapes, least_fused_ns(timeline, trace.detail, roof)


def test_a_misaligned_gemm_is_named_with_its_shape_and_its_floor() -> None:
    """4095 × 4097 × 4097 in bf16 on an H200: 15 % of the peak."""
    rows, shapes, least = _planted(DATA / "planted" / "misaligned_gemm.json.gz")
    found = misaligned_gemms(rows, shapes.rows)
    assert found is not None
    assert found.kernels == (
        MisalignedKernel(
            short_name="cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1",
            precision="bf16",
            alignment=1,
            instances=90,
            time_ns=80_894_528,
        ),
    )
    assert (found.instances, found.time_ns) == (90, 80_894_528)
    assert found.shapes == ("aten::mm m 4095, n 4097, k 4097 (bf16)",)
    assert found.floor_ns == round(90 * 2 * 4095 * 4097**2 / 989_400)
    assert found.how == "its FLOPs at the data-sheet peaks of NVIDIA H200"
    assert int(least[least >= 0].sum()) == pytest.approx(found.floor_ns / 0.75, rel=1e-4)


def test_a_healthy_gemm_is_not_below_its_peak_nor_misaligned() -> None:
    rows, shapes, _ = _planted(DATA / "planted" / "healthy_gemm.json.gz")
    assert misaligned_gemms(rows, shapes.rows) is None


@pytest.mark.parametrize(
    ("name", "limit", "how"),
    [
        (
            "misaligned_gemm",
            "misaligned operands",
            "its name: a kernel for bf16 rows aligned to 1 element",
        ),
        ("healthy_gemm", "compute", "aten::mm m 8192, n 8192, k 8192, 78 % of the compute peak"),
    ],
)
def test_names_and_shapes_say_what_limits_the_hottest_kernel(name: str, limit: str, how: str) -> None:
    rows, shapes, _ = _planted(DATA / "planted" / f"{name}.json.gz")
    found = hottest_kernel([], rows, shapes=shapes.rows)
    assert found is not None
    assert (found.limit, found.how) == (limit, how)


def test_a_scatter_onto_one_row_is_limited_by_its_indices() -> None:
    timeline = read_torch_trace(DATA / "planted" / "scatter_contention.json.gz").timeline
    length = timeline.kernels.end_ns - timeline.kernels.start_ns
    found = hottest_kernel([timeline], kernel_rows(timeline.names, timeline.kernels.name, length))
    assert found is not None
    assert (found.short_name, found.share, found.limit) == ("indexFuncLargeIndex", 1.0, "colliding indices")
