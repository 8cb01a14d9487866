"""What the host did while no kernel ran, and what a capture alone reports: one small capture per case."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import UNSET

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.streams import StreamRow
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.diagnosis.gaps.gap_report import IdleReport, WaitRow
from llm_perf_opt.diagnosis.gaps.gap_verdict import HostCost, Judged, Verdict, judge
from llm_perf_opt.diagnosis.gaps.traits import Iterations, Outlier, Queue
from llm_perf_opt.diagnosis.ledger import confidence_of
from llm_perf_opt.report.sections.idle_sections import idle_sections
from tests.support.answers import cells_of, claim_of, diagnosis_of, owner_of, rules
from tests.support.nsys_builder import OTHER_THREAD, PID, THREAD, Export
from tests.support.trace_builder import event, write_trace

MS = 1_000_000
HOST_WORK = Judged(verdict="host_work", cost="host_work")


def _nsys(export: Export, tmp_path: Path) -> CaptureAnalysis:
    return analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))])


def _torch(events: list[str], tmp_path: Path) -> CaptureAnalysis:
    return analyze_timelines([read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline])


def _idle(analysis: CaptureAnalysis) -> IdleReport:
    assert isinstance(analysis.idle, IdleReport)
    return analysis.idle


def _kernel(events: list[str], number: int, launch_us: int, start_us: int, length_us: int) -> None:
    events.append(event("cuda_runtime", "cudaLaunchKernel", f"{launch_us}", "5", correlation=number))
    events.append(event("kernel", "gemm", f"{start_us}", f"{length_us}", pid=0, tid=7, correlation=number, device=0))


def _slow_batches(frame: str, tmp_path: Path, cat: str = "python_function") -> CaptureAnalysis:
    """Four steps of 25 kernels of 100 µs, back to back, each after 20 ms in one place of the host."""
    events: list[str] = []
    for step in range(4):
        at = 25_000 * step
        events.append(event("python_function", "train.py(7): main", f"{at}", "25000"))
        events.append(event(cat, frame, f"{at + 10}", "19900"))
        for i in range(25):
            _kernel(events, 25 * step + i + 1, at + 20_000 + 10 * i, at + 20_010 + 100 * i, 100)
    return _torch(events, tmp_path)


def test_a_gap_in_a_data_loader_is_loading_and_not_launch_bound(tmp_path: Path) -> None:
    analysis = _slow_batches("torch/utils/data/dataloader.py(733): __next__", tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.stake_ns) == ("data_loading", 3 * 22_495_000)
    assert owner_of(analysis, "idle.data_loading") == (
        "torch/utils/data/dataloader.py(733): __next__",
        "train.py(7): main",
    )
    # Three gaps of 22.5 ms less what the launch itself takes, of a span of 77.5 ms; workers that load in parallel hide
    # them.
    assert finding.max_gain == pytest.approx(77.5 / (77.5 - 3 * 22.495), rel=1e-6)
    assert finding.confidence == "high"
    assert "num_workers" in finding.remedy


@pytest.mark.parametrize(
    ("name", "cat", "rule"),
    [
        ("torch/_inductor/graph.py(1000): compile_to_module", "python_function", "compilation"),
        ("triton/runtime/autotuner.py(140): _bench", "python_function", "compilation"),
        ("cuModuleLoadData", "cuda_driver", "compilation"),
        ("torch/distributed/distributed_c10d.py(3900): barrier", "python_function", "rank_wait"),
        ("server/scheduler.py(12): pick_requests", "python_function", "host_work"),
        ("aten::nonzero", "cpu_op", "host_work"),
        ("cudaMalloc", "cuda_runtime", "allocation"),
    ],
)
def test_a_long_gap_is_judged_by_what_the_host_was_in(tmp_path: Path, name: str, cat: str, rule: str) -> None:
    analysis = _slow_batches(name, tmp_path, cat)
    (finding,) = analysis.findings
    assert (finding.rule, name in finding.title, "CUDA graph" in finding.remedy) == (rule, True, False)
    assert owner_of(analysis, next(iter(finding.cells)))[0] == name


def test_a_script_that_is_called_after_one_thing_may_do_others() -> None:
    assert judge(["solve.py(3): step", "compile_test.py(9): main"], near=["solve.py(3): step"]) == HOST_WORK
    loads = Judged(verdict="data_loading", cost="data_loading", said="## load_batch ##")
    assert judge(["## load_batch ##"], near=["## load_batch ##"]) == loads


def test_a_first_launch_that_takes_long_is_set_up(tmp_path: Path) -> None:
    export = Export()
    for i in range(4):
        at = i * 20 * MS
        export.call(at, at + 15 * MS, i + 1)
        export.kernel("k", at + 15 * MS + 2_000, at + 19 * MS, i + 1)
    analysis = _nsys(export, tmp_path)
    assert rules(analysis) == ["compilation"]
    assert claim_of(analysis, "compilation").is_one_time
    assert owner_of(analysis, "idle.startup") == ("cudaLaunchKernel",)


def test_a_thread_that_only_waits_for_work_explains_no_gap(tmp_path: Path) -> None:
    events = [event("python_function", "torch/utils/data/_utils/pin_memory.py(50): do_one_step", "0", "90000", tid=99)]
    for i in range(4):
        _kernel(events, i + 1, 20_000 * i, 20_000 * i + 10, 5_000)
    (finding,) = _torch(events, tmp_path).findings
    # Its nature is not known, and it is most of the capture: no factor is promised.
    assert (finding.rule, finding.confidence, finding.max_gain) == ("not_recorded", "low", None)
    assert finding.share == pytest.approx(0.692, abs=0.001)
    assert "with_stack=True" in finding.remedy


def test_running_what_was_compiled_is_not_compiling() -> None:
    assert judge(["torch/_dynamo/eval_frame.py(655): _fn"]) == HOST_WORK
    assert judge(["Torch-Compiled Region: 0/0"]) == HOST_WORK
    assert judge(["CompiledFunctionBackward"]) == HOST_WORK
    assert judge([]) == Judged(verdict="unknown", cost="unknown")


def test_an_operator_that_takes_long_once_sets_something_up(tmp_path: Path) -> None:
    events: list[str] = []
    for i in range(30):
        # The eleventh call loads and tunes; all others take 20 µs.
        late = 50_000 if i >= 10 else 0
        length = 50_020 if i == 10 else 20
        events.append(event("cpu_op", "aten::convolution", f"{100 * i + late - (length - 20)}", f"{length}"))
        _kernel(events, i + 1, 100 * i + late + 10, 100 * i + late + 16, 80)
    analysis = _torch(events, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.is_one_time) == ("compilation", True)
    assert owner_of(analysis, "idle.startup.first_use") == ("aten::convolution",)


def _stalled(stall: tuple[tuple[str, str], ...], tmp_path: Path, *, every: int = 1, until: int = 12) -> CaptureAnalysis:
    """Twelve steps of three operators, a kernel of 100 µs in each; some steps stall for 50 ms before the last of them.

    `stall` are categories and names of what covers the stall, in turn; an operator is the one that launches.
    """
    events: list[str] = []
    at = number = stalls = 0
    for step in range(12):
        begin = at
        for name in ("aten::mm", "aten::add", "aten::mul"):
            cat, around = "cpu_op", name
            length = 20
            if name == "aten::mul" and step % every == every - 1 and step < until:
                cat, around = stall[stalls % len(stall)]
                length, stalls = 50_020, stalls + 1
            number += 1
            if around:
                events.append(event(cat, around, f"{at}", f"{length}"))
            _kernel(events, number, at + length - 10, at + length - 4, 100)
            at += length + 100
        events.append(event("user_annotation", "train_step", f"{begin}", f"{at - begin}"))
    return _torch(events, tmp_path)


OPERATORS = (("cpu_op", "aten::mm"), ("cpu_op", "aten::add"))
COMPILES = (("cpu_op", "_compile.compile_inner (dynamo_timed)"),)


@pytest.mark.parametrize(
    ("stall", "every", "rule", "owners", "says"),
    [
        (COMPILES, 1, "recompilation", {("_compile.compile_inner (dynamo_timed)",)}, "TORCH_LOGS"),
        (OPERATORS, 2, "stalls", {("aten::mm",), ("aten::add",)}, "gc.freeze"),
        (OPERATORS[:1], 2, "stalls", {("aten::mm",)}, "a checkpoint"),
        ((("", ""),), 2, "stalls", {("train_step",)}, "a checkpoint"),
    ],
)
def test_what_comes_to_the_end_of_a_capture_is_not_paid_once(
    tmp_path: Path, stall: tuple[tuple[str, str], ...], every: int, rule: str, owners: set[tuple[str, ...]], says: str
) -> None:
    analysis = _stalled(stall, tmp_path, every=every)
    (finding,) = analysis.findings
    assert (finding.rule, finding.is_one_time, says in finding.remedy) == (rule, False, True)
    assert {cell.owner for cell in cells_of(analysis, f"idle.{rule}")} == owners
    # Compiling is requested by the program, how much of it must remain is not known; a typical step does not stall.
    assert finding.floor_ns == (None if rule == "recompilation" else 0)


def test_code_that_is_loaded_for_new_kernels_is_not_loaded_again(tmp_path: Path) -> None:
    export = Export()
    for i in range(12):
        at = 10 * i * MS
        export.call(at, at + 6 * MS, 2 * i + 1, "cuLibraryLoadData")
        export.call(at + 6 * MS, at + 6 * MS + 5_000, 2 * i + 2)
        export.kernel(f"kernel_{i}", at + 6 * MS + 6_000, at + 10 * MS, 2 * i + 2)
    (finding,) = _nsys(export, tmp_path).findings
    assert (finding.rule, finding.is_one_time) == ("compilation", True)


@pytest.mark.parametrize("stall", [COMPILES, OPERATORS, (("", ""),)])
def test_what_dies_out_is_paid_once(tmp_path: Path, stall: tuple[tuple[str, str], ...]) -> None:
    (finding,) = _stalled(stall, tmp_path, until=5).findings
    assert (finding.rule, finding.is_one_time) == ("compilation", True)


def _short_steps(frame: str | None, tmp_path: Path, *, steps: int, wait_us: int, gap_us: int = 0) -> CaptureAnalysis:
    """Steps of ten kernels of 50 µs, each step after a wait of the host, each kernel after a gap."""
    events: list[str] = []
    at = 0
    for step in range(steps):
        if frame is not None:
            events.append(event("python_function", frame, f"{at}", f"{wait_us}"))
        at += wait_us
        for i in range(10):
            _kernel(events, 10 * step + i + 1, at + gap_us - 7 if gap_us else at - 7 + i, at + gap_us, 50)
            at += 50 + gap_us
    return _torch(events, tmp_path)


@pytest.mark.parametrize(
    ("frame", "rule"),
    [("torch/utils/data/dataloader.py(733): __next__", "data_loading"), ("server/scheduler.py(12): pick", "host_work")],
)
def test_a_short_gap_in_every_step_that_holds_the_waiting_is_looked_into(tmp_path: Path, frame: str, rule: str) -> None:
    analysis = _short_steps(frame, tmp_path, steps=50, wait_us=450)
    (finding,) = analysis.findings
    # The kernels of a step end 450 µs before the next step's, less the launch itself.
    assert (finding.rule, finding.stake_ns) == (rule, 49 * 448_000)
    (cell,) = cells_of(analysis, next(iter(finding.cells)))
    assert (cell.count, cell.owner) == (49, (frame,))


def test_gaps_that_are_all_alike_are_launches_whatever_the_host_is_in(tmp_path: Path) -> None:
    analysis = _short_steps("model.py(1): forward", tmp_path, steps=50, wait_us=250, gap_us=30)
    (finding,) = analysis.findings
    assert (finding.rule, cells_of(analysis, "idle.launch")[0].count) == ("launch_bound", 499)


def test_the_rest_of_very_many_gaps_is_told_by_a_sample_of_it(tmp_path: Path) -> None:
    analysis = _short_steps("server/scheduler.py(12): pick", tmp_path, steps=601, wait_us=700)
    assert rules(analysis) == ["host_work"]
    (cell,) = cells_of(analysis, "idle.host")
    assert (cell.time_ns, cell.count, cell.owner) == (600 * 698_000, 600, ("server/scheduler.py(12): pick",))


def test_an_allocator_that_frees_in_the_loop_is_told_to_keep_its_memory(tmp_path: Path) -> None:
    """Ten steps of 20 kernels of 100 µs; each waits for cudaFree, and then for 350 µs of cudaMalloc."""
    events: list[str] = []
    for step in range(10):
        at = 4_000 * step
        events.append(event("user_annotation", "train_step", f"{at}", "3900"))
        for i in range(20):
            _kernel(events, 100 * step + i + 1, at + 10 * i, at + 20 + 100 * i, 100)
        events.append(event("cpu_op", "aten::empty", f"{at + 300}", "3300"))
        events.append(event("cuda_runtime", "cudaFree", f"{at + 300}", "2900", correlation=100 * step + 50))
        events.append(event("cuda_runtime", "cudaMalloc", f"{at + 3_250}", "350", correlation=100 * step + 51))
        _kernel(events, 100 * step + 60, at + 3_700, at + 3_710, 100)
    analysis = _torch(events, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.stake_ns, finding.floor_ns) == ("allocator_flush", 18_790_000, 0)
    # cudaFree ends when the GPU is idle: what it takes from then on is the driver's work, and no wait for the GPU.
    assert [(cell.owner, cell.time_ns, cell.count) for cell in cells_of(analysis, "idle.allocation")] == [
        (("cudaFree", "aten::empty"), 11_800_000, 10),
        (("cudaMalloc", "aten::empty"), 5_050_000, 10),
        # The short gaps until work is queued again.
        ((), 1_940_000, 10),
    ]
    assert "expandable_segments:True" in finding.remedy
    assert _idle(analysis).waits == ()


def test_an_allocator_that_grows_a_few_times_is_not_called_full(tmp_path: Path) -> None:
    (finding,) = _slow_batches("cudaMalloc", tmp_path, "cuda_runtime").findings
    assert finding.rule == "allocation"
    assert "empty_cache" not in finding.remedy


def _eager(export: Export, *, count: int, every_ns: int, first: int = 0, name: str = "cudaLaunchKernel") -> None:
    for i in range(count):
        at = first + i * every_ns
        export.call(at, at + 4_000, first + i + 1, name)
        export.kernel("void at::native::add", at + 6_000, at + 9_000, first + i + 1)


def test_many_short_gaps_are_launch_bound_without_any_range(tmp_path: Path) -> None:
    export = Export()
    _eager(export, count=100, every_ns=30_000)
    analysis = _nsys(export, tmp_path)
    # One kernel again and again: nothing says that one launch passes on to the next what it writes.
    (finding,) = analysis.findings
    assert (finding.rule, finding.floor_ns, finding.max_gain) == ("launch_bound", 0, pytest.approx(9.91))
    assert "torch.compile" in finding.remedy
    assert _idle(analysis).queue == Queue(
        launches=100,
        call_ns=400_000,
        delay_median_ns=2_000,
        delay_p90_ns=2_000,
        depth_median=0.0,
        empty_share=1.0,
        short_share=1.0,
        graph_share=0.0,
        short_time_share=1.0,
    )


@pytest.mark.parametrize(
    ("names", "wanted", "unwanted"),
    [
        ({"kernel": "loop_add_fusion", "range": "XlaModule:#hlo_module=jit_step#"}, "jax.jit", "torch"),
        ({"kernel": "my_kernel", "range": "solve"}, "CUDA graph", "torch"),
    ],
)
def test_a_remedy_fits_the_framework(tmp_path: Path, names: dict[str, str], wanted: str, unwanted: str) -> None:
    export = Export()
    export.range(names["range"], 0, 3_000_000)
    for i in range(100):
        export.call(i * 30_000, i * 30_000 + 4_000, i + 1)
        export.kernel(names["kernel"], i * 30_000 + 6_000, i * 30_000 + 9_000, i + 1)
    finding = _nsys(export, tmp_path).findings[0]
    assert finding.rule == "launch_bound"
    assert (wanted in finding.remedy, unwanted in finding.remedy) == (True, False)


@pytest.mark.parametrize("waits", [True, False])
def test_waits_that_empty_the_queue_are_named_before_a_graph_that_cannot_be_captured_over_them(
    tmp_path: Path, waits: bool
) -> None:
    """A hundred kernels of 10 µs, each launched 50 µs after the last; after every fourth the host waits for it."""
    events = [event("user_annotation", "decode", "0", "6000")]
    for i in range(100):
        at = 60 * i
        _kernel(events, 2 * i + 1, at + 1, at + 8, 10)
        if waits and i % 4 == 3:
            events.append(event("cpu_op", "aten::nonzero", f"{at + 7}", "20"))
            events.append(event("cuda_runtime", "cudaStreamSynchronize", f"{at + 8}", "15", correlation=2 * i + 2))
    analysis = _torch(events, tmp_path)
    finding = analysis.findings[0]
    assert (finding.rule, "25 synchronizations" in finding.title) == ("launch_bound", waits)
    assert any("1.080 ms" in text and "aten::nonzero in decode" in text for text in finding.evidence) == waits
    assert (finding.hint == "Removing synchronizations from the loop") == waits
    assert rules(analysis) == ["launch_bound", *(["wait_bound"] if waits else [])]


def test_launch_calls_side_by_side_are_no_share_of_the_capture(tmp_path: Path) -> None:
    export = Export()
    for i in range(50):
        for thread, tid in enumerate((THREAD, OTHER_THREAD)):
            export.call(40_000 * i, 40_000 * i + 30_000, 2 * i + thread + 1, tid=tid)
            export.kernel("k", 40_000 * i + 31_000, 40_000 * i + 34_000, 2 * i + thread + 1)
    analysis = _nsys(export, tmp_path)
    queue = _idle(analysis).queue
    assert queue is not None and queue.call_ns > (analysis.gpu.span_ns or 0)
    finding = analysis.findings[0]
    assert (finding.rule, finding.share) == ("launch_bound", pytest.approx(1813 / 1963))
    assert queue.empty_share == 1.0
    (launches,) = [section for section in idle_sections(analysis) if section.title == "Launches, waits and steps"]
    assert launches.paragraphs[0].startswith("100 calls that launched kernels or graphs took 3.000 ms. Work started")


def test_a_gap_of_two_parts_is_told_by_both(tmp_path: Path) -> None:
    """Between the kernels of four requests the one's end takes 50 ms and the next one's beginning 40 ms."""
    export = Export()
    for i in range(4):
        at = 100 * i * MS
        export.range("preprocess", at, at + 40 * MS)
        export.call(at + 40 * MS, at + 40 * MS + 4_000, i + 1)
        export.kernel("k", at + 40 * MS + 6_000, at + 50 * MS, i + 1)
        export.range("postprocess", at + 50 * MS, at + 100 * MS)
    analysis = _nsys(export, tmp_path)
    assert rules(analysis) == ["host_work"]
    assert [(cell.owner, cell.time_ns, cell.count) for cell in cells_of(analysis, "idle.host")] == [
        (("postprocess",), 150_000_000, 3),
        (("preprocess",), 120_012_000, 3),
    ]


def test_a_graph_traced_as_a_whole_counts_by_its_time(tmp_path: Path) -> None:
    """Twenty steps of a graph of 100 µs and two kernels of 2 µs, each launched when the last has ended."""
    export = Export()
    for step in range(20):
        at = step * 300_000
        export.call(at, at + 10_000, 3 * step + 1, "cudaGraphLaunch_v10000")
        export.graph(at + 12_000, at + 112_000, 3 * step + 1)
        for i in (1, 2):
            export.call(at + 50_000 + 80_000 * i, at + 55_000 + 80_000 * i, 3 * step + i + 1)
            export.kernel("void at::native::add", at + 57_000 + 80_000 * i, at + 59_000 + 80_000 * i, 3 * step + i + 1)
    analysis = _nsys(export, tmp_path)
    queue = _idle(analysis).queue
    assert queue is not None
    assert (queue.graph_share, queue.graph_time_share) == (pytest.approx(1 / 3), pytest.approx(100 / 104))
    assert (analysis.findings[0].rule, analysis.findings[0].hint) == ("launch_bound", "Larger graphs")


def test_a_step_that_is_a_graph_is_not_told_to_become_one(tmp_path: Path) -> None:
    export = Export()
    for step in range(10):
        at = step * 400_000
        export.range("decode_step", at, at + 390_000)
        export.call(at, at + 5_000, step + 1, "cudaGraphLaunch_v10000")
        for i in range(25):
            export.kernel("void at::native::add", at + 200_000 + 2_000 * i, at + 201_500 + 2_000 * i, step + 1)
        export.call(at + 6_000, at + 380_000, 100 + step, "cudaStreamSynchronize_v3020")
    analysis = _nsys(export, tmp_path)
    queue = _idle(analysis).queue
    assert queue is not None and queue.graph_share == 1.0
    assert not any("torch.cuda.graph" in finding.remedy for finding in analysis.findings)


def test_a_range_whose_gpu_work_runs_on_after_it_is_not_judged(tmp_path: Path) -> None:
    export = Export()
    export.range("submit", 0, 1_000_000)
    export.call(900_000, 910_000, 500)
    for i in range(50):
        export.call(900_000 + 1_000 * i, 900_500 + 1_000 * i, i + 1)
        export.kernel("k", 950_000 + 40_000 * i, 990_000 + 40_000 * i, i + 1)
    assert rules(_nsys(export, tmp_path)) == []


def test_what_saves_less_than_a_hundredth_of_the_capture_is_not_listed(tmp_path: Path) -> None:
    export = Export()
    export.range("metrics", 0, 600_000)
    _eager(export, count=20, every_ns=30_000)
    export.call(610_000, 611_000, 900)
    export.kernel("long", 612_000, 100 * MS, 900)
    assert rules(_nsys(export, tmp_path)) == []


def test_copies_are_the_story_where_they_fill_the_capture(tmp_path: Path) -> None:
    export = Export()
    for i in range(10):
        at = i * 10 * MS
        export.call(at, at + 1_000, 2 * i + 1, "cudaMemcpyAsync_v3020")
        export.copy(at + 2_000, at + 9 * MS, 2 * i + 1, size_bytes=36 * MS, kind=1)
        export.call(at + 3_000, at + 4_000, 2 * i + 2)
        export.kernel("k", at + 9 * MS, at + 10 * MS, 2 * i + 2)
    analysis = _nsys(export, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.stake_ns, finding.cells) == (
        "exposed_memcpy",
        89_980_000,
        {"gpu.copy.h2d": 89_980_000},
    )
    # A quarter of what an old bus carries; kernels could hide 10 ms, and how few copies are needed is not known.
    assert "360 MB at 4.0 GB/s" in finding.evidence[1]
    assert "25 % of what PCIe 3.0 x16 carries" in finding.evidence[2]
    assert "at most 10.00 ms" in finding.evidence[3]
    assert (finding.floor_ns, finding.max_gain) == (None, None)


def _copying(tmp_path: Path, kind: int, memory: int) -> CaptureAnalysis:
    """Copies of 36 MB at 4 GB/s fill nine tenths of the capture; the export says what memory they are of."""
    export = Export()
    for i in range(10):
        at = i * 10 * MS
        export.call(at, at + 1_000, 2 * i + 1, "cudaMemcpyAsync_v3020")
        export.copy(at + 2_000, at + 9 * MS, 2 * i + 1, size_bytes=36 * MS, kind=kind)
        export.call(at + 3_000, at + 4_000, 2 * i + 2)
        export.kernel("k", at + 9 * MS, at + 10 * MS, 2 * i + 2)
    path = export.write(tmp_path / "capture.sqlite")
    connection = sqlite3.connect(path)
    for column in ("srcKind", "dstKind"):
        connection.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN {column} INTEGER DEFAULT {memory}")
    connection.execute("CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER, name TEXT, label TEXT)")
    kinds = [(0, "Pageable"), (1, "Pinned"), (2, "Device")]
    connection.executemany("INSERT INTO ENUM_CUDA_MEM_KIND VALUES (?, '', ?)", kinds)
    connection.commit()
    connection.close()
    return analyze_timelines([read_nsys_sqlite(path)])


def test_a_slow_copy_of_pinned_memory_is_not_called_pageable(tmp_path: Path) -> None:
    (finding,) = _copying(tmp_path, kind=1, memory=1).findings
    assert list(finding.cells) == ["gpu.copy.h2d.pinned"]
    assert finding.evidence[2].endswith("check the link")
    assert "pageable" not in " ".join((*finding.evidence, finding.remedy))


def test_copies_on_the_device_get_no_advice_about_host_memory(tmp_path: Path) -> None:
    (finding,) = _copying(tmp_path, kind=8, memory=2).findings
    assert (finding.rule, finding.confidence, list(finding.cells)) == ("device_copies", "high", ["gpu.copy.d2d"])
    assert "10 copies or sets in 89.98 ms, 360 MB at 4.0 GB/s" in finding.evidence[1]
    assert finding.hint == "Copying less on the device"
    assert "PCIe" not in " ".join(finding.evidence)


def test_a_range_that_waits_for_copies_is_told_with_what_was_copied(tmp_path: Path) -> None:
    export = Export()
    for i in range(10):
        at = i * 10 * MS
        export.range("load", at, at + 10 * MS)
        export.call(at, at + 1_000, 2 * i + 1, "cudaMemcpyAsync_v3020")
        export.copy(at + 2_000, at + 9 * MS, 2 * i + 1, size_bytes=36 * MS, kind=1)
        export.call(at + 3_000, at + 4_000, 2 * i + 2)
        export.kernel("k", at + 9 * MS, at + 10 * MS, 2 * i + 2)
    (finding,) = _nsys(export, tmp_path).findings
    assert "started in load: 10 copies, 89.98 ms" in finding.evidence


def _softmax_model(tmp_path: Path, middle: tuple[str, ...]) -> CaptureAnalysis:
    """Twenty layers of kernels back to back: a product, what is given, a product, a norm."""
    export = Export()
    number = at = 0
    for _ in range(20):
        for name in ("sm90_xmma_gemm_bf16", *middle, "sm90_xmma_gemm_bf16", "vectorized_layer_norm_kernel"):
            number += 1
            export.call(1_000 * number, 1_000 * number + 500, number)
            export.kernel(name, 100_000 + at, 100_000 + at + 50_000, number)
            at += 50_000
    return _nsys(export, tmp_path)


def test_a_softmax_between_two_products_is_attention_in_pieces(tmp_path: Path) -> None:
    softmax = "void (anonymous namespace)::cunn_SoftMaxForward<8, float>(float*)"
    mask = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
    found = [f for f in _softmax_model(tmp_path, (mask, softmax)).findings if f.rule == "unfused_attention"]
    # Two products of 50 µs remain of each four kernels.
    assert [(f.share, f.floor_ns) for f in found] == [(pytest.approx(0.8), 2_000_000)]
    assert found[0].max_gain == pytest.approx(5 / 3)
    assert "scaled_dot_product_attention" in found[0].remedy


@pytest.mark.parametrize("last", ["void at::native::sbtopk::gatherTopK<float>(float)", "nll_loss_forward_kernel"])
def test_a_router_or_a_loss_is_no_attention(tmp_path: Path, last: str) -> None:
    softmax = "void (anonymous namespace)::cunn_SoftMaxForward<8, float>(float*)"
    analysis = _softmax_model(tmp_path, (softmax, last))
    assert "unfused_attention" not in [finding.rule for finding in analysis.findings]


SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*)"


def _says_in_pieces(tmp_path: Path, layer: Sequence[tuple[str, str, int]], *, ends: str = "") -> bool:
    """Whether forty layers of kernels `(name, operator, µs)` back to back form unfused attention.

    `ends` is what each ends with: a call that waits, a gap or a copy to the host.
    """
    events: list[str] = []
    number, host, at = 0, 0.0, 1_000.0
    for batch in range(40):
        for name, operator, length in layer:
            number += 1
            events.append(event("cpu_op", operator, f"{host:.1f}", "8"))
            events.append(event("cuda_runtime", "cudaLaunchKernel", f"{host + 1:.1f}", "5", correlation=number))
            events.append(event("kernel", name, f"{at:.1f}", f"{length}", pid=0, tid=7, correlation=number, device=0))
            host, at = host + 10, at + length + 1
        if ends == "wait":
            events.append(event("cuda_runtime", "cudaStreamSynchronize", f"{host:.1f}", "2", correlation=9_000 + batch))
        elif ends == "gap":
            at += 600
        elif ends == "copy":
            events.append(event("cuda_runtime", "cudaMemcpyAsync", f"{host:.1f}", "2", correlation=9_000 + batch))
            lane = {"pid": 0, "tid": 7, "correlation": 9_000 + batch, "bytes": 40}
            events.append(event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", f"{at:.1f}", "5", **lane))
            at += 6
        host += 10
    return "unfused_attention" in [finding.rule for finding in _torch(events, tmp_path).findings]


@pytest.mark.parametrize(
    ("operator", "softmax_us", "is_attention"),
    [
        ("aten::bmm", 100, True),
        # Long heads on old GPUs: the operators leave no doubt.
        ("aten::bmm", 5, True),
        ("aten::baddbmm", 100, True),
        ("aten::mm", 100, True),
        ("aten::mm", 5, False),
        ("aten::linear", 100, False),
        ("aten::addmm", 100, False),
    ],
)
def test_products_of_attention_have_no_weights(
    tmp_path: Path, operator: str, softmax_us: int, is_attention: bool
) -> None:
    product = ("sm90_xmma_gemm_bf16", operator, 100)
    layer = [product, (SOFTMAX, "aten::softmax", softmax_us), product, ("vectorized_layer_norm_kernel", "x", 5)]
    assert _says_in_pieces(tmp_path, layer) == is_attention


def test_a_router_s_softmax_beside_fused_attention_is_no_attention_in_pieces(tmp_path: Path) -> None:
    product = ("sm90_xmma_gemm_bf16", "vllm::unknown", 100)
    router = [product, (SOFTMAX, "aten::softmax", 100), product]
    attention = ("void flash::flash_fwd_kernel<X>(flash::Flash_fwd_params)", "flash_attn::_flash_attn_forward", 100)
    assert not _says_in_pieces(tmp_path, [attention, *router])
    assert _says_in_pieces(tmp_path, router)


@pytest.mark.parametrize(("ends", "is_attention"), [("", True), ("wait", False), ("gap", False), ("copy", False)])
def test_the_softmax_that_ends_a_batch_belongs_to_no_product_of_the_next(
    tmp_path: Path, ends: str, is_attention: bool
) -> None:
    product = ("sm90_xmma_gemm_bf16", "aten::mm", 50)
    batch = [product, ("vectorized_layer_norm_kernel", "x", 5), product, (SOFTMAX, "aten::softmax", 50)]
    assert _says_in_pieces(tmp_path, batch, ends=ends) == is_attention


@pytest.mark.parametrize(
    ("mark", "advice"),
    [
        (event("python_function", "vllm/v1/worker/gpu_model_runner.py(1): execute", "0", "9900"), "enforce_eager"),
        (event("python_function", "/opt/sglang/srt/model.py(1): f", "0", "9900"), "--disable-cuda-graph"),
        (event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", "0", "9"), "larger micro-batch"),
        (event("cpu_op", "aten::conv2d", "0", "9"), "torch.cuda.graph, with fixed shapes"),
    ],
)
def test_launch_advice_fits_the_program(tmp_path: Path, mark: str, advice: str) -> None:
    events = [mark]
    for i in range(100):
        _kernel(events, i + 1, 100 * i, 100 * i + 10, 5)
    (finding,) = _torch(events, tmp_path).findings
    assert finding.rule == "launch_bound"
    assert advice in finding.remedy
    assert "KV cache" not in finding.remedy


def test_a_capture_of_copies_alone_promises_no_speed_up(tmp_path: Path) -> None:
    export = Export()
    for i in range(10):
        export.call(MS * i, MS * i + 1_000, i + 1, "cudaMemcpy_v3020")
        export.copy(MS * i + 2_000, MS * i + 900_000, i + 1, size_bytes=8 * MS, kind=1)
    analysis = _nsys(export, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.max_gain) == ("exposed_memcpy", None)
    assert finding.share == pytest.approx(0.907, abs=0.001)
    assert "no kernel" in finding.title
    assert analysis.notes == ("capture.sqlite: no GPU kernel was recorded, only copies and sets",)


def test_many_small_copies_are_counted_and_go_over_the_bus_whatever_rocm_calls_them(tmp_path: Path) -> None:
    events: list[str] = []
    for i in range(50):
        _kernel(events, i + 1, 100 * i, 100 * i + 10, 20)
        events.append(event("cuda_runtime", "hipMemcpyWithStream", f"{100 * i + 30}", "60", correlation=1000 + i))
        where = {"pid": 0, "tid": 7, "device": 0}
        events.append(
            event("gpu_memcpy", "CopyDeviceToHost", f"{100 * i + 40}", "40", correlation=1000 + i, bytes="64", **where)
        )
    found = claim_of(_torch(events, tmp_path), "exposed_memcpy")
    assert list(found.cells) == ["gpu.copy.d2h"]
    assert "50 copies in 2.000 ms, 64.00 B each" in found.evidence[1]
    assert found.hint == "Fewer small copies"


def test_idle_time_without_recorded_launches_is_told_as_unexplained(tmp_path: Path) -> None:
    events = [event("kernel", "gemm", f"{100 * i}", "20", pid=0, tid=7) for i in range(60)]
    analysis = _torch(events, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.cells) == ("not_recorded", {"idle.unrecorded_launch": 4_720_000})
    assert (finding.confidence, finding.max_gain) == ("low", None)
    # Nothing recorded is an answer: with the command that records it.
    assert diagnosis_of(analysis).verdict.kind == "not_recorded"
    assert "ProfilerActivity.CPU" in finding.remedy


def test_one_kernel_over_and_over_is_a_loop_where_there_is_no_other(tmp_path: Path) -> None:
    export = Export()
    for i in range(20):
        export.call(5 * MS * i, 5 * MS * i + 1_000, i + 1)
        export.kernel("solve", 5 * MS * i + 2_000, 5 * MS * i + 3 * MS, i + 1)
    steps = _idle(_nsys(export, tmp_path)).iterations
    assert steps is not None
    assert (steps.how, steps.count, steps.kernels_each) == ("by the repeated kernel solve", 19, 1)
    assert steps.median_ns == 5 * MS


def test_several_calls_explain_a_gap_together(tmp_path: Path) -> None:
    export = Export()
    for i in range(40):
        at = 5 * MS * i
        export.call(at, at + 1_800_000, 700 + i, "cudaMalloc_v3020")
        export.call(at + 2 * MS, at + 2 * MS + 5_000, i + 1)
        export.kernel("k", at + 2 * MS + 8_000, at + 3 * MS, i + 1)
        export.call(at + 3 * MS, at + 4 * MS, 800 + i, "cudaHostAlloc_v3020")
    analysis = _nsys(export, tmp_path)
    assert rules(analysis) == ["allocation"]
    assert claim_of(analysis, "allocation").share == pytest.approx(0.797, abs=0.001)
    assert owner_of(analysis, "idle.allocation") == ("cudaMalloc",)


def test_graphs_traced_as_a_whole_wait_for_launches_like_kernels(tmp_path: Path) -> None:
    export = Export()
    for i in range(50):
        export.call(2 * MS * i, 2 * MS * i + 30_000, i + 1, "cudaGraphLaunch_v10000")
        export.graph(2 * MS * i + 40_000, 2 * MS * i + 1_800_000, i + 1)
    (finding,) = _nsys(export, tmp_path).findings
    assert (finding.rule, finding.hint) == ("launch_bound", "Larger graphs")
    assert finding.share == pytest.approx(0.118, abs=0.001)


def _gaps_before(kernel: str, tmp_path: Path, *, loads: bool, times: int) -> CaptureAnalysis:
    """Kernels every 0.1 ms, and as often as said 40 ms in which nothing is recorded but a short load of code."""
    export, at = Export(), 0
    for i in range(2 * times):
        for _ in range(20):
            number = len(export.calls) + 1
            export.call(at, at + 5_000, number)
            export.kernel("gemm", at + 8_000, at + 90_000, number)
            at += 100_000
        if i % 2:
            continue
        if loads:
            export.call(at + 39 * MS, at + 39 * MS + 50_000, 100_000 + i, "cuLibraryLoadData")
        number = len(export.calls) + 1
        export.call(at + 40 * MS, at + 40 * MS + 5_000, number, "cuLaunchKernelEx")
        export.kernel(kernel, at + 40 * MS + 8_000, at + 40 * MS + 60_000, number)
        at += 40 * MS + 100_000
    return _nsys(export, tmp_path)


@pytest.mark.parametrize(
    ("kernel", "loads", "times", "rule"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90", True, 12, "recompilation"),
        ("cudnn_generated_fort_native_sdpa_sm90", True, 3, "compilation"),
        ("cudnn_generated_fort_native_sdpa_sm90", False, 12, "not_recorded"),
        ("triton_poi_fused_add_0", True, 12, "recompilation"),
        ("triton_poi_fused_add_0", True, 3, "compilation"),
        ("gather_kernel", True, 12, "not_recorded"),
    ],
)
def test_a_gap_that_ends_with_code_being_loaded_is_no_riddle(
    tmp_path: Path, kernel: str, loads: bool, times: int, rule: str
) -> None:
    analysis = _gaps_before(kernel, tmp_path, loads=loads, times=times)
    first = analysis.findings[0]
    assert (first.rule, first.is_one_time) == (rule, rule == "compilation")
    (cell,) = cells_of(analysis, next(iter(first.cells)))
    assert cell.owner == (() if rule == "not_recorded" else (kernel,))


@pytest.mark.parametrize(
    ("other", "hint", "says_fuse"),
    [
        ("at::native::reduce_kernel", "CUDA graphs or torch.compile", True),
        ("triton_poi_fused_add_0", "CUDA graphs", False),
    ],
)
def test_a_compiled_program_is_not_told_to_compile(tmp_path: Path, other: str, hint: str, says_fuse: bool) -> None:
    export = Export()
    for i in range(100):
        at = 100_000 * i
        export.call(at, at + 5_000, i + 1)
        export.kernel("at::native::vectorized_elementwise_kernel" if i % 2 else other, at + 8_000, at + 20_000, i + 1)
    (finding,) = [found for found in _nsys(export, tmp_path).findings if found.rule == "launch_bound"]
    assert (finding.hint, "fuse elementwise kernels" in finding.remedy) == (hint, says_fuse)


def test_synchronisation_is_told_by_call_and_place(tmp_path: Path) -> None:
    export = Export()
    for i in range(10):
        at = i * MS
        export.range(f"step {i}", at, at + 950_000)
        export.call(at, at + 1_000, 2 * i + 1)
        export.kernel("k", at + 2_000, at + 300_000, 2 * i + 1)
        export.call(at + 2_000, at + 900_000, 2 * i + 2, "cudaStreamSynchronize_v3020")
    analysis = _nsys(export, tmp_path)
    assert _idle(analysis).waits == (
        WaitRow(
            call="cudaStreamSynchronize",
            count=10,
            total_ns=8_980_000,
            gpu_idle_ns=6_000_000,
            places=("step N",),
            refill_ns=9 * 102_000,
        ),
    )
    assert analysis.findings[0].rule == "wait_bound"


def test_launched_work_that_does_not_start_is_not_the_host_s_fault(tmp_path: Path) -> None:
    export = Export()
    for i in range(5):
        at = i * 10 * MS
        # Launched while the one before still runs.
        launched = max(0, at - 2 * MS)
        export.call(launched, launched + 1_000, i + 1)
        export.kernel("ncclDevKernel_AllReduce", at + 6 * MS, at + 9 * MS, i + 1)
    (finding,) = _nsys(export, tmp_path).findings
    assert (finding.rule, finding.share, finding.confidence) == ("late_starts", pytest.approx(28 / 43), "medium")


def test_steps_are_found_by_the_kernels_that_repeat_with_their_outliers(tmp_path: Path) -> None:
    export = Export()
    at, number = 0, 0
    for step in range(12):
        for name in ("embed", "gemm", "gemm", "sample"):
            number += 1
            export.call(at, at + 100, number)
            export.kernel(name, at + 200, at + 900, number)
            at += 1_000
        at += 50_000 if step == 5 else 0
    assert _idle(_nsys(export, tmp_path)).iterations == Iterations(
        how="by the repeated kernel embed",
        count=11,
        kernels_each=4,
        median_ns=4_000,
        p25_ns=4_000,
        p75_ns=4_000,
        outliers=(Outlier(index=5, length_ns=54_000),),
    )


def test_steps_marked_by_the_profiler_are_taken_as_they_are(tmp_path: Path) -> None:
    events = [event("user_annotation", f"ProfilerStep#{i}", f"{1000 * i}", f"{900 + i}") for i in range(5)]
    for i in range(5):
        _kernel(events, i + 1, 1000 * i + 10, 1000 * i + 20, 50)
    steps = _idle(_torch(events, tmp_path)).iterations
    assert steps is not None
    assert (steps.how, steps.count, steps.median_ns, steps.outliers) == (
        "marked as ProfilerStep",
        5,
        902_000,
        (),
    )


def test_confidence_follows_from_instances_spread_and_evidence() -> None:
    assert confidence_of(1, share=0.99) == "medium"
    assert confidence_of(1, share=0.5) == "low"
    assert confidence_of(10, share=0.9, spread=0.1) == "high"
    assert confidence_of(10, share=0.9, spread=0.8) == "medium"


def test_a_single_late_start_promises_nothing(tmp_path: Path) -> None:
    export = Export()
    for number, start in ((1, 10_000), (2, 463 * MS)):
        export.call(1_000 * number, 1_000 * number + 500, number, "hipGraphLaunch")
        export.kernel("k", start, start + 5 * MS, number)
    (finding,) = _nsys(export, tmp_path).findings
    assert (finding.rule, finding.confidence, finding.max_gain) == ("late_starts", "low", None)


def _gaps_of_9_ms() -> Export:
    """Five kernels of 1 ms, launched every 10 ms."""
    export = Export()
    for i in range(5):
        export.call(i * 10 * MS, i * 10 * MS + 1_000, i + 1)
        export.kernel("k", i * 10 * MS + 1_000, i * 10 * MS + MS, i + 1)
    return export


def test_a_system_call_of_the_thread_that_launches_explains_a_gap(tmp_path: Path) -> None:
    export = _gaps_of_9_ms()
    for i in range(4):
        export.system_call("read", i * 10 * MS + 2 * MS, (i + 1) * 10 * MS - 1_000)
        export.system_call("poll", i * 10 * MS, (i + 1) * 10 * MS, tid=OTHER_THREAD)
    analysis = _nsys(export, tmp_path)
    assert rules(analysis) == ["data_loading"]
    assert owner_of(analysis, "idle.data_loading") == ("read",)


def test_an_allocation_is_kept_where_it_is_long_enough_to_explain_a_gap(tmp_path: Path) -> None:
    export = _gaps_of_9_ms()
    for i in range(4):
        export.call(i * 10 * MS + 2 * MS, (i + 1) * 10 * MS - 1_000, 100 + i, "cudaMalloc_v3020")
        export.call(i * 10 * MS + 1_500, i * 10 * MS + 1_600, 200 + i, "cudaMalloc_v3020")
    analysis = _nsys(export, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.share) == ("allocation", pytest.approx(36_004 / 40_999))
    assert owner_of(analysis, "idle.allocation") == ("cudaMalloc",)
    assert "cudaMallocAsync" in finding.remedy
    # A call that only prepares is not a launch, however long it is kept.
    queue = _idle(analysis).queue
    assert queue is not None and (queue.launches, queue.call_ns) == (5, 5_000)


def test_repetitions_share_their_reasons_and_keep_their_gaps_apart(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        export = _gaps_of_9_ms()
        export.range("load", 2 * MS, 10 * MS - 1_000)
        paths.append(export.write(tmp_path / f"{number}.sqlite"))
    idle = _idle(analyze_timelines([read_nsys_sqlite(path) for path in paths]))
    assert [(r.name, r.gaps) for r in idle.gaps.reasons] == [(None, 6), ("load", 2)]
    assert sorted({gap.source for gap in idle.gaps.longest}) == [0, 1]
    assert (idle.gaps.long_count, len(idle.gaps.longest)) == (8, 8)


@pytest.mark.parametrize(
    ("name", "found"), [("CUPTI: Buffer flush", "profiler_pauses"), ("Lazy Function Loading", "compilation")]
)
def test_a_pause_of_the_profiler_is_no_work_of_the_host(tmp_path: Path, name: str, found: str) -> None:
    export = _gaps_of_9_ms()
    for i in range(4):
        export.pause(name, i * 10 * MS + 2 * MS, (i + 1) * 10 * MS - 1_000)
    analysis = _nsys(export, tmp_path)
    assert rules(analysis) == [found]
    claim = claim_of(analysis, found)
    assert (claim.max_gain, claim.stake_ns) == (None, 36_004_000)


def test_a_flush_in_a_torch_trace_is_the_profiler_s(tmp_path: Path) -> None:
    events: list[str] = []
    for i in range(5):
        _kernel(events, i + 1, 10_000 * i, 10_000 * i + 10, 1_000)
        events.append(event("overhead", "Buffer Flush", f"{10_000 * i + 1_500}", "8000", pid=-1, tid=0))
    analysis = _torch(events, tmp_path)
    assert rules(analysis) == ["profiler_pauses"]
    assert claim_of(analysis, "profiler_pauses").max_gain is None
    assert [(r.verdict, r.name, r.gaps) for r in _idle(analysis).gaps.reasons] == [("profiler", "Buffer Flush", 4)]


def test_a_kernel_that_only_a_tuner_runs_tells_that_the_gap_is_tuning(tmp_path: Path) -> None:
    export = Export()
    for i in range(6):
        export.call(i * 10 * MS, i * 10 * MS + 1_000, i + 1)
        export.kernel("gemm" if i % 2 else "redzone_checker", i * 10 * MS + 1_000, i * 10 * MS + MS, i + 1)
    analysis = _nsys(export, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.is_one_time) == ("compilation", True)
    assert owner_of(analysis, "idle.startup.autotuning") == ("redzone_checker",)


def _two_streams(*, overlap: bool, streams: tuple[int, int] = (7, 13)) -> Export:
    """Forty kernels of 100 µs, all launched ahead, on two streams in turn."""
    export = Export()
    for i in range(40):
        at = 1 * MS + (i // 2 if overlap else i) * 100_000
        export.call(i * 1_000, i * 1_000 + 500, i + 1)
        export.kernel("k", at, at + 100_000, i + 1, stream=streams[i % 2])
    return export


def test_streams_that_run_one_after_the_other_are_told(tmp_path: Path) -> None:
    analysis = _nsys(_two_streams(overlap=False), tmp_path)
    finding = claim_of(analysis, "serial_streams")
    # How much of the GPU these kernels fill is not known: no factor.
    assert (finding.confidence, finding.max_gain) == ("low", None)
    assert "2 streams" in finding.title and "50 %" in finding.title
    assert analysis.streams is not UNSET
    assert analysis.streams.rows == tuple(
        StreamRow(
            source=0,
            process=0,
            device=0,
            stream=stream,
            kernel_count=20,
            busy_ns=2 * MS,
            copy_ns=0,
            span_ns=4 * MS,
        )
        for stream in (7, 13)
    )


@pytest.mark.parametrize("export", [_two_streams(overlap=True), _two_streams(overlap=False, streams=(7, 7))])
def test_streams_that_overlap_and_single_ones_raise_no_alarm(tmp_path: Path, export: Export) -> None:
    assert rules(_nsys(export, tmp_path)) == []


def test_a_program_with_one_stream_has_no_table_of_streams(tmp_path: Path) -> None:
    assert _nsys(_two_streams(overlap=False, streams=(7, 7)), tmp_path).streams is UNSET


def test_streams_of_a_torch_trace_are_read_where_they_are_numbers(tmp_path: Path) -> None:
    events = []
    for i, stream in enumerate((7, 20, "none", 7)):
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{10 * i}", "5", correlation=i + 1, stream=[1]))
        at = f"{100 + 10 * i}"
        events.append(event("kernel", "gemm", at, "10", pid=0, tid=7, correlation=i + 1, device=0, stream=stream))
    streams = _torch(events, tmp_path).streams
    assert streams is not UNSET
    assert [(row.stream, row.kernel_count) for row in streams.rows] == [(7, 2), (-1, 1), (20, 1)]


def test_queue_waits_and_steps_are_those_of_all_captures(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        export = Export()
        _eager(export, count=10, every_ns=30_000)
        for i in range(5 + number):
            export.call(20_000 + i * 30_000, 21_000 + i * 30_000, 100 + i, "cudaDeviceSynchronize_v3020")
        # What waits before the first work or after the last delays none.
        export.call(MS, MS + 500_000, 99, "cudaDeviceSynchronize_v3020")
        paths.append(export.write(tmp_path / f"{number}.sqlite"))
    idle = _idle(analyze_timelines([read_nsys_sqlite(path) for path in paths]))
    assert idle.queue is not None and (idle.queue.launches, idle.queue.call_ns) == (20, 80_000)
    assert [(row.call, row.count, row.total_ns) for row in idle.waits] == [("cudaDeviceSynchronize", 11, 11_000)]


@pytest.mark.parametrize(
    ("name", "verdict", "cost"),
    [
        ("epoll_wait", "host_wait", "wait"),
        ("pthread_cond_timedwait", "host_wait", "lock"),
        ("threading.py(324): wait", "host_wait", "lock"),
        ("multiprocessing/queues.py(103): get", "host_wait", "process"),
        ("subprocess.py(1209): wait", "host_wait", "process"),
        ("socket.py(705): accept", "host_wait", "network"),
        ("recvfrom", "host_wait", "network"),
        ("<built-in function sleep>", "host_wait", "sleep"),
        ("clock_nanosleep", "host_wait", "sleep"),
        ("pread64", "data_loading", "disk"),
        ("fsync", "host_work", "disk"),
        ("MPI:MPI_Allreduce", "rank_wait", "rank_wait"),
        ("MPI_Waitall", "rank_wait", "rank_wait"),
        ("data", "data_loading", "data_loading"),
        ("database_update", "host_work", "host_work"),
        ("cuModuleLoadData", "compilation", "module_loading"),
        ("cublasCreate_v2", "compilation", "context"),
        ("nvrtcCompileProgram", "compilation", "jit_compilation"),
        ("triton/runtime/autotuner.py(140): _bench", "compilation", "autotuning"),
        ("torch/_inductor/runtime/triton_heuristics.py(800): benchmark_all_configs", "compilation", "autotuning"),
        ("cudaLaunchKernel", "compilation", "first_use"),
        ("cudaFree", "allocation", "allocation"),
    ],
)
def test_a_gap_is_judged_by_its_name(name: str, verdict: Verdict, cost: HostCost) -> None:
    found = judge([name], near=[name])
    assert (found.verdict, found.cost) == (verdict, cost)


def test_a_server_that_waits_for_requests_is_promised_nothing(tmp_path: Path) -> None:
    export = _gaps_of_9_ms()
    for i in range(4):
        export.system_call("epoll_wait", i * 10 * MS + 2 * MS, (i + 1) * 10 * MS - 1_000)
    analysis = _nsys(export, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.max_gain) == ("host_blocked", None)
    assert owner_of(analysis, "idle.blocked") == ("epoll_wait",)
    assert "a server without requests" in finding.remedy


def test_an_early_export_without_processes_still_finds_the_launches(tmp_path: Path) -> None:
    export = Export()
    _eager(export, count=50, every_ns=30_000)
    path = export.write(tmp_path / "old.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")
    database.close()
    analysis = analyze_timelines([read_nsys_sqlite(path)])
    assert [finding.rule for finding in analysis.findings] == ["launch_bound"]
    assert analysis.notes == ()


def test_processes_that_share_a_gpu_are_said_to_do_so(tmp_path: Path) -> None:
    export = Export()
    for i in range(40):
        pid = PID * (1 + i % 2)
        export.call(i * 50_000, i * 50_000 + 4_000, i + 1, tid=pid | 1)
        export.kernel("k", i * 50_000 + 6_000, i * 50_000 + 46_000, i + 1, pid=pid)
    assert _nsys(export, tmp_path).notes == (
        "capture.sqlite: several processes worked on what each calls GPU 0: busy and idle are each process's own, and "
        "where that is one GPU another process may have used it meanwhile",
    )


@pytest.mark.parametrize(
    ("ahead", "stake_ns", "gain"), [(True, 40_000_000, 99.998 / 59.998), (False, 4_013_500, 99.998 / 95.9845)]
)
def test_communication_beside_which_nothing_runs_is_told(
    tmp_path: Path, ahead: bool, stake_ns: int, gain: float
) -> None:
    """Launched ahead, or 1 ms before the work of a step: then the host is what the next step waits for."""
    export = Export()
    for i in range(10):
        at = i * 10 * MS
        for number, (name, start, end, stream) in enumerate(
            [("gemm", 0, 6 * MS, 7), ("ncclDevKernel_AllReduce_Sum_bf16", 5 * MS, 10 * MS, 20)]
        ):
            call = 2 * i + number + 1
            launched = 1_000 * call if ahead else max(at - MS, 0) + 1_000 * number
            export.call(launched, launched + 500, call)
            export.kernel(name, at + start + 2_000, at + end, call, stream=stream)
    analysis = _nsys(export, tmp_path)
    (finding,) = [f for f in analysis.findings if f.rule != "hottest_kernel"]
    assert finding.rule == "exposed_communication"
    (cell,) = cells_of(analysis, "gpu.communication")
    assert cell.time_ns == 40_000_000
    assert (finding.stake_ns, finding.floor_ns) == (stake_ns, 0)
    assert finding.max_gain == pytest.approx(gain, rel=1e-3)
    assert (finding.caveat is not None and "hidden behind the host" in finding.caveat) == (not ahead)


def test_a_wait_for_launched_work_that_does_not_start_is_a_wait_and_promises_nothing(tmp_path: Path) -> None:
    """The previous step, given to the GPU before the recording began, is what a blocking copy waits for."""
    events = [
        event("cuda_runtime", "hipLaunchKernel", "0", "5", correlation=1),
        event("kernel", "arange", "10", "5", pid=0, tid=7, correlation=1, device=0),
        event("cuda_runtime", "hipLaunchKernel", "20", "5", correlation=2),
        event("cuda_runtime", "hipMemcpyWithStream", "30", "463000", correlation=3),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Host)", "463020", "5", pid=0, tid=7, correlation=3, bytes="256"),
        event("kernel", "resolve_future_token_ids", "463000", "10", pid=0, tid=7, correlation=2, device=0),
        event("cuda_runtime", "hipGraphLaunch", "463050", "50", correlation=4),
        event("kernel", "Cijk_Alik_Bljk_BBS", "463200", "9000", pid=0, tid=7, correlation=4, device=0),
    ]
    analysis = _torch(events, tmp_path)
    assert analysis.gpu.idle is not None
    assert analysis.gpu.idle.waiting_for_copy_or_sync_ns > 0.99 * (analysis.gpu.idle_ns or 0)
    (finding,) = analysis.findings
    assert (finding.rule, finding.max_gain, finding.confidence) == ("held_sync", None, "low")
    assert (finding.is_one_time, "hipMemcpyWithStream" in finding.title) == (False, True)
    assert finding.share == pytest.approx(0.98, abs=0.001)


def test_copies_are_no_launches_and_a_graph_is_one(tmp_path: Path) -> None:
    export = Export()
    for i in range(4):
        at = i * MS
        export.call(at, at + 900_000, 10 * i, "cudaMemcpyAsync")
        export.copy(at + 10_000, at + 890_000, 10 * i)
        export.call(at + 905_000, at + 910_000, 10 * i + 1, "cudaGraphLaunch")
        for node in range(5):
            export.kernel("gemm", at + 912_000 + 12_000 * node, at + 923_000 + 12_000 * node, 10 * i + 1)
    queue = _idle(_nsys(export, tmp_path)).queue
    assert queue is not None
    assert (queue.launches, queue.call_ns, queue.delay_median_ns, queue.graph_share) == (4, 20_000, 2_000, 1.0)
    assert (queue.short_share, queue.short_time_share) == (0.0, 0.0)


def test_kernels_a_compiler_has_fused_are_not_told_to_be_fused(tmp_path: Path) -> None:
    def chains(name: str) -> list[str]:
        (tmp_path / "capture.sqlite").unlink(missing_ok=True)
        export = Export()
        for i in range(120):
            export.call(i * 2_000, i * 2_000 + 1_000, i + 1)
            export.kernel(name if i % 3 else "nvjet_tst_128x64", i * 20_000 + 5_000, i * 20_000 + 24_000, i + 1)
        return rules(_nsys(export, tmp_path))

    assert chains("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>") == [
        "unfused_elementwise"
    ]
    assert chains("triton_poi_fused_add_mul_2") == []


def test_late_starts_in_a_job_of_several_ranks_name_the_other_ranks(tmp_path: Path) -> None:
    events: list[str] = []
    for i in range(6):
        at = 20_000 * i
        name = "ncclKernel_SendRecv" if i % 2 else "gemm"
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at}", "5", correlation=i + 1))
        events.append(event("kernel", name, f"{at + 15_000}", "4000", pid=0, tid=7, correlation=i + 1, device=0))
    job = '"distributedInfo": {"rank": 0, "world_size": 128}'
    path = write_trace(tmp_path / "t.json", events, after=job)
    found = [f for f in analyze_timelines([read_torch_trace(path).timeline]).findings if f.rule == "late_starts"]
    assert len(found) == 1
    assert "captures of the other ranks" in found[0].remedy
