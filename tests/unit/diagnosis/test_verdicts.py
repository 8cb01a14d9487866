"""Verdicts that fit the program and its capture: one small capture per case, alongside those of test_gaps."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import UNSET, UnsetType

from llm_perf_opt.capture.kernels.names import is_fusible
from llm_perf_opt.capture.ranges import with_phases
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.capture.timeline import HostEvents, Timeline, since
from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.diagnosis.analyze import RecordedCapture, analyze_captures, analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import AfterSetup, CaptureAnalysis
from llm_perf_opt.diagnosis.evidence import CaptureEvidence, measure_timeline
from llm_perf_opt.diagnosis.gaps.host_alone import HostAlone, OutsideRow
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.diagnosis.run import is_covered
from llm_perf_opt.report.render.capture_text import render_analysis
from llm_perf_opt.report.run_files import read_run_files
from llm_perf_opt.report.view.report_view import build_view
from tests.support.answers import cells_of, claim_of, diagnosis_of, owner_of, rules, scope_of
from tests.support.nsys_builder import PID, Export, h200_export
from tests.support.report_facts import facts, ms, phase
from tests.support.trace_builder import event, write_trace

MS = 1_000_000
POINTWISE = tuple(
    f"void at::native::vectorized_elementwise_kernel<4, at::native::{name}Functor<float> >(int)"
    for name in ("Add", "Mul", "Tanh")
)


def _nsys(export: Export, tmp_path: Path) -> CaptureAnalysis:
    return analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))])


def _torch(events: list[str], tmp_path: Path, *, detailed: bool = False) -> CaptureAnalysis:
    path = write_trace(tmp_path / "t.json", events)
    return analyze_timelines([read_torch_trace(path, detailed=detailed).timeline])


def _kernel(events: list[str], number: int, launch_us: int, start_us: int, length_us: int) -> None:
    events.append(event("cuda_runtime", "cudaLaunchKernel", f"{launch_us}", "5", correlation=number))
    events.append(event("kernel", "gemm", f"{start_us}", f"{length_us}", pid=0, tid=7, correlation=number, device=0))


def _late_steps(tmp_path: Path, *, every: int, detailed: bool) -> CaptureAnalysis:
    """Launched work starts 4 ms late, six times; operators are numbered `every` apart."""
    events: list[str] = []
    for i in range(120):
        events.append(event("cpu_op", "aten::mm", f"{10 * i}", "5", **{"External id": 1 + every * i}))
    for i in range(6):
        _kernel(events, i + 1, 2_000 + 5_000 * i, 6_000 + 5_000 * i, 1_000)
    return _torch(events, tmp_path, detailed=detailed)


def test_a_trace_that_was_thinned_out_promises_nothing(tmp_path: Path) -> None:
    analysis = _late_steps(tmp_path, every=50, detailed=True)
    (finding,) = analysis.findings
    assert (finding.rule, finding.confidence, finding.max_gain) == ("late_starts", "low", None)
    assert finding.caveat is not None and "of what ran; the rest may have run" in finding.caveat
    said = diagnosis_of(analysis)
    assert said.coverage.kept_share == pytest.approx(0.02, abs=0.001)
    assert (
        said.verdict.text.startswith("The capture holds 2.0") and "may be work that was taken out" in said.verdict.text
    )
    assert analysis.notes[0] == (
        "t.json: the trace holds 2.0 % of the operators that ran (the profiler numbers them): events were taken out "
        "of it after the recording, and work that is missing looks like idle time"
    )


@pytest.mark.parametrize(("every", "detailed"), [(1, True), (50, False)])
def test_a_whole_trace_and_one_read_in_short_are_taken_as_they_are(tmp_path: Path, every: int, detailed: bool) -> None:
    (finding,) = _late_steps(tmp_path, every=every, detailed=detailed).findings
    assert finding.confidence == "medium"
    assert finding.caveat is None or "of what ran" not in finding.caveat


def test_the_first_calls_of_an_operator_set_something_up(tmp_path: Path) -> None:
    events: list[str] = []
    at = 0
    for i in range(30):
        # The first three take 1 ms, the others 50 µs.
        length = 1_000 if i < 3 else 50
        events.append(event("cpu_op", "aten::addmm", f"{at}", f"{length}"))
        _kernel(events, i + 1, at + length - 10, at + length, 40)
        at += length + 10
    analysis = _torch(events, tmp_path)
    # Start-up is most of this capture, and is reported first.
    assert rules(analysis) == ["compilation", "launch_bound"]
    assert claim_of(analysis, "compilation").is_one_time
    assert owner_of(analysis, "idle.startup.first_use") == ("aten::addmm",)


def test_several_reasons_of_one_gap_each_are_not_certain(tmp_path: Path) -> None:
    events: list[str] = []
    for i in range(5):
        events.append(event("python_function", f"train.py({i}): part_{'abcde'[i]}", f"{10_000 * i}", "8000"))
        _kernel(events, i + 1, 10_000 * i + 8_000, 10_000 * i + 8_010, 1_900)
    (finding,) = _torch(events, tmp_path).findings
    assert (finding.rule, finding.confidence) == ("host_work", "medium")


@pytest.mark.parametrize(
    ("kernel", "place", "advice"),
    [
        ("nvkernel_solve_F1L204_2", "solve", "a data region around the loop"),
        ("jacobi_47_gpu", "solve", "a data region around the loop"),
        ("my_kernel", "solve", "prefetch the next piece on its own stream"),
        ("flash_fwd_kernel", "solve", "keep weights, caches and results on the device"),
        ("void at::native::add", "FSDP::pre_forward (block.1)", "keep the parameters on the device"),
    ],
)
def test_what_to_do_about_copies_fits_the_program(tmp_path: Path, kernel: str, place: str, advice: str) -> None:
    export = Export()
    for i in range(10):
        at = 10 * MS * i
        export.range(place, at, at + 2_000)
        if "FSDP" in place:
            export.range("aten::copy_", at + 100, at + 1_900)
        export.call(at + 500, at + 1_000, 2 * i + 1, "cudaMemcpyAsync_v3020")
        export.copy(at + 2_000, at + 9 * MS, 2 * i + 1, size_bytes=36 * MS, kind=1)
        export.call(at + 3_000, at + 4_000, 2 * i + 2)
        export.kernel(kernel, at + 9 * MS, at + 10 * MS, 2 * i + 2)
    finding = claim_of(_nsys(export, tmp_path), "exposed_memcpy")
    assert advice in finding.remedy
    assert f"started in {place}: 10 copies, 89.98 ms" in finding.evidence


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [
        ("void tensorflow::functor::FillPhiloxRandomKernel<int>(int)", "jit_compile=True"),
        ("void Eigen::internal::EigenMetaKernel<int>(int)", "tf.function"),
        ("nvkernel_main_F1L10_2", "nowait and depend in OpenMP"),
        ("__omp_offloading_10302_1a2b_main_l12", "async in OpenACC"),
        ("void mul_mat_vec_q<(ggml_type)12, 1, false>(void const*)", "GGML_CUDA_GRAPHS"),
        ("void tensorrt_llm::kernels::applyPenaltyKernel<float>(float*)", "cuda_graph_config"),
        ("void vllm::rms_norm_kernel<c10::BFloat16>(int)", "enforce_eager"),
        ("void thrust::cuda_cub::core::_kernel_agent<int>(int)", "record the sequence as a CUDA graph"),
    ],
)
def test_what_to_do_about_launches_fits_the_program(tmp_path: Path, kernel: str, advice: str) -> None:
    export = Export()
    for i in range(100):
        export.call(i * 30_000, i * 30_000 + 4_000, i + 1)
        export.kernel(kernel, i * 30_000 + 6_000, i * 30_000 + 9_000, i + 1)
    finding = _nsys(export, tmp_path).findings[0]
    assert finding.rule == "launch_bound"
    assert advice in finding.remedy
    assert "torch.compile" not in finding.remedy


RANDOM = "float, 4, at::native::templates::cuda::{}_and_transform<float, float, at::CUDAGeneratorImpl*>"


@pytest.mark.parametrize(
    ("kernel", "fusible"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)", True),
        ("void at::native::reduce_kernel<512, 1, at::native::MeanOps<float> >(int)", True),
        ("void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<int>(int)", False),
        ("void at_cuda_detail::cub::DeviceScanKernel<int>(int)", False),
        ("void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float> >(int)", False),
        ("void at::native::sbtopk::gatherTopK<float>(float)", False),
        ("triton_poi_fused_add_mul_2", False),
        (f"void at::native::distribution_elementwise_grid_stride_kernel<{RANDOM.format('normal')} >(long)", False),
        (f"void at::native::distribution_elementwise_grid_stride_kernel<{RANDOM.format('uniform')} >(long)", False),
    ],
)
def test_passes_that_need_each_other_s_whole_result_are_not_fusible(kernel: str, fusible: bool) -> None:
    assert is_fusible(kernel) == fusible


def test_processes_with_a_gpu_each_are_not_said_to_share_one_busy_time(tmp_path: Path) -> None:
    export = Export()
    other = PID + 0x1000000
    for pid, device in ((PID, 0), (other, 1)):
        export.call(0, 1_000, 1, tid=pid | 1)
        export.kernel("k", 2_000, 9_000, 1, pid=pid, device=device)
    assert not [note for note in _nsys(export, tmp_path).notes if "devices" in note]
    export.kernel("k", 9_000, 9_500, 1, pid=PID, device=1)
    (tmp_path / "capture.sqlite").unlink()
    notes = _nsys(export, tmp_path).notes
    assert "capture.sqlite: a process used 2 devices: busy means that at least one of them ran a kernel" in notes


def test_a_gpu_that_works_all_the_time_is_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three kernels of a third each, back to back."""
    export = Export()
    for i in range(12):
        export.call(i * 100, i * 100 + 50, i + 1)
        name = ("nbody", "stencil", "solve")[i % 3]
        export.kernel(name, 10_000 * i + 2_000, 10_000 * (i + 1) + 2_000, i + 1)
    path = export.write(tmp_path / "a.sqlite")
    verdict = diagnosis_of(analyze_timelines([read_nsys_sqlite(path)])).verdict
    assert (verdict.kind, verdict.hottest_kernel) == ("healthy", "nbody")
    assert main(["analyze", "-v", str(path)]) == 0
    assert "Healthy: GPU busy 100.0 % of the capture (0.120 ms)" in capsys.readouterr().out


def test_a_class_of_one_kernel_is_named_with_it(tmp_path: Path) -> None:
    """The GPU is busy for nine tenths of a range of 11 ms, the rest in short gaps between queued kernels."""
    export = Export()
    export.range("request", 0, 11_010_000)
    for i in range(100):
        export.call(2_000 * i, 2_000 * i + 1_000, i + 1)
        export.kernel("nvjet_tst_128x64", 10_000 + 110_000 * i, 110_000 + 110_000 * i, i + 1)
    export.call(200_000, 11_010_000, 900, "cudaDeviceSynchronize")
    analysis = _nsys(export, tmp_path)
    verdict = diagnosis_of(analysis).verdict
    assert (analysis.findings, verdict.kind, verdict.hottest_kernel) == ((), "healthy", "nvjet_tst_128x64")
    assert "GPU busy 91.0 % of request" in verdict.text
    assert "GEMM kernels take 100.0 %" in verdict.text


def test_a_gpu_that_waits_in_the_longest_range_is_not_said_to_work_all_the_time(tmp_path: Path) -> None:
    """Two processes, whose edges are not inspected, with a request of 10 ms each in which the GPU works for 1 ms."""
    export = Export()
    for number, pid in enumerate((PID, PID + 0x1000000)):
        export.range("request", 0, 10 * MS, tid=pid | 1)
        for i in range(10):
            correlation = 100 * number + i + 1
            export.call(4 * MS + 100 * i, 4 * MS + 100 * i + 50, correlation, tid=pid | 1)
            start = 4 * MS + 10_000 + 100_000 * i
            export.kernel("nvjet_tst_128x64", start, start + 100_000, correlation, pid=pid, device=number)
    analysis = _nsys(export, tmp_path)
    assert (scope_of(analysis).wall_ns, scope_of(analysis).processes) == (2 * MS, 2)
    (request,) = analysis.ranges
    assert (request.typical.gpu_busy_ns, request.typical.wall_ns) == (MS, 10 * MS)
    assert diagnosis_of(analysis).verdict.kind != "healthy"


def test_the_terminal_says_what_limits_a_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = Export()
    for i in range(100):
        export.call(i * 100, i * 100 + 50, i + 1)
        export.kernel(POINTWISE[i % 3], 10_000 * i + 20_000, 10_000 * (i + 1) + 20_000, i + 1)
    assert main(["analyze", "-v", str(export.write(tmp_path / "a.sqlite"))]) == 0
    out = capsys.readouterr().out
    assert "* Unfused elementwise kernels: 100 % of kernel time in the capture: up to " in out
    assert "    lower bound: " in out


@pytest.mark.parametrize(
    ("kernel", "begins"),
    [
        ("hello()", "One kernel dominates: hello"),
        ("nvjet_tst_128x64_TNT", "One kernel was recorded: nvjet_tst_128x64_TNT"),
    ],
)
def test_a_single_kernel_is_too_little_to_judge(tmp_path: Path, kernel: str, begins: str) -> None:
    export = Export()
    export.call(0, 1_000, 1)
    export.kernel(kernel, 2_000, 3_000, 1)
    analysis = _nsys(export, tmp_path)
    verdict = diagnosis_of(analysis).verdict
    assert (rules(analysis), verdict.hottest_kernel) == ([], kernel.removesuffix("()"))
    assert verdict.text.startswith(begins) and verdict.kind != "healthy"
    assert all(finding.max_gain is None for finding in analysis.findings)


@pytest.mark.parametrize(("waits", "chains"), [(False, 1), (True, 30)])
def test_nothing_is_fused_over_a_wait_of_the_host(tmp_path: Path, waits: bool, chains: int) -> None:
    export = Export()
    at = number = 0
    for _ in range(30):
        for name in POINTWISE:
            number += 1
            export.call(at, at + 2_000, number)
            export.kernel(name, at + 3_000, at + 10_000, number)
            at += 10_000
        if waits:
            number += 1
            export.call(at - 5_000, at, number, "cudaStreamSynchronize_v3020")
    measured = measure_timeline(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite")))
    found = CaptureEvidence([measured]).chains
    assert (found.count, found.kernel_count) == (chains, 90)
    # Kernels that end long before the next one is launched are not what the program waits for.
    claims = rules(analyze_timelines([measured.timeline]))
    assert claims == ["launch_bound", *(["unfused_elementwise"] if waits else [])]


def test_a_few_short_waits_beside_copies_are_not_launch_bound(tmp_path: Path) -> None:
    export = Export()
    for i in range(30):
        at = 2 * MS * i
        export.call(at, at + 4_000, 2 * i + 1)
        export.kernel("lbm_step", at + 6_000, at + MS, 2 * i + 1)
        export.call(at + MS + 100_000, at + MS + 110_000, 2 * i + 2, "cudaMemcpyPeerAsync")
        export.copy(at + MS + 120_000, at + 2 * MS - 100_000, 2 * i + 2, size_bytes=1_000_000, kind=10)
    (finding,) = _nsys(export, tmp_path).findings
    assert (finding.rule, finding.cells) == ("device_copies", {"gpu.copy.peer": 23_400_000})
    assert finding.hint == "Overlapping copies between GPUs"


def test_a_gap_is_judged_by_what_the_host_did_beside_its_copies(tmp_path: Path) -> None:
    """Two copies of 0.8 ms, then a launch that loads the kernel for 0.9 ms."""
    export = Export()
    for i in range(2):
        export.call(i * MS, i * MS + 800_000, i + 1, "cudaMemcpy_v3020")
        export.copy(i * MS + 10_000, i * MS + 790_000, i + 1, size_bytes=4_000_000, kind=1)
    export.call(2 * MS, 2 * MS + 900_000, 3)
    export.kernel("vectorAdd", 2 * MS + 905_000, 2 * MS + 940_000, 3)
    analysis = _nsys(export, tmp_path)
    assert rules(analysis) == ["exposed_memcpy", "compilation"]
    # With so few kernels there is no loop after loading: copying is what this program does.
    assert [finding.is_one_time for finding in analysis.findings] == [False, True]
    assert owner_of(analysis, "idle.startup") == ("cudaLaunchKernel",)
    assert "CUDA_MODULE_LOADING=EAGER" in claim_of(analysis, "compilation").remedy


def test_launches_of_intel_s_runtime_are_known_and_get_no_advice_about_cuda(tmp_path: Path) -> None:
    events: list[str] = []
    for i in range(100):
        events.append(event("xpu_runtime", "urEnqueueKernelLaunch", f"{100 * i}", "30", correlation=i + 1))
        events.append(event("kernel", "gemm", f"{100 * i + 60}", "20", pid=0, tid=7, correlation=i + 1, device=0))
    events.append(event("xpu_runtime", "urQueueFinish", "9990", "20", correlation=200))
    path = write_trace(tmp_path / "t.json", events)
    timeline = read_torch_trace(path).timeline
    assert (int(timeline.kernels.call.min()), int(timeline.calls.waits.sum())) == (0, 1)
    (finding,) = analyze_timelines([timeline]).findings
    assert (finding.rule, "CUDA" in finding.remedy) == ("launch_bound", False)


def test_steps_and_loaders_of_torch_1_8_are_ranges(tmp_path: Path) -> None:
    events: list[str] = []
    for step in range(3, 7):
        at = 10_000 * step
        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events.append(event("Operator", f"ProfilerStep#{step}", f"{at}", "10000"))
        events.append(event("Operator", loader, f"{at}", "4000"))
        for i in range(10):
            number = 10 * step + i
            events.append(event("Operator", "aten::mm", f"{at + 4_000 + 600 * i}", "50"))
            events.append(event("Runtime", "cudaLaunchKernel", f"{at + 4_010 + 600 * i}", "5", correlation=number))
            where = {"pid": 0, "tid": 7, "device": 0, "correlation": number}
            events.append(event("Kernel", "gemm", f"{at + 4_020 + 600 * i}", "580", **where))
    for detailed in (False, True):
        analysis = _torch(events, tmp_path, detailed=detailed)
        assert [(row.name, row.instances) for row in analysis.ranges] == [
            ("ProfilerStep#N", 4),
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 4),
        ]
        assert [finding.rule for finding in analysis.findings] == ["data_loading"]
    trace = read_torch_trace(tmp_path / "t.json", detailed=True)
    assert {trace.timeline.names[code] for code in trace.operators.name.tolist()} == {"aten::mm"}
    assert trace.detail is not None
    assert len(trace.detail.operator_extra) == len(trace.detail.shape) == len(trace.operators) == 40


def test_a_page_of_ncu_alone_opens_with_what_bounds_its_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = "ID,Kernel Name,Section Name,Metric Name,Metric Unit,Metric Value,Rule Name,Rule Type,Rule Description"
    sections = "GPU Speed Of Light Throughput"
    rows = [columns]
    for number, (name, time, memory) in enumerate((("copy", 30, 90), ("add", 10, 20))):
        for metric, unit, value in (
            ("Duration", "us", time),
            ("Memory Throughput", "%", memory),
            ("Compute (SM) Throughput", "%", 5),
        ):
            rows.append(f"{number},{name},{sections},{metric},{unit},{value},,,")
        rows.append(f"{number},{name},{sections},,,,Bottleneck,OPT,More than   enough of {name}")
    page = tmp_path / "page.csv"
    page.write_text("\n".join(rows) + "\n")
    assert main(["analyze", str(page), "--top", "1"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith(
        "ncu measured 2 launches of 2 kernels, 40.0 µs in all: 75.0 % is memory-bound, 25.0 % is"
    )
    assert lines[2:7] == [
        "launches  mean µs  bound   compute %  memory %  occupancy %  kernel",
        "--------  -------  ------  ---------  --------  -----------  ------",
        "       1     30.0  memory        5.0      90.0            –  copy",
        "… and 1 more kernels (--top)",
        "ncu on copy: More than enough of copy",
    ]


def test_a_jax_program_is_told_of_its_compiling_and_of_what_nsys_lost(tmp_path: Path) -> None:
    """A jitted step called 300 times; nsys 2025.3 lost a part of it while importing, at a range without a name."""
    found = analyze_timelines([with_phases(read_nsys_sqlite(h200_export(tmp_path, "jax")), {})])
    assert rules(found) == ["compilation"]
    assert claim_of(found, "compilation").is_one_time
    assert diagnosis_of(found).verdict.kind == "one_time"
    assert not any("torch" in finding.remedy for finding in found.findings)
    assert any("Not all CUDA events might have been collected" in note for note in found.notes)


def test_a_compiled_model_is_told_of_its_warm_up_as_what_is_paid_once(tmp_path: Path) -> None:
    """Llama 1B with reduce-overhead, its compiling inside the range `warmup`; then a prefill and 15 replayed steps."""
    found = analyze_timelines([with_phases(read_nsys_sqlite(h200_export(tmp_path, "compiled")), {})])
    setup = claim_of(found, "compilation")
    assert (setup.is_one_time, setup.scope, found.findings[0].scope) == (True, "capture", "steady")
    assert owner_of(found, "idle.startup", "capture") == ("warmup",)
    assert "host_work" not in rules(found)
    (step,) = [row for row in found.ranges if row.name == "decode_step"]
    assert (step.instances, step.kernel_count) == (15, 15 * 327)
    assert step.idle is not None and step.idle.waiting_for_host_ns < 0.1 * step.wall_ns


def test_a_batch_of_eight_is_judged_by_its_steps(tmp_path: Path) -> None:
    """Llama 1B, eight prompts of 256 tokens at once, eager: as many kernels as for one, and the host as slow."""
    found = _with_rest(with_phases(read_nsys_sqlite(h200_export(tmp_path, "batched")), {}))
    (step,) = [row for row in found.ranges if row.name == "decode_step"]
    assert (step.instances, step.kernel_count) == (15, 15 * 678)
    assert step.gpu_busy_ns is not None and step.gpu_busy_ns < 0.2 * step.wall_ns
    first, second = found.findings[:2]
    assert (first.rule, first.scope, first.range_name) == ("launch_bound", "steady", "decode")
    assert (second.rule, second.is_one_time, second.scope) == ("compilation", True, "capture")
    # Most of it is the warm-up: the rest is judged by itself.
    rest = found.after_setup
    assert rest is not UNSET and found.idle is not UNSET
    with closing(sqlite3.connect(tmp_path / "batched.sqlite")) as database:
        kernels = "SELECT count(*), min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start >= ?"
        count, begun = database.execute(kernels, (found.idle.gaps.setup_end_ns,)).fetchone()
    assert (rest.kernel_count, begun) == (count, found.idle.gaps.setup_end_ns)
    assert rest.findings == (first,)
    # Tables a reader is shown are of that part; the top-level ones stay those of all of it.
    assert sum(row.instances for row in found.shown.kernels) == count < sum(row.instances for row in found.kernels)
    assert found.shown.of_scope == "the steady state, start-up left out"
    assert "steady state, start-up left out" in render_analysis(found, top=5).plain
    launching = sum(cell.time_ns for cell in cells_of(found, "idle.launch", "steady"))
    assert (first.stake_ns, first.max_gain) == (launching, pytest.approx(rest.span_ns / (rest.span_ns - launching)))


def test_a_server_that_builds_attention_for_every_length_is_told_so(tmp_path: Path) -> None:
    """Llama 1B under `transformers serve`, 16 requests at once, eager: 1.3 s of a window opened after warming up."""
    path = h200_export(tmp_path, "served")

    found = analyze_captures([RecordedCapture(timeline=read_nsys_sqlite(path))], engine="transformers serve").analysis
    first, second = found.findings[:2]
    assert (first.rule, first.is_one_time, first.share) == ("recompilation", False, pytest.approx(0.597, abs=0.001))
    assert "enable_cudnn_sdp(False)" in first.remedy
    # What passes between two kernels of which the second is loaded meanwhile, as the export itself has it.
    with closing(sqlite3.connect(path)) as database:
        (waited,) = database.execute(
            """
            WITH loads AS (
              SELECT start AS at FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON id = nameId
              WHERE value LIKE 'cuLibraryLoadData%'
            ), around AS (
              SELECT (SELECT max(end) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE end < at) AS ended,
                     (SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start > at) AS begun FROM loads
            )
            SELECT sum(begun - ended) FROM around JOIN CUPTI_ACTIVITY_KIND_KERNEL AS k ON k.start = begun
            JOIN StringIds ON id = k.shortName WHERE value LIKE 'cudnn_generated%'
            """
        ).fetchone()
    (built,) = cells_of(found, "idle.recompilation")
    assert (built.count, built.owner[0].startswith("cudnn_generated")) == (15, True)
    assert built.time_ns == first.stake_ns == pytest.approx(776.64e6, rel=1e-4)
    assert waited == pytest.approx(built.time_ns, rel=0.01)
    assert (second.rule, second.share) == ("launch_bound", pytest.approx(0.281, abs=0.001))
    assert second.remedy.startswith("let transformers replay its steps as CUDA graphs")


def test_python_frames_of_the_steady_state_begin_with_it() -> None:
    none = np.zeros(3, np.int64)
    frames = HostEvents(
        start_ns=np.array([0, 10, 60]), end_ns=np.array([100, 40, 90]), name=np.array([0, 1, 2]), thread=none
    )
    rest = frames.since(50)
    assert (rest.start_ns.tolist(), rest.end_ns.tolist(), rest.name.tolist()) == ([50, 60], [100, 90], [0, 2])


def _with_rest(timeline: Timeline) -> CaptureAnalysis:

    return analyze_timelines([timeline])


def test_what_is_left_of_a_compiled_capture_is_no_longer_set_up(tmp_path: Path) -> None:
    found = _with_rest(with_phases(read_nsys_sqlite(h200_export(tmp_path, "compiled")), {}))
    rest = found.after_setup
    assert rest is not UNSET and found.gpu.span_ns is not None
    assert 0 < rest.busy_ns < rest.span_ns < 0.01 * found.gpu.span_ns
    once = sum(cell.time_ns for cell in cells_of(found, "idle.startup", "steady"))
    assert once < 0.3 * rest.span_ns
    assert not any("the capture" in text for finding in rest.findings for text in (finding.title, *finding.evidence))


def _steps(export: Export, count: int, *, at_us: int, first: int) -> int:
    """`steps` steps of a kernel of 6 of 10 µs; the moment after the last."""
    for number in range(count):
        begin = (at_us + 10 * number) * 1000
        export.call(begin, begin + 2000, first + number)
        export.kernel("gemm", begin + 3000, begin + 9000, first + number)
    return at_us + 10 * count


def _load(export: Export, number: int, *, at_us: int, length_us: int) -> int:
    """A launch that loads code for `time_ns`; the moment after its kernel."""
    export.call(at_us * 1000, (at_us + length_us) * 1000, number, "cuLibraryLoadData_v12000")
    export.call((at_us + length_us) * 1000, (at_us + length_us + 2) * 1000, number + 1)
    export.kernel("gemm", (at_us + length_us + 3) * 1000, (at_us + length_us + 9) * 1000, number + 1)
    return at_us + length_us + 10


def _rest(export: Export, tmp_path: Path) -> AfterSetup | UnsetType:
    return _with_rest(read_nsys_sqlite(export.write(tmp_path / "capture.sqlite"))).after_setup


def test_a_capture_without_much_set_up_is_judged_as_a_whole(tmp_path: Path) -> None:
    export = Export()
    _steps(export, 100, at_us=0, first=0)
    assert _rest(export, tmp_path) is UNSET


def test_set_up_ends_where_the_steps_begin_whatever_is_loaded_late(tmp_path: Path) -> None:
    export = Export()
    at = _steps(export, 2, at_us=0, first=0)
    at = _load(export, 10, at_us=at, length_us=20_000)
    at = _steps(export, 1000, at_us=at, first=100)
    at = _load(export, 5000, at_us=at, length_us=600)
    _steps(export, 60, at_us=at, first=6000)
    rest = _rest(export, tmp_path)
    assert rest is not UNSET
    assert (rest.kernel_count, rest.graph_count) == (1 + 1000 + 1 + 60, 0)
    assert rest.span_ns == pytest.approx((1062 * 10 + 600) * 1000, rel=0.01)


def test_a_rest_with_little_of_the_work_is_left_alone(tmp_path: Path) -> None:
    export = Export()
    at = _steps(export, 1000, at_us=0, first=0)
    at = _load(export, 5000, at_us=at, length_us=20_000)
    _steps(export, 60, at_us=at, first=6000)
    assert _rest(export, tmp_path) is UNSET


def test_a_part_of_a_timeline_has_its_work_and_the_calls_that_launched_it(tmp_path: Path) -> None:
    export = Export()
    export.range("early", 0, 30_000)
    export.range("late", 41_000, 60_000)
    export.range("whole", 50_500, 60_000)
    for number, start in enumerate((1000, 21_000, 41_500, 51_000)):
        export.call(start, start + 500, number)
        export.kernel(f"kernel_{number}", start + 1000, start + 4000, number)
    whole = read_nsys_sqlite(export.write(tmp_path / "run.sqlite"))
    part = since(whole, 42_000, before_ns=1000)
    assert [part.names[i] for i in part.kernels.name] == ["kernel_2", "kernel_3"]
    assert part.calls.start_ns[part.kernels.call].tolist() == [41_500, 51_000]
    # A range that began before the first launch holds what was left out: its rest is kept.
    names = [part.names[i] for i in part.ranges.name]
    assert dict(zip(names, part.ranges.start_ns.tolist(), strict=True)) == {"late": 41_500, "whole": 50_500}
    assert len(part.calls) == 2
    # A launch that held the set-up counts from the moment on.
    assert since(whole, 42_000, before_ns=200).calls.start_ns.tolist() == [41_800, 51_000]
    everything = since(whole, 0)
    assert everything.kernels.call.tolist() == whole.kernels.call.tolist()
    assert len(since(whole, 10**9).kernels) == 0


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("warmup", "compilation"),
        ("Model warm-up", "compilation"),
        ("WARMING_UP_3", "compilation"),
        ("after_warmup", "host_work"),
        ("steps without warm-up", "host_work"),
        ("warmed_upside", "host_work"),
        ("tokenise", "host_work"),
    ],
)
def test_work_of_the_host_inside_a_warm_up_is_paid_once(tmp_path: Path, name: str, rule: str) -> None:
    export = Export()
    export.range(name, 1_000_000, 90_000_000)
    for i, start in enumerate((0, 95_000_000)):
        export.call(start, start + 4_000, i + 1, "cudaLaunchKernel")
        export.kernel("gemm", start + 6_000, start + 900_000, i + 1)
    analysis = _nsys(export, tmp_path)
    assert rules(analysis) == [rule]
    assert claim_of(analysis, rule).is_one_time == (rule == "compilation")


def _two_bound_ranges(tmp_path: Path) -> CaptureAnalysis:
    """A prefill of 200 kernels and a decode of 400, one every 30 µs, each 3 µs long."""
    export = Export()
    for name, first, count in (("prefill", 0, 200), ("decode", 200, 400)):
        export.range(name, 30_000 * first, 30_000 * (first + count))
        for i in range(first, first + count):
            export.call(30_000 * i, 30_000 * i + 4_000, i + 1, "cudaLaunchKernel")
            export.kernel(f"nvjet_tst_{i % 2}", 30_000 * i + 6_000, 30_000 * i + 9_000, i + 1)
    return _nsys(export, tmp_path)


def test_ranges_with_one_illness_and_one_remedy_are_one_finding(tmp_path: Path) -> None:
    (finding,) = _two_bound_ranges(tmp_path).findings
    assert (finding.range_name, finding.also_ranges) == ("decode", ("prefill",))
    assert "also launch-bound: prefill" in finding.evidence
    assert finding.capture_share == pytest.approx(0.9, abs=0.01)
    assert finding.max_gain == pytest.approx(10.0, rel=0.01)


def test_a_finding_of_two_ranges_stays_until_both_have_a_clean_time(tmp_path: Path) -> None:
    (found,) = _two_bound_ranges(tmp_path).findings
    half = facts(phase("decode", wall=ms(12.0)), phase("prefill"))
    whole = facts(phase("decode", wall=ms(12.0)), phase("prefill", wall=ms(6.0)))
    assert (is_covered(found, half), is_covered(found, whole)) == (False, True)
    # Modules of our own loop lie inside its phases; another range does not.
    assert is_covered(replace(found, also_ranges=("module:experts", "prefill")), whole)
    assert not is_covered(replace(found, also_ranges=("experts",)), whole)


def test_the_page_of_a_capture_lists_findings_as_the_terminal_does(tmp_path: Path) -> None:
    """Small products of a phase, known only by their length, were listed above what saves more of the capture."""
    export = Export()
    export.range("prefill", 0, 6_000_000)
    export.range("decode", 6_000_000, 8_000_000)
    for i in range(200):
        export.call(30_000 * i, 30_000 * i + 4_000, i + 1, "cudaLaunchKernel")
        export.kernel("vectorized_copy_kernel" if i % 3 else "gemm", 30_000 * i + 6_000, 30_000 * i + 9_000, i + 1)
    for i in range(200, 400):
        queued, at = 6_000_000 + 2_500 * (i - 200), 6_005_000 + 9_500 * (i - 200)
        export.call(queued, queued + 2_000, i + 1, "cudaLaunchKernel")
        export.kernel("gemm", at, at + 9_000, i + 1)
    path = export.write(tmp_path / "capture.sqlite")
    assert main(["analyze", "-v", str(path), "-o", str(tmp_path / "run")]) == 0
    run = tmp_path / "run"
    view = build_view(read_run_files(read_manifest(run), run))
    told = json.loads((tmp_path / "run/nsys/analysis.json").read_text(encoding="utf-8"))["findings"]
    assert [finding.title for finding in view.findings] == [finding["title"] for finding in told]
    assert (view.findings[0].rule, told[0]["range_name"]) == ("launch_bound", "prefill")


def test_copies_by_kernels_are_told_once_and_with_advice_that_fits(tmp_path: Path) -> None:
    export = Export()
    names = ("gemm", "solver::transpose_kernel", "gemm")
    for i in range(90):
        export.call(1_000 * i, 1_000 * i + 500, i + 1, "cudaLaunchKernel")
        export.kernel(names[i % 3], 100_000 * (i + 1), 100_000 * (i + 1) + 99_000, i + 1)
    (finding,) = [f for f in _nsys(export, tmp_path).findings if f.rule != "hottest_kernel"]
    assert (finding.rule, finding.stake_ns, finding.cells) == (
        "layout_copies",
        2_970_000,
        {"gpu.compute.copy": 2_970_000},
    )
    assert "KV cache" not in finding.remedy and "torch" not in finding.remedy


def _loads_first(tmp_path: Path, *, steps: int) -> CaptureAnalysis:
    """Twenty copies of 8 ms, one every 20 ms, then steps of 20 ms in which kernels follow each other."""
    export = Export()
    for i in range(20):
        export.call(20 * MS * i, 20 * MS * i + 10_000, i + 1, "cudaMemcpyAsync")
        export.copy(20 * MS * i + 5_000, 20 * MS * i + 8 * MS, i + 1, 64_000_000, 1)
    for i in range(20 * steps):
        at = 400 * MS + MS * i
        export.call(at, at + 5_000, 100 + i, "cudaLaunchKernel")
        export.kernel("gemm", at + 10_000, at + MS, 100 + i)
    return _nsys(export, tmp_path)


def test_what_happens_before_the_first_kernel_is_loading_and_paid_once(tmp_path: Path) -> None:
    analysis = _loads_first(tmp_path, steps=5)
    assert rules(analysis) == ["compilation", "exposed_memcpy"]
    assert all(finding.is_one_time and finding.max_gain is None for finding in analysis.findings)
    setup, copies = analysis.findings
    assert (setup.share, setup.scope) == (pytest.approx(0.48, abs=0.001), "capture")
    assert owner_of(analysis, "idle.startup", "capture") == ("the time before the first kernel",)
    assert (copies.cells, copies.hint) == ({"gpu.copy.h2d": 159_900_000}, "Capturing after loading")
    # What follows is a GPU that works.
    assert scope_of(analysis).id == "steady"
    assert diagnosis_of(analysis).verdict.kind == "healthy"


def test_waiting_for_a_late_rank_is_not_told_again_as_communication(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 computes for 9 of 20 ms in each step, the other for 5: the collective of 0.5 ms takes 4.5 ms on it."""
    for rank, busy in enumerate((5_000, 9_000)):
        events: list[str] = []
        for step in range(5):
            at, number = 20_000 * step, 10 * step
            _kernel(events, number + 1, at, at + 10, busy)
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            launch = event("cuda_runtime", "cudaLaunchKernel", f"{at + 20}", "5", correlation=number + 2)
            lane = {"pid": 0, "tid": 20, "correlation": number + 2, "device": 0}
            events += [launch, event("kernel", name, f"{at + 10 + busy}", f"{9_500 - busy}", **lane)]
            _kernel(events, number + 3, at + 40, at + 9_520, 10_000)
        job = f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 2}}'
        write_trace(tmp_path / f"rank{rank}.json", events, after=job)
    assert main(["analyze", str(tmp_path), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["rule"], "rank 1" in finding["title"]) == ("late_ranks", True)
    assert finding["share"] == pytest.approx(0.1, abs=0.005)


def test_a_program_on_the_host_alone_is_told_what_its_steps_are_spent_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = []
    for step in range(3):
        at = 10_000 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", f"{at}", "9000"))
        events.append(event("user_annotation", "enumerate(DataLoader)#__next__", f"{at + 10}", "8100"))
        events.append(event("python_function", "torch/utils/data/dataloader.py(7): __next__", f"{at + 10}", "8100"))
        events.append(event("python_function", "train.py(4): decode", f"{at + 20}", "8000"))
        # What the loader computes with is loading.
        events.append(event("cpu_op", "aten::sin", f"{at + 30}", "4000"))
        events.append(event("cpu_op", "aten::mm", f"{at + 8_200}", "500"))
    events.append(event("cpu_op", "aten::mm", "9100", "300"))
    events.append(event("cpu_op", "aten::mm", "19100", "300"))
    path = write_trace(tmp_path / "t.json", events)
    analysis = analyze_timelines([read_torch_trace(path).timeline])
    assert (rules(analysis), scope_of(analysis).wall_ns) == (["data_loading", "cpu_time"], 29 * MS)
    assert claim_of(analysis, "data_loading").stake_ns == 3 * 8_100_000
    assert cells_of(analysis, "host.operators")[0].time_ns == 3 * 500_000 + 2 * 300_000
    assert main(["analyze", "-v", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Data loading: 84 % of the capture in train.py(4): decode.\n")
    assert "idle cores" in out and "while the GPU" not in out


@pytest.mark.parametrize(
    ("outside", "operators", "owner"),
    [
        ([], ("aten::mm", 4 * MS), None),
        (
            [
                event("python_function", "train.py(3): main", "0", "100000"),
                event("python_function", "train.py(9): tokenise", "6000", "90000"),
                event("python_function", "<built-in method sleep>", "6000", "89000"),
            ],
            ("aten::mm", 4 * MS),
            ("train.py(9): tokenise", 90 * MS),
        ),
        (
            [
                event("user_annotation", "epoch", "0", "99000"),
                event("user_annotation", "load batch", "5000", "90000"),
                event("python_function", "data.py(9): decode", "6000", "80000"),
            ],
            ("aten::mm", 4 * MS),
            ("load batch", 90 * MS),
        ),
        ([event("cpu_op", "aten::sort", "5000", "60000")], ("aten::sort", 60 * MS), None),
    ],
)
def test_a_program_without_a_gpu_is_told_what_takes_most_of_its_trace(
    tmp_path: Path,
    outside: list[str],
    operators: tuple[str, int],
    owner: tuple[str, int] | None,
) -> None:
    """100 ms from the first operator to the last, 6 ms of them in operators, where nothing else runs."""
    events = [
        event("cpu_op", "aten::mm", "0", "4000"),
        event("cpu_op", "aten::add", "98000", "2000"),
        *outside,
    ]
    analysis = _torch(events, tmp_path)
    (finding,) = analysis.findings
    assert (finding.rule, finding.max_gain) == ("cpu_time", None)
    assert any(text.startswith(f"{operators[0]}: {operators[1] / 1e6:.3g}") for text in finding.evidence)
    named = cells_of(analysis, "host.outside.named")
    assert ((named[0].owner[0], named[0].time_ns) if named else None) == owner
    # What a GPU would do was not traced, and it says so.
    assert "ProfilerActivity.CUDA" in finding.remedy
    if outside == []:
        assert "with_stack=True" in finding.remedy


def test_the_page_of_a_trace_without_a_gpu_shows_what_lies_outside_of_operators(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::mm", "0", "4000"),
        event("user_annotation", "load batch", "4000", "90000"),
        event("cpu_op", "aten::add", "98000", "2000"),
    ]
    run = tmp_path / "run"
    assert main(["analyze", "-v", str(write_trace(tmp_path / "t.json", events)), "-o", str(run)]) == 0
    head = build_view(read_run_files(read_manifest(run), run)).headline
    assert "load batch" in head.verdict
    assert head.split is not None and head.split.total == "100.0 ms"
    assert sum(part.share for part in head.split.parts) == pytest.approx(1.0)
    assert {round(part.share, 3) for part in head.split.parts} >= {0.06}
    assert "No rule found" not in (run / "report.html").read_text()


def test_the_times_of_several_traces_without_a_gpu_are_added_up(tmp_path: Path) -> None:
    timelines = []
    for number, length in enumerate((30_000, 70_000)):
        events = [
            event("cpu_op", "aten::mm", "0", "1000"),
            event("user_annotation", "load", "1000", f"{length - 2_000}"),
            event("cpu_op", "aten::mm", f"{length - 1_000}", "1000"),
        ]
        timelines.append(read_torch_trace(write_trace(tmp_path / f"{number}.json", events)).timeline)
    load = OutsideRow(name="load", own_ns=96 * MS, whole_ns=96 * MS)
    assert analyze_timelines(timelines).host_alone == HostAlone(
        span_ns=100 * MS, operators_ns=4 * MS, ranges=(load,), frames=()
    )


@pytest.mark.parametrize(
    ("call", "said"), [("hipLaunchKernel", "in a HIP graph"), ("cudaLaunchKernel", "in a CUDA graph")]
)
def test_graphs_are_called_what_the_runtime_calls_them(tmp_path: Path, call: str, said: str) -> None:
    events: list[str] = []
    for i in range(100):
        events.append(event("cuda_runtime", call, f"{40 * i}", "8", correlation=i + 1))
        events.append(event("kernel", "gemm", f"{40 * i + 15}", "6", pid=0, tid=7, correlation=i + 1, device=0))
    (finding,) = _torch(events, tmp_path).findings
    assert finding.rule == "launch_bound" and said in finding.remedy


@pytest.mark.parametrize(("shift_us", "rules"), [(2_000, ["devices_in_turns"]), (100, [])])
def test_gpus_that_work_in_turns_are_told_although_one_of_them_always_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shift_us: int, rules: list[str]
) -> None:
    """Two GPUs of 1.9 ms work in each step, one after the other or side by side."""
    events: list[str] = []
    length = shift_us + 1_950
    for step in range(50):
        for device in range(2):
            number, at = 2 * step + device + 1, length * step + shift_us * device
            events.append(event("cuda_runtime", "cudaLaunchKernel", f"{length * step}", "5", correlation=number))
            lane = {"pid": device, "tid": 7 + device, "correlation": number, "device": device}
            events.append(event("kernel", "gemm", f"{at + 10}", "1900", **lane))
        waits = {"correlation": 1_000 + step}
        events.append(
            event("cuda_runtime", "cudaDeviceSynchronize", f"{length * step + 12}", f"{length - 15}", **waits)
        )
    assert main(["analyze", str(write_trace(tmp_path / "t.json", events)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["rule"] for finding in found] == rules
    assert main(["analyze", "-v", str(tmp_path / "t.json"), "-o", str(tmp_path / "run")]) == 0
    view = build_view(read_run_files(read_manifest(tmp_path / "run"), tmp_path / "run"))
    (busy,) = [tile.explain for tile in view.headline.tiles if tile.label == "GPU busy"]
    assert "(any of its 2 GPUs; each by itself " in busy
    if found:
        assert found[0]["share"] == pytest.approx(0.48, abs=0.005)
        assert (found[0]["floor_ns"], found[0]["max_gain"]) == (0, pytest.approx(1 / 0.52, rel=0.01))


XMMA = "sm80_xmma_{kind}_tilesize128x128x8_stage3_warpsize2x2x1_{core}_execute_kernel__5x_cublas"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ampere_sgemm_128x64_tn", ["fp32_gemm"]),
        (XMMA.format(kind="gemm_f32f32_f32f32_f32_tn_n", core="ffma_aligna4_alignc4"), ["fp32_gemm"]),
        (XMMA.format(kind="fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs", core="g1_ffma_aligna4"), ["fp32_gemm"]),
        ("ampere_scudnn_128x64_relu_medium_nn_v1", ["fp32_gemm"]),
        ("cutlass_80_tensorop_s1688gemm_128x128_tn_align4", []),
        (XMMA.format(kind="gemm_f32f32_tf32f32_f32_tn_n", core="tensor16x8x8"), []),
        (XMMA.format(kind="gemm_bf16bf16_bf16f32_f32_tn_n", core="tensor16x8x16"), []),
        ("ampere_fp16_s16816cudnn_fp16_128x64_ldg8_relu_f2f_exp_small", []),
    ],
)
def test_products_off_the_tensor_cores_are_told_of_a_busy_gpu(tmp_path: Path, name: str, found: list[str]) -> None:
    export = Export()
    for i in range(60):
        export.call(1_000 * i, 1_000 * i + 500, i + 1, "cudaLaunchKernel")
        export.kernel(name, 100_000 * (i + 1), 100_000 * (i + 1) + 99_500, i + 1)
    analysis = _nsys(export, tmp_path)
    assert rules(analysis) == found
    assert all("torch" not in finding.remedy for finding in analysis.findings)


def test_compiling_is_known_by_the_ranges_of_the_compiler(tmp_path: Path) -> None:
    events: list[str] = []
    for step in range(4):
        at = 100_000 * step
        events.append(event("user_annotation", "OutputGraph.call_user_compiler (dynamo_timed)", f"{at}", "80000"))
        for i in range(15):
            _kernel(events, 15 * step + i + 1, at + 81_000 + 10 * i, at + 81_200 + 1_000 * i, 995)
    (finding,) = _torch(events, tmp_path).findings
    assert (finding.rule, finding.is_one_time) == ("compilation", True)


APPLY = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<3>, at::native::{}, float>(X)"
PASSES = tuple(
    APPLY.format(functor)
    for functor in (
        "BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>",
        "TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor<float>",
        "UnaryOpFunctor<float, 2, 1, 1>, at::native::Sqrt<float>",
        "PointwiseOpScalarListFunctor<float, 3, 3, 0>, std::divides<float>",
    )
)
FUSED_ADAM = APPLY.format("FusedAdamMathFunctor<float, 4, at::native::ADAM_MODE::ORIGINAL, false>")
APEX_ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float>(X)"


@pytest.mark.parametrize(
    ("optimizer", "passes", "name"),
    [
        ("Optimizer.step#AdamW.step", PASSES, "AdamW"),
        ("Optimizer.step#Shampoo.step", PASSES, "Shampoo"),
        (None, PASSES, "foreach"),
        ("Optimizer.step#AdamW.step", (FUSED_ADAM,), None),
        ("Optimizer.step#AdamW.step", (*PASSES, FUSED_ADAM), None),
        ("Optimizer.step#FusedAdam.step", (APEX_ADAM, PASSES[0]), None),
        # Clipping of gradients, and an average of the weights.
        ("Optimizer.step#SGD.step", PASSES[:1], None),
        (None, PASSES[:2], None),
    ],
)
def test_an_optimiser_of_several_passes_is_told_to_take_one(
    tmp_path: Path, optimizer: str | None, passes: tuple[str, ...], name: str | None
) -> None:
    events: list[str] = []
    number, at = 0, 1_000
    for _ in range(10):
        for kernel in ("nvjet_tst_128x64_TNT", *passes):
            number += 1
            events.append(event("cuda_runtime", "cudaLaunchKernel", f"{10 * number}", "5", correlation=number))
            lane = {"pid": 0, "tid": 7, "correlation": number, "device": 0}
            events.append(event("kernel", kernel, f"{at}", "500", **lane))
            at += 501
        if optimizer is not None:
            begun = 10 * (number - len(passes) + 1) - 1
            events.append(event("user_annotation", optimizer, f"{begun}", f"{10 * len(passes)}"))
    found = [finding for finding in _torch(events, tmp_path).findings if finding.rule != "hottest_kernel"]
    assert [finding.rule for finding in found] == ["unfused_optimizer"] * (name is not None)
    if found:
        assert f"({name})" in found[0].title
        assert ("torch.optim.AdamW(fused=True)" in found[0].remedy) == (name == "AdamW")
        assert found[0].share == pytest.approx(0.8, abs=0.01)
        # One pass of AdamW moves 7 numbers for each parameter, of another at least 3; these four move 11.
        left = (7 if name == "AdamW" else 3) / 11
        assert found[0].max_gain == pytest.approx(1 / (1 - 0.8 * (1 - left)), rel=0.01)


def test_images_that_are_turned_around_for_every_convolution_are_told_to_stay(tmp_path: Path) -> None:
    export, at = Export(), 200_000
    turn = "void cudnn::engines_precompiled::{}Kernel<__half, __half, float, false, true>(X)"
    convolution = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tensor16x8x16_execute_kernel__5x_cudnn"
    layer = (turn.format("nchwToNhwc"), convolution, turn.format("nhwcToNchw"))
    for i in range(120):
        export.call(1_000 * i, 1_000 * i + 300, i + 1, "cudaLaunchKernel")
        export.kernel(layer[i % 3], at, at + 50_000, i + 1)
        at += 50_500
    (finding,) = _nsys(export, tmp_path).findings
    assert (finding.rule, finding.stake_ns) == ("layout_copies", 4_000_000)
    assert "NHWC for convolutions" in finding.remedy


def test_communication_that_costs_nothing_is_told_as_overlapped(tmp_path: Path) -> None:
    """Ten matmuls of 1 ms without a pause, and a collective of 0.9 ms alongside each."""
    export = Export()
    for i in range(10):
        at = 100_000 + MS * i
        export.call(1_000 * i, 1_000 * i + 300, 2 * i + 1)
        export.kernel("nvjet_tst_128x64_TNT", at, at + MS, 2 * i + 1)
        export.call(1_000 * i + 500, 1_000 * i + 800, 2 * i + 2)
        export.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(X)", at, at + 900_000, 2 * i + 2, stream=20)
    verdict = diagnosis_of(_nsys(export, tmp_path)).verdict
    assert verdict.kind == "healthy"
    assert "GEMM kernels take 100.0 % of it, the hottest is nvjet_tst_128x64_TNT (100.0 %)" in verdict.text
    assert "100.0 % of 9.000 ms of communication is overlapped" in verdict.text


SCAN = ("my_scan(float*, int)", 400, 1)
PRODUCT = ("nvjet_tst_128x64_TNT", 100, 264)


def _few_blocks(tmp_path: Path, kernels: Sequence[tuple[str, int, int]], streams: int = 1) -> list[Finding]:
    """What is found of twenty rounds of kernels `(name, µs, blocks)`, each round on all streams at once."""
    events: list[str] = []
    number, at = 0, 10_000
    for _ in range(20):
        for name, length, blocks in kernels:
            for stream in range(streams):
                number += 1
                events.append(event("cuda_runtime", "cudaLaunchKernel", f"{2 * number}", "1", correlation=number))
                lane = {"pid": 0, "tid": 7 + stream, "correlation": number, "device": 0, "stream": 7 + stream}
                grid, block = [blocks, 1, 1], [32, 4, 1]
                events.append(event("kernel", name, f"{at}", f"{length}", **lane, grid=grid, block=block))
            at += length + 1
    return [f for f in _torch(events, tmp_path, detailed=True).findings if f.rule in ("small_grid", "small_blocks")]


def test_long_kernels_of_few_blocks_are_told_of_a_busy_gpu(tmp_path: Path) -> None:
    (found,) = _few_blocks(tmp_path, [SCAN, PRODUCT])
    assert (found.rule, found.share) == ("small_blocks", pytest.approx(0.8, abs=0.01))
    assert "grid 1×1×1, block 32×4×1" in found.evidence[0]
    # How much of it other SMs could do is the algorithm's to say.
    assert (found.floor_ns, found.max_gain) == (None, None)
    assert found.remedy.startswith("spread the work over the GPU")
    (decode,) = _few_blocks(tmp_path, [("flash_fwd_kernel", 400, 32), PRODUCT])
    assert (decode.rule, "flash-decoding" in decode.remedy) == ("small_grid", True)


@pytest.mark.parametrize(
    ("kernels", "streams"),
    [
        # Short ones, such as a decode step has; those of a good part of the SMs; and a small part of the time.
        ([("gemv", 5, 1), PRODUCT], 1),
        ([("my_scan", 400, 40), PRODUCT], 1),
        ([("my_scan", 20, 1), PRODUCT, PRODUCT], 1),
        # Few blocks are enough to move data between GPUs, or to wait.
        ([("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(X)", 400, 24), PRODUCT], 1),
        ([("at::cuda::spin_kernel", 400, 1), PRODUCT], 1),
        # Together they fill the GPU.
        ([("my_scan", 400, 32), PRODUCT], 4),
    ],
)
def test_small_grids_that_cost_little_or_are_meant_are_left_alone(
    tmp_path: Path, kernels: list[tuple[str, int, int]], streams: int
) -> None:
    assert _few_blocks(tmp_path, kernels, streams) == []


def test_what_lies_between_the_products_of_attention_is_not_told_twice(tmp_path: Path) -> None:
    export, at = Export(), 100_000
    parts = (("gemm_qk", 200_000), ("softmax_warp_forward", 150_000), ("fused_dropout_kernel", 120_000))
    for i in range(60):
        for j, (name, length) in enumerate((*parts, ("gemm_pv", 200_000))):
            export.call(1_000 * (4 * i + j), 1_000 * (4 * i + j) + 300, 4 * i + j + 1, "cudaLaunchKernel")
            export.kernel(name, at, at + length, 4 * i + j + 1)
            at += length + 500
    assert [finding.rule for finding in _nsys(export, tmp_path).findings] == ["unfused_attention"]


@pytest.mark.parametrize(
    ("gpu", "hints"),
    [
        ("Tesla V100-SXM2-16GB", ["float16 on the tensor cores"]),
        ("NVIDIA A100", ["TF32 or bfloat16"]),
        ("P100", []),
    ],
)
def test_advice_about_tensor_cores_fits_the_gpu(tmp_path: Path, gpu: str, hints: list[str]) -> None:
    events: list[str] = []
    for i in range(60):
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{i}", "0.5", correlation=i + 1))
        lane = {"pid": 0, "tid": 7, "correlation": i + 1, "device": 0}
        events.append(event("kernel", "volta_sgemm_128x64_nn", f"{100 * (i + 1)}", "99.5", **lane))
    path = write_trace(tmp_path / "t.json", events)
    path.write_text(path.read_text(encoding="utf-8").replace("NVIDIA H200", gpu), encoding="utf-8")
    found = analyze_timelines([read_torch_trace(path).timeline]).findings
    assert [(finding.rule, finding.hint) for finding in found] == [("fp32_gemm", hint) for hint in hints]


@pytest.mark.parametrize(
    ("compute_us", "share", "gain", "hint"),
    [(4_000, 0.6, 1.67, "Overlapping communication"), (200, 0.98, None, "Less or faster communication")],
)
def test_communication_that_computation_cannot_hide_is_told_by_all_of_it(
    tmp_path: Path, compute_us: int, share: float, gain: float | None, hint: str
) -> None:
    export = Export()
    middle = compute_us * 1_000
    for i in range(10):
        for number, (name, start, end) in enumerate(
            (("gemm", 0, middle), ("ncclDevKernel_AllReduce_Sum_bf16", middle, 10 * MS))
        ):
            call = 2 * i + number + 1
            export.call(1_000 * call, 1_000 * call + 500, call)
            export.kernel(name, (1 + 10 * i) * MS + start, (1 + 10 * i) * MS + end, call)
    (finding,) = _nsys(export, tmp_path).findings
    assert (finding.rule, finding.share) == ("exposed_communication", pytest.approx(share))
    # No more of it can be hidden than there is computation: no factor where that is little.
    assert finding.max_gain == (None if gain is None else pytest.approx(gain, rel=0.02))
    assert finding.hint == hint
    assert finding.evidence[1].startswith(f"{compute_us / 100:.3g}")


def test_a_page_of_a_capture_that_is_mostly_set_up_begins_with_its_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "-v", str(h200_export(tmp_path, "batched")), "-o", str(tmp_path / "page")]) == 0
    said = capsys.readouterr().out
    assert said.index("* Launch-bound decode") < said.index("* Start-up")
    page = tmp_path / "page"
    view = build_view(read_run_files(read_manifest(page), page))
    assert [finding.rule for finding in view.findings] == ["launch_bound", "compilation"]
    assert "decode" in view.headline.verdict and "steady state" in view.headline.verdict
    first = view.first_finding
    assert first is not None and first.rule == "launch_bound"
