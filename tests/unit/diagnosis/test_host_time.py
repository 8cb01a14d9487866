"""Start-up, owners and traits of the host's time: one small capture per case."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.timeline import Timeline
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.diagnosis.evidence import Measured, measure_timeline
from llm_perf_opt.diagnosis.gaps.gap_report import HeldRow, IdleReport, SyncRow, report_idle
from llm_perf_opt.diagnosis.gaps.gap_verdict import is_library
from llm_perf_opt.diagnosis.gaps.long_gaps import LongGaps
from llm_perf_opt.diagnosis.gaps.startup_gaps import StartUpRow
from llm_perf_opt.diagnosis.gaps.traits import AllocatorFlushes, LaunchBlocking, TimeSlices
from tests.support.fixtures_dir import DATA
from tests.support.nsys_builder import Export, h200_export
from tests.support.trace_builder import event, write_trace

MS = 1_000_000


class Trace:
    """A torch trace in the making; times in µs. Kernels run one after the other, from their launch on."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._number = 0
        self._busy_until = 0

    def call(self, name: str, at: int, length: int) -> int:
        self._number += 1
        self.events.append(event("cuda_runtime", name, f"{at}", f"{length}", correlation=self._number))
        return self._number

    def operator(self, name: str, at: int, length: int) -> None:
        self.events.append(event("cpu_op", name, f"{at}", f"{length}"))

    def frame(self, name: str, at: int, length: int) -> None:
        self.events.append(event("python_function", name, f"{at}", f"{length}"))

    def launch(self, name: str, at: int, kernel: int, *, takes: int = 5, after: int = 2) -> None:
        """A launch that takes so long, and its kernel of so long so much after its return, or when the GPU is free."""
        number = self.call("cudaLaunchKernel", at, takes)
        start = max(at + takes + after, self._busy_until)
        self._busy_until = start + kernel
        text = event("kernel", name, f"{start}", f"{kernel}", pid=0, tid=7, correlation=number, device=0)
        self.events.append(text)

    def measured(self, tmp_path: Path) -> Measured:
        return measure_timeline(self.timeline(tmp_path))

    def timeline(self, tmp_path: Path) -> Timeline:
        return read_torch_trace(write_trace(tmp_path / "t.json", self.events)).timeline

    def idle(self, tmp_path: Path) -> IdleReport:
        return _report(self.measured(tmp_path))

    def analysis(self, tmp_path: Path) -> CaptureAnalysis:
        return analyze_timelines([self.timeline(tmp_path)])


def _report(measured: Measured) -> IdleReport:
    return report_idle([(measured.timeline, measured.idle)])


def _reasons(gaps: LongGaps) -> list[tuple[str, str, str | None, int]]:
    return [(reason.verdict, reason.cost, reason.name, reason.host_ns) for reason in gaps.reasons]


def _steps(trace: Trace, count: int, *, at: int, every: int = 100) -> int:
    """Steps of a matrix product of 20 µs; the moment after the last."""
    for i in range(count):
        trace.operator("aten::linear", at + every * i, 40)
        trace.launch("gemm", at + every * i + 10, 20)
    return at + every * count


def test_the_first_cuda_free_of_a_library_is_start_up_and_no_wait(tmp_path: Path) -> None:
    trace = Trace()
    trace.launch("fill", 0, 10)
    trace.operator("aten::addmm", 100, 30_000)
    trace.call("cudaFree", 200, 20_000)
    trace.call("cudaFree", 21_000, 2_000)
    trace.launch("gemm", 29_900, 20)
    _steps(trace, 100, at=40_000)
    idle = trace.idle(tmp_path)
    assert idle.waits == idle.memory == ()
    assert idle.startup == (
        StartUpRow(
            cost="context",
            name="cudaFree",
            count=2,
            total_ns=22 * MS,
            gpu_idle_ns=22 * MS,
            first_ns=193_000,
            last_ns=22_993_000,
            recurs=False,
            place="aten::addmm",
        ),
    )
    # The operator that holds them is start-up as a whole; the time until the steps begin is the next gap.
    assert _reasons(idle.gaps)[:1] == [("compilation", "context", "cudaFree", 29_888_000)]


def test_a_library_that_starts_up_before_the_first_kernel_is_no_work_of_the_host(tmp_path: Path) -> None:
    trace = Trace()
    trace.operator("aten::linear", 0, 981_000)
    trace.call("cudaFree", 100, 980_000)
    trace.launch("gemm", 980_500, 20)
    _steps(trace, 4_000, at=981_200)
    analysis = trace.analysis(tmp_path)
    assert [(finding.rule, finding.is_one_time) for finding in analysis.findings] == [
        ("launch_bound", False),
        ("compilation", True),
    ]
    assert isinstance(analysis.host_edges, tuple)
    (edge,) = analysis.host_edges
    assert (edge.startup_ns, edge.startup_cost) == (980_507_000, "context")


@pytest.mark.parametrize(("busy", "found"), [(False, True), (True, False)])
def test_a_long_launch_loads_a_module_only_where_the_gpu_is_idle(tmp_path: Path, busy: bool, found: bool) -> None:
    """The launch of another kernel takes 5 ms; the queue may be full of what was launched before it."""
    trace = Trace()
    at = _steps(trace, 50, at=0)
    if busy:
        trace.launch("gemm", at, 5_500)
    trace.launch("other", at + 100, 20, takes=5_000)
    _steps(trace, 50, at=at + 8_000)
    rows = [(row.cost, row.name, row.count) for row in trace.idle(tmp_path).startup]
    assert rows == ([("module_loading", "cudaLaunchKernel", 1)] if found else [])


def _benchmarking(trace: Trace, *, at: int, algorithms: int) -> int:
    """A backward pass of a convolution in which cudnn.benchmark times algorithms of 1 ms; the moment after it."""
    begin = at
    for _ in range(algorithms):
        trace.call("cudaMalloc", at, 50)
        trace.launch("try_algorithm", at + 100, 1_000)
        trace.call("cudaEventSynchronize", at + 110, 1_000)
        trace.call("cudaFree", at + 1_150, 150)
        at += 1_350
    trace.launch("convolution_backward", at, 500)
    trace.operator("aten::cudnn_convolution_backward_weight", begin - 10, at + 20 - begin)
    return at + 600


def _training(trace: Trace, count: int, *, at: int, searches: Callable[[int], bool]) -> int:
    for step in range(count):
        at = _steps(trace, 20, at=at)
        at = _benchmarking(trace, at=at, algorithms=20 if searches(step) else 0)
    return at


def test_a_library_that_times_its_algorithms_once_is_start_up_until_it_ends(tmp_path: Path) -> None:
    trace = Trace()
    at = _training(trace, 1, at=0, searches=lambda _: True)
    _training(trace, 9, at=at, searches=lambda _: False)
    measured = trace.measured(tmp_path)
    idle = _report(measured)
    (row,) = idle.startup
    assert (row.cost, row.name, row.count, row.recurs) == (
        "autotuning",
        "aten::cudnn_convolution_backward_weight",
        1,
        False,
    )
    # Its waits and its memory are part of it.
    assert idle.waits == idle.memory == ()
    assert idle.flushes is None
    (one,) = measured.idle.values()
    # 20 operators of 100 µs and the search of 27 ms, from the first kernel on.
    assert idle.gaps.setup_end_ns is not None
    assert idle.gaps.setup_end_ns - one.span[0] == (2_000 + 20 * 1_350 + 10 - 17) * 1_000


def test_a_library_that_times_its_algorithms_for_every_shape_recurs(tmp_path: Path) -> None:
    trace = Trace()
    # Half of the steps: what every instance does is how an operator works.
    _training(trace, 24, at=0, searches=lambda step: step % 2 == 1)
    idle = trace.idle(tmp_path)
    assert [(row.cost, row.count, row.recurs) for row in idle.startup] == [("autotuning", 12, True)]
    assert idle.gaps.setup_end_ns is None


@pytest.mark.parametrize(("steps", "recurs"), [(1, False), (4, True)])
def test_searches_of_many_layers_in_one_step_do_not_recur(tmp_path: Path, steps: int, recurs: bool) -> None:
    """Twelve layers that each time their algorithms, in one step or three a step."""
    trace = Trace()
    at = 0
    for step in range(steps):
        begin = at
        at = _training(trace, 12 // steps, at=at, searches=lambda _: True)
        trace.events.append(event("user_annotation", f"ProfilerStep#{step}", f"{begin}", f"{at - begin}"))
    idle = trace.idle(tmp_path)
    assert [(row.cost, row.count, row.recurs) for row in idle.startup] == [("autotuning", 12, recurs)]


def _compiling(tmp_path: Path, *, steps: int, kernels: Callable[[int], tuple[str, ...]]) -> IdleReport:
    """Steps of three kernels; before each code is loaded after 40 ms of which nothing is recorded."""
    export = Export()
    at = number = 0
    for step in range(steps):
        export.call(at + 39 * MS, at + 39 * MS + 50_000, 10_000 + step, "cuModuleLoadData")
        at += 40 * MS
        for name in kernels(step):
            number += 1
            export.call(at, at + 5_000, number)
            export.kernel(name, at + 8_000, at + 60_000, number)
            at += 100_000
    return _report(measure_timeline(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))))


@pytest.mark.parametrize(
    ("steps", "kernels", "verdict", "cost"),
    [
        (6, lambda step: (f"nvjet_{step}", "triton_poi_fused_0", "fill"), "recompilation", "recompilation"),
        (5, lambda step: (f"nvjet_{step}", "triton_poi_fused_0", "fill"), "recompilation", "recompilation"),
        (3, lambda step: (f"nvjet_{step}", "triton_poi_fused_0", "fill"), "compilation", "jit_compilation"),
        # Another function each time: the first compilation of each.
        (6, lambda step: (f"nvjet_{step}", f"triton_poi_fused_{step}", "fill"), "compilation", "jit_compilation"),
    ],
)
def test_what_is_compiled_before_the_same_kernels_again_is_compiled_again(
    tmp_path: Path, steps: int, kernels: Callable[[int], tuple[str, ...]], verdict: str, cost: str
) -> None:
    idle = _compiling(tmp_path, steps=steps, kernels=kernels)
    assert {(reason.verdict, reason.cost) for reason in idle.gaps.reasons} == {(verdict, cost)}
    assert all(reason.recurs == (verdict == "recompilation") for reason in idle.gaps.reasons)
    assert (idle.gaps.setup_end_ns is None) == (verdict == "recompilation")


@pytest.mark.parametrize(("at", "verdict", "ends"), [(10, "compilation", True), (80, "host_work", False)])
def test_an_operator_that_stalls_once_late_is_no_set_up(tmp_path: Path, at: int, verdict: str, ends: bool) -> None:
    trace = Trace()
    now = _steps(trace, at, at=0)
    trace.operator("aten::linear", now, 50_000)
    trace.launch("gemm", now + 49_900, 20)
    _steps(trace, 100 - at, at=now + 50_100)
    idle = trace.idle(tmp_path)
    assert [reason.verdict for reason in idle.gaps.reasons] == [verdict]
    assert (idle.gaps.setup_end_ns is not None) == ends


def test_frees_on_an_idle_gpu_are_no_waits(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(10):
        trace.launch("gemm", 2_000 * step, 100)
        trace.call("cudaFree", 2_000 * step + 50, 1_000)
    measured = trace.measured(tmp_path)
    (one,) = measured.idle.values()
    assert one.waiting.total == 0
    report = _report(measured)
    assert report.waits == ()
    assert [(row.call, row.count, row.total_ns) for row in report.memory] == [("cudaFree", 10, 10 * MS)]


def test_an_allocator_that_is_flushed_in_every_step_is_one_cost(tmp_path: Path) -> None:
    """Ten steps of ten kernels of 100 µs; then a free, an allocation 40 µs later, and a launch 50 µs after that."""
    trace = Trace()
    at = 0
    for _ in range(10):
        for i in range(10):
            trace.launch("gemm", at + 10 * i, 100)
        # The last kernel ends at 1,007 µs, and so does the free's waiting.
        trace.call("cudaFree", at + 100, 957)
        trace.call("cudaMalloc", at + 1_097, 60)
        at += 1_200
    trace.launch("gemm", at, 100)
    idle = trace.idle(tmp_path)
    assert idle.flushes == AllocatorFlushes(
        flushes=10,
        frees=10,
        allocations=10,
        calls_ns=10 * (957 + 60) * 1_000,
        # From the end of the last kernel of a step to the first of the next one.
        gpu_idle_ns=10 * 200 * 1_000,
    )


def test_memory_that_is_freed_a_few_times_is_no_flush(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(4):
        trace.call("cudaFree", 1_000 * step + 200, 150)
    _steps(trace, 60, at=5_000)
    assert trace.idle(tmp_path).flushes is None


@pytest.mark.parametrize("blocks", [True, False])
def test_launches_that_return_when_their_kernel_has_ended_block(tmp_path: Path, blocks: bool) -> None:
    export = Export()
    for i in range(100):
        at = 50_000 * i
        export.call(at, at + (20_000 if blocks else 4_000), i + 1)
        export.kernel("gemm", at + 3_000, at + 18_000, i + 1)
    report = _report(measure_timeline(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))))
    found = LaunchBlocking(launches=100, covering=100, call_ns=2 * MS, kernel_ns=1_500_000)
    assert report.launch_blocking == (found if blocks else None)


@pytest.mark.parametrize("shared", [True, False])
def test_a_gpu_that_another_process_uses_in_turns_shows_in_slices_of_one_length(tmp_path: Path, shared: bool) -> None:
    """Of sixty consecutive launches, every tenth kernel waits for 2.4 ms, and every tenth other is stopped as long."""
    export = Export()
    at = 0
    for i in range(60):
        export.call(1_000 * i, 1_000 * i + 500, i + 1)
        at += 2_400_000 if shared and i % 10 == 5 else 0
        length = 20_000 + (2_420_000 if shared and i % 10 == 8 else 0)
        export.kernel("gemm", 100_000 + at, 100_000 + at + length, i + 1)
        at += length + 1_000
    report = _report(measure_timeline(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))))
    slices = TimeSlices(stretched=6, held=6, slice_ns=2_401_000, lost_ns=6 * (2_401_000 + 2_420_000))
    assert report.slices == (slices if shared else None)


def test_waits_are_counted_by_call_and_operator(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(6):
        trace.events.append(event("user_annotation", f"ProfilerStep#{step}", f"{1_000 * step}", "900"))
        for i in range(2):
            at = 1_000 * step + 300 * i
            trace.launch("gemm", at, 20)
            trace.operator("aten::item", at + 10, 40)
            trace.operator("aten::_local_scalar_dense", at + 11, 38)
            trace.call("cudaStreamSynchronize", at + 12, 30)
    # The profiler's own waits are none of the program's.
    trace.frame("torch/profiler/profiler.py(848): stop", 6_000, 100)
    trace.call("cudaDeviceSynchronize", 6_010, 50)
    assert trace.idle(tmp_path).syncs == (
        SyncRow(
            call="cudaStreamSynchronize",
            operators=("aten::_local_scalar_dense", "aten::item"),
            count=12,
            per_step=2.0,
            total_ns=360_000,
            # Each kernel runs until 27 µs after its launch began, each wait until 42.
            gpu_idle_ns=12 * 15_000,
        ),
    )


def test_a_wait_that_held_a_gap_is_the_one_that_lies_in_it(tmp_path: Path) -> None:
    """Copies wait for most of a capture; in the one gap in which launched work does not start lies another call."""
    export = Export()
    for i in range(5):
        export.call(2 * i * MS, 2 * i * MS + 1_900_000, i + 1, "cudaMemcpy")
        export.copy(2 * i * MS + 10_000, 2 * i * MS + 1_890_000, i + 1)
    export.call(10 * MS, 10 * MS + 20_000, 100)
    export.call(10 * MS + 21_000, 12 * MS, 101, "cudaDeviceSynchronize")
    export.kernel("cold", 11_100_000, 11_990_000, 100)
    measured = measure_timeline(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite")))
    report = _report(measured)
    assert report.waits[0].call == "cudaMemcpy"
    assert report.held == (
        HeldRow(
            call="cudaDeviceSynchronize",
            count=1,
            held_ns=1_079_000,
            longest_ns=1_079_000,
            ended_by="cold",
            first_kernels=1,
        ),
    )


def test_the_longest_wait_of_a_gap_is_named_with_it(tmp_path: Path) -> None:
    export = Export()
    export.call(0, 5_000, 1)
    export.kernel("k", 6_000, 10_000, 1)
    export.call(20_000, 120_000, 2, "cudaStreamSynchronize")
    export.call(130_000, 830_000, 3, "cudaDeviceSynchronize")
    export.call(900_000, 905_000, 4)
    export.kernel("k", 906_000, 910_000, 4)
    report = _report(measure_timeline(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))))
    assert [gap.waited_in for gap in report.gaps.longest] == ["cudaDeviceSynchronize"]


LOADER = "torch/utils/data/dataloader.py(703): __next__"
FETCH = "torch/utils/data/_utils/fetch.py(25): fetch"


def test_a_gap_is_owned_by_the_function_that_fills_it_and_by_the_user_s_code(tmp_path: Path) -> None:
    """Between two kernels a loader fetches a batch: eight samples, and in each of them 2 ms in one function of C."""
    trace = Trace()
    trace.launch("gemm", 0, 20)
    trace.frame("train.py(41): <module>", 0, 25_000)
    trace.frame(LOADER, 100, 20_000)
    trace.frame(FETCH, 110, 19_980)
    for i in range(8):
        trace.frame("transforms.py(7): resize", 200 + 2_400 * i, 2_300)
        trace.frame("<built-in function zoom_shift>", 250 + 2_400 * i, 2_000)
    trace.launch("gemm", 20_200, 20)
    (reason,) = trace.idle(tmp_path).gaps.reasons
    assert (reason.verdict, reason.cost, reason.name) == ("data_loading", "data_loading", FETCH)
    assert reason.owner == ("<built-in function zoom_shift>", "transforms.py(7): resize", FETCH, LOADER)
    assert reason.user_code == "transforms.py(7): resize"


def test_the_user_s_code_closes_a_chain_of_a_library(tmp_path: Path) -> None:
    trace = Trace()
    trace.launch("gemm", 0, 20)
    trace.frame("train.py(41): <module>", 0, 25_000)
    library = ["transformers/a.py(1): a", "transformers/b.py(2): b", "numpy/c.py(3): c", "numpy/d.py(4): d"]
    for depth, name in enumerate(library):
        trace.frame(name, 100 + depth, 20_000 - 2 * depth)
    trace.launch("gemm", 20_200, 20)
    # With only the script around both kernels, no other frames name the user's code.
    (reason,) = trace.idle(tmp_path).gaps.reasons
    assert reason.owner == (*library[:0:-1], "train.py(41): <module>")
    assert reason.user_code == "train.py(41): <module>"


def test_without_frames_a_gap_is_owned_by_its_operators(tmp_path: Path) -> None:
    trace = Trace()
    trace.launch("gemm", 0, 20)
    trace.operator("aten::sort", 100, 20_000)
    trace.operator("aten::_sort_impl", 110, 19_900)
    trace.launch("gemm", 20_050, 20)
    (reason,) = trace.idle(tmp_path).gaps.reasons
    assert (reason.owner, reason.user_code) == (("aten::_sort_impl", "aten::sort"), None)


@pytest.mark.parametrize(
    ("frame", "is_one"),
    [
        ("train.py(41): main", False),
        ("my_project/data.py(3): load", False),
        ("/home/me/lib/python3.11/site-packages/acme/io.py(3): read", True),
        ("threading.py(973): _bootstrap", True),
        ("json/decoder.py(3): decode", True),
        ("torch/nn/modules/linear.py(115): forward", True),
        ("<built-in function next>", True),
    ],
)
def test_a_frame_is_a_library_s_by_its_file(frame: str, is_one: bool) -> None:
    assert is_library(frame) == is_one


def _long_host_ns(timeline: Timeline) -> tuple[int, int, int]:
    """The host's time in long gaps: by the idle maps, as reported, and by its reasons."""
    measured = measure_timeline(timeline)
    gaps = _report(measured).gaps
    wanted = 0
    for one in measured.idle.values():
        low, high = (np.array([edge], np.int64) for edge in one.span)
        wanted += int((one.long.covered_before(high) - one.long.covered_before(low))[0])
    return wanted, gaps.long_host_ns, sum(reason.host_ns for reason in gaps.reasons)


def test_the_reasons_of_very_many_gaps_add_up_to_the_nanosecond(tmp_path: Path) -> None:
    """700 gaps of odd lengths: the longest by themselves, the rest by a sample."""
    export = Export()
    at = 0
    for i in range(700):
        export.call(at, at + 4_001, 2 * i + 1)
        export.kernel("k", at + 6_003, at + 50_007, 2 * i + 1)
        length = 600_011 + 7_919 * (i % 89)
        export.range(f"part {'abcdefg'[i % 7]}", at + 50_100, at + 50_007 + length - 13)
        at += 50_007 + length
    wanted, reported, summed = _long_host_ns(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite")))
    assert wanted == reported == summed > 699 * 600_000


@pytest.mark.parametrize("name", ["llama", "compiled", "batched", "graphs_node", "served", "jax"])
def test_the_reasons_of_real_exports_add_up_to_the_nanosecond(tmp_path: Path, name: str) -> None:
    wanted, reported, summed = _long_host_ns(read_nsys_sqlite(h200_export(tmp_path, name)))
    assert wanted == reported == summed


@pytest.mark.parametrize("name", ["llama", "graph_capture", "graphs"])
def test_the_reasons_of_real_traces_add_up_to_the_nanosecond(name: str) -> None:
    trace = read_torch_trace(DATA / "h200" / f"{name}.trace.json.gz")
    wanted, reported, summed = _long_host_ns(trace.timeline)
    assert wanted == reported == summed


def test_short_allocations_of_an_export_are_read(tmp_path: Path) -> None:
    export = Export()
    export.call(0, 5_000, 1)
    export.kernel("k", 6_000, 10_000, 1)
    export.call(20_000, 70_000, 2, "cudaMalloc_v3020")
    export.call(80_000, 81_000, 3, "cudaEventRecord_v3020")
    timeline = read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))
    assert sorted(timeline.names[code] for code in timeline.calls.name) == ["cudaLaunchKernel", "cudaMalloc_v3020"]


@pytest.mark.parametrize(("holds", "verdicts"), [(True, {"new_shapes"}), (False, {"host_work"})])
def test_a_range_around_a_step_does_not_hide_what_is_built_in_it(
    tmp_path: Path, holds: bool, verdicts: set[str]
) -> None:
    """A range that ends before code is loaded says what the host did; one that holds the launch too does not."""
    export = Export()
    for step in range(4):
        at = 50 * step * MS
        export.range("step" if holds else "prepare", at, at + (41 if holds else 39) * MS)
        export.call(at + 39 * MS + 10_000, at + 39 * MS + 60_000, 2 * step + 1, "cuLibraryLoadData")
        export.call(at + 40 * MS, at + 40 * MS + 5_000, 2 * step + 2, "cuLaunchKernelEx")
        export.kernel("cudnn_generated_fort_native_sdpa_sm90", at + 40 * MS + 8_000, at + 50 * MS, 2 * step + 2)
    report = _report(measure_timeline(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))))
    assert {reason.verdict for reason in report.gaps.reasons} == verdicts


def test_new_shapes_to_the_end_of_a_capture_are_no_set_up(tmp_path: Path) -> None:
    export = Export()
    for step in range(12):
        at = 50 * step * MS
        export.call(at + 39 * MS, at + 39 * MS + 50_000, 2 * step + 1, "cuLibraryLoadData")
        export.call(at + 40 * MS, at + 40 * MS + 5_000, 2 * step + 2, "cuLaunchKernelEx")
        export.kernel("cudnn_generated_fort_native_sdpa_sm90", at + 40 * MS + 8_000, at + 50 * MS, 2 * step + 2)
    gaps = _report(measure_timeline(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite")))).gaps
    assert [(reason.verdict, reason.cost, reason.recurs) for reason in gaps.reasons] == [
        ("new_shapes", "new_shapes", True)
    ]
    assert gaps.setup_end_ns is None
