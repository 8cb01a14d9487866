"""Reports of runs in which much is missing, broken or hostile: complete, honest, never a zero for an unknown."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.core.records import Metric
from llm_perf_opt.diagnosis.facts import Unknown
from llm_perf_opt.report.run_files import read_run_files
from llm_perf_opt.report.view.report_view import ReportView, build_view
from llm_perf_opt.report.write import write_reports
from tests.support.nsys_builder import Export
from tests.support.report_runs import analyze_h200, clean, hostile_run, stage, write_run
from tests.support.trace_builder import event, write_trace

pytestmark = pytest.mark.slow

ALWAYS = ["report.html", "report.md", "kernels.md", "stakeholder_summary.md"]


def look(run: Path) -> ReportView:
    return build_view(read_run_files(read_manifest(run), run))


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_a_run_in_which_nothing_worked_says_so(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        stage("torch_profiler", tmp_path, status="failed", reason="the workload was ended by signal 9"),
        stage("nsys", tmp_path, status="skipped", reason="torch_profiler failed and run.on_failure is stop"),
        status="failed",
    )
    assert names(write_reports(run)) == ALWAYS
    view = look(run)
    assert view.headline.verdict == "No latency was measured and no bound is known: what was run and found is below."
    assert view.headline.tone == "unknown"
    assert all(isinstance(tile.cell, Unknown) for tile in view.headline.tiles)
    assert "ended by signal 9" in str(view.headline.tiles[0].cell)
    assert view.findings == ()
    text = (run / "report.md").read_text(encoding="utf-8")
    assert "| torch_profiler | failed |  | the workload was ended by signal 9 |" in text
    assert "- Not run: static_analysis, ncu." in text


def test_memory_of_a_program_whose_model_nobody_named_has_only_what_was_measured(tmp_path: Path) -> None:
    metrics = {"peak_memory_bytes": Metric(value=4.0e9, unit="bytes", how="clean pass, highest of all samples")}
    config = {"workload": {"command": ["python", "my_script.py"]}}
    run = write_run(tmp_path / "run", stage("torch_profiler", tmp_path, metrics=metrics), config=config)
    assert [label for label, _ in look(run).memory.rows] == ["Peak (measured)"]
    bare = write_run(tmp_path / "bare", stage("torch_profiler", tmp_path), config=config)
    assert look(bare).memory.rows == () and look(bare).memory.missing is not None
    own = write_run(tmp_path / "own", stage("torch_profiler", tmp_path, metrics=metrics))
    assert len(look(own).memory.rows) == 7


def test_an_empty_manifest_gives_a_whole_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert names(write_reports(run)) == ALWAYS
    view = look(run)
    waterfall = view.waterfalls[1]
    assert [row.missing.text for row in waterfall.rows if row.missing] == [
        "stage static_analysis was not run — enable pipeline.static_analysis.enable=true",
        "stage static_analysis was not run — enable pipeline.static_analysis.enable=true",
        "stage nsys was not run — enable pipeline.nsys.enable=true",
        "stage nsys was not run — enable pipeline.nsys.enable=true",
        "no clean pass was run — enable pipeline.torch_profiler.enable=true (or pipeline.direct_inference.enable=true)",
    ]


def test_a_static_analysis_alone_gives_bounds_and_no_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model=llama3_1b", "hardware=h200", "workload.prompt=1024", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["predictions"][0]
    run = tmp_path / "run"
    write_run(run, stage("static_analysis", run, {"static_json": ("static.json", document)}))
    assert names(write_reports(run)) == ALWAYS
    view = look(run)
    assert view.headline.verdict == (
        "No latency was measured. By model and hardware alone, no faster than "
        "prefill 2.518 ms per prompt, decode 0.555 ms per token."
    )
    keys = [(row.key, row.missing is None) for row in view.waterfalls[1].rows]
    assert keys == [("datasheet", True), ("achievable", True), ("kernels", False), ("idle", False), ("wall", False)]
    assert view.memory.segments and view.memory.measured_pct is None
    assert view.roofline.missing is not None


def test_a_bound_that_is_missing_gives_its_own_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model=llama3_1b", "hardware=h200", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["predictions"][0]
    document["phases"]["decode"]["bound_ms"] = {
        "datasheet": None,
        "achievable": None,
        "datasheet_reason": "no sheet; calibrated or not",
        "achievable_reason": "no peak was measured for fp8",
    }
    run = tmp_path / "run"
    write_run(run, stage("static_analysis", run, {"static_json": ("static.json", document)}))
    assert [row.missing.text for row in look(run).waterfalls[1].rows[:2] if row.missing] == [
        "no sheet; calibrated or not",
        "no peak was measured for fp8 — enable hardware.calibrate=true",
    ]


def test_a_capture_alone_keeps_its_own_findings_and_says_whose_times_they_are(tmp_path: Path) -> None:
    run = analyze_h200(tmp_path, ncu=False, context=False)
    view = look(run)
    first = view.findings[0]
    assert (first.title, first.saves) == (
        "Launch-bound decode_step: GPU idle 90 % of each decode_step",
        "affects 89.6 % of the steady state",
    )
    once = [f.is_one_time for f in view.findings]
    assert True in once and once == sorted(once)
    assert view.headline.verdict.startswith(first.title)
    adopted = [f for f in view.findings if f.rule == "launch_bound"]
    assert all("profiler" in (f.caveat or "") for f in adopted)
    assert [(tile.label, tile.cell.text) for tile in view.headline.tiles] == [
        ("Kernels", "19,611"),
        ("Kernel time", "77.52 ms"),
        ("GPU busy", "10.3 %"),
        ("Busy in decode", "8.24 %"),
        ("Hottest kernel", "13.4 %"),
        ("Copies", "78.5 µs"),
    ]
    assert "wall" not in {row.key for w in view.waterfalls for row in w.rows if row.missing is None}


@pytest.mark.parametrize(("prompt", "is_same"), [(1024, True), (1030, True), (30, False)])
def test_a_prediction_for_another_prompt_is_not_compared_with_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prompt: int, is_same: bool
) -> None:
    assert main(["predict", "model=llama3_1b", "hardware=h200", "workload.prompt=1024", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["predictions"][0]
    run = tmp_path / "run"
    stats = {"mean": prompt, "std": 0.0, "p50": prompt, "p90": prompt, "p99": prompt, "n": 3}
    metrics = {"model": {"name": "llama3_1b"}, "clean": {"metrics": {"prompt_tokens": stats}}}
    write_run(
        run,
        stage("static_analysis", run, {"static_json": ("static.json", document)}),
        stage(
            "torch_profiler",
            run,
            {"metrics": ("metrics.json", metrics)},
            metrics=clean(prefill_ms=40.0, ttft_ms=42.0, tpot_ms=10.0, tokens=11),
        ),
    )
    view = look(run)
    tiles = {tile.label: tile.cell.text for tile in view.headline.tiles}
    assert dict(view.headline.facts)["prompt"] == f"{prompt:,} tokens"
    if is_same:
        assert tiles["MFU, prefill"].endswith(" %")
    else:
        assert tiles["MFU, prefill"] == (
            "static analysis assumed a prompt of 1,024 tokens, the clean pass read 30 — enable "
            "pipeline.static_analysis.use_synthetic_inputs=false"
        )
    # The cache of a thousand tokens is 1.3 % of what a decode step of this model reads.
    assert tiles["MBU, decode"].endswith(" %")


def test_a_busy_capture_without_findings_is_healthy(tmp_path: Path) -> None:
    run = tmp_path / "run"
    export = Export()
    export.range("prefill", 0, 1_000_000)
    export.call(1_000, 2_000, 1)
    export.kernel("nvjet_tst_64x8", 3_000, 903_000, 1)
    export.graph(904_000, 999_000, 1)
    assert main(["analyze", "-v", str(export.write(tmp_path / "busy.sqlite")), "-o", str(run)]) == 0
    assert look(run).headline.verdict == (
        "Healthy: GPU busy 99.9 % of prefill (0.996 ms); GEMM kernels take 90.5 % of it, the hottest is nvjet_tst_64x8 "
        "(90.5 %). No idle time to speak of: only faster or fewer kernels save time."
    )


def test_a_capture_of_graphs_alone_or_of_no_gpu_work_says_so(tmp_path: Path) -> None:
    graphs, ranges = Export(), Export()
    for i in range(2):
        graphs.call(i * 1_000_000, i * 1_000_000 + 5_000, i + 1, "cudaGraphLaunch_v10000")
        graphs.graph(i * 1_000_000 + 10_000, (i + 1) * 1_000_000, i + 1)
    ranges.range("step", 0, 1_000)
    said = []
    for name, export in (("graphs", graphs), ("ranges", ranges)):
        path = export.write(tmp_path / f"{name}.sqlite")
        assert main(["analyze", "-v", str(path), "-o", str(tmp_path / name)]) == 0
        said.append(look(tmp_path / name).headline.verdict)
    assert said == [
        "Healthy: GPU busy 99.5 % of the capture (1.990 ms); graph kernels take 100.0 % of it, the hottest is "
        "CUDA graph traced as a whole (100.0 %). No idle time to speak of: only faster or fewer kernels save time.",
        "No GPU work was recorded. If the program used a GPU, capture again with `nsys profile "
        "--trace=cuda,nvtx,osrt`.",
    ]


def test_a_clean_pass_alone_leaves_the_rest_unexplained(tmp_path: Path) -> None:
    run = tmp_path / "run"
    metrics = clean(prefill_ms=40.0, ttft_ms=42.0, tpot_ms=10.0, tokens=11)
    write_run(run, stage("torch_profiler", run, metrics=metrics))
    view = look(run)
    assert [(row.key, row.total) for row in view.waterfalls[1].rows if row.missing is None] == [
        ("rest", "10.00 ms"),
        ("wall", "10.00 ms"),
    ]
    assert view.headline.verdict.startswith("Measured: prefill 40.00 ms per prompt, decode 10.00 ms per token")


def test_a_broken_or_vanished_file_is_a_stated_reason(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(
        run,
        stage("static_analysis", run, {"static_json": ("static.json", "{not json")}),
        stage("nsys", run, {"analysis_json": ("analysis.json", {"kernels": [{"name": 5}]})}),
        stage("ncu", run, {"ncu_kernels_json": ("kernels.json", {})}),
    )
    (run / "ncu" / "kernels.json").unlink()
    view = look(run)
    text = str(view)
    assert "static_analysis/static.json: is invalid" in text
    assert "nsys/analysis.json: is invalid" in text
    assert names(write_reports(run)) == ALWAYS


def test_a_metric_without_a_value_shows_its_reason_and_never_zero(tmp_path: Path) -> None:
    run = tmp_path / "run"
    nothing = Metric(value=None, unit="ms", how="clean pass", reason="every sample ended after its first token")
    write_run(run, stage("torch_profiler", run, metrics={**clean(prefill_ms=40.0), "tpot_ms": nothing}))
    write_reports(run)
    for name in ("report.md", "report.html", "stakeholder_summary.md"):
        text = (run / name).read_text(encoding="utf-8")
        assert "every sample ended after its first token" in text, name
        assert not re.search(r"\b0(\.0+)? ms", text), name


def test_names_with_markup_do_nothing_anywhere(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    write_reports(run)
    html = (run / "report.html").read_text(encoding="utf-8")
    # Our own two elements with a closing tag each, and nothing else.
    assert html.count("<script") == 2
    assert html.count("</script") == 2
    assert "<!--" not in html
    for name in ("report.md", "kernels.md", "stakeholder_summary.md"):
        text = (run / name).read_text(encoding="utf-8")
        outside = "".join(part for i, part in enumerate(text.split("`")) if i % 2 == 0)
        assert "<script" not in outside, name


def test_a_table_row_stays_one_row_whatever_the_kernel_is_called(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    write_reports(run)
    text = (run / "report.md").read_text(encoding="utf-8")
    start = text.index("| # | kernel |")
    table = text[start:].split("\n\n")[0].splitlines()
    columns = {len(line.replace("\\|", "").split("|")) for line in table}
    assert columns == {16}


def test_a_range_whose_name_is_markup_starts_neither_link_nor_picture_nor_column(tmp_path: Path) -> None:
    export = Export()
    export.range("[x](javascript:alert(1)) ![](http://evil) a | b <script>", 0, 1000)
    for number in range(1, 4):
        export.call(5 * number, 5 * number + 1, number)
        export.kernel("=cmd|calc![](evil)", 100 * number, 100 * number + 90, number)
    assert main(["analyze", str(export.write(tmp_path / "c.sqlite")), "-o", str(tmp_path / "run")]) == 0
    pages = [tmp_path / "run" / name for name in ALWAYS if name.endswith(".md")]
    texts = [re.sub(r"`[^`\n]*`", "", path.read_text(encoding="utf-8")) for path in pages]
    assert "javascript" in texts[0]
    for text in texts:
        assert not re.search(r"(?<!\\)\]\((javascript|http|evil)|(?<!\\)<script", text)
        for lines in re.findall(r"(?:^\|.*\|$\n)+", text, re.M):
            rows = lines.replace("\\|", "").splitlines()
            assert len({row.count("|") for row in rows}) == 1, rows


@pytest.mark.slow
def test_rendering_again_needs_neither_torch_nor_the_profilers(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    code = (
        "import sys; from llm_perf_opt.cli import main; code = main(['report', sys.argv[1]])\n"
        "loaded = [m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers', 'pandas', 'duckdb', 'hydra')"
        " or m.startswith(('llm_perf_opt.profiling', 'llm_perf_opt.workload', 'llm_perf_opt.pipeline'))]\n"
        "print(code, loaded)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_an_old_trace_does_not_outlive_its_data(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "trace.perfetto.json.gz").write_bytes(b"old")
    write_reports(run)
    assert not (run / "trace.perfetto.json.gz").exists()


def test_the_page_of_a_capture_has_only_the_parts_it_can_fill(tmp_path: Path) -> None:
    events = [event("cpu_op", "aten::mm", "0", "40")]
    for i in range(60):
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{100 * i}", "5", correlation=i + 1))
        name = "gemm" if i % 3 else "elementwise_kernel"
        where = {"pid": 0, "tid": 7, "device": 0}
        events.append(event("kernel", name, f"{100 * i + 10}", "89", correlation=i + 1, **where))
    trace = write_trace(tmp_path / "t.json", events)
    assert main(["analyze", "-v", str(trace), "-o", str(tmp_path / "run")]) == 0
    assert look(tmp_path / "run").parts == ("findings", "kernels", "timeline", "modules")
    for name in ("report.md", "stakeholder_summary.md", "report.html"):
        page = (tmp_path / "run" / name).read_text(encoding="utf-8")
        words = ("unknown:", "unknown</b>", "pipeline.", "not measured:", "Prefill, per prompt")
        assert not [word for word in words if word in page]


def test_kernels_measured_by_ncu_alone_have_a_headline_of_their_own(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "data" / "ncu_raw.csv.xz"
    assert main(["analyze", "-v", str(source), "-o", str(tmp_path / "run")]) == 0
    head = look(tmp_path / "run").headline
    assert head.verdict.startswith("ncu measured ")
    assert "TTFT" not in [tile.label for tile in head.tiles]
    assert "Nothing was measured" not in head.verdict


def test_what_a_capture_could_save_of_itself_decides_the_order(tmp_path: Path) -> None:
    """Copies within kernels take 40 % of the kernel time, and kernels a hundredth of the capture: not worth a line."""
    events: list[str] = []
    for i in range(40):
        at = 20_000 * i
        events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at}", "5", correlation=i + 1))
        name = "gemm" if i % 2 else "void at::native::CatArrayBatchedCopy<float>"
        events.append(event("kernel", name, f"{at + 10}", "100", pid=0, tid=7, device=0, correlation=i + 1))
    trace = write_trace(tmp_path / "t.json", events)
    assert main(["analyze", "-v", str(trace), "-o", str(tmp_path / "run")]) == 0
    assert [f.rule for f in look(tmp_path / "run").findings] == ["not_recorded"]
