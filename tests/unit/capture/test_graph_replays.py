"""Kernels of graph replays get the operators and modules another trace knows."""

import json
from pathlib import Path

import pytest

from llm_perf_opt.capture.graphs import (
    GraphReplays,
    GraphRow,
    attribute_replays,
    graph_reference,
)
from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.cli import main
from tests.support.fixtures_dir import DATA
from tests.support.trace_builder import event, write_trace

H200 = DATA / "h200"


def _replay(path: Path, names: list[str], *, times: int = 2) -> Path:
    """Each replay is one call; its kernels follow each other, 10 µs each."""
    events = []
    for n in range(times):
        start = 1000 * n
        events.append(event("cuda_runtime", "cudaGraphLaunch", f"{start}.000", "5.000", correlation=n + 1))
        events += [
            event("kernel", name, f"{start + 20 + 10 * at}.000", "10.000", pid=0, tid=7, correlation=n + 1, device=0)
            for at, name in enumerate(names)
        ]
    return write_trace(path, events)


def _eager(path: Path, steps: list[tuple[str, str]], *, captured: bool = False) -> Path:
    """Operators in one module, each with one launch; a capture has the launches and no kernels."""
    events = [event("python_function", "nn.Module: Block_0", "0.000", "900.000")]
    if captured:
        events.append(event("cuda_runtime", "cudaStreamBeginCapture", "1.000", "1.000", correlation=90))
        events.append(event("cuda_runtime", "cudaStreamEndCapture", "800.000", "1.000", correlation=91))
    for n, (operator, kernel) in enumerate(steps, start=1):
        start = 20 * n
        events.append(event("cpu_op", operator, f"{start}.000", "10.000"))
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{start + 2}.000", "3.000", correlation=n))
        if not captured:
            events.append(event("kernel", kernel, f"{start + 900}.000", "4.000", pid=0, tid=7, correlation=n, device=0))
    return write_trace(path, events)


def _attribute(replay: Path, reference: Path) -> GraphReplays:
    known = read_torch_trace(reference)
    found = attribute_replays(read_torch_trace(replay).timeline, graph_reference(known.timeline, known.modules))
    assert found is not None
    return found


def test_a_run_without_graphs_names_kernels_that_follow_each_other_alike(tmp_path: Path) -> None:
    """The run without graphs has one kernel the graph lacks, and lacks one the graph has."""
    steps = [("aten::copy_", "copy"), ("aten::mm", "gemm"), ("aten::add", "add"), ("aten::mm", "gemm")]
    found = _attribute(
        _replay(tmp_path / "r.json", ["gemm", "fused", "add", "gemm"]), _eager(tmp_path / "e.json", steps)
    )
    assert (found.replays, found.graphs, found.kernel_count, found.kernel_ns) == (2, 1, 8, 80_000)
    assert (found.matched_count, found.matched_ns) == (6, 60_000)
    assert found.rows == (
        GraphRow(operator="aten::mm", module="Block_0", kernel_count=4, time_ns=40_000, kernels=("gemm",)),
        GraphRow(operator="aten::add", module="Block_0", kernel_count=2, time_ns=20_000, kernels=("add",)),
    )


def test_the_capture_of_a_graph_names_its_kernels_by_their_order(tmp_path: Path) -> None:
    steps = [("aten::mm", ""), ("aten::add", ""), ("aten::mm", "")]
    reference = _eager(tmp_path / "c.json", steps, captured=True)
    found = _attribute(_replay(tmp_path / "r.json", ["x", "y", "z"]), reference)
    assert (found.how, found.matched_count) == ("the order of launches while the graph was captured", 6)
    assert [(row.operator, row.kernel_count, row.kernels) for row in found.rows] == [
        ("aten::mm", 4, ("x", "z")),
        ("aten::add", 2, ("y",)),
    ]


def test_a_trace_of_something_else_names_nothing(tmp_path: Path) -> None:
    reference = _eager(tmp_path / "e.json", [("aten::mm", "other")])
    found = _attribute(_replay(tmp_path / "r.json", ["a", "b"]), reference)
    assert (found.matched_count, found.rows, found.how) == (0, (), "nothing in it fits the replays")


def test_capture_and_eager_run_of_a_real_graph_agree() -> None:
    """Three blocks of a transformer on an H200, captured, replayed three times, and run without a graph."""
    replay = H200 / "graph_replay.trace.json.gz"
    captured = _attribute(replay, H200 / "graph_capture.trace.json.gz")
    eager = _attribute(replay, H200 / "graph_eager.trace.json.gz")
    assert (captured.replays, captured.graphs, captured.kernel_count, captured.matched_count) == (3, 1, 90, 90)
    assert captured.rows == eager.rows
    assert [(row.operator, row.module) for row in captured.rows[:3]] == [
        ("aten::mm", "Linear_7"),
        ("aten::mm", "Linear_3"),
        ("aten::mm", "Linear_11"),
    ]


def test_the_command_says_what_is_missing_and_shows_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    replay = H200 / "graph_replay.trace.json.gz"
    assert read_torch_trace(replay).timeline.replayed_count == 90
    assert main(["analyze", "--json", str(replay)]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert "graph_replays" not in alone
    assert any("90 kernels of graph replays" in note for note in alone["notes"])
    reference = str(H200 / "graph_eager.trace.json.gz")
    assert main(["analyze", str(replay), "--graphs-from", reference, "--top", "2"]) == 0
    text = capsys.readouterr().out
    assert "3 replays of 1 graph: 90 of 90 kernels, 100.0 % of their time" in text
    assert text.count("nvjet_sm90_tst_64x24_64x16_2x4_h_bz_TNT") >= 2
    assert main(["analyze", "-v", reference, "--graphs-from", reference]) == 0
    assert "not used, no kernel of the captures was launched by a graph" in capsys.readouterr().out
