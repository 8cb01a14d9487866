"""Operator tables and module shares from traces: against torch's own table, a hand-made GPU trace and a real one."""

import csv
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from llm_perf_opt.capture.operators import (
    ModuleShares,
    ProfiledOperators,
    ProfiledRow,
    module_shares,
    operator_rows,
)
from llm_perf_opt.capture.readers import trace_text as trace_chunks
from llm_perf_opt.capture.readers.torch_trace import TorchTrace, read_torch_trace
from llm_perf_opt.core.documents import CleanPass, MetricsDocument, RanModel
from llm_perf_opt.errors import ParseError
from llm_perf_opt.profiling.trace_tables import write_trace_files
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.profiled import module_ranges
from tests.support.fixtures_dir import DATA, shared_fixtures
from tests.support.workload_fakes import TOKENS


def trace_of(data: bytes, tmp_path: Path) -> TorchTrace:
    (tmp_path / "trace.json").write_bytes(data)
    return read_torch_trace(tmp_path / "trace.json", detailed=True)


def tables(trace: TorchTrace) -> ProfiledOperators:
    assert trace.detail is not None
    return ProfiledOperators(trace.timeline, trace.operators, trace.detail)


def shares_of(trace: TorchTrace) -> ModuleShares:
    return module_shares(trace.timeline, trace.operators)


def event(cat: str, name: str, ts: float, dur: float, *, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


GPU_EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": 'odd "ph": {'}},
    event("user_annotation", "prefill", 100.0, 100.0, **{"External id": 1}),
    event("user_annotation", "module:attention", 110.0, 60.0, **{"External id": 2}),
    event("user_annotation", "module:norm", 120.0, 10.0, **{"External id": 3}),
    event("cpu_op", "aten::mul", 121.0, 5.0, **{"External id": 4, "Input Dims": [[2, 2], []]}),
    event("cuda_runtime", "cudaLaunchKernel", 122.0, 2.0, correlation=70),
    event("cpu_op", "aten::matmul", 140.0, 20.0, **{"External id": 5, "Input Dims": [[4]]}),
    event("cpu_op", "aten::mm", 142.5, 10.125, **{"External id": 6, "Input Dims": [[4]]}),
    event("cuda_runtime", "cudaLaunchKernel", 143.0, 3.0, correlation=71),
    event("cpu_op", "aten::mul", 180.0, 4.0, **{"External id": 7, "Input Dims": [[8]]}),
    event("cuda_runtime", "cudaLaunchKernel", 181.0, 1.0, correlation=72),
    event("kernel", "mul_kernel", 300.0, 6.0, tid=7, **{"External id": 4, "correlation": 70}),
    event("kernel", "gemm", 306.0, 30.0, tid=7, **{"External id": 6, "correlation": 71}),
    event("kernel", "mul_kernel", 340.0, 4.0, tid=7, **{"External id": 7, "correlation": 72}),
    event("gpu_user_annotation", "prefill", 300.0, 44.0, tid=7),
    event("python_function", "forward", 100.0, 90.0),
]


def gpu_trace(indent: int | None = 2) -> bytes:
    text = json.dumps({"schemaVersion": 1, "traceEvents": GPU_EVENTS, "traceName": "t"}, indent=indent)
    return text.encode()


def row(name: str, calls: int, cpu: Sequence[int], device: Sequence[int], shapes: str | None = None) -> ProfiledRow:
    return ProfiledRow(
        name=name,
        input_shapes=shapes,
        calls=calls,
        self_cpu_ns=cpu[0],
        total_cpu_ns=cpu[1],
        self_device_ns=device[0],
        total_device_ns=device[1],
        self_cpu_memory_bytes=0,
        self_device_memory_bytes=0,
    )


@pytest.mark.parametrize("indent", [2, None])
def test_device_time_reaches_the_operator_that_launched_it_and_those_around_it(
    indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_chunks, "CHUNK_BYTES", 700)
    found = tables(trace_of(gpu_trace(indent), tmp_path))
    assert found.rows(by_shape=False) == (
        row("aten::mm", 1, (7125, 10125), (30000, 30000)),
        row("aten::mul", 2, (6000, 9000), (10000, 10000)),
        row("aten::matmul", 1, (9875, 20000), (0, 30000)),
        row("cudaLaunchKernel", 3, (6000, 6000), (0, 0)),
    )
    assert found.rows(by_shape=True) == (
        row("aten::mm", 1, (7125, 10125), (30000, 30000), "[[4]]"),
        row("aten::mul", 1, (3000, 5000), (6000, 6000), "[[2,2],[]]"),
        row("aten::mul", 1, (3000, 4000), (4000, 4000), "[[8]]"),
        row("aten::matmul", 1, (9875, 20000), (0, 30000), "[[4]]"),
        row("cudaLaunchKernel", 3, (6000, 6000), (0, 0), ""),
    )


def test_module_shares_are_exclusive_and_sum_to_one(tmp_path: Path) -> None:
    assert shares_of(trace_of(gpu_trace(), tmp_path)) == ModuleShares(
        cpu={"prefill": {"attention": 0.5, "norm": 0.1, "other": 0.4}},
        device={"prefill": {"other": 0.1, "norm": 0.15, "attention": 0.75}},
    )


def test_a_trace_that_is_cut_off_or_none_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="truncated or damaged"):
        trace_of(gpu_trace()[:-40], tmp_path)
    with pytest.raises(ParseError, match="no list traceEvents"):
        trace_of(b"{}", tmp_path)


def small_model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), torch.nn.Linear(32, 8), torch.nn.LogSoftmax(-1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("by_shape", [False, True])
def test_the_operator_table_equals_torchs_own(tmp_path: Path, by_shape: bool) -> None:
    model = small_model()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, acc_events=True) as prof:
        for length in (4, 5, 4):
            with record_function("prefill"):
                model(torch.ones(1, length, 32).to(torch.float64).float()).sum().item()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    found = tables(read_torch_trace(tmp_path / "t.json", detailed=True))
    ours = {
        (r.name, r.input_shapes): (r.calls, r.self_cpu_ns, r.total_cpu_ns, r.self_cpu_memory_bytes)
        for r in found.rows(by_shape=by_shape)
    }
    theirs = {
        (e.key, str(e.input_shapes).replace(" ", "") if by_shape else None): (
            e.count,
            round(e.self_cpu_time_total * 1000),
            round(e.cpu_time_total * 1000),
            e.self_cpu_memory_usage,
        )
        for e in prof.key_averages(group_by_input_shape=by_shape)
        if e.key != "prefill"
    }
    assert len(ours) > 20
    assert ours == theirs


@pytest.mark.slow
def test_hooks_attribute_a_forward_to_its_modules_and_leave_nothing_behind(tmp_path: Path) -> None:
    loaded = TOKENS.load(None, None, device="cpu", seed=0)
    inputs = loaded.prepare(Sample(sample_id="s", token_ids=(1, 2, 3)))
    with module_ranges(loaded), profile(activities=[ProfilerActivity.CPU]) as prof:
        for name in ("prefill", "decode"):
            with record_function(name):
                loaded.decode(inputs[:, -1:], None)
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    shares = shares_of(read_torch_trace(tmp_path / "t.json")).cpu
    assert shares is not None
    for phase in ("prefill", "decode"):
        assert set(shares[phase]) == {"embedding", "mlp", "norm", "lm_head", "other"}
        assert sum(shares[phase].values()) == pytest.approx(1.0)
        assert all(share > 0 for share in shares[phase].values())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.module.modules())


def test_the_tables_of_a_trace_leave_unrecorded_columns_empty(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(gzip.compress(gpu_trace()))
    written = write_trace_files(trace, by_shape=True, pass_note="A note.")
    device = {"prefill": {"other": 0.1, "norm": 0.15, "attention": 0.75}}
    measured = MetricsDocument(model=RanModel(name="m"), clean=CleanPass(metrics={}))
    assert written.add_modules(measured) == replace(
        measured,
        modules=device,
        modules_by="device_time",
        modules_cpu={"prefill": {"attention": 0.5, "norm": 0.1, "other": 0.4}},
        modules_device=device,
    )
    with (tmp_path / "operators.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert first == {
        "name": "aten::mm",
        "input_shapes": "[[4]]",
        "calls": "1",
        "self_cpu_ns": "7125",
        "total_cpu_ns": "10125",
        "self_device_ns": "30000",
        "total_device_ns": "30000",
        "self_cpu_memory_bytes": "",
        "self_device_memory_bytes": "",
    }
    text = (tmp_path / "operators.md").read_text()
    assert "| `aten::mm` | 1 | 75.0 % | 0.007 | 0.010 | 0.030 | 0.030 |" in text
    assert "| operator | calls | of operators' device time | self CPU ms |" in text
    assert "| operator | calls | of operator time | self CPU ms |" in text
    assert (tmp_path / "kernels.csv").read_text().splitlines() == [
        "name,launches,total_us,mean_us,min_us,max_us,share",
        "gemm,1,30.000,30.000,30.000,30.000,0.750000",
        "mul_kernel,2,10.000,5.000,4.000,6.000,0.250000",
    ]


def test_every_kernel_of_a_real_gpu_trace_is_attributed() -> None:
    folder = shared_fixtures()
    if folder is None:
        pytest.skip("the real captures are not alongside the checkout")
    trace = read_torch_trace(folder / "h200" / "llama.trace.json.gz", detailed=True)
    rows = tables(trace).rows(by_shape=False)
    work = (trace.timeline.kernels, trace.timeline.copies)
    assert sum(len(w) for w in work) == 6239
    assert sum(int((w.end_ns - w.start_ns).sum()) for w in work) == sum(r.self_device_ns for r in rows) == 21_558_995
    assert (rows[0].name, rows[0].calls) == ("aten::mm", 1017)


def test_the_stage_and_analyze_agree_on_the_operators_of_a_trace() -> None:
    trace = read_torch_trace(DATA / "h200" / "llama.trace.json.gz", detailed=True)
    stage, analyzed = (
        {r.name: (r.calls, r.self_cpu_ns, r.total_cpu_ns, r.self_device_ns, r.total_device_ns) for r in rows}
        for rows in (tables(trace).rows(by_shape=False), operator_rows(trace.timeline, trace.operators))
    )
    assert len(analyzed) == 42
    # The stage lists runtime calls too, as torch does.
    assert analyzed == {name: values for name, values in stage.items() if "::" in name}


@pytest.mark.slow
def test_an_operator_that_only_calls_itself_is_one_call_as_in_torch(tmp_path: Path) -> None:
    model = small_model()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as prof:
        model(torch.ones(1, 4, 32)).div_(2.0).mul(3)
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read_torch_trace(tmp_path / "t.json")
    ours = {r.name: (r.calls, r.self_cpu_ns, r.total_cpu_ns) for r in operator_rows(trace.timeline, trace.operators)}
    assert ours == {
        e.key: (e.count, round(e.self_cpu_time_total * 1000), round(e.cpu_time_total * 1000))
        for e in prof.key_averages()
    }
    raw = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    divisions = sum(e["name"] == "aten::div_" for e in raw if e.get("cat") == "cpu_op")
    assert divisions > ours["aten::div_"][0]
