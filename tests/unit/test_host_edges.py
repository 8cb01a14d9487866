"""What the host does before the first kernel and after the last: told where it is much, and only then."""

from pathlib import Path

import pytest
from msgspec import UNSET

from llm_perf_opt.analysis.gaps.edges import HostEdge, HostPart
from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.document import CaptureAnalysis
from llm_perf_opt.profiling.parsers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.profiling.parsers.torch_trace import read_torch_trace
from llm_perf_opt.report.run_files import read_run_files
from llm_perf_opt.report.view.report import build_view
from tests.support.nsys_builder import Export
from tests.support.trace_builder import event, write_trace

MS = 1_000_000


def _kernels(at_us: int, count: int = 20) -> list[str]:
    """Kernels of 500 µs back to back from 10 µs after a moment on, all launched within a millisecond."""
    events = []
    for i in range(count):
        launch = {"correlation": i + 1}
        events.append(event("cpu_op", "aten::mm", f"{at_us + 20 * i}", "15"))
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at_us + 20 * i + 2}", "5", **launch))
        lane = {"pid": 0, "tid": 7, "device": 0}
        events.append(event("kernel", "gemm", f"{at_us + 10 + 500 * i}", "500", **lane, **launch))
    return events


def _request(*, around: str | None = "request", before: str = "resize", kind: str = "cpu_op") -> list[str]:
    """40 ms of the host, 10 ms of kernels, 50 ms of the host."""
    events = [] if around is None else [event("user_annotation", around, "0", "100010")]
    return [
        *events,
        event(kind, before, "0", "40000"),
        *_kernels(40_000),
        event("cuda_runtime", "cudaStreamSynchronize", "41000", "9010", correlation=900),
        event("cpu_op", "torchvision::nms", "50010", "50000"),
    ]


def _analyze(events: list[str], tmp_path: Path) -> CaptureAnalysis:
    return analyze_timelines([read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline])


def _titles(analysis: CaptureAnalysis) -> list[tuple[str, str, bool]]:
    return [(finding.rule, finding.title, finding.is_one_time) for finding in analysis.findings]


@pytest.mark.parametrize(("around", "where"), [("request", "request"), (None, "the capture")])
def test_a_request_that_is_mostly_the_host_s_is_told_so(tmp_path: Path, around: str | None, where: str) -> None:
    analysis = _analyze(_request(around=around), tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.range_name, finding.is_one_time) == ("host_edges", around, False)
    assert finding.title == (
        f"The host works before the first kernel and after the last for 90% of {where} (most: torchvision::nms)"
    )
    assert finding.evidence == (
        "90.01 ms of 100.01 ms, in which the GPU has nothing to do; it is busy for 10.00 ms",
        "operator torchvision::nms: 50.00 ms after the last kernel",
        "operator resize: 40.00 ms before the first kernel",
    )
    assert finding.max_gain == pytest.approx(10.0, rel=1e-3)
    assert may_be_headline(finding.finding())
    assert analysis.host_edges == (
        HostEdge(
            when="before",
            length_ns=40_010_000,
            range_name=around,
            is_whole=around is not None,
            range_ns=0 if around is None else 100_010_000,
            verdict="host_work",
            parts=(
                HostPart(kind="operator", name="resize", time_ns=40_000_000),
                HostPart(kind="operator", name="aten::mm", time_ns=10_000),
            ),
        ),
        HostEdge(
            when="after",
            length_ns=50_000_000,
            range_name=around,
            is_whole=around is not None,
            range_ns=0 if around is None else 100_010_000,
            verdict="host_work",
            parts=(HostPart(kind="operator", name="torchvision::nms", time_ns=50_000_000),),
        ),
    )


def test_the_terminal_and_the_page_never_say_that_this_gpu_works_all_the_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "t.json", _request())
    assert main(["analyze", str(trace), "-o", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "GPU NVIDIA H200: busy 10.000 ms of 10.000 ms (100.0%) from its first work to its last, and the host works "
        "without it for 40.010 ms before the first GPU work, 50.000 ms after the last; idle 0.000 ms"
    )
    assert "works all the time" not in out
    run = tmp_path / "run"
    head = build_view(read_run_files(read_manifest(run), run)).headline
    assert head.verdict == (
        "The host works before the first kernel and after the last for 90% of request (most: torchvision::nms). "
        "Shortening this work could give up to 10.0× over the whole capture."
    )
    assert head.split is not None and head.split.total == "100.0 ms"
    assert [(part.label, part.kind, round(part.share, 3)) for part in head.split.parts] == [
        ("GPU busy", "work", 0.1),
        ("The host alone before the first GPU work", "idle", 0.4),
        ("The host alone after the last", "idle", 0.5),
    ]


def test_a_host_that_only_waits_for_the_next_request_is_promised_nothing(tmp_path: Path) -> None:
    waiting = "threading.py(355): wait"
    events = [
        event("user_annotation", "serve", "0", "100000"),
        *_kernels(0),
        event("python_function", waiting, "10100", "89800"),
    ]
    (finding,) = _analyze(events, tmp_path).findings
    assert finding.title == f"The host waits after the last kernel for 90% of serve (most: {waiting})"
    assert not may_be_headline(finding.finding())


def test_requests_in_captures_of_their_own_are_added_up(tmp_path: Path) -> None:
    traces = [write_trace(tmp_path / f"{name}.json", _request(before=name)) for name in ("resize", "decode")]
    (finding,) = analyze_timelines([read_torch_trace(path).timeline for path in traces]).findings
    assert finding.title == (
        "The host works before the first kernel and after the last for 90% of request (most: torchvision::nms)"
    )
    assert finding.evidence == (
        "180.02 ms of 200.02 ms, in which the GPU has nothing to do; it is busy for 20.00 ms",
        "operator torchvision::nms: 100.00 ms after the last kernel",
        "operator resize: 40.00 ms before the first kernel",
        "operator decode: 40.00 ms before the first kernel",
    )


@pytest.mark.parametrize("loading", ["load_model", "loader.py(3): from_pretrained"])
def test_loading_inside_of_a_range_is_paid_once(tmp_path: Path, loading: str) -> None:
    kind = "python_function" if ".py" in loading else "user_annotation"
    events = [event("user_annotation", "main", "0", "50020"), event(kind, loading, "0", "39900"), *_kernels(40_000)]
    assert _titles(_analyze(events, tmp_path)) == [
        ("host_edges", f"The host sets up before the first kernel for 80% of main (most: {loading})", True)
    ]


def test_filling_weights_before_the_first_kernel_is_paid_once(tmp_path: Path) -> None:
    events = [event("cpu_op", "aten::uniform_", f"{1_000 * i}", "990") for i in range(40)]
    assert _titles(_analyze([*events, *_kernels(40_000)], tmp_path)) == [
        ("host_edges", "The host sets up before the first kernel for 80% of the capture (most: aten::uniform_)", True)
    ]


def test_what_is_in_no_range_with_a_kernel_is_no_step_s(tmp_path: Path) -> None:
    """Imports and loading before the steps, and the export of the trace after them."""
    events = [
        event("user_annotation", "load", "0", "400000"),
        event("cpu_op", "aten::copy_", "10", "390000"),
        event("user_annotation", "step", "400000", "10100"),
        *_kernels(400_050),
        event("python_function", "main.py(9): report", "410200", "90000"),
    ]
    analysis = _analyze(events, tmp_path)
    assert (analysis.findings, analysis.host_edges) == ((), UNSET)


def test_a_warm_up_and_the_profiler_s_own_frames_are_no_work_of_a_request(tmp_path: Path) -> None:
    events = [
        event("python_function", "torch/profiler/profiler.py(700): start", "0", "30000"),
        event("user_annotation", "warmup", "30000", "30500"),
        *_kernels(50_000),
        event("python_function", "torch/profiler/profiler.py(800): stop", "60100", "90000"),
        event("python_function", "torch/cuda/__init__.py(900): synchronize", "60200", "80000"),
    ]
    assert _analyze(events, tmp_path).host_edges is UNSET


def test_what_the_steps_themselves_show_is_not_told_again_of_the_first_and_the_last(tmp_path: Path) -> None:
    export = Export()
    for step in range(3):
        at = 100 * MS * step
        export.range("step", at, at + 90 * MS)
        for i in range(20):
            number = 20 * step + i + 1
            export.call(at + 40 * MS + 10_000 * i, at + 40 * MS + 10_000 * i + 5_000, number)
            export.kernel("gemm", at + 40 * MS + 500_000 * i + 10_000, at + 40 * MS + 500_000 * (i + 1), number)
        export.call(at + 41 * MS, at + 50 * MS, 900 + step, "cudaDeviceSynchronize")
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))])
    assert [finding.rule for finding in analysis.findings] == ["host_work"]


@pytest.mark.parametrize(("steps", "confidence"), [(0, "medium"), (3, "low")])
def test_a_range_around_steps_may_hold_what_only_the_whole_run_pays(
    tmp_path: Path, steps: int, confidence: str
) -> None:
    """Nothing says what the host did before the first kernel."""
    export = Export()
    export.range("job", 0, 50 * MS + 10_000)
    for i in range(max(steps, 1)):
        if steps:
            export.range("step", 40 * MS + 20_000 * i, 40 * MS + 20_000 * i + 15_000)
        export.call(40 * MS + 20_000 * i, 40 * MS + 20_000 * i + 5_000, i + 1)
        length = 10 * MS // max(steps, 1)
        export.kernel("gemm", 40 * MS + 10_000 + length * i, 40 * MS + 10_000 + length * (i + 1), i + 1)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))])
    assert [(f.rule, f.title, f.confidence) for f in analysis.findings] == [
        ("host_edges", "The host works before the first kernel for 80% of job", confidence)
    ]
