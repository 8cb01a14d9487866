"""A kernel's identity, short name and class, for every producer of names: C++ demangled or not, Triton, XLA, ROCm."""

import csv

import pytest

from llm_perf_opt.capture.kernels.names import (
    CLASSES,
    class_rules,
    classify_kernel,
    distinct_short_names,
    kernel_identity,
    short_kernel_name,
)
from tests.support.fixtures_dir import DATA

ENABLE_IF = (
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, float, int)"
)
GEMVX = "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, cublasGemvParams<float>>(int)"
UNIVERSAL = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
    "cutlass::gemm::collective::CollectiveMma<cute::tuple<cute::C<64>, cute::C<128>, cute::C<128> >, float> > >(int)"
)
FLASH3 = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Mainloop<2, "
    "cute::tuple<cute::C<128>, cute::C<176>, cute::C<128> >, 128> > > >(int)"
)
RMSNORM = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib"
SILU = "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i"
GROUPED = "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalINS1_17GroupProblemShapeIN4cute5tupleE"
FMHA = "_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelINS_28BlockFmhaPipelineQRKSVSAsyncINS_7ProblemEEEEEEvT0_"
NORMAL = (
    "_ZN2at6native54_GLOBAL__N__d8ceb000_21_DistributionNormal_cu_17e44f7d43distribution_elementwise_grid_stride_kernel"
    "IfLi4EZNS0_9templates4cuda20normal_and_transformIffLm4EPNS_17CUDAGeneratorImpl"
)
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, char*>(int)"
PAGED = "void vllm::paged_attention_v2_kernel<(vllm::Fp8KVCacheDataType)0, ck_tile::ComposedAttention<0u> >(int)"


@pytest.mark.parametrize(
    ("name", "identity", "short"),
    [
        (ENABLE_IF, "vllm::fused_add_rms_norm_kernel", "fused_add_rms_norm_kernel"),
        (GEMVX, "internal::gemvx::kernel", "gemvx::kernel"),
        (UNIVERSAL, "cutlass::gemm::kernel::GemmUniversal", "GemmUniversal[64x128x128]"),
        (FLASH3, "flash::FlashAttnFwdSm90", "FlashAttnFwdSm90[128x176x128]"),
        (RMSNORM, "aiter::add_rmsnorm_quant_kernel", "add_rmsnorm_quant_kernel"),
        (f"hipGraphLaunch->{RMSNORM}.kd", "aiter::add_rmsnorm_quant_kernel", "add_rmsnorm_quant_kernel"),
        (SILU, "sgl_hip::activation::act_and_mul_kernel[silu]", "act_and_mul_kernel[silu]"),
        (GROUPED, "gemm::kernel::GemmUniversal", "GemmUniversal"),
        (FMHA, "FmhaFwdKernel", "FmhaFwdKernel"),
        (ADD, "at::native::vectorized_elementwise_kernel[add]", "vectorized_elementwise_kernel[add]"),
        (PAGED, "vllm::paged_attention_v2_kernel", "paged_attention_v2_kernel"),
        ("triton_poi_fused_add_3", "triton_poi_fused_add_3", "triton_poi_fused_add_3"),
        ("void f<4, g> >(int)", "void f<4, g> >(int)", "void f<4, g> >(int)"),
        ("", "", ""),
    ],
)
def test_a_kernel_is_known_by_its_own_name_not_by_its_return_type_or_wrapper(
    name: str, identity: str, short: str
) -> None:
    assert (kernel_identity(name), short_kernel_name(name)) == (identity, short)


def test_a_long_generated_name_keeps_the_number_that_tells_it_apart() -> None:
    names = [f"triton_poi_fused_{'_'.join(['add'] * 30)}_{number}" for number in (4, 5)]
    short = [short_kernel_name(name) for name in names]
    assert [len(name) for name in short] == [80, 80]
    assert [name[-2:] for name in short] == ["_4", "_5"]


@pytest.mark.parametrize(
    ("name", "kernel_class"),
    [
        # A word in the arguments is not the kernel.
        ("void vllm::reshape_and_cache_flash_kernel<float, (vllm::Fp8KVCacheDataType)1>(int)", "KV cache"),
        ("void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float> >(int)", "reduction"),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)", "copy"),
        (NORMAL, "elementwise"),
        # What inductor fused into a pointwise kernel is not attention, and a cast does not make a reduction a copy.
        ("triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy_add_cos_mul_view_4", "elementwise"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "norm"),
        ("triton_poi_fused__to_copy_5", "copy"),
        ("nobody_knows_this", "other"),
        ("kernVectorAdd(float*, float*, float*, int)", "elementwise"),
        ("vector_address_kernel", "other"),
        ("void cudnn_bn_fw_tr_1C11_singleread<float, 512, true>(cudnnTensorStruct)", "norm"),
        ("void fft1d_r2c_32<float, float, float2, false, false>(float2*, float const*)", "convolution"),
        ("void fft1d_c2r_32<float2, float, float, false, true>(float*, float2 const*)", "convolution"),
        ("void indexing_backward_kernel<float, 4>(long*, long*, float*, float*, long, long)", "embedding"),
        ("void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*, float*, long*)", "reduction"),
        ("void permutationKernelPLC3<float>(float const*, float*)", "copy"),
    ],
)
def test_the_class_follows_from_what_the_kernel_does(name: str, kernel_class: str) -> None:
    assert classify_kernel(name) == kernel_class


def test_the_labelled_names_have_their_class() -> None:
    with (DATA / "kernel_labels.csv").open(encoding="utf-8", newline="") as file:
        labels = [(row["name"], row["class"]) for row in csv.DictReader(file)]
    assert len(labels) >= 300
    assert {wanted for _, wanted in labels} == set(CLASSES)
    wrong = [(name, wanted) for name, wanted in labels if classify_kernel(name) != wanted]
    assert len(wrong) <= 0.02 * len(labels), wrong


def test_every_rule_gives_a_class_that_exists() -> None:
    assert {kind for kind, _ in class_rules()} <= set(CLASSES)


def test_kernels_of_one_table_never_share_a_short_name() -> None:
    add = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<{}>, char*>(int)"
    cat = "void at::native::CatArrayBatchedCopy<float, {}>(int)"
    twice = ["void f<1, 2>(int)", "void f<2, 1>(int)"]
    names = [add.format("float"), add.format("c10::BFloat16"), cat.format(3), cat.format(4), "gemm", *twice]
    assert distinct_short_names(names) == (
        "vectorized_elementwise_kernel[add, float]",
        "vectorized_elementwise_kernel[add, BFloat16]",
        "CatArrayBatchedCopy[3]",
        "CatArrayBatchedCopy[4]",
        "gemm",
        "f[#1]",
        "f[#2]",
    )
