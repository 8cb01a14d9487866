"""Which range owns the work that other threads launch for it, in small captures worked out by hand."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.capture.idle import map_idle
from llm_perf_opt.capture.operators import module_rows, module_shares, module_tree, operator_rows
from llm_perf_opt.capture.ownership import find_ownership, place_unlaunched
from llm_perf_opt.capture.ranges import measure_ranges
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.rows import RangeRow
from llm_perf_opt.capture.timeline import Timeline
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from tests.support.fixtures_dir import shared_fixtures
from tests.support.nsys_builder import OTHER_THREAD, PID, THREAD, Export
from tests.support.trace_builder import event, write_trace

AUTOGRAD, WORKER, PREFETCHER = 11, PID | 3, PID | 4


def _row(analysis: CaptureAnalysis, name: str) -> RangeRow:
    return next(row for row in analysis.ranges if row.name == name)


def _counts(analysis: CaptureAnalysis) -> dict[str, tuple[int, int]]:
    return {row.name: (row.kernel_count, row.kernel_ns) for row in analysis.ranges}


def _launches(export: Export, starts: range, tid: int, *, pid: int = PID) -> None:
    """A call of 2 and its kernel of 3 at every start."""
    for start in starts:
        number = len(export.calls) + 1
        export.call(start, start + 2, number, tid=tid)
        export.kernel("k", start + 3, start + 6, number, pid=pid, stream=tid & 15)


def _step(export: Export, *, tid: int = THREAD, base: int = 0) -> None:
    """A forward of eight launches, then 100 in which the thread does nothing, and four launches of an optimizer."""
    export.range("step", base, base + 240, tid=tid)
    export.range("forward", base, base + 90, tid=tid)
    export.range("backward", base + 95, base + 195, tid=tid)
    export.range("optimizer", base + 200, base + 240, tid=tid)
    _launches(export, range(base, base + 80, 10), tid)
    _launches(export, range(base + 200, base + 240, 10), tid)


def _launch(at: int, *, tid: int, number: int) -> list[str]:
    """A launch of 2 µs and its kernel of 4."""
    return [
        event("cuda_runtime", "cudaLaunchKernel", f"{at}.000", "2.000", tid=tid, correlation=number),
        event("kernel", "k", f"{at + 3}.000", "4.000", pid=0, tid=7, correlation=number, device=0, stream=7),
    ]


def _training(folder: Path, *more: str) -> Timeline:
    return read_torch_trace(_training_file(folder, *more)).timeline


def _training_file(folder: Path, *more: str) -> Path:
    """A forward of two launches; a backward of one on its own thread and three on autograd's, two in an all-reduce."""
    node = "autograd::engine::evaluate_function: MulBackward0"
    events = [
        event("user_annotation", "step", "0.000", "100.000"),
        event("user_annotation", "backward", "40.000", "50.000"),
        event("cpu_op", "aten::mul", "8.000", "25.000"),
        *_launch(10, tid=10, number=1),
        *_launch(20, tid=10, number=2),
        *_launch(41, tid=10, number=3),
        event("cpu_op", node, "49.000", "4.000", tid=AUTOGRAD),
        *_launch(50, tid=AUTOGRAD, number=4),
        event("cpu_op", node, "59.000", "20.000", tid=AUTOGRAD),
        event("user_annotation", "nccl:all_reduce", "60.000", "15.000", tid=AUTOGRAD),
        *_launch(61, tid=AUTOGRAD, number=5),
        *_launch(68, tid=AUTOGRAD, number=6),
        *more,
    ]
    return write_trace(folder / "t.json", events)


def test_a_range_owns_what_autograd_launches_for_it_on_its_own_thread(tmp_path: Path) -> None:
    analysis = analyze_timelines([_training(tmp_path)])
    assert _counts(analysis) == {"step": (6, 24_000), "backward": (4, 16_000), "nccl:all_reduce": (2, 8_000)}
    backward = _row(analysis, "backward")
    assert (backward.gpu_busy_ns, backward.launch_calls, backward.launch_ns) == (16_000, 4, 8_000)
    assert [_row(analysis, name).parent for name in ("step", "backward", "nccl:all_reduce")] == [
        None,
        "step",
        "backward",
    ]
    assert backward.kernels is not None
    assert [(kernel.name, kernel.instances) for kernel in backward.kernels] == [("k", 4)]


def test_a_helper_s_range_that_outlasts_its_cause_belongs_to_the_range_around_both(tmp_path: Path) -> None:
    late = [
        event("cpu_op", "autograd::engine::evaluate_function: MulBackward0", "84.000", "12.000", tid=AUTOGRAD),
        event("user_annotation", "hook", "85.000", "10.000", tid=AUTOGRAD),
        *_launch(86, tid=AUTOGRAD, number=7),
    ]
    analysis = analyze_timelines([_training(tmp_path, *late)])
    found = {row.name: (row.kernel_count, row.parent) for row in analysis.ranges}
    assert found == {
        "step": (7, None),
        "backward": (4, "step"),
        "nccl:all_reduce": (2, "backward"),
        "hook": (1, "step"),
    }


def test_a_warm_up_holds_the_ranges_of_the_thread_that_works_for_it(tmp_path: Path) -> None:
    analysis = analyze_timelines([_training(tmp_path, event("user_annotation", "warmup", "45.000", "40.000"))])
    assert {row.name for row in analysis.ranges} == {"step", "backward"}
    assert any("2 warm-up ranges" in note for note in analysis.notes)


def test_two_threads_that_may_have_called_backward_are_said_and_not_chosen_between(tmp_path: Path) -> None:
    other = [
        event("user_annotation", "other step", "0.000", "100.000", tid=12),
        event("cpu_op", "aten::mul", "14.000", "8.000", tid=12),
        *_launch(15, tid=12, number=8),
    ]
    analysis = analyze_timelines([_training(tmp_path, *other)])
    assert _counts(analysis) == {
        "step": (3, 12_000),
        "other step": (1, 4_000),
        "backward": (1, 4_000),
        "nccl:all_reduce": (2, 8_000),
    }
    said = "t.json: 3 launches of a thread without ranges could belong to ranges of several threads"
    assert any(note.startswith(said) for note in analysis.notes)


def test_a_thread_that_hardly_launches_did_not_run_the_forward(tmp_path: Path) -> None:
    """A prefetcher with one launch against the twelve of autograd has not called backward."""
    more = [part for i in range(9) for part in _launch(80 + i, tid=AUTOGRAD, number=20 + i)]
    prefetch = [event("user_annotation", "prefetch", "0.000", "100.000", tid=12), *_launch(15, tid=12, number=40)]
    analysis = analyze_timelines([_training(tmp_path, *more, *prefetch)])
    assert {row.name: row.kernel_count for row in analysis.ranges} == {
        "step": 15,
        "backward": 13,
        "nccl:all_reduce": 2,
        "prefetch": 1,
    }


def test_an_export_without_operators_knows_a_helper_by_its_bursts(tmp_path: Path) -> None:
    export = Export()
    _step(export)
    _launches(export, range(100, 190, 10), OTHER_THREAD)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))])
    assert _counts(analysis) == {"step": (21, 63), "forward": (8, 24), "backward": (9, 27), "optimizer": (4, 12)}


def test_workers_of_a_data_parallel_forward_launch_for_the_range_that_waits_for_them(tmp_path: Path) -> None:
    export = Export()
    _step(export)
    _launches(export, range(100, 190, 10), OTHER_THREAD)
    _launches(export, range(101, 191, 10), WORKER)
    row = _row(analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))]), "backward")
    assert (row.kernel_count, row.kernel_ns, row.gpu_busy_ns) == (18, 54, 36)


def test_a_thread_that_launches_while_the_other_does_works_for_itself(tmp_path: Path) -> None:
    export = Export()
    _step(export)
    _launches(export, range(4, 84, 10), OTHER_THREAD)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))])
    assert _counts(analysis) == {"step": (12, 36), "forward": (8, 24), "backward": (0, 0), "optimizer": (4, 12)}


def test_a_thread_that_waits_for_the_gpu_is_not_blocked_by_another_thread(tmp_path: Path) -> None:
    export = Export()
    _step(export)
    export.call(97, 193, 900, name="cudaDeviceSynchronize")
    _launches(export, range(100, 190, 10), OTHER_THREAD)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))])
    assert _counts(analysis)["backward"] == (0, 0)


def test_workers_with_ranges_of_their_own_keep_what_they_launch(tmp_path: Path) -> None:
    export = Export()
    _step(export)
    export.range("execute_model", 98, 165, tid=WORKER)
    _launches(export, range(100, 190, 10), WORKER)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))])
    assert _counts(analysis)["backward"] == (0, 0)
    assert (_counts(analysis)["execute_model"], _row(analysis, "execute_model").parent) == ((7, 21), None)


def test_a_thread_of_another_process_works_for_nobody_here(tmp_path: Path) -> None:
    export = Export()
    _step(export)
    _launches(export, range(100, 190, 10), 2 * PID | 9, pid=2 * PID)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))])
    assert _counts(analysis)["step"] == (12, 36)


def test_each_step_of_two_threads_that_train_gets_its_own_helper(tmp_path: Path) -> None:
    """The steps follow each other, so at any moment one range is open."""
    export = Export()
    _step(export)
    _step(export, tid=PREFETCHER, base=1000)
    _launches(export, range(100, 190, 10), OTHER_THREAD)
    _launches(export, range(1100, 1190, 10), OTHER_THREAD)
    timeline = read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))
    found = measure_ranges(timeline, map_idle(timeline))
    backward = timeline.names.index("backward")
    assert found.kernel_count[found.name == backward].tolist() == [9, 9]
    assert found.ambiguous_launches == 0


def _with_lost_launches(first: int, second: int, *, start: int) -> Export:
    """A range from 0 to 100 with one inside it from 30 to 60; a kernel without a launch between two that have one."""
    export = Export()
    export.range("step", 0, 100)
    export.range("inner", 30, 60)
    export.call(first, first + 1, 1)
    export.call(second, second + 1, 2)
    export.kernel("known", start - 5, start - 2, 1)
    export.kernel("lost", start, start + 7, 99)
    export.kernel("known", start + 10, start + 13, 2)
    return export


@pytest.mark.parametrize(
    ("first", "second", "start", "step", "inner"),
    [
        (32, 40, 200, 3, 3),  # both neighbours were launched in the inner range
        (10, 20, 200, 3, 0),  # both before it
        (32, 70, 200, 3, 1),  # somewhere from inside to after it: surely in the outer range
        (32, 70, 50, 3, 2),  # and before it started: still inside
        (32, 110, 200, 1, 1),  # maybe after the outer range
    ],
)
def test_a_kernel_without_a_launch_belongs_to_the_range_of_its_neighbours(
    tmp_path: Path, first: int, second: int, start: int, step: int, inner: int
) -> None:
    export = _with_lost_launches(first, second, start=start)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))])
    assert (_row(analysis, "step").kernel_count, _row(analysis, "inner").kernel_count) == (step, inner)
    placed = [note for note in analysis.notes if "counted in the range that launched the work" in note]
    assert len(placed) == (step == 3)


def test_kernels_before_the_first_launch_of_their_stream_were_queued_earlier(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 100)
    export.kernel("old", 5, 20, 99)
    export.call(30, 31, 1)
    export.kernel("new", 32, 40, 1)
    export.kernel("unknown", 41, 50, 98)
    export.kernel("elsewhere", 41, 50, 97, stream=13)
    timeline = read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))
    found = place_unlaunched(timeline, timeline.kernels, find_ownership(timeline))
    assert (len(found.index), found.placed, found.queued_before) == (3, 0, 1)
    analysis = analyze_timelines([timeline])
    assert _counts(analysis) == {"step": (1, 8)}
    assert (
        "t.sqlite: 3 kernels without a recorded launch and without a range, 1 of them queued before the first "
        "recorded launch of their stream"
    ) in analysis.notes


def test_modules_and_operators_count_the_backward_as_ranges_do(tmp_path: Path) -> None:
    """A module around a whole step, its replica on its own thread, and the backward on autograd's."""
    replica = [
        event("python_function", "nn.Module: Net_0", "0.000", "100.000"),
        event("python_function", "nn.Module: Replica_0", "22.000", "17.000", tid=12),
        *(part for i in range(4) for part in _launch(25 + 3 * i, tid=12, number=20 + i)),
    ]
    path = _training_file(tmp_path, *replica)
    trace = read_torch_trace(path)
    analysis = analyze_timelines([trace.timeline])
    modules = {row.name: (row.kernel_count, row.kernel_ns) for row in module_rows(trace.timeline, trace.modules)}
    assert _counts(analysis)["step"] == modules["nn.Module: Net_0"] == (10, 40_000)
    assert modules["nn.Module: Replica_0"] == (4, 16_000)
    # Of the step 5 kernels have no operator around their launch: one of the same thread, four of the replica's.
    operators = operator_rows(trace.timeline, trace.operators)
    assert sum(row.self_device_ns for row in operators) == 20_000


def test_the_phases_of_a_run_hold_what_other_threads_launch_for_them(tmp_path: Path) -> None:
    trace = read_torch_trace(_training_file(tmp_path, event("user_annotation", "prefill", "0.000", "100.000")))
    tree = module_tree(trace.timeline, trace.operators)
    assert [(row.phase, row.module, row.operator, row.count, row.time_ns) for row in tree.rows] == [
        ("prefill", "other", "autograd::engine::evaluate_function: MulBackward0", 3, 12_000),
        ("prefill", "other", "aten::mul", 2, 8_000),
        ("prefill", "other", "(no operator)", 1, 4_000),
    ]
    assert module_shares(trace.timeline, trace.operators).device == {"prefill": {"other": 1.0}}
    assert _counts(analyze_timelines([trace.timeline]))["prefill"] == (6, 24_000)


def test_that_all_kernels_without_a_launch_were_queued_earlier_is_said(tmp_path: Path) -> None:
    export = Export()
    export.kernel("old", 5, 20, 99)
    export.call(30, 31, 1)
    export.kernel("new", 32, 40, 1)
    assert (
        "t.sqlite: 1 kernel without a recorded launch and without a range, all of them queued before the first "
        "recorded launch of their stream"
    ) in analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))]).notes


def _assert_rows_add_up(timeline: Timeline) -> None:
    """Every range holds what was launched directly in it and what the ranges directly inside it hold."""
    found = measure_ranges(timeline, map_idle(timeline))
    ownership = find_ownership(timeline)
    kernels, ranges = timeline.kernels, timeline.ranges
    known = np.flatnonzero(kernels.call >= 0)
    owner = np.full(len(kernels), -1)
    owner[known] = ownership.innermost(timeline, kernels.call[known])
    lost = place_unlaunched(timeline, kernels, ownership)
    owner[lost.index] = lost.owner
    count = np.bincount(owner[owner >= 0], minlength=len(ranges))
    time = np.bincount(owner[owner >= 0], (kernels.end_ns - kernels.start_ns)[owner >= 0], minlength=len(ranges))
    own = (count.copy(), time.copy())
    # A range ends after those inside it, and begins before them.
    for index in np.lexsort((-ranges.start_ns, ranges.end_ns - ranges.start_ns)):
        if ownership.parent[index] >= 0:
            count[ownership.parent[index]] += count[index]
            time[ownership.parent[index]] += time[index]
    assert not found.repeats_left_out and not found.warmup_left_out
    assert found.kernel_count.tolist() == count.tolist()
    assert found.kernel_ns.tolist() == time.tolist()
    assert count[ownership.parent < 0].sum() == own[0].sum() <= len(kernels)
    assert (found.gpu_busy_ns <= found.kernel_ns).all()


def _nested(random: np.random.Generator, export: Export, low: int, high: int, tid: int, depth: int) -> None:
    """Ranges in ranges, and launches in some of the gaps."""
    cuts = sorted(set(random.integers(low, high, 5).tolist()))
    for start, end in pairwise(cuts):
        if end - start > 8 and depth:
            export.range(f"range {len(export.ranges)}x", start, end, tid=tid)
            _nested(random, export, start + 1, end - 1, tid, depth - 1)
        elif random.random() < 0.8:
            number = len(export.calls) + 1
            export.call(start, start + 1, number, tid=tid)
            late = start + int(random.integers(2, 300))
            # Of some the launch was lost.
            lost = 10_000 if random.random() < 0.1 else 0
            export.kernel("k", late, late + int(random.integers(1, 40)), number + lost, stream=tid & 15)


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_of_nested_ranges_add_up_on_any_capture(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    export = Export()
    export.range("whole", 0, 3000)
    for start in range(0, 3000, 600):
        _nested(random, export, start, start + 400, THREAD, 4)
        # A helper with a few ranges of its own, some of which outlast what it works for.
        _launches(export, range(start + 405, start + 540, 9), OTHER_THREAD)
        _nested(random, export, start + 545, start + 590, OTHER_THREAD, 2)
    timeline = read_nsys_sqlite(export.write(tmp_path / "t.sqlite"))
    assert find_ownership(timeline).cause is not None
    _assert_rows_add_up(timeline)


def _published(name: str) -> Timeline:
    folder = shared_fixtures()
    path = None if folder is None else folder / name
    if path is None or not path.is_file():
        pytest.skip(f"{name} is not at hand")
    return read_torch_trace(path).timeline


@pytest.mark.parametrize(
    ("name", "row", "kernels", "busy_ns"),
    [
        ("wild3/s01_resnet50_workers0_v100.json.gz", "ProfilerStep#N", 8_802, 595_564_000),
        ("wild3/s01_resnet50_workers4_v100.json.gz", "ProfilerStep#N", 8_718, 603_000_000),
        ("wild/hta_rank0.json.gz", "## backward ##", 523, 206_669_000),
        ("wild/hta_rank0.json.gz", "ProfilerStep#N", 1_154, 547_303_000),
        ("wild/hta_rank1.json.gz", "## backward ##", 495, 273_653_000),
        ("wild/deepseek_train_overlap.json.gz", "ProfilerStep#1", 963, 128_500_000),
    ],
)
def test_the_steps_of_published_training_runs_hold_their_backward(
    name: str, row: str, kernels: int, busy_ns: int
) -> None:
    found = _row(analyze_timelines([_published(name)]), row)
    assert (found.kernel_count, found.gpu_busy_ns) == (kernels, busy_ns)


@pytest.mark.parametrize("name", ["s01_resnet50_workers0_v100", "s01_resnet50_workers4_v100"])
def test_the_rows_of_a_published_training_run_add_up(name: str) -> None:
    _assert_rows_add_up(_published(f"wild3/{name}.json.gz"))
