"""Torch profiler traces: exact times, the same tables as nsys, operators, and files that are broken or hostile."""

import gc
import gzip
import json
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import psutil
import pytest

from llm_perf_opt.capture.operators import ModuleRow, OperatorRow, merge_operators, module_rows, operator_rows
from llm_perf_opt.capture.readers import trace_text as trace_chunks
from llm_perf_opt.capture.readers import trace_workers as trace_pieces
from llm_perf_opt.capture.readers.torch_trace import TorchTrace, read_torch_trace
from llm_perf_opt.capture.readers.trace_decode import digits_to_ns
from llm_perf_opt.capture.readers.trace_workers import SLOT_BYTES, Slots
from llm_perf_opt.capture.rows import Idle
from llm_perf_opt.capture.timeline import CapturedGpu
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.errors import ParseError
from tests.support.fixtures_dir import DATA
from tests.support.trace_builder import event, step, write_trace

H200 = DATA / "h200" / "llama.trace.json.gz"


def _ns(text: object) -> int:
    return round(Decimal(str(text)) * 1000)


def _operator(name: str, calls: int, *times: int) -> OperatorRow:
    self_cpu, total_cpu, self_device, total_device = times
    return OperatorRow(
        name=name,
        calls=calls,
        self_cpu_ns=self_cpu,
        total_cpu_ns=total_cpu,
        self_device_ns=self_device,
        total_device_ns=total_device,
    )


def test_the_trace_of_the_h200_gives_the_kernels_a_plain_reading_gives() -> None:
    raw = json.loads(gzip.decompress(H200.read_bytes()))["traceEvents"]
    kernels = [(e["name"], _ns(e["ts"]), _ns(e["dur"])) for e in raw if e.get("cat") == "kernel"]
    expected: dict[str, list[int]] = {}
    for name, _, dur in kernels:
        expected.setdefault(name, []).append(dur)
    trace = read_torch_trace(H200)
    analysis = analyze_timelines([trace.timeline])
    assert {k.name: (k.instances, k.total_ns, k.min_ns, k.max_ns) for k in analysis.kernels} == {
        name: (len(d), sum(d), min(d), max(d)) for name, d in expected.items()
    }
    assert (trace.events, len(kernels), analysis.gpu.kernel_ns) == (16_248, 2_050, 9_831_088)
    reach, busy = -1, 0
    for start, end in sorted((s, s + d) for _, s, d in kernels):
        busy += max(0, end - max(start, reach))
        reach = max(reach, end)
    assert analysis.gpu.busy_ns == busy
    assert analysis.gpu.name == "NVIDIA H200"
    assert int((trace.timeline.kernels.call < 0).sum()) == 0


def test_the_operators_of_the_h200_equal_a_plain_walk_over_the_stack() -> None:
    raw = json.loads(gzip.decompress(H200.read_bytes()))["traceEvents"]
    kinds = ("cpu_op", "cuda_runtime", "cuda_driver")
    ops = sorted(
        ((e["name"], _ns(e["ts"]), _ns(e["ts"]) + _ns(e["dur"])) for e in raw if e.get("cat") in kinds),
        key=lambda o: (o[1], -o[2]),
    )
    own: dict[str, int] = {}
    calls: dict[str, int] = {}
    stack: list[tuple[str, int]] = []
    for name, start, end in ops:
        while stack and stack[-1][1] <= start:
            stack.pop()
        calls[name] = calls.get(name, 0) + 1
        own[name] = own.get(name, 0) + end - start
        if stack:
            own[stack[-1][0]] -= end - start
        stack.append((name, end))
    trace = read_torch_trace(H200)
    rows = operator_rows(trace.timeline, trace.operators)
    assert {r.name: (r.calls, r.self_cpu_ns) for r in rows} == {n: (calls[n], own[n]) for n in calls if "::" in n}
    launched = sum(int((t.end_ns - t.start_ns).sum()) for t in (trace.timeline.kernels, trace.timeline.copies))
    assert sum(r.self_device_ns for r in rows) == launched


def test_kernels_of_a_cuda_graph_belong_to_its_launch() -> None:
    trace = read_torch_trace(DATA / "h200" / "graphs.trace.json.gz")
    (row,) = analyze_timelines([trace.timeline]).ranges
    assert (row.name, row.kernel_count, row.gpu_busy_ns, row.wall_ns) == ("decode", 10 * 13, 433_916, 14_545_079)
    # The operator launched one kernel a step; the graph's belong only to the range.
    (add,) = operator_rows(trace.timeline, trace.operators)
    raw = json.loads(gzip.decompress((DATA / "h200" / "graphs.trace.json.gz").read_bytes()))["traceEvents"]
    kernels = [(e["args"]["correlation"], _ns(e["dur"])) for e in raw if e.get("cat") == "kernel"]
    together = Counter(correlation for correlation, _ in kernels)
    adds = [dur for correlation, dur in kernels if together[correlation] == 1]
    assert (add.name, add.calls, add.self_device_ns, len(adds)) == ("aten::add_", 10, sum(adds), 10)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("pretty", [False, True])
def test_a_step_is_measured_as_in_an_nsys_capture(tmp_path: Path, name: str, pretty: bool) -> None:
    trace = read_torch_trace(write_trace(tmp_path / name, step(), pretty=pretty))
    (row,) = analyze_timelines([trace.timeline]).ranges
    assert (row.name, row.wall_ns, row.kernel_count, row.gpu_busy_ns) == ("decode", 100_000, 1, 20_500)
    assert (row.launch_calls, row.launch_ns) == (2, 7_000)
    assert row.idle == Idle(
        waiting_for_host_ns=25_000 + 7_375 + 30_000,
        between_kernels_ns=5_125 + 2_000,
        waiting_for_copy_or_sync_ns=1_000 + 9_000,
        copy_ns=1_000,
        sync_ns=9_000,
        unattributed_ns=0,
        starting_ns=5_125 + 2_000,
    )


def test_operators_own_what_is_not_inside_others(tmp_path: Path) -> None:
    trace = read_torch_trace(write_trace(tmp_path / "t.json", step()))
    assert operator_rows(trace.timeline, trace.operators) == (
        _operator("aten::addmm", 1, 25_250, 30_250, 20_500, 20_500),
        _operator("aten::linear", 1, 9_750, 40_000, 0, 20_500),
        _operator("aten::copy_", 1, 2_000, 10_000, 1_000, 1_000),
    )


@pytest.mark.parametrize("late_us", [0, 1, 3])
def test_a_launch_that_ends_after_its_operator_is_still_its_own(tmp_path: Path, late_us: int) -> None:
    events = [
        event("cpu_op", "aten::a", "0.000", "10.000"),
        event("cuda_runtime", "cudaLaunchKernel", "8.000", f"{2 + late_us}.000", correlation=1),
        event("cpu_op", "aten::b", "11.000", "20.000"),
        event("cuda_runtime", "cudaLaunchKernel", "15.000", "2.000", correlation=2),
        event("kernel", "k1", "40.000", "1.000", pid=0, tid=7, correlation=1, device=0),
        event("kernel", "k2", "50.000", "7.000", pid=0, tid=7, correlation=2, device=0),
    ]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events))
    assert operator_rows(trace.timeline, trace.operators) == (
        _operator("aten::b", 1, 18_000, 20_000, 7_000, 7_000),
        _operator("aten::a", 1, 8_000, 10_000, 1_000, 1_000),
    )


def test_an_operator_inside_itself_counts_once_in_the_total_as_in_torch(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::sum", "0.000", "10.000"),
        event("cpu_op", "aten::to", "1.000", "8.000"),
        event("cpu_op", "aten::sum", "2.000", "3.000"),
    ]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events))
    assert operator_rows(trace.timeline, trace.operators) == (
        _operator("aten::sum", 2, 5_000, 10_000, 0, 0),
        _operator("aten::to", 1, 5_000, 8_000, 0, 0),
    )


def test_the_operators_of_two_traces_add_up() -> None:
    first, second = _operator("a", 1, 1, 2, 3, 4), _operator("a", 2, 10, 20, 30, 40)
    assert merge_operators([[first], [second]]) == (_operator("a", 3, 11, 22, 33, 44),)


def test_modules_get_the_kernels_launched_inside_them(tmp_path: Path) -> None:
    events = [
        *step(),
        event("python_function", "nn.Module: Linear_0", "9.000", "45.000"),
        event("python_function", "x.py(1): f", "9.000", "45.000"),
    ]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events))
    assert module_rows(trace.timeline, trace.modules) == (
        ModuleRow(
            name="nn.Module: Linear_0", calls=1, wall_ns=45_000, kernel_count=1, kernel_ns=20_500, gpu_busy_ns=20_500
        ),
    )


def test_a_trace_without_gpu_events_still_has_operators_and_ranges(tmp_path: Path) -> None:
    events = [event("user_annotation", "decode", "0.000", "9.000"), event("cpu_op", "aten::mm", "1.000", "2.000")]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events))
    analysis = analyze_timelines([trace.timeline])
    assert [(r.name, r.wall_ns) for r in analysis.ranges] == [("decode", 9_000)]
    assert (analysis.gpu.busy_ns, analysis.gpu.idle, analysis.ranges[0].idle) == (None, None, None)
    assert operator_rows(trace.timeline, trace.operators) == (_operator("aten::mm", 1, 2_000, 2_000, 0, 0),)


def test_times_that_count_from_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    events = [
        event("kernel", "k", "1790857026123456.789", "0.001", pid=0, tid=7, correlation=1),
        event("kernel", "k", "1790857026123456.791", "0.002", pid=0, tid=7, correlation=2),
    ]
    kernels = read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline.kernels
    assert kernels.start_ns.tolist() == [1790857026123456789, 1790857026123456791]
    assert kernels.end_ns.tolist() == [1790857026123456790, 1790857026123456793]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"0", 0),
        (b"12", 12_000),
        (b"0.0004", 0),
        (b"0.0005", 1),
        (b"-1.5", -1_500),
        (b"3868987863072.53", 3868987863072530),
    ],
)
def test_digits_become_whole_nanoseconds(text: bytes, ns: int) -> None:
    assert digits_to_ns(text) == ns


def test_small_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    times = [f"{4_398_046_511_103 - i}.{(i * 37) % 1000:03d}" for i in range(500)]
    events = [event("kernel", "k", t, "0.001", pid=0, tid=7, correlation=i) for i, t in enumerate(times)]
    kernels = read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline.kernels
    assert kernels.start_ns.tolist() == [_ns(t) for t in times]


def test_the_size_of_the_pieces_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [e for i in range(40) for e in step(i * 1000)]
    path = write_trace(tmp_path / "t.json.gz", events, pretty=True)
    whole = read_torch_trace(path)
    monkeypatch.setattr(trace_chunks, "CHUNK_BYTES", 700)
    pieces = read_torch_trace(path)
    assert (pieces.events, sorted(pieces.timeline.names)) == (whole.events, sorted(whole.timeline.names))
    for one, other in (
        (whole.timeline.kernels, pieces.timeline.kernels),
        (whole.timeline.copies, pieces.timeline.copies),
        (whole.timeline.ranges, pieces.timeline.ranges),
        (whole.timeline.calls, pieces.timeline.calls),
    ):
        assert (one.start_ns.tolist(), one.end_ns.tolist()) == (other.start_ns.tolist(), other.end_ns.tolist())
    assert analyze_timelines([pieces.timeline]).ranges == analyze_timelines([whole.timeline]).ranges
    assert analyze_timelines([pieces.timeline]).kernels == analyze_timelines([whole.timeline]).kernels
    assert operator_rows(pieces.timeline, pieces.operators) == operator_rows(whole.timeline, whole.operators)


def test_events_inside_arguments_do_not_lead_the_cuts_astray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_chunks, "CHUNK_BYTES", 256)
    bait = {"nested": [{"ph": "X", "n": i} for i in range(30)], "text": '}, {"ph": "X", "cat": "kernel"'}
    events = [event("kernel", f'k"{{[{i}', f"{i}.000", "0.500", pid=0, tid=7, correlation=i, **bait) for i in range(20)]
    kernels = read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline.kernels
    assert kernels.start_ns.tolist() == [i * 1000 for i in range(20)]


def test_a_bare_list_of_events_and_keys_behind_the_events_are_read(tmp_path: Path) -> None:
    bare = tmp_path / "bare.json"
    bare.write_text("[" + ",".join(step()) + "]")
    assert len(read_torch_trace(bare).timeline.kernels) == 1
    after = write_trace(tmp_path / "t.json", step(), after='"cuda_runtime_version": 13000, "x": [1, {"y": "]"}]')
    assert read_torch_trace(after).timeline.producer == "torch profiler, CUDA 13.0"


def test_events_without_times_or_with_negative_ones_are_left_out_and_said(tmp_path: Path) -> None:
    events = [
        *step(),
        '{"ph": "X", "cat": "kernel", "name": "no time", "pid": 0, "tid": 7}',
        event("kernel", "backwards", "5.000", "-1.000", pid=0, tid=7, correlation=9),
    ]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events))
    assert len(trace.timeline.kernels) == 1
    assert trace.timeline.notes == (
        "left out: 1 event without a usable start or duration",
        "left out: 1 event with a negative duration",
    )


def test_durations_no_clock_can_have_are_left_out_and_said(tmp_path: Path) -> None:
    lengths = ["1.000", "-5.000", "-0.0001", "1e300", "1e16", "0.000", "2.000"]
    events = [event("kernel", f"k{i}", f"{10 + i}.000", dur, correlation=i) for i, dur in enumerate(lengths)]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events))
    kernels = trace.timeline.kernels
    assert [trace.timeline.names[code] for code in kernels.name] == ["k0", "k5", "k6"]
    assert (kernels.start_ns.tolist(), kernels.end_ns.tolist()) == ([10_000, 15_000, 16_000], [11_000, 15_000, 18_000])
    assert trace.timeline.notes == (
        "left out: 2 events without a usable start or duration",
        "left out: 2 events with a negative duration",
    )


@pytest.mark.parametrize("ts", ["null", "99999999999999999999999.5"])
def test_a_start_that_is_none_is_left_out_also_where_times_count_from_1970(tmp_path: Path, ts: str) -> None:
    events = [event("kernel", "k", t, "1.000", correlation=1) for t in ("1790857026123456.789", ts)]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events))
    assert trace.timeline.kernels.start_ns.tolist() == [1790857026123456789]
    assert trace.timeline.notes == ("left out: 1 event without a usable start or duration",)


def test_events_of_unknown_phase_or_none_are_skipped(tmp_path: Path) -> None:
    events = [
        *step(),
        '{"ph": "QQ", "cat": "kernel", "ts": 1, "dur": 1}',
        '{"name": "x"}',
        '{"ph": 7, "cat": "kernel"}',
    ]
    trace = read_torch_trace(write_trace(tmp_path / "t.json", events))
    assert (len(trace.timeline.kernels), len(trace.operators), trace.timeline.notes) == (1, 3, ())


def test_an_endless_event_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_perf_opt.capture.readers.trace_text.CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr("llm_perf_opt.capture.readers.trace_text.EVENT_LIMIT", 1 << 16)
    path = tmp_path / "t.json"
    for middle in (b" ", b'{"name": "'):
        path.write_bytes(b'{"traceEvents": [' + middle + b" " * (1 << 20))
        with pytest.raises(ParseError, match=r"t\.json: holds an event of more than 0 MiB, which no trace has"):
            read_torch_trace(path, processes=1)


def test_a_string_that_does_not_end_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents": [{"name": "' + b" " * (8 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ParseError, match="truncated or damaged"):
            read_torch_trace(path, processes=1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * (8 << 20)


def test_a_name_of_four_megabytes_is_cut(tmp_path: Path) -> None:
    events = [*step(), event("kernel", "x" * (4 << 20), "5.000", "1.000", pid=0, tid=7, correlation=9)]
    trace = read_torch_trace(write_trace(tmp_path / "t.json.gz", events))
    assert max(map(len, trace.timeline.names)) == 4097


def test_all_gpus_a_trace_describes_are_named(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", step())
    path.write_text(path.read_text().replace('[{"id": 0, ', '[{"id": 0, "name": "NVIDIA T400"}, {"id": 1, ', 1))
    assert analyze_timelines([read_torch_trace(path).timeline]).gpu.name == "NVIDIA T400, NVIDIA H200"


def test_a_trace_with_no_events_says_so(tmp_path: Path) -> None:
    assert read_torch_trace(write_trace(tmp_path / "t.json", [])).timeline.notes == ("the trace holds no events",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"   \n", "the file is empty"),
        (b'{"name": "not a trace"}', "no list traceEvents"),
        (b"SQLite format 3\x00" + b"0" * 100, "not a torch profiler trace"),
        (b'{"traceEvents": [{"ph": "X", "cat": "ker', "truncated"),
        (b'{"traceEvents": [{"ph": "X"}, {"ph": ]}', "truncated or damaged"),
        (b'{"traceEvents": [{"ph": "X"}, {"ph": }]}', "not a readable torch profiler trace"),
        (b'{"traceEvents": [{"ph": "X"}], "x" 1}', "what follows the events cannot be read"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "soon", "dur": 1}]}',
            "not a readable torch profiler trace",
        ),
        (b"\x1f\x8b\x08\x00garbage-that-is-not-deflate", "gzip"),
    ],
)
def test_a_broken_trace_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(ParseError, match=words):
        read_torch_trace(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"r": [' + ",".join(['{"traceEvents": [1, 2, 3, 4]}'] * 40_000) + "]}",
        '{"r": [' + ",".join(['{"name": "no list of events in here"}'] * 1_000_000) + "]}",
        " " * (40 << 20),
    ],
    ids=["keys", "none", "spaces"],
)
def test_a_file_without_events_is_refused_without_reading_it_over_and_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    before = time.process_time()
    with pytest.raises(ParseError, match=r"no list traceEvents|the file is empty"):
        read_torch_trace(path)
    assert time.process_time() - before < 3.0


@pytest.mark.parametrize("room", range(40))
def test_the_key_of_the_events_is_found_where_a_block_ends_inside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(trace_chunks, "HEAD_BYTES", 64)
    path = tmp_path / "t.json"
    path.write_text('{"pad": "' + "x" * room + '", "traceEvents"   :   [' + ",".join(step()) + "]}")
    assert len(read_torch_trace(path).timeline.kernels) == 1


_DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"correlation": 1,', f'"correlation": {2**63},', "too large"),
        ('"bytes": 64', f'"bytes": {2**64}', "too large"),
        ('"device": 0', f'"device": {2**40}', "out of bounds"),
        ('"gemm"', '"ge\udcffm"', "codec can't decode"),
        ('"device": 0', f'"device": 0, "x": {_DEEP}', "nested too deeply"),
        ('"schemaVersion": 1', f'"schemaVersion": {_DEEP}', "nested too deeply"),
        ('"traceName": "t"', f'"traceName": {_DEEP}', "nested too deeply"),
    ],
    ids=["correlation", "bytes", "device", "utf8", "arguments", "head", "tail"],
)
def test_a_value_no_trace_can_hold_is_an_error_not_a_traceback(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = write_trace(tmp_path / "t.json", step())
    text = path.read_text()
    assert old in text
    path.write_bytes(text.replace(old, new).encode(errors="surrogateescape"))
    with pytest.raises(ParseError, match=f"t.json: not a readable torch profiler trace .*{words}"):
        read_torch_trace(path)


def test_a_description_of_a_gpu_that_is_none_is_taken_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", step())
    wrong = '{"name": "\\ud800", "numSms": [1, 2], "totalGlobalMem": "lots", "computeMajor": {}, "computeMinor": 0}'
    text = path.read_text().replace('"schemaVersion": 1', '"cuda_runtime_version": "²"')
    path.write_text(text.replace('{"id": 0, "name": "NVIDIA H200", "numSms": 132}', wrong))
    timeline = read_torch_trace(path).timeline
    assert (timeline.devices, timeline.producer) == ((CapturedGpu(name="\\ud800"),), "torch profiler")


@pytest.mark.parametrize("share", [0.2, 0.7, 0.99])
def test_a_truncated_gzip_is_refused(tmp_path: Path, share: float) -> None:
    data = H200.read_bytes()
    path = tmp_path / "t.json.gz"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ParseError, match="truncated"):
        read_torch_trace(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="No such file"):
        read_torch_trace(tmp_path / "none.json")


def _columns(found: TorchTrace) -> list[object]:
    """Everything a trace holds, as plain values in the file's order."""
    line = found.timeline
    tables = (line.kernels, line.copies, line.calls, line.ranges, found.operators, found.modules)
    values = [v.tolist() if isinstance(v, np.ndarray) else v for t in tables for v in vars(t).values()]
    return [found.events, line.names, line.devices, line.notes, values]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_read_what_one_reads(processes: int) -> None:
    alone = read_torch_trace(H200, processes=1)
    assert _columns(read_torch_trace(H200, processes=processes)) == _columns(alone)


@pytest.mark.slow
def test_several_processes_read_the_same_shapes_and_calls() -> None:
    alone = read_torch_trace(H200, processes=1, detailed=True).detail
    found = read_torch_trace(H200, processes=2, detailed=True).detail
    assert alone is not None
    assert found is not None
    # 193 of operators and 50 of launches.
    assert (len(alone.shapes), len(alone.memory)) == (243, 0)
    assert (found.shapes, found.shape.tolist()) == (alone.shapes, alone.shape.tolist())
    assert found.call_name.tolist() == alone.call_name.tolist()


@pytest.mark.parametrize("odd", [[], ['{"ph": "nobody defined it"}']])
def test_a_detailed_reading_keeps_input_shapes_calls_and_memory(odd: list[str], tmp_path: Path) -> None:
    memory = (
        '{"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 10, "tid": 10, "ts": 12.500, "args": '
        '{"Total Allocated": 96, "Bytes": -32, "Device Type": 0}}'
    )
    mark = '{"ph": "i", "cat": "kernel", "name": "a mark", "pid": 10, "tid": 10, "ts": 13.000, "s": "g"}'
    trace = read_torch_trace(write_trace(tmp_path / "t.json", [*step(), memory, mark, *odd]), detailed=True)
    detail, names = trace.detail, trace.timeline.names
    assert detail is not None
    assert [detail.shapes[code] for code in detail.shape] == ["[[1,8],[8,8]]", "[[8],[1,8]]", ""]
    assert [names[code] for code in detail.call_name] == [
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
    ]
    assert {name: column.tolist() for name, column in vars(detail.memory).items()} == {
        "at_ns": [12_500],
        "thread": [trace.operators.thread[0]],
        "device_type": [0],
        "changed_bytes": [-32],
        "allocated_bytes": [96],
    }
    assert (len(trace.timeline.kernels), trace.timeline.notes) == (1, ())


def test_sizes_of_copies_may_be_text_as_rocm_writes_them(tmp_path: Path) -> None:
    events = [
        event("gpu_memcpy", "CopyDeviceToHost", f"{at}.000", "1.000", bytes=size)
        for at, size in enumerate(("256", "?"))
    ]
    copies = read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline.copies
    assert copies.size_bytes is not None
    assert copies.size_bytes.tolist() == [256, -1]


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/python"])
def test_help_that_fails_costs_only_time(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    alone = read_torch_trace(H200, processes=1)
    monkeypatch.setattr(sys, "executable", program)
    assert _columns(read_torch_trace(H200, processes=2)) == _columns(alone)


def test_a_broken_trace_is_refused_by_several_processes_too(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(H200.read_bytes()[:-1000])
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ParseError, match="truncated; the gzip data ends too early"):
        read_torch_trace(path, processes=2)
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_gzip_whose_checksum_is_wrong_is_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b'{"traceEvents": []}'))
    data[-8] ^= 1
    (tmp_path / "t.json.gz").write_bytes(data)
    with pytest.raises(ParseError, match="not readable as gzip"):
        read_torch_trace(tmp_path / "t.json.gz")


def test_a_gzip_of_several_members_is_read_whole(tmp_path: Path) -> None:
    text = ('{"traceEvents": [' + ",".join(step()) + "]}").encode()
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(text[:300]) + gzip.compress(text[300:]))
    assert len(read_torch_trace(path).timeline.kernels) == 1


def test_slots_hold_a_piece_until_it_is_given_back(tmp_path: Path) -> None:
    with (tmp_path / "memory").open("w+b") as file:
        ours, theirs = Slots(file.fileno()), Slots(file.fileno())
        assert [ours.put(memoryview(b"[1]")), ours.put(memoryview(b"[22]")), ours.put(memoryview(b"[]"))] == [
            0,
            1,
            None,
        ]
        assert bytes(theirs.get(1, 4)) == b"[22]"
        theirs.give_back(1)
        assert ours.put(memoryview(bytes(SLOT_BYTES + 1))) is None
        assert ours.put(memoryview(b"[333]")) == 1
        assert (bytes(theirs.get(0, 3)), bytes(theirs.get(1, 5))) == (b"[1]", b"[333]")


def test_only_long_traces_are_shared_and_only_by_several_cores(tmp_path: Path) -> None:
    long, short = tmp_path / "long.json", tmp_path / "short.json"
    with long.open("wb") as file:
        file.truncate(trace_pieces.WORTH_SHARING_BYTES)
    short.write_bytes(b"[]")
    assert [trace_pieces.processes_for(long, cores=cores) for cores in (1, 2, 3, 4, 64)] == [1, 2, 3, 4, 4]
    assert trace_pieces.processes_for(short, cores=64) == 1


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("torch_trace", {"sqlite3", "yaml", "_hashlib", "rich"}),
        # A helper gets its text from another process.
        ("trace_workers", {"sqlite3", "yaml", "_hashlib", "rich", "isal", "tempfile"}),
    ],
)
def test_reading_a_trace_loads_no_library_it_does_not_use(module: str, unused: set[str]) -> None:
    code = f"import sys, llm_perf_opt.capture.readers.{module}; print(sorted({unused!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_reading_trace_after_trace_makes_no_more_types(tmp_path: Path) -> None:
    """Types are never freed, and a server or a notebook reads many traces."""
    trace = write_trace(tmp_path / "t.json", [event("kernel", "gemm", "0", "5", pid=0, tid=7, device=0)])
    counts = []
    for _ in range(3):
        read_torch_trace(trace, processes=1)
        counts.append(len(gc.get_objects()))
    assert counts[2] - counts[1] < 50
