"""Traces of torch_npu: device tasks, collectives and operators of a trace whose figures can be worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.capture.operators import operator_rows
from llm_perf_opt.capture.readers.ascend import read_ascend_trace
from llm_perf_opt.cli import main
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.errors import ParseError

HOST, HARDWARE, HCCL, CANN = 7, 100, 200, 300
BASE_US = 1_736_405_443_880_000


def _time(us: float) -> str:
    return f"{BASE_US + int(us)}.{round(1000 * (us % 1)):03d}"


def _event(name: str, pid: int, tid: int, start_us: float, length_us: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": _time(start_us), "dur": length_us, **more}


def _task(name: str, kind: str, start_us: float, length_us: float, *, stream: int = 2) -> dict[str, Any]:
    return _event(name, HARDWARE, stream, start_us, length_us, args={"Task Type": kind})


def _flow(number: int, asked_us: float, start_us: float, *, pid: int = HARDWARE, tid: int = 2) -> list[dict[str, Any]]:
    common = {"name": "torch_to_npu", "id": number, "cat": "async_npu"}
    return [
        {"ph": "s", "pid": HOST, "tid": 1, "ts": _time(asked_us), **common},
        {"ph": "f", "pid": pid, "tid": tid, "ts": _time(start_us), **common},
    ]


def _named(pid: int, name: str, tid: int | None = None) -> dict[str, Any]:
    kind = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid or 0, "args": {"name": name}}


def ascend_trace() -> list[dict[str, Any]]:
    return [
        _event("ProfilerStep#3", HOST, 1, 0, 200, cat="cpu_op"),
        _event("aten::mm", HOST, 1, 10, 20, cat="cpu_op", args={"Input Dims": "4,4;\r\n4,4"}),
        _event("nn.Module: Linear_0", HOST, 1, 5, 30, cat="python_function"),
        *_flow(1, 15.5, 40.25),
        _task("aclnnMm_MatMulCommon_MatMulV2", "AI_CORE", 40.25, 20.5),
        _task("ReduceSum7", "MIX_AIV", 70, 5),
        _task("MEMCPY_ASYNC", "PCIE_DMA_SQE", 80, 4),
        _task("MEMCPY_ASYNC", "SDMA_SQE", 85, 1),
        *_flow(2, 28, 90, pid=HCCL, tid=0),
        _event("hcom_allReduce__868_0_1", HCCL, 0, 90, 60),
        # What the collective is made of, and what is not work.
        _event("Reduce_Inline", HCCL, 1, 91, 50),
        _task("SDMA", "SDMA", 91, 50, stream=4),
        _task("Notify Wait", "Notify Wait", 90, 1, stream=4),
        _task("EVENT_WAIT", "EVENT_WAIT_SQE", 60, 30),
        _task("strange", "NEW_ENGINE", 150, 1),
        _event("AscendCL@aclrtSynchronizeStream", CANN, 1, 100, 45),
        _named(HARDWARE, "Ascend Hardware"),
        _named(HCCL, "HCCL"),
        _named(HCCL, "Group 0 Communication", 0),
        _named(HCCL, "Plane 0", 1),
        _named(CANN, "CANN"),
        {"ph": "C", "name": "HBM", "pid": 5, "tid": 0, "ts": _time(3), "args": {"KB": 1.0}},
    ]


def _write(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(events))
    return path


def test_tasks_of_cores_are_kernels_and_collectives_count_once(tmp_path: Path) -> None:
    trace = read_ascend_trace(_write(tmp_path / "trace_view.json", ascend_trace()))
    timeline = trace.timeline
    analysis = analyze_timelines([timeline])
    assert {k.name: (k.total_ns, k.kernel_class) for k in analysis.kernels} == {
        "hcom_allReduce__868_0_1": (60_000, "communication"),
        "aclnnMm_MatMulCommon_MatMulV2": (20_500, "GEMM"),
        "ReduceSum7": (5_000, "reduction"),
    }
    assert {c.kind: (c.instances, c.total_ns) for c in analysis.copies} == {
        "Copy between host and device": (1, 4_000),
        "Copy Device-to-Device": (1, 1_000),
    }
    assert (timeline.producer, analysis.gpu.name) == ("torch_npu profiler", "Ascend NPU")
    assert timeline.notes == ("left out: 1 device task of type 'NEW_ENGINE'",)
    assert timeline.calls.waits.tolist() == [False, False, True]
    assert [m for m in timeline.names if m.startswith("nn.Module")] == ["nn.Module: Linear_0"] and len(
        trace.modules
    ) == 1


def test_times_as_text_keep_their_nanoseconds_and_flows_give_kernels_to_operators(tmp_path: Path) -> None:
    trace = read_ascend_trace(_write(tmp_path / "trace_view.json", ascend_trace()))
    assert int(trace.timeline.kernels.start_ns[0]) == 1000 * BASE_US + 40_250
    rows = {row.name: row.total_device_ns for row in operator_rows(trace.timeline, trace.operators)}
    # The collective was requested inside the operator too, at 28 µs of 10 to 30.
    assert rows == {"aten::mm": 80_500}
    (step,) = analyze_timelines([trace.timeline]).ranges
    assert (step.name, step.kernel_count) == ("ProfilerStep#3", 2)


def test_a_trace_with_times_as_text_that_is_not_of_the_device_is_refused_by_name(tmp_path: Path) -> None:
    host = [_event("aten::mm", HOST, 1, 10, 20, cat="cpu_op")]
    with pytest.raises(ParseError, match="a trace of torch_npu without the process 'Ascend Hardware'"):
        read_ascend_trace(_write(tmp_path / "a.json", host))
    with pytest.raises(ParseError, match="a Chrome trace, but not one of torch's profiler"):
        read_ascend_trace(_write(tmp_path / "b.json", [_event("x", 1, 1, 0, 1, cat="function")]))


def test_analyze_reads_it_and_events_without_a_time_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        *ascend_trace(),
        {"ph": "X", "name": "x", "pid": HOST, "tid": 1, "ts": "soon", "dur": 1.0, "cat": "cpu_op"},
    ]
    assert main(["analyze", "--json", str(_write(tmp_path / "trace_view.json", events))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["gpu"]["kernel_count"], found["gpu"]["kernel_ns"]) == (3, 85_500)
    assert any("1 event without a usable start or duration" in note for note in found["notes"])
    assert not any("long trace" in note for note in found["notes"])
