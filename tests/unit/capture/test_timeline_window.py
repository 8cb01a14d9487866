"""The window of a capture a report draws, and the tree of phases, modules, operators and kernels."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_perf_opt.capture.allocator_memory import memory_counters
from llm_perf_opt.capture.operators import TreeRow, module_tree
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.window import TimelineWindow, timeline_window
from llm_perf_opt.profiling.trace_tables import write_trace_files
from tests.support.fixtures_dir import DATA
from tests.support.nsys_builder import Export, h200_export


def two_passes(folder: Path, steps: int = 6) -> Path:
    """A warm-up pass and a measured one: a prefill of one kernel, then steps of one kernel each."""
    export = Export()
    number = 0
    for start, is_warm in ((0, True), (100_000, False)):
        if is_warm:
            export.range("warmup", 0, 90_000)
        spans = [("prefill", start + 1000, start + 9000)]
        spans += [("decode_step", start + 10_000 * i, start + 10_000 * i + 9000) for i in range(1, steps + 1)]
        for name, begin, end in spans:
            number += 1
            export.range(name, begin, end)
            export.call(begin + 100, begin + 200, number)
            export.kernel("gemm_kernel", begin + 1000, begin + 3000, number)
    return export.write(folder / "run.sqlite")


def test_the_window_holds_the_last_measured_prefill_and_a_few_steps(tmp_path: Path) -> None:
    window = timeline_window(read_nsys_sqlite(two_passes(tmp_path)), decode_steps=2)
    names = window.names
    assert [names[r[3]] for r in window.ranges] == ["prefill", "decode_step", "decode_step"]
    start, end = window.window_ns
    assert (start, end) == (101_000 - 280, 129_000 + 280)
    # Kernels start a microsecond into their range, on the window's own clock.
    assert [(k[0], k[1], k[2]) for k in window.kernels] == [(1280, 3280, 0), (10280, 12280, 0), (20280, 22280, 0)]
    assert {window.classes[k[4]] for k in window.kernels} == {"GEMM"}
    first = window.calls[0]
    assert (first[0], first[1], names[first[3]]) == (380, 480, "cudaLaunchKernel")
    assert (window.launches, window.call_kinds, window.correlations) == ((0, 1, 2), (0, 0, 0), (8, 9, 10))
    assert window.left_out == 8
    assert msgspec.json.decode(msgspec.json.encode(window), type=TimelineWindow) == window


def test_the_window_stays_within_its_events(tmp_path: Path) -> None:
    window = timeline_window(read_nsys_sqlite(two_passes(tmp_path)), max_events=4, decode_steps=4)
    assert len(window.kernels) + len(window.calls) <= 4
    assert window.left_out > 8


def test_a_capture_without_ranges_shows_its_middle(tmp_path: Path) -> None:
    export = Export()
    for i in range(100):
        export.call(i * 1000, i * 1000 + 100, i)
        export.kernel("gemm_kernel", i * 1000 + 200, i * 1000 + 700, i)
    window = timeline_window(read_nsys_sqlite(export.write(tmp_path / "run.sqlite")), max_events=50)
    assert window.window_ns[0] > 30_000
    assert 45 <= len(window.kernels) + len(window.calls) <= 52


def test_an_empty_capture_has_an_empty_window(tmp_path: Path) -> None:
    export = Export()
    export.range("setup", 5, 10)
    window = timeline_window(read_nsys_sqlite(export.write(tmp_path / "run.sqlite")))
    assert (window.kernels, window.calls, window.left_out) == ((), (), 0)


def test_kernels_that_overlap_get_a_lane_of_their_own(tmp_path: Path) -> None:
    export = Export()
    export.range("prefill", 0, 10_000)
    for number, (start, end) in enumerate([(1000, 5000), (2000, 3000), (6000, 7000)]):
        export.call(100 * number + 10, 100 * number + 20, number)
        export.kernel("gemm_kernel", start, end, number)
    window = timeline_window(read_nsys_sqlite(export.write(tmp_path / "run.sqlite")))
    assert [k[2] for k in window.kernels] == [0, 1, 0]
    assert window.streams == ("device 0 stream 7", "device 0 stream 7, overlapping")


def test_copies_are_drawn_as_copies(tmp_path: Path) -> None:
    export = Export()
    export.call(10, 20, 1, "cudaMemcpyAsync_v3020")
    export.copy(1000, 5000, 1, kind=1)
    window = timeline_window(read_nsys_sqlite(export.write(tmp_path / "run.sqlite")))
    assert [window.classes[k[4]] for k in window.kernels] == ["copy"]


def test_the_window_of_the_h200_is_one_prefill_and_four_steps(tmp_path: Path) -> None:
    window = timeline_window(read_nsys_sqlite(h200_export(tmp_path)))
    names = window.names
    inside = [names[r[3]] for r in window.ranges if r[0] > 0]
    assert inside.count("prefill") == 1
    assert inside.count("decode_step") >= 4
    # 661 kernels of the prefill and 694 of each step, and one step or two at the edges.
    assert len(window.kernels) == pytest.approx(661 + 4 * 694, abs=80)


def trace(folder: Path, *, device: bool, ranges: bool = True) -> Path:
    """A phase of two modules; on a device each operator launches a kernel."""
    events = []

    def add(cat: str, name: str, ts: float, dur: float, **args: object) -> None:
        if cat == "user_annotation" and not ranges:
            return
        tid = 7 if cat == "kernel" else 1
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args})

    add("user_annotation", "decode", 0, 100)
    add("user_annotation", "decode_step", 0, 100)
    for number, (module, operator, start) in enumerate([("mlp", "aten::linear", 10), ("attention", "aten::sdpa", 50)]):
        add("user_annotation", f"module:{module}", start - 5, 30)
        add("cpu_op", operator, start, 20)
        add("cpu_op", "aten::inner", start + 1, 10)
        if device:
            add("cuda_runtime", "cudaLaunchKernel", start + 2, 3, correlation=number)
            add("kernel", f"kernel_of_{module}", start + 9, 40, correlation=number, device=0)
    for at, size in ((20, 1000), (60, 5000)):
        args = {"Total Reserved": 0, "Total Allocated": size, "Bytes": size, "Device Id": -1, "Device Type": 0}
        events.append(
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args}
        )
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1).encode()))
    return path


def test_kernels_are_traced_back_to_operator_module_and_phase(tmp_path: Path) -> None:
    found = read_torch_trace(trace(tmp_path, device=True))
    tree = module_tree(found.timeline, found.operators)
    assert tree.by == "device_time"
    assert tree.rows == (
        TreeRow(
            phase="decode",
            module="attention",
            operator="aten::sdpa",
            kernel="kernel_of_attention",
            count=1,
            time_ns=40_000,
        ),
        TreeRow(phase="decode", module="mlp", operator="aten::linear", kernel="kernel_of_mlp", count=1, time_ns=40_000),
    )


def test_without_a_device_the_outermost_operators_are_the_work(tmp_path: Path) -> None:
    found = read_torch_trace(trace(tmp_path, device=False))
    tree = module_tree(found.timeline, found.operators)
    assert tree.by == "cpu_time"
    assert [(r.module, r.operator, r.kernel, r.time_ns) for r in tree.rows] == [
        ("attention", "aten::sdpa", None, 20_000),
        ("mlp", "aten::linear", None, 20_000),
    ]
    assert (tree.phase_ns, tree.operator_ns) == ({"decode": 100_000}, {"decode": 40_000})


def test_a_tree_keeps_its_largest_rows_and_counts_the_others(tmp_path: Path) -> None:
    found = read_torch_trace(trace(tmp_path, device=False))
    tree = module_tree(found.timeline, found.operators, max_rows=1)
    assert (len(tree.rows), tree.left_out) == (1, 1)


def test_operators_and_memory_are_drawn_with_the_window(tmp_path: Path) -> None:
    written = write_trace_files(trace(tmp_path, device=False), by_shape=True, pass_note="A note.")
    files = {f.role: f.path for f in written.files}
    window = json.loads(files["timeline_json"].read_text(encoding="utf-8"))
    assert [window["names"][c[3]] for c in sorted(window["calls"])] == [
        "aten::linear",
        "aten::inner",
        "aten::sdpa",
        "aten::inner",
    ]
    assert window["memory"] == {"CPU": [[20_000, 1000], [60_000, 5000]]}
    analysis = json.loads(files["analysis_json"].read_text(encoding="utf-8"))
    assert analysis["tree"]["operator_ns"] == {"decode": 40_000}


def test_a_program_on_the_cpu_that_marks_nothing_has_a_window_of_its_operators(tmp_path: Path) -> None:
    found = read_torch_trace(trace(tmp_path, device=False, ranges=False), detailed=True)
    window = timeline_window(found.timeline, found.operators)
    assert window.window_ns == (10_000, 70_000)
    assert [(c[0], c[1]) for c in sorted(window.calls)] == [
        (0, 20_000), (1_000, 11_000), (40_000, 60_000), (41_000, 51_000),
    ]  # fmt: skip


def test_memory_outside_the_window_is_left_out(tmp_path: Path) -> None:
    detail = read_torch_trace(trace(tmp_path, device=False), detailed=True).detail
    assert detail is not None
    assert memory_counters(detail.memory, (30_000, 70_000)) == {"CPU": ((30_000, 5000),)}
    assert memory_counters(detail.memory, (70_000, 80_000)) == {}


def test_a_real_torch_trace_without_ranges_has_a_window_but_no_phases() -> None:
    found = read_torch_trace(DATA / "h200" / "llama.trace.json.gz")
    tree = module_tree(found.timeline, found.operators)
    assert (tree.by, tree.rows, tree.phase_ns, tree.operator_ns) == ("device_time", (), {}, {})
    window = timeline_window(found.timeline, found.operators, max_events=4000)
    assert 3000 < len(window.kernels) + len(window.calls) <= 4010
    assert window.left_out > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernels": ((0, 10, 0, 1, 0),)}, "outside of the window, lanes or names"),
        ({"kernels": ((0, 10, -1, 0, 0),)}, "outside of the window, lanes or names"),
        ({"kernels": ((0, 101, 0, 0, 0),)}, "outside of the window, lanes or names"),
        ({"kernels": ((10, 0, 0, 0, 0),)}, "outside of the window, lanes or names"),
        ({"kernels": ((0, 10, 0, 0, 9),)}, "kernels: 9 is none of 1"),
        ({"launches": (1,)}, "launches: 1 is none of 1"),
        ({"shapes": (0,)}, "shapes: 0 is none of 0"),
        ({"operators": (-2,)}, "names: -2 is none of 1"),
        ({"sizes": (1, 2)}, "columns alongside 1 kernels"),
        ({"call_kinds": (0, 0)}, "2 call_kinds alongside 1 calls"),
        ({"call_kinds": (2**63,)}, "call_kinds: 9223372036854775808 is none of 4"),
    ],
)
def test_a_window_of_somebody_else_leads_to_nothing_that_is_not_there(change: dict[str, Any], words: str) -> None:
    whole: dict[str, Any] = {
        "kind": "nsys", "source": "x", "window_ns": (0, 100), "classes": ("GEMM",), "threads": ("main",),
        "streams": ("stream 7",), "ranges": (), "calls": ((0, 5, 0, 0),), "kernels": ((0, 10, 0, 0, 0),),
        "names": ("gemm",), "launches": (0,), "operators": (-1,), "sizes": (-1,), "call_kinds": (0,),
    }  # fmt: skip
    assert TimelineWindow(**whole).kernels == whole["kernels"]
    with pytest.raises(ValueError, match=words):
        TimelineWindow(**{**whole, **change})
