"""Work by shape and type: what an operator needs, what its kernels took, and how far from the roofline that is."""

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.capture.kernels.operator_work import OperatorWork, operator_work
from llm_perf_opt.capture.ranks.collectives import recorded_args
from llm_perf_opt.capture.ranks.rank_analysis import analyze_ranks
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest
from tests.support.fixtures_dir import DATA, shared_fixtures
from tests.support.trace_builder import event, write_trace

BF16 = "c10::BFloat16"


def _work(name: str, dims: list[Any], types: list[str], values: list[str] | None = None) -> OperatorWork | None:
    return operator_work(name, json.dumps(dims), json.dumps(types).encode(), json.dumps(values or []).encode())


@pytest.mark.parametrize(
    ("name", "dims", "types", "values", "expected"),
    [
        ("aten::mm", [[2, 3], [3, 5]], [BF16, BF16], [], ("GEMM", "m 2, n 5, k 3", "bf16", 60.0, 62.0)),
        ("aten::addmm", [[5], [2, 3], [3, 5]], ["float"] * 3, [], ("GEMM", "m 2, n 5, k 3", "fp32", 60.0, 124.0)),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], [BF16, BF16], [], ("GEMM", "7 × m 2, n 5, k 3", "bf16", 420.0, 434.0)),
        ("aten::linear", [[4, 2, 3], [5, 3], []], [BF16] * 3, [], ("GEMM", "m 8, n 5, k 3", "bf16", 240.0, 158.0)),
        (
            "aten::_scaled_mm",
            [[2, 3], [3, 5]],
            ["c10::Float8_e4m3fn", "c10::Float8_e4m3fn"],
            [],
            ("GEMM", "m 2, n 5, k 3", "fp8", 60.0, 41.0),
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            [[1, 4, 8, 16], [1, 2, 8, 16], [1, 2, 8, 16], [], []],
            [BF16, BF16, BF16, "Scalar", "Scalar"],
            ["", "", "", "0.", "True"],
            ("attention", "batch 1, heads 4/2, 8 × 8, size 16, causal", "bf16", 4 * 36 * 64.0, 3072.0),
        ),
        (
            "aten::cudnn_convolution",
            [[1, 3, 8, 8], [16, 3, 3, 3], [], [], [], []],
            ["float", "float", "ScalarList", "ScalarList", "ScalarList", "Scalar"],
            ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"],
            ("convolution", "1 × 3 × 8×8, 16 of 3×3", "fp32", 2.0 * 16 * 16 * 27, 768.0 + 1728.0 + 1024.0),
        ),
        (
            "aten::native_layer_norm", [[4, 8], [], [8], [8]], [BF16, "", BF16, BF16], [],
            ("norm", "4 × 8", "bf16", None, 160.0),
        ),
    ],
)  # fmt: skip
def test_the_work_of_an_operator_follows_from_its_inputs(
    name: str, dims: list[Any], types: list[str], values: list[str], expected: tuple[Any, ...]
) -> None:
    found = _work(name, dims, types, values)
    assert found is not None
    assert (found.kind, found.shape, found.dtype, found.flops, found.size_bytes) == expected


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("aten::relu", [[2, 3]], [BF16]),
        ("aten::mm", [[2, 3], [4, 5]], [BF16, BF16]),
        ("aten::mm", [[2, 3], []], [BF16, BF16]),
        ("aten::mm", [[2, 3], [3, 5]], ["a type of tomorrow", BF16]),
        ("aten::mm", [["x"], 5], [BF16]),
    ],
)
def test_inputs_that_do_not_fit_have_no_work(name: str, dims: list[Any], types: list[str]) -> None:
    assert _work(name, dims, types) is None


def _trace(path: Path) -> Path:
    """Two products of one shape in bf16, whose two kernels take 1 ms and 3 ms, and one kernel outside."""
    inputs: dict[str, Any] = {
        "Input Dims": [[4096, 4096], [4096, 4096]],
        "Input type": [BF16, BF16],
        "Concrete Inputs": ["", ""],
    }
    events = []
    for n, start in enumerate((0, 10_000)):
        events += [
            event("cpu_op", "aten::matmul", f"{start}.000", "90.000", **inputs),
            event("cpu_op", "aten::mm", f"{start + 1}.000", "50.000", **inputs),
            event("cuda_runtime", "cudaLaunchKernel", f"{start + 5}.000", "5.000", correlation=n + 1),
        ]
    for n, (start, length) in enumerate(((100, 1000), (10_100, 3000))):
        events.append(
            event("kernel", "nvjet_gemm", f"{start}.000", f"{length}.000", pid=0, tid=7, correlation=n + 1, device=0)
        )
    events.append(event("kernel", "other", "20000.000", "4000.000", pid=0, tid=7, correlation=99, device=0))
    return write_trace(path, events)


def test_products_of_one_shape_are_one_row_under_the_roof_of_the_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["analyze", "--json", str(_trace(tmp_path / "t.json")), "-o", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)["shapes"]
    (row,) = found["rows"]
    assert (row["operator"], row["shape"], row["calls"], row["time_ns"]) == (
        "aten::mm",
        "m 4096, n 4096, k 4096",
        2,
        4_000_000,
    )
    assert row["tflops"] == pytest.approx(2 * 4096**3 / 2e-3 / 1e12)
    assert row["gb_per_s"] == pytest.approx(3 * 2 * 4096**2 / 2e-3 / 1e9)
    assert (row["bound"], row["kernels"]) == ("compute", ["nvjet_gemm"])
    assert row["roof_pct"] == pytest.approx(100 * row["tflops"] / 989.4)
    assert (found["roof"]["gpu"], found["covered_ns"], found["kernel_ns"]) == ("NVIDIA H200", 4_000_000, 8_000_000)
    (stage,) = read_manifest(out).stages
    assert [s.picture.path for s in stage.sections if s.title == "Shapes" and s.picture] == [
        "torch_profiler/shapes.svg"
    ]
    assert "aten::mm m 4096, n 4096, k 4096, bf16" in (out / "torch_profiler" / "shapes.svg").read_text()


def test_a_real_trace_has_the_products_of_its_model() -> None:
    """Llama 3.2 1B on an H200: the up and gate projections of a prompt of 1024 tokens, in 16 layers."""
    from llm_perf_opt.capture.shapes import roof_of, shape_rows, sum_shapes

    trace = read_torch_trace(DATA / "h200" / "llama.trace.json.gz", detailed=True)
    assert trace.detail is not None
    found = shape_rows([sum_shapes(trace.timeline, trace.detail)], roof_of(None, None))
    assert found is not None
    top = found.rows[0]
    assert (top.operator, top.shape, top.dtype, top.calls) == ("aten::mm", "m 1024, n 8192, k 2048", "bf16", 32)
    assert (top.roof_pct, found.roof.how) == (None, "the capture does not name its GPU")


def test_a_collective_has_the_size_and_bandwidth_torch_recorded(tmp_path: Path) -> None:
    """1 MiB of bf16 to each of 8 ranks in 100 µs."""
    said: dict[str, Any] = {
        "Collective name": "_allgather_base", "In msg nelems": 65536, "Out msg nelems": 524288, "dtype": "BFloat16",
        "Group size": 8, "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }  # fmt: skip
    kernel = event(
        "kernel", "ncclDevKernel_AllGather_RING_LL", "10.000", "100.000", pid=0, tid=7, correlation=1, device=0, **said
    )
    trace = read_torch_trace(write_trace(tmp_path / "t.json", [kernel]), detailed=True)
    assert trace.detail is not None
    args = recorded_args(trace.timeline, trace.detail)
    found = analyze_ranks([trace.timeline], recorded=[args])
    assert found is not None
    (row,) = found.collectives
    assert (row.collective, row.message_bytes, row.dtype, row.group_size) == ("all-gather", 1 << 20, "BFloat16", 8)
    assert row.algorithm_gb_s == pytest.approx((1 << 20) / 1e-4 / 1e9)
    assert row.bus_gb_s == pytest.approx((1 << 20) / 1e-4 / 1e9 * 7 / 8)


def test_a_collective_without_a_record_has_the_size_of_its_operator(tmp_path: Path) -> None:
    """An all-gather of 1 KiB from each of 4 ranks, and an all-reduce of a framework's own."""
    gather: dict[str, Any] = {"Input Dims": [[2048], [512], []], "Input type": [BF16, BF16, ""]}
    reduce: dict[str, Any] = {"Input Dims": [[8, 16], []], "Input type": ["float", ""]}
    events = []
    for n, (name, kernel, inputs) in enumerate(
        (
            ("c10d::_allgather_base_", "ncclKernel_AllGather_RING", gather),
            ("vllm::all_reduce", "multimem_all_reduce_kernel", reduce),
        )
    ):
        start = 100 * n
        events += [
            event("cpu_op", name, f"{start}.000", "30.000", **inputs),
            event("cuda_runtime", "cudaLaunchKernel", f"{start + 5}.000", "5.000", correlation=n + 1),
            event("kernel", kernel, f"{start + 20}.000", "1.000", pid=0, tid=7, correlation=n + 1, device=0),
        ]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events), detailed=True)
    assert trace.detail is not None
    found = analyze_ranks([trace.timeline], recorded=[recorded_args(trace.timeline, trace.detail)])
    assert found is not None
    assert [(r.collective, r.message_bytes, r.dtype, r.group_size, r.bus_gb_s) for r in found.collectives] == [
        ("all-gather", 4096, "BFloat16", 4, pytest.approx(4.096 * 3 / 4)),
        ("all-reduce", 512, "float", None, None),
    ]


def test_products_of_a_published_trace_reach_what_such_a_gpu_reaches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared_fixtures()
    path = None if folder is None else folder / "wild" / "tracelens_h100_qwen05b.json.gz"
    if path is None or not path.is_file():
        pytest.skip(f"{path} is not at hand")
    assert main(["analyze", "--json", str(path)]) == 0
    rows = json.loads(capsys.readouterr().out)["shapes"]["rows"]
    assert (rows[0]["shape"], rows[0]["calls"], rows[0]["bound"]) == ("m 8944, n 2816, k 1024", 48, "compute")
    assert rows[0]["roof_pct"] == pytest.approx(62.3, abs=0.1)
    assert all(0 < row["roof_pct"] < 100 for row in rows)


@pytest.mark.parametrize(("kernel_us", "found"), [(1000, ["below_roof"]), (180, [])])
def test_products_far_from_the_roof_are_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kernel_us: int, found: list[str]
) -> None:
    events = []
    for i in range(20):
        at = i * kernel_us
        shapes: dict[str, Any] = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": [BF16, BF16]}
        events.append(event("cpu_op", "aten::mm", f"{10 * i}", "8", **shapes))
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{10 * i + 2}", "3", correlation=i + 1))
        where = {"pid": 0, "tid": 7, "device": 0, "correlation": i + 1}
        events.append(event("kernel", "gemm", f"{500 + at}", f"{kernel_us}", **where))
    assert main(["analyze", str(write_trace(tmp_path / "t.json", events)), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["rule"] for finding in findings] == found
    for finding in findings:
        assert "GEMMs at 14 % of peak" in finding["title"]
        assert finding["confidence"] == "low"
        # All sizes fit the units that multiply.
        assert "pad" not in finding["remedy"]
        # Two thirds of the peak, which good kernels reach, remain: not all that a data sheet promises.
        assert finding["max_gain"] == pytest.approx(4.8, abs=0.1)
