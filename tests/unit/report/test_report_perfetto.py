"""The joined trace for Perfetto."""

import gzip
import json
from pathlib import Path
from typing import Any

from llm_perf_opt.cli import main
from llm_perf_opt.report.write import write_reports
from tests.support.fixtures_dir import DATA
from tests.support.perfetto_rules import broken_rules
from tests.support.report_runs import analyze_h200, stage, write_run


def window(kind: str, begin: int, **parts: Any) -> dict[str, Any]:
    """A prefill that starts at `begin` and one call and kernel in it."""
    return {
        "window_ns": [1_000_000, 1_100_000],
        "names": ["prefill", "launch", "gemm"],
        "classes": ["GEMM", "other"],
        "threads": ["thread 0"],
        "streams": ["device 0"],
        "ranges": [[begin, begin + 50_000, 0, 0]],
        "calls": [[begin + 1000, begin + 2000, 0, 1]],
        "kernels": [[begin + 3000, begin + 8000, 0, 2, 0]],
        "source": "run",
        "kind": kind,
        **parts,
    }


def events(run: Path) -> list[dict[str, Any]]:
    return list(json.loads(gzip.decompress((run / "trace.perfetto.json.gz").read_bytes()))["traceEvents"])


def two_tools(run: Path, **clocks: Any) -> list[dict[str, Any]]:
    """nsys and torch, whose prefills start at other times of their windows, and driver samples of torch's pass."""
    memory = {"GPU": [[12_000, 5_000_000]]}
    samples = [{"at_ns": 5_000, "power_w": 300.5}, {"at_ns": 7_000, "power_w": None, "sm_clock_mhz": 1980}]
    document = {"device": "NVIDIA H200", "interval_ms": 100, "samples": samples, **clocks}
    # The torch window begins at 9 µs past the hour.
    torch = window("torch", 10_000, memory=memory, epoch_ns=3_600_000_009_000)
    write_run(
        run,
        stage("nsys", run, {"timeline_json": ("timeline.json", window("nsys", 4000))}),
        stage(
            "torch_profiler",
            run,
            {"timeline_json": ("timeline.json", torch), "gpu_samples": ("gpu_samples.json", document)},
        ),
    )
    write_reports(run)
    found = events(run)
    assert broken_rules(found) == []
    return found


def test_captures_of_two_tools_lie_on_one_clock_from_the_prefill_on(tmp_path: Path) -> None:
    found = two_tools(tmp_path / "run")
    slices = [(e["pid"], e["name"], e["cat"], e["ts"], e["dur"]) for e in found if e["ph"] == "X"]
    assert slices == [
        (pid, name, cat, ts, dur)
        for pid in (1, 2)
        for name, cat, ts, dur in (
            ("prefill", "range", 0.0, 50.0),
            ("launch", "host", 1.0, 1.0),
            ("gemm", "GEMM", 3.0, 5.0),
        )
    ]
    counters = [(e["pid"], e["name"], e["ts"], e["args"]) for e in found if e["ph"] == "C"]
    assert counters == [
        (2, "GPU memory allocated", 2.0, {"bytes": 5_000_000}),
        (3, "power", 0.0, {"W": 300.5}),
        (3, "SM clock", 2.0, {"MHz": 1980.0}),
    ]
    rows = {(e["pid"], e["args"].get("name")) for e in found if e["ph"] == "M"}
    assert {(1, "nsys: run (aligned at its prefill)"), (1, "GPU device 0"), (2, "CPU thread 0")} <= rows
    assert (3, "NVIDIA H200, sampled every 100 ms (own clock, not aligned with the others)") in rows


def test_samples_of_the_driver_with_a_time_of_day_lie_where_their_capture_lies(tmp_path: Path) -> None:
    found = two_tools(tmp_path / "run", epoch_offset_ns=3_600_000_000_000)
    times = {e["name"]: e["ts"] for e in found if e["ph"] == "C"}
    prefill = [e["ts"] for e in found if e["ph"] == "X" and e["name"] == "prefill"]
    # 5 and 7 µs past the hour; the prefill starts 10 µs into the window, at 19 µs. The first sample becomes zero.
    assert (times["power"], times["SM clock"], prefill) == (0.0, 2.0, [14.0, 14.0])
    assert any("on the clock of torch: run" in e["args"].get("name", "") for e in found if e["ph"] == "M")


def test_a_kernel_says_how_it_was_launched_and_an_arrow_leads_to_it(tmp_path: Path) -> None:
    names = ["prefill", "cudaLaunchKernel", "void gemm<4>(int)", "module:mlp", "aten::mm", "mlp", "[[8,8],[8,8]]"]
    full = window(
        "torch", 4000, names=names, classes=["GEMM"],
        ranges=[[4000, 54_000, 0, 0], [4500, 9000, 0, 3]],
        calls=[[5000, 6000, 0, 1], [4800, 6500, 0, 4], [6400, 7000, 0, 1]],
        kernels=[[7000, 12_000, 0, 2, 0]],
        launches=[0], operators=[4], modules=[5], shapes=[0], sizes=[-1], call_kinds=[0, 3, 2], inputs=[-1, 6, -1],
        correlations=[77, -1, 78], launch_shapes=[{"grid": [2, 1, 1], "block": [128, 1, 1], "registers": 32,
                                                   "shared_bytes": 1024}],
    )  # fmt: skip
    run = tmp_path / "run"
    write_run(run, stage("torch_profiler", run, {"timeline_json": ("timeline.json", full)}))
    write_reports(run)
    found = events(run)
    assert broken_rules(found) == []
    slices = {e["name"]: e for e in found if e["ph"] == "X"}
    assert slices["void gemm<4>(int)"]["args"] == {
        "operator": "aten::mm", "module": "mlp", "grid": "[2, 1, 1]", "block": "[128, 1, 1]",
        "registers per thread": 32, "shared memory, bytes": 1024, "correlation": 77,
    }  # fmt: skip
    assert slices["aten::mm"]["args"] == {"input shapes": "[[8,8],[8,8]]"}
    begin, end = (e for e in found if e["ph"] in ("s", "f"))
    assert (begin["ts"], end["ts"], begin["id"]) == (1.0, 3.0, end["id"])
    rows = [e["args"]["name"] for e in found if e["name"] == "thread_name"]
    # The last call begins inside the operator and ends after it: the format has no place for it on that row.
    assert rows == ["ranges", "modules", "CPU thread 0", "CPU thread 0, overlapping 1", "GPU device 0"]
    depth = [(e["ts"], e["args"]["count"]) for e in found if e["ph"] == "C"]
    assert depth == [(1.0, 1), (8.0, 0)]


def test_equal_data_gives_equal_bytes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, stage("nsys", run, {"timeline_json": ("timeline.json", window("nsys", 4000))}))
    write_reports(run)
    first = (run / "trace.perfetto.json.gz").read_bytes()
    write_reports(run)
    assert (run / "trace.perfetto.json.gz").read_bytes() == first


def test_the_h200_capture_is_in_it_whole(tmp_path: Path) -> None:
    found = events(analyze_h200(tmp_path, ncu=False, context=False))
    assert broken_rules(found) == []
    kinds = [e["cat"] for e in found if e["ph"] == "X"]
    assert kinds.count("launch") + kinds.count("runtime call") + kinds.count("wait") == 3500
    assert sum(e["ph"] == "s" for e in found) > 3400
    assert kinds.count("GEMM") > 500
    assert "range" in kinds


def test_the_rules_find_a_broken_trace() -> None:
    sound = [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "a"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "b"}},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 0.0, "dur": 5.0, "name": "outer", "cat": "x"},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1.0, "dur": 4.0, "name": "inner", "cat": "x"},
    ]
    assert broken_rules(sound) == []
    late = {"ph": "X", "pid": 1, "tid": 1, "ts": 4.0, "dur": 5.0, "name": "late", "cat": "x"}
    flow = {"ph": "s", "pid": 1, "tid": 1, "ts": 1.0, "name": "l", "cat": "l", "id": 1}
    assert broken_rules([*sound, late]) == ["row (1, 1): slices overlap in part"]
    assert len(broken_rules([*sound, flow])) == 1
    assert broken_rules(sound[1:])[0] == "process 1 has no name"


def test_operators_of_a_trace_given_to_analyze_say_their_shapes(tmp_path: Path) -> None:
    trace = DATA / "h200" / "graph_eager.trace.json.gz"
    assert main(["analyze", "-v", str(trace), "-o", str(tmp_path / "out")]) == 0
    found = events(tmp_path / "out")
    assert broken_rules(found) == []
    shapes = {e["args"].get("input shapes") for e in found if e["ph"] == "X" and e["cat"] == "operator"}
    assert any(text and text.startswith("[[") for text in shapes)
