"""Kernels of published captures: classes and names as those who know them would say. Skipped without the files."""

from collections import defaultdict

import pytest

from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.capture.tables import kernel_rows
from tests.support.fixtures_dir import shared_fixtures

SHARED = shared_fixtures()
WILD = None if SHARED is None else SHARED / "wild"
pytestmark = pytest.mark.skipif(WILD is None or not WILD.is_dir(), reason="the published captures are not here")


def kernels_of(name: str) -> tuple[KernelRow, ...]:
    assert WILD is not None
    timeline = read_torch_trace(WILD / f"{name}.json.gz").timeline
    kernels = timeline.kernels
    return kernel_rows(timeline.names, kernels.name, kernels.end_ns - kernels.start_ns)


def shares(rows: tuple[KernelRow, ...]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for row in rows:
        found[row.kernel_class] += row.time_pct
    return found


def test_vllm_on_a_b200_multiplies_in_the_kernels_of_tensorrt_llm() -> None:
    rows = kernels_of("tracelens_b200_vllm_eager")
    assert {row.kernel_class for row in rows if row.name.startswith("bmm_")} == {"GEMM"}
    assert sum(row.time_pct for row in rows if row.name.startswith("bmm_")) == pytest.approx(48, abs=0.5)
    assert {row.kernel_class for row in rows if "quantize_with_block_size" in row.name} == {"quantisation"}
    assert not any(row.short_name.startswith(("enable_if", "device_kernel")) for row in rows)


def test_sglang_on_an_mi300_multiplies_in_tensile() -> None:
    rows = kernels_of("tracelens_sglang_decode_mi300")
    assert {row.kernel_class for row in rows if row.name.startswith("Cijk_")} == {"GEMM"}
    assert shares(rows)["other"] < 5


def test_a_cast_in_a_fused_name_does_not_make_a_reduction_a_copy() -> None:
    rows = kernels_of("tracelens_torch_compile")
    assert "copy" not in shares(rows)
    assert {row.kernel_class for row in rows if row.name.startswith("triton_red_")} == {"norm"}


def test_embeddings_are_no_multiplications_and_transfers_are_communication() -> None:
    rows = kernels_of("hta_rank0")
    assert {row.kernel_class for row in rows if "fbgemm_gpu::" in row.name} & {"GEMM"} == set()
    assert {row.kernel_class for row in rows if "split_embedding" in row.name} == {"embedding"}
    send = [row for row in rows if "ncclKernel_SendRecv" in row.name]
    assert {row.kernel_class for row in send} == {"communication"}


def test_expert_parallel_transfers_are_communication() -> None:
    rows = kernels_of("deepseek_train_overlap")
    assert shares(rows)["communication"] == pytest.approx(46, abs=1)


@pytest.mark.parametrize("name", ["hta_rank0", "deepseek_train_overlap", "tracelens_h100_owlv2", "hta_diff_control"])
def test_no_two_kernels_of_a_table_have_one_short_name(name: str) -> None:
    short = [row.short_name for row in kernels_of(name)]
    assert len(set(short)) == len(short)
