"""Causes of idle time that have their own mechanism: what they claim, what must remain, and what they advise."""

from pathlib import Path

import pytest

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from tests.support.answers import cells_of, claim_of, diagnosis_of, owner_of, rules
from tests.support.nsys_builder import OTHER_THREAD, THREAD, Export
from tests.support.trace_builder import event, write_trace
from tests.support.verdicts import analyze, captures

MS = 1_000_000
AT_HAND = dict(captures())


def _planted(name: str) -> CaptureAnalysis:
    path = AT_HAND.get(name)
    if path is None:
        pytest.skip(f"{name} is not at hand")
    return analyze(path)


def _nsys(export: Export, tmp_path: Path) -> CaptureAnalysis:
    return analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))])


def _torch(events: list[str], tmp_path: Path) -> CaptureAnalysis:
    return analyze_timelines([read_torch_trace(write_trace(tmp_path / "t.json", events)).timeline])


@pytest.mark.parametrize(("blocks", "found"), [(True, "launch_blocking"), (False, "launch_bound")])
def test_launches_that_wait_for_their_kernel_are_no_launch_overhead(tmp_path: Path, blocks: bool, found: str) -> None:
    """A hundred kernels of 15 of every 50 µs; their calls return after them, or long before."""
    export = Export()
    for i in range(100):
        at = 50_000 * i
        export.call(at, at + (20_000 if blocks else 4_000), i + 1)
        export.kernel("gemm", at + 3_000, at + 18_000, i + 1)
    analysis = _nsys(export, tmp_path)
    assert rules(analysis) == [found]
    claim = claim_of(analysis, found)
    assert set(claim.cells) == {"idle.launch"}
    assert (claim.hint == "Unsetting CUDA_LAUNCH_BLOCKING") == blocks
    # Without the variable launches have their normal cost, which is not known.
    assert (claim.max_gain is None) == blocks


@pytest.mark.parametrize("ending", [".json.gz", ".sqlite.xz"])
@pytest.mark.parametrize(
    ("name", "rule", "least"),
    [
        ("launch_blocking", "launch_blocking", 0.8),
        ("empty_cache", "allocator_flush", 0.2),
        ("recompile", "recompilation", 0.8),
    ],
)
def test_a_planted_cause_of_idle_time_is_the_first_finding(name: str, rule: str, least: float, ending: str) -> None:
    analysis = _planted(f"planted/{name}{ending}")
    first = analysis.findings[0]
    assert (first.rule, first.is_one_time, diagnosis_of(analysis).verdict.rule) == (rule, False, rule)
    assert first.share is not None and first.share >= least


def test_flushes_take_the_launch_gaps_behind_them(tmp_path: Path) -> None:
    """Ten steps of ten kernels of 100 µs, then a free that waits, an allocation 40 µs later, a launch 50 µs later."""
    events: list[str] = []
    number = at = busy = 0
    for _ in range(11):
        for i in range(10):
            number += 1
            events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at + 10 * i}", "5", correlation=number))
            start = max(at + 10 * i + 7, busy)
            busy = start + 100
            lane = {"pid": 0, "tid": 7, "device": 0, "correlation": number}
            events.append(event("kernel", "gemm", f"{start}", "100", **lane))
        events.append(event("cuda_runtime", "cudaFree", f"{at + 100}", "957", correlation=1_000 + number))
        events.append(event("cuda_runtime", "cudaMalloc", f"{at + 1_097}", "60", correlation=2_000 + number))
        at += 1_200
    analysis = _torch(events, tmp_path)
    assert rules(analysis) == ["allocator_flush"]
    claim = claim_of(analysis, "allocator_flush")
    # From the end of the last kernel of a step to the first of the next one; the last step has no next one.
    assert (claim.stake_ns, claim.floor_ns, claim.experiments) == (10 * 200_000, 0, ("expandable_segments",))
    assert "empty_cache" in claim.remedy


@pytest.mark.parametrize(("kernels", "is_loading"), [(("a", "b", "c", "d", "e"), True), (("a",) * 5, False)])
def test_a_wait_for_work_that_does_not_start_loads_code_only_before_new_kernels(
    tmp_path: Path, kernels: tuple[str, ...], is_loading: bool
) -> None:
    """After each launch the host synchronizes, and the kernel begins 3 ms later."""
    export = Export()
    for i, name in enumerate(kernels):
        at = 10 * MS * i
        export.call(at, at + 5_000, 2 * i + 1)
        export.call(at + 6_000, at + 8 * MS, 2 * i + 2, "cudaDeviceSynchronize")
        export.kernel(name, at + 3 * MS, at + 8 * MS - 1_000, 2 * i + 1)
    analysis = _nsys(export, tmp_path)
    claim = claim_of(analysis, "held_sync")
    assert (claim.is_one_time, claim.confidence) == (is_loading, "medium")
    # What holds the work back must end some time: no factor.
    assert (claim.max_gain, claim.floor_ns) == (None, None)
    # The first kernel has no idle time before it.
    assert claim.stake_ns == pytest.approx(4 * 3 * MS, rel=0.01)


def test_time_of_which_nothing_is_known_is_the_answer_with_the_command_that_records_it(tmp_path: Path) -> None:
    export = Export()
    for i in range(10):
        export.call(10 * MS * i, 10 * MS * i + 5_000, i + 1)
        export.kernel("gemm", 10 * MS * i + 6_000, 10 * MS * i + 1 * MS, i + 1)
    analysis = _nsys(export, tmp_path)
    claim = claim_of(analysis, "not_recorded")
    assert (claim.max_gain, claim.confidence, list(claim.cells)) == (None, "low", ["idle.unrecorded_host"])
    assert "nsys profile" in claim.remedy
    diagnosis = diagnosis_of(analysis)
    assert (diagnosis.verdict.kind, diagnosis.verdict.rule) == ("not_recorded", "not_recorded")
    assert diagnosis.coverage.unrecorded_share == pytest.approx(claim.share)


def _loading(
    tmp_path: Path, *, load_us: int, name: str = "torch/utils/data/dataloader.py(733): __next__"
) -> CaptureAnalysis:
    """Ten steps: a batch is read, then the GPU computes for 10 ms."""
    events: list[str] = []
    at = 0
    for step in range(10):
        events.append(event("python_function", name, f"{at}", f"{load_us}"))
        at += load_us
        for i in range(20):
            number = 20 * step + i + 1
            events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at + 10 * i}", "5", correlation=number))
            lane = {"pid": 0, "tid": 7, "device": 0, "correlation": number}
            events.append(event("kernel", "gemm", f"{at + 10 + 500 * i}", "500", **lane))
        at += 10_010
    return _torch(events, tmp_path)


@pytest.mark.parametrize(
    ("load_us", "gain", "workers"), [(5_000, 1.45, False), (30_000, 3.73, True), (300_000, 16.6, True)]
)
def test_workers_that_load_in_parallel_hide_what_they_can(
    tmp_path: Path, load_us: int, gain: float, workers: bool
) -> None:
    """Sixteen workers: the longer of computing and a sixteenth of loading remains."""
    analysis = _loading(tmp_path, load_us=load_us)
    claim = claim_of(analysis, "data_loading")
    assert claim.stake_ns is not None and claim.floor_ns is not None
    compute = cells_of(analysis, "gpu.compute")[0].time_ns
    assert claim.floor_ns == pytest.approx(max(0, claim.stake_ns / 16 - compute), abs=MS)
    assert claim.max_gain == pytest.approx(gain, abs=0.05)
    assert owner_of(analysis, "idle.data_loading") == ("torch/utils/data/dataloader.py(733): __next__",)
    said = [text for text in claim.evidence if "about as many workers" in text]
    assert len(said) == workers


def test_a_loader_with_workers_is_not_advised_to_use_them(tmp_path: Path) -> None:
    """How much faster more workers are than those there are is not known."""
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    claim = claim_of(_loading(tmp_path, load_us=30_000, name=name), "data_loading")
    assert (claim.max_gain, claim.hint) == (None, "A faster data loader")
    assert "num_workers > 0" not in claim.remedy
    assert claim.evidence[-1].startswith("the loader has worker processes already: with 3.7 times")


@pytest.mark.parametrize(
    ("name", "share"),
    [("wild3/s02_managed_softmax_t4.sqlite.xz", 0.663), ("wild3/s03_managed_prefetch_t4.sqlite.xz", 0.317)],
)
def test_migrations_of_pages_are_told_with_the_stretch_they_lie_in(name: str, share: float) -> None:
    analysis = _planted(name)
    claim = claim_of(analysis, "page_migrations")
    assert (claim.share, claim.max_gain) == (pytest.approx(share, abs=0.01), None)
    assert "gpu.copy.page_migration" in claim.cells
    assert "Prefetch" in claim.remedy
    # Most of the time lies between the migrations: what happens there is inferred.
    assert claim.confidence == "medium" and any("between migrations less than 10" in text for text in claim.evidence)


@pytest.mark.parametrize("shared", [True, False])
def test_slices_of_another_process_are_claimed_from_the_kernels_they_stretch(tmp_path: Path, shared: bool) -> None:
    """Of sixty consecutive launches every tenth kernel waits for 2.4 ms, and every tenth other is stopped as long."""
    export = Export()
    at = 0
    for i in range(60):
        export.call(1_000 * i, 1_000 * i + 500, i + 1)
        at += 2_400_000 if shared and i % 10 == 5 else 0
        length = 20_000 + (2_420_000 if shared and i % 10 == 8 else 0)
        export.kernel("gemm", 100_000 + at, 100_000 + at + length, i + 1)
        at += length + 1_000
    analysis = _nsys(export, tmp_path)
    assert ("shared_gpu" in rules(analysis)) == shared
    if shared:
        claim = claim_of(analysis, "shared_gpu")
        assert claim.stake_ns == 6 * (2_401_000 + 2_420_000)
        assert {"gpu.compute.GEMM", "idle.late_starts"} <= set(claim.cells)
        assert (claim.floor_ns, claim.confidence) == (0, "high")
        # The same time is not reported again as work that does not start.
        assert "late_starts" not in rules(analysis)


def test_a_shared_gpu_is_found_in_a_published_trace() -> None:
    claim = claim_of(_planted("wild3/s09_shared_gpu_a100.json.gz"), "shared_gpu")
    assert (claim.scope, claim.share) == ("steady", pytest.approx(0.489, abs=0.01))


@pytest.mark.parametrize("traced", [True, False])
def test_a_launching_thread_that_waits_for_the_interpreter_is_gil_contention(tmp_path: Path, traced: bool) -> None:
    """Every 6 ms one kernel of 1 ms; 4.5 ms before each launch the thread waits for another that holds the GIL."""
    export = Export()
    for i in range(12):
        at = 6 * MS * i
        export.range("step", at, at + 6 * MS)
        export.call(at, at + 10_000, i + 1)
        export.kernel("gemm", at + 20_000, at + MS, i + 1)
        if traced:
            export.registered_range("Holding GIL", at, at + MS)
            export.registered_range("Waiting for GIL", at + MS + 100_000, at + 5_600_000)
            export.registered_range("Holding GIL", at + MS + 100_000, at + 5_600_000, tid=OTHER_THREAD)
    analysis = _nsys(export, tmp_path)
    # Ranges about the lock are none of the program's, and own no kernels.
    assert [row.name for row in analysis.ranges] == ["step"]
    if not traced:
        assert analysis.findings[0].rule != "gil_contention"
        return
    claim = analysis.findings[0]
    assert (claim.rule, claim.confidence, claim.floor_ns) == ("gil_contention", "high", 0)
    assert claim.stake_ns == 11 * 4_500_000
    assert claim.evidence[0] == "11 waits for the GIL take 49.50 ms; no kernel runs for 49.50 ms of it"
    assert claim.evidence[1].startswith("held meanwhile for 49.50 ms by thread (")
    assert "into a process" in claim.remedy


@pytest.mark.parametrize("name", ["aten::cudnn_convolution", "my_pipeline"])
def test_operators_that_are_slow_to_launch_are_no_work_to_overlap(tmp_path: Path, name: str) -> None:
    """Thirty calls of 2 ms, each of which launches one kernel of 0.5 ms at its end."""
    events: list[str] = []
    for i in range(30):
        at = 2_000 * i
        events.append(event("cpu_op", name, f"{at}", "1990"))
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at + 1900}", "10", correlation=i + 1))
        lane = {"pid": 0, "tid": 7, "device": 0, "correlation": i + 1}
        events.append(event("kernel", "gemm", f"{at + 1950}", "500", **lane))
    claim = claim_of(_torch(events, tmp_path), "host_work")
    is_operator = name.startswith("aten::")
    assert claim.title.startswith("CPU time of operators before their launches") == is_operator
    assert (claim.hint == "Fewer operators to launch") == is_operator


def test_an_operator_that_computes_on_the_cpu_is_advised_to_move(tmp_path: Path) -> None:
    """Twelve steps, each with a sort of 15 ms on the CPU and a kernel of 0.5 ms."""
    events: list[str] = []
    for i in range(12):
        at = 16_000 * i
        events.append(event("cpu_op", "aten::mm", f"{at}", "20"))
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at + 5}", "10", correlation=i + 1))
        events.append(event("cpu_op", "aten::sort", f"{at + 500}", "15000"))
        events.append(event("kernel", "gemm", f"{at + 20}", "500", pid=0, tid=7, device=0, correlation=i + 1))
    claim = claim_of(_torch(events, tmp_path), "host_work")
    assert claim.title.startswith("Operators that compute on the CPU")
    assert claim.hint == "Computing on the GPU"


def test_a_little_that_was_not_recorded_is_not_the_answer_of_a_busy_gpu(tmp_path: Path) -> None:
    """Kernels of 9 of every 10 ms; of the rest nothing was recorded."""
    export = Export()
    for i in range(20):
        at = 10 * MS * i
        export.call(at, at + 5_000, i + 1)
        export.kernel("nvjet_tst_128x64_TNT", at + 6_000, at + 8_800_000, i + 1)
    analysis = _nsys(export, tmp_path)
    verdict = diagnosis_of(analysis).verdict
    assert (rules(analysis), verdict.kind) == (["not_recorded"], "largest_cell")
    assert verdict.text.endswith("The largest other part: host activity not recorded, 11.5 %.")


def test_many_short_system_calls_explain_a_gap_together(tmp_path: Path) -> None:
    """Steps of a kernel of 0.5 ms, then five writes of 1.9 ms each."""
    export = Export()
    for i in range(12):
        at = 10 * MS * i
        export.call(at, at + 5_000, i + 1)
        export.kernel("k", at + 6_000, at + 500_000, i + 1)
        for part in range(5):
            export.system_call("write", at + 450_000 + part * 1_900_000, at + 2_330_000 + part * 1_900_000)
    analysis = _nsys(export, tmp_path)
    assert (rules(analysis), owner_of(analysis, "idle.host")) == (["host_work"], ("write",))


def test_many_short_operators_explain_a_gap_together(tmp_path: Path) -> None:
    """Steps of a kernel of 0.5 ms, then 400 operators of 20 µs on the CPU, inside no range and no frame."""
    events: list[str] = []
    for i in range(12):
        at = 10_000 * i
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at}", "5", correlation=i + 1))
        events.append(event("kernel", "gemm", f"{at + 10}", "500", pid=0, tid=7, device=0, correlation=i + 1))
        events += [event("cpu_op", "aten::add", f"{at + 600 + 23 * part}", "20") for part in range(400)]
    analysis = _torch(events, tmp_path)
    assert (rules(analysis), owner_of(analysis, "idle.host")) == (["host_work"], ("aten::add",))


def test_start_up_before_the_first_kernel_leaves_the_steps_their_own_verdict(tmp_path: Path) -> None:
    """A cudaFree of 900 ms inside the first operator, then 200 kernels of 3 µs, one every 40 µs."""
    events = [event("cpu_op", "aten::linear", "0", "900050"), event("cuda_runtime", "cudaFree", "10", "900000")]
    for i in range(200):
        at = 900_020 + 40 * i
        if i:
            events.append(event("cpu_op", "aten::add", f"{at}", "15"))
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at + 2}", "5", correlation=i + 1))
        events.append(event("kernel", "add", f"{at + 8}", "3", pid=0, tid=7, device=0, correlation=i + 1))
    analysis = _torch(events, tmp_path)
    assert diagnosis_of(analysis).verdict.rule == "launch_bound"
    assert [(f.rule, f.scope, f.is_one_time) for f in analysis.findings] == [
        ("launch_bound", "steady", False),
        ("compilation", "capture", True),
    ]


def test_a_program_whose_gpu_work_was_lost_is_no_cpu_program(tmp_path: Path) -> None:
    events = []
    for i in range(30):
        events.append(event("cpu_op", "aten::mm", f"{100 * i}", "80"))
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{100 * i + 10}", "5", correlation=i + 1))
    analysis = _torch(events, tmp_path)
    verdict = diagnosis_of(analysis).verdict
    assert (analysis.findings, verdict.kind) == ((), "no_gpu_work")
    assert "the records of 30 launches were lost" in verdict.text


def test_a_window_in_which_nothing_ran_is_called_empty(tmp_path: Path) -> None:
    """As torch writes a trace of the CPU alone whose schedule recorded no step."""
    verdict = diagnosis_of(_torch([event("Trace", "PyTorch Profiler (0)", "0", "135")], tmp_path)).verdict
    assert verdict.kind == "no_gpu_work"
    assert verdict.text.startswith("The recorded window is empty") and "schedule" in verdict.text


def test_work_that_was_lost_is_said_before_the_answer_about_the_rest(tmp_path: Path) -> None:
    export = Export()
    for i in range(60):
        export.call(1_000 * i, 1_000 * i + 500, i + 1)
        if i < 50:
            export.kernel("nvjet_tst_128x64_TNT", 100_000 + MS * i, 100_000 + MS * (i + 1), i + 1)
    diagnosis = diagnosis_of(_nsys(export, tmp_path))
    assert (diagnosis.verdict.kind, diagnosis.coverage.lost_launches, diagnosis.coverage.launches) == (
        "healthy",
        10,
        60,
    )
    assert diagnosis.verdict.text.startswith("The GPU work of 10 of 60 launches has no record: ")


@pytest.mark.parametrize(("kernels", "is_once"), [(60, True), (20, False)])
def test_copies_at_both_ends_of_a_loop_are_no_part_of_it(tmp_path: Path, kernels: int, is_once: bool) -> None:
    """Arrays are copied to the GPU for 3 ms, kernels of 1 ms run, and the results are copied back for 3 ms."""
    export = Export()
    export.call(0, 3 * MS, 1, "cudaMemcpy_v3020")
    export.copy(10_000, 3 * MS, 1, size_bytes=12_000_000, kind=1)
    for i in range(kernels):
        export.call(3 * MS + 1_000 * i, 3 * MS + 1_000 * i + 500, 10 + i)
        export.kernel("step", (i + 4) * MS, (i + 5) * MS, 10 + i)
    end = (kernels + 5) * MS
    export.call(4 * MS, end, 2, "cudaMemcpy_v3020")
    export.copy(end - MS, end + 2 * MS, 2, size_bytes=12_000_000, kind=2)
    claim = claim_of(_nsys(export, tmp_path), "exposed_memcpy")
    assert (claim.is_one_time, "before the first kernel and after the last" in claim.title) == (is_once, is_once)
    assert claim.title.startswith(("H2D and D2H", "D2H and H2D") if is_once else "Exposed")
    assert (claim.max_gain is None) == is_once


def test_calls_on_another_thread_say_what_the_range_around_them_does_not(tmp_path: Path) -> None:
    """Ten steps: a thread frees and allocates for 5 ms in its range before another thread launches the next work."""
    export = Export()
    number = 0
    for i in range(10):
        at = 11 * MS * i
        export.range("step", at, at + 11 * MS)
        for j in range(10):
            number += 1
            tid = OTHER_THREAD if j >= 5 else THREAD
            begin = at + 8 * MS + 10_000 if j >= 5 else at
            export.call(begin + 1_000 * j, begin + 1_000 * j + 500, number, tid=tid)
            export.kernel("gemm", begin + 20_000 + 500_000 * (j % 5), begin + 20_000 + 500_000 * (j % 5 + 1), number)
        for j in range(5):
            begin = at + 2_600_000 + MS * j
            export.call(begin, begin + 900_000, 1_000 + 10 * i + j, "cudaFree_v3020" if j < 3 else "cudaMalloc_v3020")
    analysis = _nsys(export, tmp_path)
    assert analysis.findings[0].rule == "allocator_flush"
    assert owner_of(analysis, "idle.allocation")[0] == "cudaFree"


@pytest.mark.parametrize(("every", "rule"), [(1, "compilation"), (10, "allocator_flush")])
def test_memory_that_is_allocated_in_the_first_steps_alone_is_start_up(tmp_path: Path, every: int, rule: str) -> None:
    """A hundred kernels of 1 ms; a free of 3 ms before each of the first ten, or before every tenth."""
    export = Export()
    at = 0
    for i in range(100):
        if 0 < i <= 10 * every and i % every == 0:
            export.call(at, at + 3 * MS, 1_000 + i, "cudaFree_v3020")
            export.call(at + 3 * MS, at + 3_600_000, 2_000 + i, "cudaMalloc_v3020")
            at += 3_600_000
        export.call(at, at + 5_000, i + 1)
        export.kernel("nvjet_tst_128x64_TNT", at + 6_000, at + MS, i + 1)
        at += MS
    first = _nsys(export, tmp_path).findings[0]
    assert (first.rule, first.is_one_time) == (rule, rule == "compilation")


@pytest.mark.parametrize(("per_cent", "kind"), [(30, "not_recorded"), (20, "largest_cell")])
def test_much_that_was_not_recorded_is_the_answer_of_a_gpu_that_is_mostly_busy(
    tmp_path: Path, per_cent: int, kind: str
) -> None:
    """Steps of 10 ms with one kernel; of the rest nothing was recorded."""
    export = Export()
    for i in range(20):
        at = 10 * MS * i
        export.call(at, at + 5_000, i + 1)
        export.kernel("nvjet_tst_128x64_TNT", at + 6_000, at + 10 * MS - 100_000 * per_cent, i + 1)
    assert diagnosis_of(_nsys(export, tmp_path)).verdict.kind == kind


@pytest.mark.parametrize("inner", [True, False])
def test_a_range_around_everything_names_no_work(tmp_path: Path, inner: bool) -> None:
    """Each step of 10 ms launches a kernel of 1 ms and works for 9 ms, in a range of its own or not."""
    export = Export()
    for i in range(20):
        at = 10 * MS * i
        export.range("step", at, at + 10 * MS)
        export.call(at, at + 5_000, i + 1)
        export.kernel("gemm", at + 6_000, at + MS, i + 1)
        if inner:
            export.range("tokenize", at + MS, at + 9_900_000)
    claim = claim_of(_nsys(export, tmp_path), "host_work")
    assert ("most in tokenize" in claim.title, "nothing recorded says" in claim.title) == (inner, not inner)
    assert (claim.hint == "Recording what the host does") is not inner


def test_a_capture_of_one_set_is_told_to_record_kernels(tmp_path: Path) -> None:
    at_gpu = {"pid": 0, "tid": 7, "device": 0, "stream": 7, "correlation": 1}
    events = [
        event("cuda_runtime", "cudaMemsetAsync", "10", "5", correlation=1),
        event("gpu_memset", "Memset (Device)", "20", "1", **at_gpu, bytes=512),
    ]
    claim = claim_of(_torch(events, tmp_path), "device_copies")
    assert (claim.title.startswith("No kernel ran"), claim.confidence) == (True, "low")
    assert claim.hint == "Recording kernels"


@pytest.mark.parametrize("recorded", [True, False])
def test_copies_that_were_not_recorded_have_no_lower_bound(tmp_path: Path, recorded: bool) -> None:
    export = Export()
    for i in range(12):
        at = 2 * MS * i
        export.call(at, at + 5_000, 3 * i + 1)
        export.kernel("k", at + 6_000, at + 200_000, 3 * i + 1)
        export.call(at + 210_000, at + 1_990_000, 3 * i + 2, "cudaMemcpy")
        if recorded:
            export.copy(at + 220_000, at + 230_000, 3 * i + 2)
    claim = claim_of(_nsys(export, tmp_path), "wait_bound")
    assert claim.title.startswith("Synchronous copies") != recorded
    assert (claim.max_gain is None) != recorded


def test_evidence_says_what_of_its_time_another_finding_claims() -> None:
    """Most of the start-up of this capture lies between page migrations, which say more of it."""
    claim = claim_of(_planted("wild3/s02_managed_softmax_t4.sqlite.xz"), "compilation")
    assert any(text.endswith("of this time belong to findings that say more of it") for text in claim.evidence)


@pytest.mark.parametrize("kernel", ["void at::native::gemm", "gemm"])
def test_a_timed_wait_of_a_python_program_may_be_the_gil(tmp_path: Path, kernel: str) -> None:
    export = Export()
    for i in range(12):
        at = 6 * MS * i
        export.call(at, at + 10_000, i + 1)
        export.kernel(kernel, at + 20_000, at + MS, i + 1)
        export.system_call("pthread_cond_timedwait", at + MS, at + 5_900_000)
    claim = claim_of(_nsys(export, tmp_path), "host_blocked")
    assert ("python-gil" in claim.remedy) == kernel.startswith("void at::")


def test_the_first_of_two_allocations_makes_the_context_before_the_first_gpu_work(tmp_path: Path) -> None:
    """150 ms in cudaMalloc, then a copy and a kernel of 3 µs: the span of the GPU's work knows nothing of them."""
    export = Export()
    export.call(0, 150 * MS, 1, "cudaMalloc_v3020")
    export.call(150 * MS, 150 * MS + 80_000, 2, "cudaMalloc_v3020")
    export.call(151 * MS, 151 * MS + 60_000, 3, "cudaMemcpy_v3020")
    export.copy(151 * MS + 10_000, 151 * MS + 55_000, 3, size_bytes=200_000, kind=1)
    export.call(152 * MS + 70_000, 152 * MS + 100_000, 4)
    export.kernel("vectorAdd", 152 * MS + 110_000, 152 * MS + 113_000, 4)
    claim = claim_of(_nsys(export, tmp_path), "compilation")
    assert (
        "before the first GPU work, which is not a part of these shares: cudaMalloc takes 150.0 ms in 1 call"
        in claim.evidence
    )


def test_a_gpu_that_only_communicates_is_not_called_healthy(tmp_path: Path) -> None:
    export = Export()
    for i in range(60):
        at = 2_009_000 * i
        export.call(at, at + 4_000, i + 1)
        export.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", at + 6_000, at + 2_006_000, i + 1)
    verdict = diagnosis_of(_nsys(export, tmp_path)).verdict
    assert verdict.kind == "largest_cell"
    assert "The largest part: exposed communication" in verdict.text
