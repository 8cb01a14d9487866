"""Ranges, busy time and the causes of idle time, on captures small enough to work out by hand."""

from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.capture.intervals import Ints, innermost, intersect, nest, segment_union, union
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.rows import Idle, RangeRow
from llm_perf_opt.capture.tables import group_statistics
from llm_perf_opt.capture.timeline import distinct, grouped, int_percentile, join_calls
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, GraphTotals
from tests.support.nsys_builder import OTHER_THREAD, PID, Export


def _ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def _analyze(export: Export, tmp_path: Path) -> CaptureAnalysis:
    return analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))])


def _row(analysis: CaptureAnalysis, name: str, style: str = "push_pop") -> RangeRow:
    return next(r for r in analysis.ranges if (r.name, r.style) == (name, style))


def _decode() -> Export:
    """One decode of two steps: queued kernels, a late launch, a copy and two synchronisations."""
    export = Export()
    export.range("decode", 0, 1000)
    export.range("decode_step", 100, 400)
    export.range("decode_step", 500, 900)
    export.call(110, 120, 1)
    export.kernel("gemm", 130, 200, 1)
    export.call(125, 135, 2)
    export.kernel("gemm", 210, 260, 2)
    export.call(300, 310, 3)
    export.kernel("silu", 320, 380, 3)
    export.call(510, 515, 4, "cudaMemcpyAsync_v3020")
    export.copy(520, 560, 4)
    export.call(516, 600, 5, "cudaStreamSynchronize_v3020")
    export.call(610, 620, 6)
    export.kernel("gemm", 630, 700, 6)
    export.call(640, 720, 7, "cudaDeviceSynchronize_v3020")
    return export


def test_every_nanosecond_of_a_decode_has_one_cause(tmp_path: Path) -> None:
    row = _row(_analyze(_decode(), tmp_path), "decode")
    assert (row.instances, row.wall_ns, row.kernel_count, row.kernel_ns) == (1, 1000, 4, 250)
    assert (row.gpu_busy_ns, row.gpu_idle_ns) == (250, 750)
    assert (row.launch_calls, row.launch_ns) == (5, 45)
    assert row.idle == Idle(
        waiting_for_host_ns=120 + 50 + 135 + 20 + 280,
        between_kernels_ns=10 + 10 + 10 + 5 + 10,
        waiting_for_copy_or_sync_ns=40 + 60,
        copy_ns=40,
        sync_ns=40 + 20,
        unattributed_ns=0,
        starting_ns=10 + 10 + 5 + 10,
    )


def test_a_kernel_that_starts_long_after_its_launch_waits_for_the_device_from_the_return_of_the_call(
    tmp_path: Path,
) -> None:
    export = Export()
    export.range("step", 0, 1000)
    export.call(10, 20, 1)
    export.kernel("first", 20, 100, 1)
    export.call(150, 200, 2)
    export.kernel("held back by another stream", 900, 1000, 2)
    row = _row(_analyze(export, tmp_path), "step")
    assert row.gpu_idle_ns == 20 + 800
    assert row.idle == Idle(
        waiting_for_host_ns=20 + 100,
        between_kernels_ns=700,
        waiting_for_copy_or_sync_ns=0,
        copy_ns=0,
        sync_ns=0,
        unattributed_ns=0,
        starting_ns=700,
    )


def test_a_late_start_is_a_launch_s_for_20_us_and_a_gap_of_half_a_millisecond_is_no_launch_s(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 3_000_000)
    export.call(10, 20, 1)
    export.kernel("a", 20, 100, 1)
    export.call(499_000, 499_099, 2)
    export.kernel("b", 500_099, 600_000, 2)
    export.call(1_000_000, 1_050_000, 3, "cudaStreamSynchronize_v3020")
    export.call(1_260_000, 1_270_000, 4)
    export.kernel("c", 1_300_000, 3_000_000, 4)
    idle = _row(_analyze(export, tmp_path), "step").idle
    assert idle is not None
    assert (idle.waiting_for_host_ns, idle.sync_ns, idle.between_kernels_ns) == (
        20 + 498_999 + 620_000,
        50_000,
        1_000 + 30_000,
    )
    assert (idle.starting_ns, idle.long_gaps_ns) == (1_000 + 20_000, 620_000)


def test_nested_ranges_get_their_own_share_of_the_gaps_they_cut(tmp_path: Path) -> None:
    row = _row(_analyze(_decode(), tmp_path), "decode_step")
    assert (row.instances, row.wall_ns, row.kernel_count, row.parent) == (2, 700, 4, "decode")
    assert (row.gpu_busy_ns, row.gpu_idle_ns) == (250, 120 + 330)
    assert row.idle == Idle(
        waiting_for_host_ns=20 + 50 + 20 + 15 + 20 + 180,
        between_kernels_ns=10 + 10 + 10 + 5 + 10,
        waiting_for_copy_or_sync_ns=100,
        copy_ns=40,
        sync_ns=60,
        unattributed_ns=0,
        starting_ns=10 + 10 + 5 + 10,
    )
    assert (row.last.start_ns, row.last.kernel_count, row.last.gpu_busy_ns, row.last.gpu_idle_ns) == (500, 1, 70, 330)
    assert row.kernels is not None
    assert [(k.name, k.instances, k.total_ns) for k in row.kernels] == [("gemm", 3, 190), ("silu", 1, 60)]


def test_a_kernel_belongs_to_the_range_that_launched_it_wherever_it_runs(tmp_path: Path) -> None:
    export = Export()
    export.range("prefill", 0, 100)
    export.range("decode", 100, 300)
    export.call(10, 20, 1)
    export.kernel("late", 150, 250, 1)
    analysis = _analyze(export, tmp_path)
    prefill, decode = _row(analysis, "prefill"), _row(analysis, "decode")
    assert (prefill.kernel_count, prefill.gpu_busy_ns, prefill.gpu_idle_ns) == (1, 100, 100)
    assert (decode.kernel_count, decode.gpu_busy_ns, decode.gpu_idle_ns) == (0, 0, 100)


def test_a_launch_by_another_thread_counts_only_for_start_end_ranges(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 100)
    export.range("request", 0, 100, kind=60)
    export.call(10, 20, 1)
    export.kernel("mine", 30, 40, 1)
    export.call(12, 22, 2, tid=OTHER_THREAD)
    export.kernel("theirs", 50, 60, 2)
    export.call(14, 24, 3, tid=(2 * PID) | 9)
    export.kernel("another process", 70, 80, 3, pid=2 * PID)
    analysis = _analyze(export, tmp_path)
    assert _row(analysis, "step").kernel_count == 1
    assert _row(analysis, "request", "start_end").kernel_count == 2
    assert _row(analysis, "request", "start_end").gpu_busy_ns == 20


def test_the_end_of_a_range_is_not_part_of_it(tmp_path: Path) -> None:
    export = Export()
    export.range("a", 0, 10)
    export.range("b", 10, 20)
    export.call(10, 12, 1)
    export.kernel("k", 13, 15, 1)
    analysis = _analyze(export, tmp_path)
    assert (_row(analysis, "a").kernel_count, _row(analysis, "b").kernel_count) == (0, 1)


def test_busy_time_is_the_union_over_streams(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 100)
    for correlation, (start, end) in enumerate([(30, 60), (10, 50), (40, 45), (70, 80)], start=1):
        export.call(correlation, correlation + 1, correlation)
        export.kernel("k", start, end, correlation)
    row = _row(_analyze(export, tmp_path), "step")
    assert (row.kernel_ns, row.gpu_busy_ns, row.gpu_idle_ns) == (85, 60, 40)


@pytest.mark.parametrize("name", ["warmup", "Warm-Up", "warm_up"])
def test_warm_up_and_all_inside_it_is_left_out_and_said(tmp_path: Path, name: str) -> None:
    export = Export()
    export.range(name, 0, 100)
    export.range("decode", 10, 50)
    export.range("decode", 200, 260)
    export.range("decode", 20, 40, tid=OTHER_THREAD)
    analysis = _analyze(export, tmp_path)
    assert [(r.name, r.instances, r.wall_ns) for r in analysis.ranges] == [("decode", 2, 80)]
    assert "capture.sqlite: left out of the ranges: 2 warm-up ranges" in analysis.notes


def test_a_warm_up_of_start_end_style_covers_all_threads_of_its_process(tmp_path: Path) -> None:
    export = Export()
    export.range("warmup", 0, 100, kind=60)
    export.range("decode", 20, 40, tid=OTHER_THREAD)
    export.range("decode", 120, 140, tid=OTHER_THREAD)
    assert [(r.name, r.instances) for r in _analyze(export, tmp_path).ranges] == [("decode", 1)]


def test_a_range_around_two_warm_ups_that_overlap_is_no_warm_up(tmp_path: Path) -> None:
    export = Export()
    export.range("warmup", 10, 50, kind=60)
    export.range("warmup", 40, 90, kind=60)
    export.range("decode", 20, 80)
    export.range("decode", 42, 90)
    assert [(r.name, r.instances, r.wall_ns) for r in _analyze(export, tmp_path).ranges] == [("decode", 1, 60)]


def test_start_end_ranges_of_one_name_are_requests_and_all_counted(tmp_path: Path) -> None:
    export = Export()
    export.range("request", 0, 100, kind=60)
    export.range("request", 10, 50, kind=60)
    export.call(20, 21, 1)
    export.kernel("k", 22, 32, 1)
    row = _row(_analyze(export, tmp_path), "request", "start_end")
    assert (row.instances, row.wall_ns, row.kernel_count, row.gpu_busy_ns) == (2, 140, 2, 20)


def test_a_range_inside_one_of_its_own_name_is_counted_once(tmp_path: Path) -> None:
    export = Export()
    export.range("forward", 0, 100)
    export.range("block", 10, 90)
    export.range("forward", 20, 80)
    analysis = _analyze(export, tmp_path)
    assert {(r.name, r.instances, r.wall_ns) for r in analysis.ranges} == {("forward", 1, 100), ("block", 1, 80)}


def test_kernels_of_a_traced_graph_belong_to_its_one_launch(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 100)
    export.call(5, 15, 1, "cudaGraphLaunch_v10000")
    for start in (20, 40, 60):
        export.kernel("node", start, start + 10, 1)
    row = _row(_analyze(export, tmp_path), "decode")
    assert (row.kernel_count, row.gpu_busy_ns, row.launch_calls, row.launch_ns) == (3, 30, 1, 10)
    assert row.idle is not None
    assert (row.idle.between_kernels_ns, row.idle.starting_ns) == (5 + 20, 5)


def test_a_graph_traced_as_a_whole_is_busy_time_and_named(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 100)
    export.call(5, 15, 1, "cudaGraphLaunch_v10000")
    export.graph(20, 70, 1)
    analysis = _analyze(export, tmp_path)
    row = _row(analysis, "decode")
    assert (row.kernel_count, row.graph_launches, row.gpu_busy_ns) == (0, 1, 50)
    assert analysis.graphs == GraphTotals(launches_traced_as_a_whole=1, total_ns=50)
    assert any("1 CUDA graph launch traced as a whole" in note for note in analysis.notes)


def test_kernels_without_a_recorded_launch_leave_their_gaps_unattributed(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 100)
    export.call(1, 2, 99)
    export.kernel("orphan", 40, 60, 1)
    analysis = _analyze(export, tmp_path)
    row = _row(analysis, "decode")
    assert row.idle is not None
    assert (row.kernel_count, row.gpu_idle_ns, row.idle.unattributed_ns) == (0, 80, 80)
    assert "capture.sqlite: 1 kernel without a recorded launch and without a range" in analysis.notes


def test_without_any_gpu_work_gpu_times_are_null_not_zero(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 100)
    found = _analyze(export, tmp_path)
    (row,) = found.ranges
    assert (row.wall_ns, row.gpu_busy_ns, row.gpu_idle_ns, row.idle) == (100, None, None, None)
    for one in (row.last, row.typical):
        assert (one.wall_ns, one.gpu_busy_ns, one.gpu_idle_ns, one.idle) == (100, None, None, None)
    assert (found.gpu.busy_ns, found.gpu.span_ns, found.gpu.idle_ns, found.gpu.idle) == (None, None, None, None)
    assert found.notes == ("capture.sqlite: no GPU kernel was recorded, so there are no GPU times",)


def test_repetitions_are_summed_in_total_and_kept_apart_as_sources(tmp_path: Path) -> None:
    for index, length in enumerate((10, 30), start=1):
        export = Export()
        export.range("decode", 0, 100)
        export.call(5, 8, 1)
        export.kernel("k", 20, 20 + length, 1)
        export.write(tmp_path / f"run.{index}.sqlite")
    analysis = analyze_timelines([read_nsys_sqlite(tmp_path / f"run.{i}.sqlite") for i in (1, 2)])
    assert [(s.path, s.kernel_count, s.kernel_ns) for s in analysis.sources] == [
        ("run.1.sqlite", 1, 10),
        ("run.2.sqlite", 1, 30),
    ]
    (kernel,) = analysis.kernels
    assert (kernel.instances, kernel.total_ns, kernel.med_ns, kernel.min_ns, kernel.max_ns) == (2, 40, 20.0, 10, 30)
    row = _row(analysis, "decode")
    assert (row.instances, row.wall_ns, row.gpu_busy_ns, row.last.source) == (2, 200, 40, 1)


def test_a_launch_bound_range_is_named_once_with_its_evidence(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 40_000)
    export.range("decode_step", 0, 40_000)
    for i in range(40):
        export.call(i * 1000, i * 1000 + 100, i + 1)
        export.kernel("k", i * 1000 + 150, i * 1000 + 250, i + 1)
    (finding,) = _analyze(export, tmp_path).findings
    assert (finding.rule, finding.range_name, finding.share) == ("launch_bound", "decode", pytest.approx(35.1 / 39.1))
    assert finding.max_gain == pytest.approx(39_100 / 4_000)
    assert finding.floor_ns == 0
    assert finding.evidence[0].startswith("decode: GPU busy 4.00 µs of 40.0 µs")


def test_the_union_merges_what_overlaps_or_touches() -> None:
    merged = union(_ints(50, 0, 10, 5), _ints(60, 5, 20, 12))
    assert (merged.start.tolist(), merged.end.tolist(), merged.total) == ([0, 50], [20, 60], 30)
    assert merged.covered_before(_ints(-1, 0, 7, 20, 55, 99)).tolist() == [0, 0, 7, 20, 25, 30]
    part = intersect(_ints(3, 15), _ints(6, 70), merged)
    assert (part.start.tolist(), part.end.tolist()) == ([3, 15, 50], [6, 20, 60])


def test_the_union_per_owner_equals_the_union_of_each() -> None:
    random = np.random.default_rng(0)
    owner = random.integers(0, 50, 5000)
    owner[:50] = np.arange(50)
    start = random.integers(0, 10_000, 5000)
    end = start + random.integers(0, 300, 5000)
    expected = [union(start[owner == i], end[owner == i]).total for i in range(50)]
    assert segment_union(owner, start, end, 50).tolist() == expected


def test_nesting_finds_parents_across_threads_and_ties() -> None:
    thread = _ints(0, 0, 0, 0, 1, 1)
    start, end = _ints(0, 0, 10, 60, 5, 5), _ints(100, 50, 20, 60, 90, 5)
    tree = nest(thread, start, end)
    assert tree.parent.tolist() == [-1, 0, 1, 0, -1, 4]
    assert tree.sum_up(_ints(1, 2, 4, 8, 16, 32)).tolist() == [15, 6, 4, 8, 48, 32]
    at = innermost(tree, thread, start, end, _ints(0, 0, 1, 0, 2), _ints(15, 30, 50, 100, 1))
    assert at.tolist() == [2, 1, 4, -1, -1]


def _two_styles(second_busy_ns: int) -> Export:
    """A launch-bound push/pop decode, and a start/end range of the same name with one long kernel or none."""
    export = Export()
    export.range("decode", 0, 3000)
    for i in range(25):
        export.call(100 * i + 10, 100 * i + 20, i + 1)
        export.kernel("k", 100 * i + 30, 100 * i + 40, i + 1)
    export.range("decode", 5000, 6000, kind=60)
    if second_busy_ns:
        export.call(5001, 5002, 50)
        export.kernel("long", 5003, 5003 + second_busy_ns, 50)
    return export


@pytest.mark.parametrize("second_busy_ns", [0, 990])
def test_only_the_style_of_a_range_that_is_bound_is_named(tmp_path: Path, second_busy_ns: int) -> None:
    found = _analyze(_two_styles(second_busy_ns), tmp_path).findings
    assert [(f.rule, f.range_name) for f in found if f.range_name is not None] == [("launch_bound", "decode")]


def test_only_the_style_of_a_range_that_waits_is_named(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 100)
    export.call(1, 2, 1)
    export.kernel("k", 5, 25, 1)
    export.call(25, 90, 2, "cudaStreamSynchronize_v3020")
    export.range("decode", 200, 200, kind=60)
    export.call(150, 151, 3)
    export.kernel("k", 152, 200, 3)
    (finding,) = _analyze(export, tmp_path).findings
    assert (finding.rule, finding.cells) == ("wait_bound", {"idle.sync": 65})


def test_a_kernel_that_takes_no_time_leaves_the_copy_around_it_whole(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 100)
    export.call(1, 2, 1, "cudaMemcpyAsync")
    export.copy(10, 60, 1)
    export.call(3, 4, 2)
    export.kernel("empty", 20, 20, 2)
    export.call(5, 6, 3)
    export.kernel("k", 70, 80, 3)
    row = _row(_analyze(export, tmp_path), "decode")
    assert (row.kernel_count, row.gpu_busy_ns, row.gpu_idle_ns) == (2, 10, 90)
    assert row.idle == Idle(
        waiting_for_host_ns=2 + 20,
        between_kernels_ns=8 + 10,
        waiting_for_copy_or_sync_ns=50,
        copy_ns=50,
        sync_ns=0,
        unattributed_ns=0,
        starting_ns=8,
    )


def test_a_gap_ends_with_work_that_takes_no_time_also_at_the_end_of_the_capture(tmp_path: Path) -> None:
    export = Export()
    export.call(1, 2, 1)
    export.kernel("k", 10, 20, 1)
    export.call(3, 4, 2)
    export.kernel("empty", 40, 40, 2)
    gpu = _analyze(export, tmp_path).gpu
    assert gpu.idle is not None
    assert (gpu.span_ns, gpu.idle_ns, gpu.idle.between_kernels_ns) == (30, 20, 20)


def test_the_span_reaches_to_a_copy_that_takes_no_time(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 100)
    export.call(1, 2, 1)
    export.kernel("k", 10, 20, 1)
    export.call(50, 52, 2, "cudaMemcpyAsync")
    export.copy(60, 60, 2)
    gpu = _analyze(export, tmp_path).gpu
    assert gpu.idle is not None
    assert (gpu.span_ns, gpu.busy_ns, gpu.idle_ns, gpu.idle.waiting_for_host_ns) == (50, 10, 40, 32)


def test_the_time_after_the_last_work_belongs_to_the_thread_that_launched_last(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 200)
    export.call(1, 2, 1)
    export.kernel("a", 10, 50, 1)
    export.call(30, 31, 2, tid=OTHER_THREAD)
    export.kernel("b", 40, 60, 2)
    export.call(60, 100, 3, "cudaStreamSynchronize_v3020", tid=OTHER_THREAD)
    row = _row(_analyze(export, tmp_path), "decode")
    assert row.idle is not None
    assert (row.gpu_idle_ns, row.idle.sync_ns, row.idle.waiting_for_host_ns) == (150, 40, 102)


def test_what_only_overlaps_is_not_around_and_nothing_hangs_under_what_has_ended() -> None:
    thread = _ints(0, 0, 0, 0, 0, 0, 1, 1)
    start, end = _ints(0, 8, 11, 15, 40, 41, 0, 5), _ints(10, 12, 31, 17, 50, 45, 10, 10)
    tree = nest(thread, start, end)
    assert (tree.strict, tree.parent.tolist()) == (False, [-1, -1, -1, 2, -1, 4, -1, 6])
    assert tree.sum_up(_ints(1, 2, 4, 8, 16, 32, 64, 128)).tolist() == [1, 2, 12, 8, 48, 32, 192, 128]
    at = innermost(tree, thread, start, end, _ints(0, 0, 0, 0), _ints(9, 11, 16, 33))
    assert at.tolist() == [1, 2, 3, -1]


def test_nesting_equals_a_plain_search_for_the_innermost_around() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        thread = random.integers(0, 3, 60)
        start = random.permutation(60)
        end = start + random.integers(0, 30, 60)
        around = [
            [
                j
                for j in range(60)
                if thread[j] == thread[i] and start[j] < start[i] and end[j] >= max(end[i], start[i] + 1)
            ]
            for i in range(60)
        ]
        expected = [max(found, key=lambda j: start[j], default=-1) for found in around]
        tree = nest(thread, start, end)
        assert tree.parent.tolist() == expected
        assert sorted(np.concatenate(tree.levels).tolist()) == list(range(60))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([7, 7, 7], [7]),
        ([3, 0, 3, 1], [0, 1, 3]),
        ([2, -1, 2, -1, 0], [-1, 0, 2]),
        ([10**15, 5, 10**15, -(10**15)], [-(10**15), 5, 10**15]),
    ],
)
def test_distinct_values_come_in_order_whatever_their_size(values: list[int], expected: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == expected


def test_ids_that_only_a_wider_type_holds_launch_nothing_and_break_nothing() -> None:
    wide, narrow = _ints(2**63 - 1, 2**63 - 1), np.array([1, -(2**31)], np.int32)
    nobody = np.zeros(2, np.int32)
    links = join_calls(wide, nobody, [(narrow, nobody), (wide, nobody)])
    assert [calls.tolist() for calls in links.calls] == [[-1, -1], [0, 0]]
    high = np.array([2**31 - 1, 2**31 - 2], np.int32)
    assert join_calls(high, nobody, [(narrow, nobody)]).calls[0].tolist() == [-1, -1]


@pytest.mark.parametrize("values", [[], [7], [3, 1, 3], [5 * 10**12, -4, 5 * 10**12]])
def test_groups_are_those_numpy_finds(values: list[int]) -> None:
    column = np.array(values, np.int64)
    found, index = np.unique(column, return_inverse=True)
    assert [part.tolist() for part in grouped(column)] == [found.tolist(), index.tolist()]


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1001])
def test_percentiles_are_those_of_numpy_to_the_last_digit(count: int) -> None:
    column = np.random.default_rng(count).integers(0, 10**12, count)
    wanted = (0, 25, 50, 75, 90, 99.9, 100)
    assert [int_percentile(column, percent) for percent in wanted] == np.percentile(column, wanted).tolist()


@pytest.mark.parametrize("groups", [1, 3, 60])
@pytest.mark.parametrize(("step", "odd"), [(32, 0.0), (32, 0.001), (32, 0.5), (1, 0.0)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 1000, 50_000])
def test_statistics_by_group_are_exact_on_any_clock(count: int, step: int, odd: float, groups: int) -> None:
    draw = np.random.default_rng(count)
    group = draw.integers(0, groups, count).astype(np.int32)
    value = draw.integers(0, 2000, count) * step + (draw.random(count) < odd)
    # A few that are very long.
    value[: count // 100 and 3] = 10**9 + 7
    found = group_statistics(group, value)
    assert found.group.tolist() == sorted(set(group.tolist()))
    for i, code in enumerate(found.group):
        mine = value[group == code]
        assert (found.instances[i], found.total[i]) == (len(mine), mine.sum())
        assert (found.least[i], found.most[i], found.median[i]) == (mine.min(), mine.max(), np.median(mine))
        assert found.stddev[i] == pytest.approx(mine.std(ddof=1) if len(mine) > 1 else 0.0, rel=1e-9, abs=1e-6)


def test_sums_over_processes_and_devices_are_said_and_wall_time_is_wall_time(tmp_path: Path) -> None:
    """Two ranks in one export, 10 apart: their walls are 200 in all, and 110 ns went by."""
    export = Export()
    export.range("rank 0 only", 0, 20)
    for rank in range(2):
        pid, at = PID * (rank + 1), 10 * rank
        export.range("step", at, at + 100, tid=pid | 1)
        export.call(at + 5, at + 6, 1, tid=pid | 1)
        export.kernel("k", at + 10, at + 60, 1, pid=pid, device=rank)
    analysis = _analyze(export, tmp_path)
    step, alone = _row(analysis, "step"), _row(analysis, "rank 0 only")
    assert (step.instances, step.wall_ns, step.elapsed_ns, step.gpu_busy_ns) == (2, 200, 110, 100)
    assert (step.processes, step.devices, alone.processes, alone.devices) == (2, 2, 1, 1)
    (source,) = analysis.sources
    assert (source.gpu_span_ns, source.gpu_elapsed_ns, source.processes, analysis.gpu.processes) == (100, 60, 2, 2)


def test_a_range_of_one_process_counts_the_devices_its_work_ran_on(tmp_path: Path) -> None:
    export = Export()
    export.range("both", 0, 100)
    export.range("second", 50, 60)
    export.range("nothing", 70, 80)
    for device in range(2):
        export.call(10 + 45 * device, 12 + 45 * device, device)
        export.kernel("k", 20, 60 + device, device, device=device)
    analysis = _analyze(export, tmp_path)
    assert {row.name: (row.devices, row.processes, row.elapsed_ns) for row in analysis.ranges} == {
        "both": (2, 1, 100),
        "second": (1, 1, 10),
        "nothing": (0, 1, 10),
    }


def test_requests_that_are_open_together_have_one_elapsed_time(tmp_path: Path) -> None:
    export = Export()
    for start in (0, 20, 200):
        export.range("request", start, start + 100, kind=60)
    export.call(1, 2, 1)
    export.kernel("k", 3, 4, 1)
    row = _row(_analyze(export, tmp_path), "request", "start_end")
    assert (row.wall_ns, row.elapsed_ns, row.devices) == (300, 220, 1)


def test_several_captures_of_one_process_each_are_several_processes(tmp_path: Path) -> None:
    timelines = []
    for name in ("a", "b"):
        export = Export()
        export.range("step", 0, 100)
        export.call(5, 6, 1)
        export.kernel("k", 10, 60, 1)
        timelines.append(read_nsys_sqlite(export.write(tmp_path / f"{name}.sqlite")))
    analysis = analyze_timelines(timelines)
    row = _row(analysis, "step")
    assert (row.wall_ns, row.elapsed_ns, row.processes, row.devices, analysis.gpu.processes) == (200, 200, 2, 2, 2)


@pytest.mark.parametrize("backwards", [False, True])
def test_of_instances_of_one_length_the_typical_one_is_the_same_in_any_order_of_the_file(
    tmp_path: Path, backwards: bool
) -> None:
    export = Export()
    for start in (0, 200, 400, 600):
        export.range("step", start, start + 100)
        export.call(start, start + 2, start)
        export.kernel("k", start + 5, start + 10, start)
    if backwards:
        export.ranges.reverse()
    assert _row(_analyze(export, tmp_path), "step").typical.start_ns == 200


def test_a_range_without_kernels_has_an_empty_list_of_them_however_many_ranges_there_are(tmp_path: Path) -> None:
    export = Export()
    names = [f"{first}{second}" for first in "abcdefgh" for second in "abcdefgh"]
    for index, name in enumerate(names):
        export.range(name, 100 * index, 100 * index + 50)
        export.call(100 * index, 100 * index + 2, index)
        export.kernel("k", 100 * index + 5, 100 * index + 10, index)
    export.range("empty", 90, 99)
    analysis = _analyze(export, tmp_path)
    assert _row(analysis, "empty").kernels == ()
    assert any(row.kernels is None for row in analysis.ranges)
