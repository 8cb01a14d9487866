"""Kernels that only move data: what each does, by its name and by the operator that launched it."""

import lzma
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.capture.copy_kernels import CopyKernelRow, copy_kernel_rows
from llm_perf_opt.capture.kernels.copies import COPY_KINDS, copy_kind, copy_rules, kind_of_operator
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from tests.support.fixtures_dir import DATA, shared_fixtures
from tests.support.trace_builder import event, write_trace

_COPY = "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}"
STRIDED = f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::{_COPY}>>(int)"
STRIDED_OLD = f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::{_COPY}>>(int)"
CONVERTED = (
    f"void at::native::unrolled_elementwise_kernel<at::native::{_COPY}, TrivialOffsetCalculator<1>, "
    "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>>(int)"
)
CONTIGUOUS = f"void at::native::vectorized_elementwise_kernel<4, at::native::{_COPY}, std::array<char*, 2ul>>(int)"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)"


def _scatter_gather(arguments: str) -> str:
    return (
        "void at::native::_scatter_gather_elementwise_kernel<128, 4, "
        f"at::native::_cuda_scatter_gather_internal_kernel<{arguments}>(int)"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (STRIDED, "layout"),
        (STRIDED_OLD, "layout"),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(int)", "layout"),
        ("loop_transpose_fusion", "layout"),
        ("triton_poi_fused_clone_2", "layout"),
        (CONVERTED, "dtype cast"),
        ("void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda>(int)", "dtype cast"),
        ("triton_poi_fused__to_copy_5", "dtype cast"),
        ("void cpy_f32_f16<&(cpy_1_f32_f16(char const*, char*))>(char const*, char*, int)", "dtype cast"),
        ("multi_tensor_apply_kernel<TensorListMetadata<2>, UnaryOpFunctor<int>, at::native::Copy<int, long>>(int)",
         "dtype cast"),
        ("multi_tensor_apply_kernel<TensorListMetadata<2>, UnaryOpFunctor<long>, at::native::Copy<long, long>>(int)",
         "copy"),
        (CONTIGUOUS, "copy"),
        ("cupy_copy__float64_float64", "copy"),
        (CAT, "cat"),
        ("void concat_f32_dim0(float const*, float const*, float*, int, int)", "cat"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2>(int)", "gather"),
        (_scatter_gather("false, at::native::OpaqueType<4>>::operator()<at::native::TensorAssign>"), "gather"),
        (_scatter_gather("true, at::native::OpaqueType<4>>::operator()<at::native::TensorAssign>"), "scatter"),
        (_scatter_gather("true, float>::operator()<at::native::ReduceAdd>"), "scatter with colliding indices"),
        ("void at::native::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true, at::native::ReduceAdd>(int)",
         "scatter with colliding indices"),
        ("void at::native::indexing_backward_kernel<float, 4>(long const*)", "scatter with colliding indices"),
        ("void at::native::index_elementwise_kernel<128, 4, at::native::index_put_kernel_impl<int>>(long)", "scatter"),
        ("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT", None),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)", None),
    ],
)  # fmt: skip
def test_the_name_of_a_kernel_says_what_it_copies(name: str, kind: str | None) -> None:
    assert copy_kind(name) == kind


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten::clone", "layout"),
        ("aten::contiguous", "layout"),
        ("aten::_to_copy", "dtype cast"),
        ("aten::cat", "cat"),
        ("aten::index_select", "gather"),
        ("aten::copy_", None),
    ],
)
def test_the_operator_decides_where_the_name_does_not(operator: str, kind: str | None) -> None:
    assert kind_of_operator(operator) == kind
    # Old torch's kernel for strided tensors, with or without a conversion.
    assert copy_kind(STRIDED_OLD, operator) == (kind or "layout")
    assert copy_kind("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT", operator) is None


def test_every_rule_names_a_kind_there_is() -> None:
    assert {rule.kind for rule in copy_rules()} == set(COPY_KINDS)


def test_a_cat_that_appends_to_a_growing_tensor_keeps_only_what_is_new(tmp_path: Path) -> None:
    """Three tokens appended to 7, 8 and 9; a `cat` of equal halves alongside them."""
    events = []
    dims = [[[[1, 8, n, 64], [1, 8, 1, 64]], []] for n in (7, 8, 9)] + [[[[1, 8, 64], [1, 8, 64]], []]]
    for i, shapes in enumerate(dims):
        at, number = 100 * i, i + 1
        inputs: dict[str, Any] = {"Input Dims": shapes}
        length = f"{10 * (shapes[0][0][2] + 1) if i < 3 else 1}"
        events += [
            event("cpu_op", "aten::cat", f"{at}", "20", **inputs),
            event("cuda_runtime", "cudaLaunchKernel", f"{at + 5}", "5", correlation=number),
            event("kernel", CAT, f"{at + 30}", length, pid=0, tid=7, correlation=number, device=0),
        ]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events), detailed=True)
    (row,) = copy_kernel_rows([trace.timeline], [trace.detail])
    # 80, 90 and 100 µs, an eighth, ninth and tenth of which are new.
    assert (row.kind, row.kernel_count, row.time_ns, row.appending_ns) == ("cat", 4, 271_000, 270_000)
    assert (row.floor_ns, row.operators) == (31_000, ("aten::cat",))


def _planted(name: str, tmp_path: Path) -> tuple[CopyKernelRow, float]:
    folder = shared_fixtures()
    path = DATA / "planted" / name
    if not path.is_file() and folder is not None:
        path = folder / "planted" / name
    if not path.is_file():
        pytest.skip(f"{name} is not at hand")
    if path.suffix == ".gz":
        timeline = read_torch_trace(path).timeline
    else:
        local = tmp_path / path.stem
        local.write_bytes(lzma.decompress(path.read_bytes()))
        timeline = read_nsys_sqlite(local)
    (row,) = copy_kernel_rows([timeline])
    return row, row.time_ns / int((timeline.kernels.end_ns - timeline.kernels.start_ns).sum())


@pytest.mark.parametrize("suffix", ["json.gz", "sqlite.xz"])
def test_transposes_around_products_are_layout_copies(tmp_path: Path, suffix: str) -> None:
    row, share = _planted(f"transposes.{suffix}", tmp_path)
    assert (row.kind, row.kernel_count, row.floor_ns, round(share, 2)) == ("layout", 160, 0, 0.84)


@pytest.mark.parametrize("suffix", ["json.gz", "sqlite.xz"])
def test_rows_added_to_one_row_collide_and_have_no_floor(tmp_path: Path, suffix: str) -> None:
    row, share = _planted(f"scatter_contention.{suffix}", tmp_path)
    assert (row.kind, row.kernel_count, row.floor_ns, share) == ("scatter with colliding indices", 8, None, 1.0)


def test_a_growing_cache_is_found_in_a_decode_of_llama() -> None:
    trace = read_torch_trace(DATA / "h200" / "llama.trace.json.gz", detailed=True)
    rows = {row.kind: row for row in copy_kernel_rows([trace.timeline], [trace.detail])}
    assert rows["cat"].operators == ("aten::cat",)
    assert (rows["cat"].time_ns, rows["cat"].appending_ns) == (639_420, 125_920)
    assert rows["dtype cast"].operators == ("aten::_to_copy",)
