"""Python API: one type for captures, runs and blocks of code, tables as frames, short descriptions."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as perf
from llm_perf_opt.core.records import StageFile, StageRecord
from llm_perf_opt.errors import ConfigError, ManifestError, ToolError
from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.sql.view_schema import VIEWS
from tests.support.fixtures_dir import DATA
from tests.support.nsys_builder import h200_export
from tests.support.report_runs import stage, write_run
from tests.support.trace_builder import event, write_trace
from tests.unit.commands.test_compare_command import STEADY, run_of
from tests.unit.sql.test_sql import nsys_capture, torch_capture

TRACE = DATA / "h200" / "graph_replay.trace.json.gz"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> perf.PerfAnalysis:
    return perf.analyze(h200_export(tmp_path_factory.mktemp("llama")))


def test_a_capture_is_an_answer(llama: perf.PerfAnalysis) -> None:
    assert llama.verdict.startswith("Launch-bound decode_step: GPU idle 90 % of each decode_step.")
    first = llama.findings[0]
    assert (first.rule, first.title) == ("launch_bound", "Launch-bound decode_step: GPU idle 90 % of each decode_step")
    assert first.fix == first.remedy and "CUDA graph" in first.fix
    assert [one.rule for one in llama.findings[:1]] == ["launch_bound"]
    steady = llama.scopes["steady"]
    assert steady.ledger.wall_ns == sum(cell.time_ns for cell in steady.ledger.cells) == steady.wall_ns
    assert "kernels" in llama.coverage.recorded and "operators" in llama.coverage.missing
    with pytest.raises(KeyError, match="no scope 'request' was measured, known here: capture, steady, prefill, decode"):
        llama.scopes["request"]


def test_the_phases_a_capture_marks_are_scopes_of_one_step(llama: perf.PerfAnalysis) -> None:
    step, prompt = llama.scopes["decode"], llama.scopes["prefill"]
    assert (step.kind, step.place, step.instances, step.clean) == ("phase", "decode_step", 24, False)
    assert (prompt.place, prompt.instances) == ("prefill", 4)
    ranges = {row.name: row.typical for row in llama.analysis.ranges} if llama.analysis else {}
    for scope, typical in ((step, ranges["decode_step"]), (prompt, ranges["prefill"])):
        assert scope.ledger.wall_ns == sum(cell.time_ns for cell in scope.cells) == typical.wall_ns
        assert scope.ledger.ns("idle") == typical.gpu_idle_ns
    # What was judged stays what the findings are about.
    assert {finding.scope for finding in llama.findings} <= {scope.id for scope in llama.diagnosis.scopes}
    assert [scope.id for scope in llama.diagnosis.scopes] == ["capture", "steady"]


def test_tables_and_sql_say_the_same_as_the_report(llama: perf.PerfAnalysis) -> None:
    assert llama.analysis is not None
    gpu = llama.analysis.gpu
    assert len(llama.kernels) == gpu.kernel_count and int(llama.kernels["duration_ns"].sum()) == gpu.kernel_ns
    (row,) = llama.query("SELECT sum(duration_ns) AS idle FROM gaps").rows()
    assert row["idle"] == gpu.idle_ns
    by_name = {r["name"]: r["ns"] for r in llama.query("SELECT name, sum(duration_ns) AS ns FROM kernels GROUP BY 1")}
    assert by_name == {kernel.name: kernel.total_ns for kernel in llama.analysis.kernels}
    in_ranges = "SELECT name, count(*) AS n, sum(kernel_count) AS kernels, sum(kernel_ns) AS ns FROM ranges GROUP BY 1"
    assert {r["name"]: (r["n"], r["kernels"], r["ns"]) for r in llama.query(in_ranges)} == {
        one.name: (one.instances, one.kernel_count, one.kernel_ns) for one in llama.analysis.ranges
    }
    cells = "SELECT scope, sum(time_ns) AS ns, any_value(wall_ns) AS wall FROM ledger GROUP BY 1 ORDER BY 1"
    assert [(r["scope"], r["ns"] == r["wall"]) for r in llama.query(cells)] == [
        (name, True) for name in ("capture", "decode", "prefill", "steady")
    ]
    assert [r["rule"] for r in llama.query("SELECT rule FROM findings ORDER BY rank")] == [
        one.rule for one in llama.findings
    ]


def test_long_gaps_have_the_cells_of_the_ledger(llama: perf.PerfAnalysis) -> None:
    sql = "SELECT DISTINCT cause FROM gaps WHERE duration_ns > 1000000 AND host_ns > sync_ns + copy_ns"
    causes = {row["cause"] for row in llama.query(sql)}
    # The ledger separates work of single instances of a range from work of all of them; a gap by itself does not.
    assert causes <= {cell.id for cell in llama.scopes["capture"].cells} | {"idle.host"}
    assert "idle.startup.module_loading" in causes


def test_descriptions_are_short_and_html_is_the_first_screen(llama: perf.PerfAnalysis) -> None:
    assert repr(llama).startswith("PerfAnalysis(") and repr(llama).endswith(" 2 findings)") and len(repr(llama)) < 300
    assert repr(llama.kernels).startswith("kernels: 19,611 rows × 15 columns (name, short_name, ")
    assert repr(llama.findings).splitlines()[0] == f"1. {llama.findings[0].title} [launch_bound]"
    judged = "Scopes(capture: 1,541.453 ms, steady: 228.177 ms"
    assert repr(llama.scopes) == f"{judged}, prefill: 17.557 ms, decode: 23.791 ms)"
    assert repr(steady := llama.scopes["steady"]) == f"ScopeRecord(steady: 228.177 ms in {len(steady.cells)} cells)"
    assert repr(steady.ledger).startswith("Ledger(228.177 ms: idle.launch 0.896, gpu.compute.GEMM 0.0538, ")
    assert len(repr(llama.scopes["capture"].ledger)) < 200
    assert str(llama.query("SELECT 1 AS one")).splitlines()[-1].strip() == "1"
    assert repr(llama.findings[0]) == (
        "Finding(launch_bound in steady: Launch-bound decode_step: GPU idle 90 % of each decode_step, up to 9.64x, "
        "confidence high)"
    )
    html = llama._repr_html_()
    assert len(html) < 20_000
    for text in (llama.findings[0].title, "Where the time goes", "Fix:", "NVIDIA H200"):
        assert text in html
    assert len(llama.kernels._repr_html_()) < 20_000


def test_names_from_captures_are_escaped_in_notebooks(tmp_path: Path) -> None:
    from tests.support.nsys_builder import Export

    export = Export()
    export.range("<script>alert(1)</script>", 0, 10_000_000)
    export.call(5, 8, 1)
    export.kernel("<img src=x onerror=alert(2)>", 10, 9_000_000, 1)
    found = perf.analyze(export.write(tmp_path / "<b>.sqlite"))
    shown = found._repr_html_() + found.kernels._repr_html_() + found.findings._repr_html_()
    assert "<script" not in shown and "<img" not in shown and "<b>.sqlite" not in shown


def test_a_run_is_the_same_type_as_a_capture(tmp_path: Path) -> None:
    path = run_of(tmp_path / "run", STEADY)
    run = perf.load_run(path)
    assert isinstance(run, perf.PerfAnalysis) and run.manifest is not None and run.path == path
    assert run.query("SELECT sample, value FROM samples WHERE metric = 'tpot_ms' LIMIT 1").rows() == [
        {"sample": "a", "value": 10.0}
    ]
    assert [row["metric"] for row in run.metrics.rows()] == ["peak_memory_bytes"]
    assert len(run.requests) == 0 and run.tables == tuple(view.name for view in VIEWS)
    with pytest.raises(ConfigError, match="the run holds no capture to fill kernels from"):
        run.query("SELECT * FROM kernels")
    with pytest.raises(ManifestError, match="not found"):
        perf.load_run(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is a run, allowed: capture files; load_run opens a run"):
        perf.analyze(path)


def test_a_run_answers_from_the_captures_in_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    files = {}
    for name, role, make in (("nsys", "nsys_sqlite", nsys_capture), ("torch_profiler", "trace", torch_capture)):
        (run / name).mkdir(parents=True)
        files[name] = StageRecord(name=name, status="ok", files=(StageFile(role=role, path=make(run / name)),))
    found = perf.load_run(write_run(run, *files.values()))
    assert [Path(path).name for path in set(found.kernels["capture"])] == ["capture.sqlite"]
    assert [Path(path).name for path in set(found.operators["capture"])] == ["trace.json.gz"]
    # A file outside the run is not read, regardless of the manifest.
    outside = nsys_capture(tmp_path)
    record = StageRecord(name="nsys", status="ok", files=(StageFile(role="nsys_sqlite", path=outside),))
    strange = perf.load_run(write_run(tmp_path / "strange", record))
    with pytest.raises(ConfigError, match="the run holds no capture"):
        _ = strange.kernels


def test_requests_of_a_load_are_rows(tmp_path: Path) -> None:
    good = RequestRecord(index=0, started_s=0.0, status="ok", ttft_s=0.1, latency_s=0.4, output_tokens=4)
    lines = [good, replace(good, index=1, started_s=0.25)]
    text = "\n".join(json.dumps({"level": "c4", **asdict(one)}) for one in lines)
    run = tmp_path / "run"
    found = perf.load_run(write_run(run, stage("bench", run, {"bench_requests": ("requests.jsonl", text)})))
    sql = "SELECT level, number, started_s, ttft_ms, tpot_ms, prompt_tokens FROM requests ORDER BY number"
    assert [tuple(row.values()) for row in found.query(sql)] == [
        ("c4", 0, 0.0, 100.0, pytest.approx(100.0), None),
        ("c4", 1, 0.25, 100.0, pytest.approx(100.0), None),
    ]


def test_memory_events_of_a_trace_are_rows(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::empty", "10.000", "5.000"),
        '{"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 10, "tid": 10, "ts": 11.000, "args": '
        '{"Bytes": 64, "Total Allocated": 128, "Device Type": 1, "Device Id": 0, "Addr": 1}}',
    ]
    found = perf.analyze(write_trace(tmp_path / "trace.json", events))
    rows = [tuple(row.values())[1:5] for row in found.memory.rows()]
    assert rows == [("GPU", 64, 128, "aten::empty")]


def test_what_is_missing_or_misspelt_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such file or directory"):
        perf.analyze(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no capture given"):
        perf.analyze()
    found = perf.analyze(nsys_capture(tmp_path))
    with pytest.raises(ConfigError, match="no table 'kernel'; did you mean kernels"):
        found.table("kernel")
    with pytest.raises(KeyError, match="kernels has no column 'ns', it has: name, short_name"):
        found.kernels["ns"]


def test_frames_have_missing_values_where_nothing_is_known(tmp_path: Path) -> None:
    table = perf.analyze(nsys_capture(tmp_path)).kernels
    assert [row["graph"] for row in table.rows()] == [None, None, 3]
    pandas = pytest.importorskip("pandas")
    frame = table.pandas()
    assert (str(frame["graph"].dtype), frame["graph"].isna().tolist()) == ("Int64", [True, True, False])
    assert frame["duration_ns"].sum() == 40 and isinstance(frame, pandas.DataFrame)


def test_frames_of_arrow_and_polars_have_the_types_of_the_views(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("polars")
    table = perf.analyze(nsys_capture(tmp_path)).kernels
    arrow, polars = table.arrow(), table.polars()
    assert arrow["graph"].to_pylist() == polars["graph"].to_list() == [None, None, 3]
    assert {str(arrow.schema.field(name).type) for name in ("start_ns", "launch", "device")} == {"int64"}
    assert (str(arrow.schema.field("operator").type), str(polars["operator"].dtype)) == ("string", "String")
    empty = perf.analyze(nsys_capture_of_nothing(tmp_path)).copies
    assert (empty.arrow().num_rows, empty.polars().height, len(empty.rows())) == (0, 0, 0)


def nsys_capture_of_nothing(folder: Path) -> Path:
    from tests.support.nsys_builder import Export

    export = Export()
    export.call(5, 8, 1)
    export.kernel("gemm", 10, 20, 1)
    return export.write(folder / "small.sqlite")


def test_a_frame_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = perf.analyze(nsys_capture(tmp_path)).kernels
    for name in ("pandas", "polars", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    for frame in (table.pandas, table.polars, table.arrow):
        with pytest.raises(ToolError, match=r"which is not installed: pip install .*llm-perf-opt\["):
            frame()


def test_two_captures_are_compared(llama: perf.PerfAnalysis, tmp_path: Path) -> None:
    assert llama.path is not None
    change = perf.compare(llama, llama.path)
    assert change.verdict == change.document.verdict and change.sentence in repr(change)
    assert {one.metric for one in change.metrics} >= {"kernel_time_ms"}
    assert "kernel_time_ms" in change._repr_html_()


def test_a_prediction_is_that_of_the_command() -> None:
    found = perf.predict(model="llama3_8b", hardware="h200", batch=2, prompt=512)
    assert found.decode.bound_ms == found.figures["decode_bound_ms"] and found.figures["batch"] == 2
    assert found.decode.bound_ms is not None and 3 < found.decode.bound_ms < 4
    assert found.decode.estimate_ms is not None and found.decode.estimate_ms > found.decode.bound_ms
    assert (
        repr(found).startswith("Prediction(llama3_8b on h200: prefill ≥ ") and "decode_bound_ms" in found._repr_html_()
    )
    with pytest.raises(ConfigError, match="2 combinations of model, hardware and workload, allowed: one"):
        perf.predict(model="llama3_8b", hardware="h200,l40s")
    with pytest.raises(ConfigError):
        perf.predict(model="llama3_8b", hardware="h200", batches=2)


@pytest.mark.slow
def test_a_block_is_profiled_in_its_own_process(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    weight = torch.randn(64, 64)
    kept = tmp_path / "trace.json.gz"
    for output in (None, kept):
        with perf.profile(output=output) as block:
            with pytest.raises(ConfigError, match="the block has not ended"):
                _ = block.analysis
            with perf.phase("decode"):
                for _ in range(5):
                    torch.mm(weight, weight)
        assert isinstance(block.analysis, perf.PerfAnalysis)
        (row,) = block.analysis.query(
            "SELECT count(*) AS n, any_value(input_shapes) AS s FROM operators WHERE name = 'aten::mm'"
        )
        assert (row["n"], "64" in row["s"]) == (5, True)
    assert kept.is_file() and str(kept) in repr(block) and repr(perf.profile()) == "ProfiledBlock(not ended)"


def test_a_block_that_cannot_be_profiled_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"allowed: a name that ends in \.json or \.json\.gz"):
        perf.profile(output=tmp_path / "trace.txt")
    monkeypatch.setitem(sys.modules, "torch.profiler", None)
    with pytest.raises(ToolError, match="profile needs torch"):
        with perf.profile():
            pass
