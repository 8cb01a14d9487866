"""What the host does before the first kernel and after the last: reported where it is much, and only then."""

from pathlib import Path

import pytest
from msgspec import UNSET

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.diagnosis.gaps.edges import HostEdge, HostPart
from llm_perf_opt.report.run_files import read_run_files
from llm_perf_opt.report.view.report_view import build_view
from tests.support.answers import cells_of, diagnosis_of, owner_of, scope_of
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


def _setup(analysis: CaptureAnalysis) -> tuple[tuple[str, ...], float]:
    """What start-up before the first kernel is spent in, and its share: a one-time cost and the only finding."""
    (finding,) = analysis.findings
    assert (finding.rule, finding.is_one_time, finding.max_gain) == ("compilation", True, None)
    return owner_of(analysis, "host.startup"), round(finding.share or 0.0, 2)


@pytest.mark.parametrize(("around", "place"), [("request", "request"), (None, "the capture")])
def test_a_request_that_is_mostly_the_host_s_is_told_so(tmp_path: Path, around: str | None, place: str) -> None:
    analysis = _analyze(_request(around=around), tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.share, finding.is_one_time) == ("host_edges", pytest.approx(0.9, abs=1e-4), False)
    assert scope_of(analysis).place == place
    named = [(cell.id, cell.owner, cell.time_ns) for cell in cells_of(analysis, "host")]
    assert named[:2] == [
        ("host.after", ("torchvision::nms",), 50_000_000),
        ("host.before", ("resize",), 40_000_000),
    ]
    # How much of this work must remain is not known.
    assert (finding.floor_ns, finding.max_gain) == (None, None)
    assert diagnosis_of(analysis).verdict.rule == "host_edges"
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
    assert main(["analyze", "-v", str(trace), "-o", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Host work before the first kernel and after the last: 90 % of request")
    assert "the host works without it for 40.01 ms before the first GPU work" in out
    assert "works all the time" not in out
    run = tmp_path / "run"
    head = build_view(read_run_files(read_manifest(run), run)).headline
    assert "90 % of request" in head.verdict and "torchvision::nms" in head.verdict
    assert head.split is not None and head.split.total == "100.0 ms"
    assert [(part.kind, round(part.share, 3)) for part in head.split.parts] == [
        ("work", 0.1),
        ("idle", 0.5),
        ("idle", 0.4),
    ]


def test_a_host_that_only_waits_for_the_next_request_is_promised_nothing(tmp_path: Path) -> None:
    waiting = "threading.py(355): wait"
    events = [
        event("user_annotation", "serve", "0", "100000"),
        *_kernels(0),
        event("python_function", waiting, "10100", "89800"),
    ]
    analysis = _analyze(events, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.max_gain) == ("host_blocked", None)
    assert owner_of(analysis, "idle.blocked") == (waiting,)


def test_requests_in_captures_of_their_own_are_added_up(tmp_path: Path) -> None:
    traces = [write_trace(tmp_path / f"{name}.json", _request(before=name)) for name in ("resize", "decode")]
    analysis = analyze_timelines([read_torch_trace(path).timeline for path in traces])
    (finding,) = analysis.findings
    assert (finding.rule, finding.share) == ("host_edges", pytest.approx(0.9, abs=1e-4))
    assert scope_of(analysis).processes == 2
    spent: dict[str, int] = {}
    for cell in cells_of(analysis, "host"):
        for name in cell.owner:
            spent[name] = spent.get(name, 0) + cell.time_ns
    assert {name: ns for name, ns in spent.items() if ns > MS} == {
        "torchvision::nms": 100_000_000,
        "resize": 40_000_000,
        "decode": 40_000_000,
    }


@pytest.mark.parametrize("loading", ["load_model", "loader.py(3): from_pretrained"])
def test_loading_inside_of_a_range_is_paid_once(tmp_path: Path, loading: str) -> None:
    kind = "python_function" if ".py" in loading else "user_annotation"
    events = [event("user_annotation", "main", "0", "50020"), event(kind, loading, "0", "39900"), *_kernels(40_000)]
    assert _setup(_analyze(events, tmp_path)) == ((loading,), 0.8)


def test_filling_weights_before_the_first_kernel_is_paid_once(tmp_path: Path) -> None:
    events = [event("cpu_op", "aten::uniform_", f"{1_000 * i}", "990") for i in range(40)]
    assert _setup(_analyze([*events, *_kernels(40_000)], tmp_path)) == (("aten::uniform_",), 0.8)


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
    # No more than the range of the step says what the host did.
    assert [finding.rule for finding in analysis.findings] == ["not_recorded"]


@pytest.mark.parametrize("steps", [0, 3])
def test_a_range_around_steps_may_hold_what_only_the_whole_run_pays(tmp_path: Path, steps: int) -> None:
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
    (finding,) = analysis.findings
    assert (finding.rule, finding.confidence, finding.max_gain) == ("host_edges", "low", None)
    assert (finding.share, scope_of(analysis).place) == (pytest.approx(0.8, abs=1e-3), "job")
