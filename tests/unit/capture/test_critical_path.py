"""Critical paths, Python call trees and memory curves of small captures, worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.capture.allocator_memory import MemoryEvents, memory_curves
from llm_perf_opt.capture.critical import CriticalPath, critical_paths
from llm_perf_opt.capture.frames import FlameNode, python_tree
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.timeline import Timeline
from llm_perf_opt.cli import main
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.evidence import measure_timeline
from tests.support.fixtures_dir import shared_fixtures
from tests.support.nsys_builder import OTHER_THREAD, THREAD, Export
from tests.support.trace_builder import event, write_trace


def _paths(timeline: Timeline) -> tuple[CriticalPath, ...]:
    measured = measure_timeline(timeline)
    return critical_paths([measured.timeline], analyze_timelines([measured.timeline]).ranges)


def _read(export: Export, tmp_path: Path) -> tuple[CriticalPath, ...]:
    return _paths(read_nsys_sqlite(export.write(tmp_path / "t.sqlite")))


def test_a_host_that_launches_too_late_is_the_path(tmp_path: Path) -> None:
    """Two kernels of 10 wait for launches at 20 and 60; a wait returns 5 after the second ends; the host continues."""
    export = Export()
    export.range("step", 0, 100)
    export.call(20, 25, 1)
    export.kernel("a", 30, 40, 1)
    export.call(60, 65, 2)
    export.kernel("b", 70, 80, 2)
    export.call(75, 85, 3, name="cudaDeviceSynchronize")
    (path,) = _read(export, tmp_path)
    assert path == CriticalPath(
        range_name="step",
        length_ns=100,
        host_ns=15 + 35 + 20,
        launch_ns=5 + 5,
        start_delay_ns=5,
        wait_return_ns=5,
        computation_ns=10,
        communication_ns=0,
        copy_ns=0,
        between_ns=0,
        gpu_idle_ns=80,
        shrink="host",
        kernels=("b",),
    )


def test_queued_work_that_runs_on_after_its_range_is_the_path(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 20)
    export.call(2, 4, 1)
    export.kernel("gemm", 10, 50, 1)
    export.call(5, 7, 2)
    export.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 52, 92, 2)
    export.call(8, 9, 3)
    export.kernel("gemm", 92, 100, 3)
    (path,) = _read(export, tmp_path)
    assert (path.length_ns, path.computation_ns, path.communication_ns, path.between_ns) == (100, 48, 40, 2)
    assert (path.start_delay_ns, path.launch_ns, path.host_ns, path.shrink) == (6, 2, 2, "GPU")


def test_a_copy_that_blocks_its_caller_waits_for_the_kernel_before_it(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 100)
    export.call(0, 5, 1)
    export.kernel("gemm", 5, 80, 1)
    export.call(10, 95, 2, name="cudaMemcpy")
    export.copy(82, 92, 2)
    (path,) = _read(export, tmp_path)
    assert (path.computation_ns, path.copy_ns, path.between_ns) == (75, 10, 2)
    assert (path.wait_return_ns, path.host_ns, path.launch_ns, path.shrink) == (3, 5, 5, "GPU")


def test_a_long_copy_call_that_outlasts_its_copy_waited_for_it(tmp_path: Path) -> None:
    """cudaMemcpyAsync to memory that is not pinned; a kernel of 200 µs runs before the copy."""
    export = Export()
    export.range("step", 0, 300_000)
    export.call(0, 5_000, 1)
    export.kernel("gemm", 5_000, 205_000, 1)
    export.call(10_000, 230_000, 2, name="cudaMemcpyAsync")
    export.copy(205_000, 225_000, 2)
    (path,) = _read(export, tmp_path)
    assert (path.computation_ns, path.copy_ns, path.wait_return_ns) == (200_000, 20_000, 5_000)
    assert (path.launch_ns, path.host_ns, path.shrink) == (5_000, 70_000, "GPU")


def test_a_wait_that_takes_no_time_does_not_hold_the_walk_up(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 100)
    export.call(10, 15, 1)
    export.kernel("k", 20, 30, 1)
    export.call(60, 60, 2, name="cudaStreamSynchronize")
    (path,) = _read(export, tmp_path)
    assert (path.length_ns, path.host_ns, path.launch_ns) == (100, 95, 5)


def _backward(*, tid: int) -> Export:
    """A step of 200; its backward launches six kernels of 10, each as late as the one before it ends, and waits."""
    export = Export()
    export.range("step", 0, 200)
    export.call(0, 5, 1)
    export.kernel("forward", 10, 20, 1)
    for number in range(6):
        export.call(40 + 15 * number, 45 + 15 * number, 2 + number, tid=tid)
        export.kernel("backward", 47 + 15 * number, 57 + 15 * number, 2 + number)
    export.call(125, 140, 8, name="cudaStreamSynchronize", tid=tid)
    return export


def test_the_path_of_a_step_leads_through_the_thread_that_runs_its_backward(tmp_path: Path) -> None:
    """Whichever thread launches the backward: the path is the same, also where the range ends on the other thread."""
    (tmp_path / "alone").mkdir()
    (path,) = alone = _read(_backward(tid=THREAD), tmp_path / "alone")
    assert _read(_backward(tid=OTHER_THREAD), tmp_path) == alone
    # From the end to the wait, its return, the last kernel of it, its delay and launch, and the host before that.
    assert (path.length_ns, path.host_ns, path.wait_return_ns, path.computation_ns) == (200, 60 + 85, 8, 10)
    assert (path.start_delay_ns, path.launch_ns, path.kernels) == (2, 30 + 5, ("backward",))


def test_work_of_a_thread_that_works_for_itself_does_not_lengthen_the_path(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 100)
    export.range("theirs", 0, 100, tid=OTHER_THREAD)
    export.call(10, 15, 1)
    export.kernel("mine", 20, 30, 1)
    export.call(11, 16, 2, tid=OTHER_THREAD)
    export.kernel("theirs", 30, 300, 2)
    found = {path.range_name: path for path in _read(export, tmp_path)}
    assert (found["step"].length_ns, found["step"].computation_ns) == (100, 0)
    assert (found["theirs"].length_ns, found["theirs"].kernels) == (300, ("theirs", "mine"))


def _published(name: str) -> Timeline:
    folder = shared_fixtures()
    path = None if folder is None else folder / name
    if path is None or not path.is_file():
        pytest.skip(f"{name} is not at hand")
    return read_torch_trace(path).timeline


@pytest.mark.parametrize(
    "name",
    [
        "wild/deepseek_train_overlap.json.gz",
        "wild/hta_rank0.json.gz",
        "wild/hta_diff_control.json.gz",
        "wild3/s01_resnet50_workers0_v100.json.gz",
    ],
)
def test_the_paths_of_a_published_trace_add_up_and_agree_with_their_rows(name: str) -> None:
    measured = measure_timeline(_published(name))
    rows = {row.name: row for row in analyze_timelines([measured.timeline]).ranges}
    found = critical_paths([measured.timeline], tuple(rows.values()))
    assert found
    for one in found:
        gpu = one.computation_ns + one.communication_ns + one.copy_ns + one.between_ns
        assert one.host_ns + one.launch_ns + one.start_delay_ns + one.wait_return_ns + gpu == one.length_ns
        typical = rows[one.range_name].typical
        assert typical.gpu_idle_ns is not None
        # The path may end after the range, with its last kernel.
        assert typical.gpu_idle_ns <= one.gpu_idle_ns
        assert typical.wall_ns <= one.length_ns
        # Time after the range may hold launches of others.
        assert one.launch_ns <= typical.launch_ns or one.length_ns > typical.wall_ns


def test_a_host_that_is_never_waited_for_by_a_busy_gpu_saves_nothing() -> None:
    found = _paths(_published("wild/deepseek_train_overlap.json.gz"))
    assert len(found) > 5
    # The GPU is busy for 99.6 % of the time: no faster host can save much.
    assert (found[0].range_name, found[0].shrink) == ("ProfilerStep#1", "GPU")


def _frames(path: Path) -> Path:
    """`main` calls `step` twice and a built-in once; the second step launches a kernel of 7 µs."""
    return write_trace(
        path,
        [
            event("python_function", "train.py(1): main", "0.000", "100.000"),
            event("python_function", "train.py(9): step", "10.000", "20.000"),
            event("python_function", "train.py(9): step", "40.000", "30.000"),
            event("python_function", "<built-in method to of Tensor object at 0x7f01>", "45.000", "5.000"),
            event("python_function", "<built-in method to of Tensor object at 0x7f02>", "52.000", "5.000"),
            event("cuda_runtime", "cudaLaunchKernel", "60.000", "2.000", correlation=1),
            event("kernel", "k", "70.000", "7.000", pid=0, tid=7, correlation=1, device=0),
        ],
    )


def test_calls_with_the_same_callers_are_one_node(tmp_path: Path) -> None:
    trace = read_torch_trace(_frames(tmp_path / "t.json"), detailed=True)
    assert trace.detail is not None
    tree = python_tree(trace.timeline, trace.detail.frames)
    assert tree is not None
    assert (tree.total_ns, tree.left_out) == (100_000, 0)
    built_in = "<built-in method to of Tensor object>"
    assert tree.nodes == (
        FlameNode(name="train.py(1): main", parent=-1, calls=1, total_ns=100_000, self_ns=50_000, gpu_ns=7_000),
        FlameNode(name="train.py(9): step", parent=0, calls=2, total_ns=50_000, self_ns=40_000, gpu_ns=7_000),
        FlameNode(name=built_in, parent=1, calls=2, total_ns=10_000, self_ns=10_000, gpu_ns=0),
    )
    assert [(f.name, f.self_ns, f.gpu_ns) for f in tree.frames] == [
        ("train.py(1): main", 50_000, 0),
        ("train.py(9): step", 40_000, 7_000),
        (built_in, 10_000, 0),
    ]


def test_the_page_has_a_flame_graph_where_frames_were_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["analyze", "-v", str(_frames(tmp_path / "t.json")), "-o", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert 'data-l="0.0" data-w="100.0"' in page
    assert 'data-l="0.0" data-w="50.0"' in page
    assert "train.py(9): step\n50.0 µs, 50.0 %; own 40.0 µs; 2 calls, 7.00 µs of GPU work" in page
    plain = write_trace(tmp_path / "plain.json", [event("kernel", "k", "1.000", "2.000", pid=0, tid=7, device=0)])
    other = tmp_path / "other"
    assert main(["analyze", "-v", str(plain), "-o", str(other)]) == 0
    assert "Flame graph" not in (other / "report.html").read_text()
    capsys.readouterr()
    assert main(["analyze", str(plain), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not {"python", "memory", "shapes", "ranks", "critical_paths"} & set(found)


def test_memory_has_a_curve_for_each_kind_of_device() -> None:
    def column(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.array(values, np.int64)

    events = MemoryEvents(
        at_ns=column(100, 200, 300, 400),
        thread=column(0, 0, 0, 0),
        device_type=column(1, 1, 0, 1),
        changed_bytes=column(10, 30, 5, -30),
        allocated_bytes=column(10, 40, 5, 10),
    )
    gpu, cpu = memory_curves(events, "t")
    assert (gpu.device, gpu.events, gpu.first_bytes, gpu.peak_bytes, gpu.peak_at_ns) == ("GPU", 3, 10, 40, 100)
    assert (gpu.last_bytes, gpu.largest_bytes, gpu.points) == (10, 30, ((0, 10), (100, 40), (300, 10)))
    assert (cpu.device, cpu.peak_bytes, cpu.length_ns) == ("CPU", 5, 300)
