"""The joined trace for Perfetto."""

import gzip
import json
from pathlib import Path
from typing import Any

from llm_perf_opt.report.write import write_reports
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


def test_captures_of_two_tools_lie_on_one_clock_from_the_prefill_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    memory = {"GPU": [[12_000, 5_000_000]]}
    samples = [{"at_ns": 5_000, "power_w": 300.5}, {"at_ns": 7_000, "power_w": None, "sm_clock_mhz": 1980}]
    clocks = {"device": "NVIDIA H200", "interval_ms": 100, "samples": samples}
    write_run(
        run,
        stage("nsys", run, {"timeline_json": ("timeline.json", window("nsys", 4000))}),
        stage(
            "torch_profiler",
            run,
            {
                "timeline_json": ("timeline.json", window("torch", 10_000, memory=memory)),
                "gpu_samples": ("gpu_samples.json", clocks),
            },
        ),
    )
    write_reports(run)
    found = events(run)
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
        (3, "power, W", 0.0, {"value": 300.5}),
        (3, "SM clock, MHz", 2.0, {"value": 1980.0}),
    ]
    rows = {(e["pid"], e["args"]["name"]) for e in found if e["ph"] == "M"}
    assert {(1, "nsys: run"), (2, "torch: run"), (1, "GPU device 0"), (2, "CPU thread 0")} <= rows


def test_equal_data_gives_equal_bytes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, stage("nsys", run, {"timeline_json": ("timeline.json", window("nsys", 4000))}))
    write_reports(run)
    first = (run / "trace.perfetto.json.gz").read_bytes()
    write_reports(run)
    assert (run / "trace.perfetto.json.gz").read_bytes() == first


def test_the_h200_capture_is_in_it_whole(tmp_path: Path) -> None:
    found = events(analyze_h200(tmp_path, ncu=False, context=False))
    kinds = [e["cat"] for e in found if e["ph"] == "X"]
    assert kinds.count("host") == 3500
    assert kinds.count("GEMM") > 500
    assert "range" in kinds
