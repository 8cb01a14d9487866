"""Verdicts on captures other projects published; skipped where they are not at hand."""

import gzip
import lzma
import shutil
from pathlib import Path

import pytest

from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.document import CaptureAnalysis
from llm_perf_opt.profiling.parsers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.profiling.parsers.torch_trace import read_torch_trace
from tests.support.fixtures_dir import shared_fixtures


def _analyze(name: str, tmp_path: Path) -> CaptureAnalysis:
    folder = shared_fixtures()
    path = None if folder is None else folder / name
    if path is None or not path.is_file():
        pytest.skip(f"{name} is not at hand")
    if path.suffix == ".gz":
        local = tmp_path / path.name
        shutil.copy(path, local)
        with gzip.open(local) as file:
            assert file.read(1)
        return analyze_timelines([read_torch_trace(local).timeline])
    local = tmp_path / path.stem
    local.write_bytes(lzma.decompress(path.read_bytes()))
    return analyze_timelines([read_nsys_sqlite(local)])


@pytest.mark.parametrize(
    ("name", "rules", "said"),
    [
        ("wild/tracelens_h100_owlv2.json.gz", ["data_loading", "unfused_attention"], "torch/utils/data/"),
        ("wild/openmp_no_ranges.sqlite.xz", ["wait_bound"], "No kernel runs while copies do, for 96% of the capture"),
        ("wild/nsysai_h100_2gpu_autograd_nvtx.sqlite.xz", ["wait_bound"], "(most: Copy Host-to-Device (Pinned))"),
        ("wild/nsightful_power_iteration.sqlite.xz", ["host_work"], "(most: IO N)"),
        ("wild/tracelens_b200_vllm_eager.json.gz", ["launch_bound", "compilation"], "is launch-bound"),
        ("wild/deepseek_train_overlap.json.gz", [], ""),
        ("wild/tracelens_h100_qwen05b.json.gz", ["unfused_elementwise"], "Unfused elementwise work takes 54%"),
        ("h200/llama.sqlite.xz", ["launch_bound", "compilation"], "decode is launch-bound"),
        ("h200/llama.trace.json.gz", ["launch_bound", "compilation"], "is launch-bound"),
    ],
)
def test_a_published_capture_is_judged_as_an_expert_would(
    tmp_path: Path, name: str, rules: list[str], said: str
) -> None:
    found = _analyze(name, tmp_path).findings
    headlines = [record for record in found if may_be_headline(record.finding())]
    assert [record.rule for record in headlines] == rules
    assert not headlines or said in headlines[0].title


@pytest.mark.parametrize("name", ["wild/hta_rank0.json.gz", "wild/hta_rank1.json.gz", "wild/hta_diff_test.json.gz"])
def test_long_gaps_and_ranges_that_run_on_promise_nothing_to_cuda_graphs(tmp_path: Path, name: str) -> None:
    analysis = _analyze(name, tmp_path)
    assert not [record for record in analysis.findings if record.rule == "launch_bound"]
    assert all(record.max_gain is not None and record.max_gain < 2.0 for record in analysis.findings)
    assert not [
        record for record in analysis.findings if record.range_name in ("nccl:all_to_all", "## recmetrics_update ##")
    ]


def test_the_copies_of_the_two_gpu_capture_have_their_rate(tmp_path: Path) -> None:
    """They take nearly all of it; what is left is a model in fp32, by the names of its products on CUDA cores."""
    finding, other = _analyze("wild/nsysai_h100_2gpu_autograd_nvtx.sqlite.xz", tmp_path).findings
    assert (finding.rule, other.rule) == ("wait_bound", "dtype_miss")
    assert other.title == "Products in fp32 on CUDA cores take 87% of the capture's kernel time"
    assert finding.evidence[1] == "Copy Host-to-Device (Pinned): 446 in 1841.63 ms, 50,950.5 MB at 27.7 GB/s"


def test_a_compiled_step_is_not_told_to_use_cuda_graphs(tmp_path: Path) -> None:
    for name in ("h200/compiled_b8.sqlite.xz", "h200/compiled_b8.trace.json.gz"):
        found = _analyze(name, tmp_path).findings
        assert not [record.title for record in found if "torch.cuda.graph" in record.remedy]
        assert not [record.title for record in found if record.hint == "CUDA graphs or torch.compile"]
