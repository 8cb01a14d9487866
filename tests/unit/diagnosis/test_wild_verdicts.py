"""Verdicts on captures other projects published; skipped where they are not available."""

import gzip
import lzma
import shutil
from pathlib import Path

import pytest

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnose import MIN_HEADLINE
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from tests.support.answers import claim_of, diagnosis_of
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
    ("name", "found", "said"),
    [
        ("wild/tracelens_h100_owlv2.json.gz", ["data_loading", "unfused_attention"], "zoom_shift"),
        ("wild/openmp_no_ranges.sqlite.xz", ["exposed_memcpy"], "96 % of the capture"),
        ("wild/nsysai_h100_2gpu_autograd_nvtx.sqlite.xz", ["exposed_memcpy"], "H2D (pinned)"),
        ("wild/nsightful_power_iteration.sqlite.xz", ["host_work"], "IO N"),
        ("wild/tracelens_b200_vllm_eager.json.gz", ["launch_bound", "compilation"], "Launch-bound"),
        ("wild/deepseek_train_overlap.json.gz", [], ""),
        ("wild/tracelens_h100_qwen05b.json.gz", ["unfused_elementwise"], "54 % of kernel time"),
        ("h200/llama.sqlite.xz", ["launch_bound", "compilation"], "Launch-bound decode_step"),
        ("h200/llama.trace.json.gz", ["launch_bound"], "Launch-bound"),
    ],
)
def test_a_published_capture_is_judged_as_an_expert_would(
    tmp_path: Path, name: str, found: list[str], said: str
) -> None:
    analysis = _analyze(name, tmp_path)
    certain = [finding for finding in analysis.findings if finding.confidence != "low"]
    headlines = [finding for finding in certain if (finding.share or 0.0) >= MIN_HEADLINE]
    weighty = [finding.rule for finding in headlines]
    assert weighty[: len(found)] == found
    assert not found or said in headlines[0].title
    if not found:
        assert diagnosis_of(analysis).verdict.kind == "healthy"


@pytest.mark.parametrize("name", ["wild/hta_rank0.json.gz", "wild/hta_rank1.json.gz", "wild/hta_diff_test.json.gz"])
def test_long_gaps_and_ranges_that_run_on_promise_nothing_to_cuda_graphs(tmp_path: Path, name: str) -> None:
    analysis = _analyze(name, tmp_path)
    assert not [record for record in analysis.findings if record.rule == "launch_bound"]
    assert all(record.max_gain is None or record.max_gain < 2.0 for record in analysis.findings)
    assert not [
        record for record in analysis.findings if record.range_name in ("nccl:all_to_all", "## recmetrics_update ##")
    ]


def test_the_copies_of_the_two_gpu_capture_have_their_rate(tmp_path: Path) -> None:
    """They take nearly all of it."""
    finding = claim_of(_analyze("wild/nsysai_h100_2gpu_autograd_nvtx.sqlite.xz", tmp_path), "exposed_memcpy")
    assert finding.evidence[1] == "Copy Host-to-Device (Pinned): 446 copies in 1,842 ms, 51.0 GB at 27.7 GB/s"
    # More than all kernels take: no factor.
    assert (finding.max_gain, finding.hint) == (None, "Keeping the parameters on the device")


def test_a_compiled_step_is_not_told_to_use_cuda_graphs(tmp_path: Path) -> None:
    for name in ("h200/compiled_b8.sqlite.xz", "h200/compiled_b8.trace.json.gz"):
        found = _analyze(name, tmp_path).findings
        assert not [record.title for record in found if "torch.cuda.graph" in record.remedy]
        assert not [record.title for record in found if record.hint == "CUDA graphs or torch.compile"]
