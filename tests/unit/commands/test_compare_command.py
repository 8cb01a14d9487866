"""`llm-perf compare` on run directories and captures: what it prints, writes, refuses and returns."""

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest, write_manifest
from llm_perf_opt.core.records import Metric, StageRecord
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.compare import interleave
from llm_perf_opt.pipeline.compare.interleave import Experiment, parse_experiment
from llm_perf_opt.pipeline.compare.sides import read_side, read_sides
from llm_perf_opt.report.compare.compare_page import timeline_pair
from llm_perf_opt.report.run_files import read_run_files
from llm_perf_opt.serving.client.lag import LoopLag
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import BenchDocument, level_result
from llm_perf_opt.serving.serving_config import LoadLevel, SloSection
from tests.support.fixtures_dir import DATA, REPO
from tests.support.nsys_builder import Export
from tests.support.report_runs import HOSTILE, capture, stage, write_run
from tests.support.schemas import valid, valid_file

CONFIG = {"model": {"name": "tiny"}, "infer": {"max_new_tokens": 8}}


def run_of(folder: Path, tpot_ms: Sequence[float], *, config: dict[str, Any] = CONFIG, **parts: Any) -> Path:
    """A run whose clean pass measured these times of one sample, one repeat each."""
    lines = [
        {"sample_id": "a", "pass": "clean", "repeat": n, "epoch": 0, "tpot_ms": v, "ttft_ms": 5 * v, "e2e_ms": 12 * v}
        for n, v in enumerate(tpot_ms)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    metrics = {"peak_memory_bytes": Metric(value=1000, unit="bytes", how="highest")}
    record = stage("direct_inference", folder, {"samples": ("samples.jsonl", text)}, metrics=metrics)
    write_run(folder, record)
    manifest = read_manifest(folder)
    write_manifest(folder, type(manifest)(**{**vars(manifest), "config": config, **parts}))
    return folder


STEADY = (10.0, 10.01, 9.99, 10.0)
SLOWER = tuple(1.2 * value for value in STEADY)


def passes_of(folder: Path, tpot_ms: Sequence[float], **parts: Any) -> Path:
    """A directory of runs, a start for each of these times."""
    for number, value in enumerate(tpot_ms, start=1):
        run_of(folder / str(number), (value, value), **parts)
    return folder


def test_slower_passes_are_reported_with_interval_and_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, slower = passes_of(tmp_path / "base", STEADY), passes_of(tmp_path / "slower", SLOWER)
    assert main(["compare", str(base), str(slower)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"WORSE: {base} → {slower}"
    assert lines[1].startswith("ttft_ms 50.00 ms → 60.00 ms, +20.0 % (95 %: +19.")
    assert "; tpot_ms 10.00 ms → 12.00 ms, +20.0 % (95 %: " in lines[1] and "worse" not in lines[1]
    assert main(["compare", str(base), str(slower), "--gate", "tpot_ms<=+5%"]) == 1
    assert "gate tpot_ms<=+5%: failed (+20.0 %, " in capsys.readouterr().out
    assert main(["compare", str(base), str(slower), "--gate", "tpot_ms<=+25%", "--gate", "ttft_ms<=70"]) == 0
    # Known, and not measured here.
    assert main(["compare", str(base), str(slower), "--gate", "post_ms<=5%"]) == 3


def test_one_run_each_observes_a_difference_and_gates_are_inconclusive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, slower = run_of(tmp_path / "base", STEADY), run_of(tmp_path / "slower", SLOWER)
    assert main(["compare", str(base), str(slower), "--gate", "tpot_ms<=+5%"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"DIFFERENCE OBSERVED, ONE START EACH: {base} → {slower}"
    assert lines[3].startswith("gate tpot_ms<=+5%: inconclusive (+20.0 %, +19.")
    assert main(["compare", str(base), str(slower), "--gate", "tpot_ms<=+5%", "--start-variation", "2"]) == 1
    assert "start-to-start variation 2 % from --start-variation" not in capsys.readouterr().err


def test_earlier_runs_of_the_same_work_give_the_variation_of_a_single_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, level: float, **parts: Any) -> Path:
        folder = run_of(tmp_path / name, [level * value for value in STEADY], **parts)
        manifest = read_manifest(folder)
        record = replace(manifest.stages[0], metrics={"tpot_ms": Metric(value=10 * level, unit="ms", how="clean")})
        write_manifest(folder, replace(manifest, stages=(record,)))
        return folder

    base, slower = run("base", 1.0), run("slower", 1.2)
    for number, level in enumerate((1.01, 0.99, 1.02, 1.0)):
        # The candidate's configuration is another, so these are starts of the base alone.
        run(f"earlier{number}", level)
    other = {"model": {"name": "tiny"}, "infer": {"max_new_tokens": 8}, "run": {"quiet": True}}
    slower = run("slower", 1.2, config=other)
    assert main(["compare", str(base), str(slower), "--gate", "tpot_ms<=+5%", "-o", str(tmp_path / "out")]) == 1
    found = valid_file("compare", tmp_path / "out" / "compare.json")
    [how] = [row["how"] for row in found["metrics"] if row["metric"] == "tpot_ms"]
    assert how.endswith("; start-to-start variation 1.1 % from 5 runs of the same work")
    assert "one start on a side" not in capsys.readouterr().out


def test_a_slip_in_a_gate_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, slower = run_of(tmp_path / "base", STEADY), run_of(tmp_path / "slower", SLOWER)
    assert main(["compare", str(base), str(slower), "--gate", "tpot<=+5%"]) == 2
    assert capsys.readouterr().err == "error: --gate: unknown metric 'tpot'; did you mean tpot_ms?\n"
    # Before the first run.
    words = ["--interleave", "2", "-o", str(tmp_path / "out"), "--", "candidate.overrides=run.seed=0"]
    assert main(["compare", "--gate", "tpot<=+5%", *words]) == 2
    assert not (tmp_path / "out").exists()


def test_everything_is_written_and_the_json_obeys_its_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, slower = passes_of(tmp_path / "base", STEADY), passes_of(tmp_path / "slower", SLOWER)
    out = tmp_path / "out"
    assert main(["compare", str(base), str(slower), "-o", str(out), "--json", "--gate", "tpot_ms<=+5%"]) == 1
    printed = valid("compare", json.loads(capsys.readouterr().out))
    assert printed == valid_file("compare", out / "compare.json")
    assert (printed["verdict"], [g["status"] for g in printed["gates"]]) == ("worse", ["failed"])
    assert [row["metric"] for row in printed["metrics"]] == ["ttft_ms", "tpot_ms", "e2e_ms", "peak_memory_bytes"]
    # No trace was recorded, so nothing explains the difference.
    assert printed["waterfalls"] == []
    assert (out / "compare.md").read_text().startswith("### llm-perf compare: worse\n")
    page = (out / "compare.html").read_text()
    assert 'id="gates"' in page and 'id="metrics"' in page and "http" not in page.replace("http-equiv", "")
    assert main(["compare", str(base), str(slower), "--markdown"]) == 0
    assert "| tpot_ms | 10.00 ms | 12.00 ms | +20.0 % |" in capsys.readouterr().out


def test_page_and_markdown_say_what_was_compared(tmp_path: Path) -> None:
    def run(name: str, commit: str, gpu: str) -> Path:
        environment = {
            "gpus": [{"name": gpu, "driver": "580.1"}], "git": {"commit": commit, "changed": True}, "python": "3.12",
            "packages": {"torch": "2.11"}, "hostname": "node1",
        }  # fmt: skip
        config = {**CONFIG, "run": {"device": "cuda:0"}}
        overrides = ("model=tiny", "artifacts.runs_dir=/x")
        return run_of(tmp_path / name, STEADY, config=config, environment=environment, overrides=overrides)

    sides = run("base", "0" * 40, "NVIDIA A100-SXM4-80GB"), run("other", "1" * 40, "NVIDIA H200")
    assert main(["compare", *map(str, sides), "-o", str(tmp_path / "out")]) == 0
    found = valid_file("compare", tmp_path / "out" / "compare.json")
    assert found["what"] == "tiny on NVIDIA A100-SXM4-80GB → NVIDIA H200"
    assert found["candidate"]["about"] == [
        {"label": "workload", "text": "tiny"},
        {"label": "device", "text": "NVIDIA H200"},
        {"label": "GPU driver", "text": "580.1"},
        {"label": "command", "text": "model=tiny"},
        {"label": "commit", "text": "111111111111 with uncommitted changes"},
        {"label": "date", "text": "2025-01-01 00:00"},
        {"label": "software", "text": "Python 3.12, torch 2.11"},
        {"label": "host", "text": "node1"},
    ]
    # Another GPU is named, with what the data sheets allow, and not refused.
    assert found["notes"][0] == (
        "different device: NVIDIA A100-SXM4-80GB → NVIDIA H200; peak memory bandwidth 2,039 → 4,800 GB/s (bound of a "
        "memory-bound run: ×0.42); peak bf16 rate 312 → 989 TFLOP/s (bound of a compute-bound run: ×0.32)"
    )
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "tiny on NVIDIA A100-SXM4-80GB → NVIDIA H200 · llm-perf compare</title>" in page
    assert all(text in page for text in ("111111111111 with uncommitted changes", "Python 3.12, torch 2.11"))
    assert (
        "| commit | `000000000000 with uncommitted changes` | `111111111111 with uncommitted changes` |"
        in (tmp_path / "out" / "compare.md").read_text()
    )


def test_gates_are_written_for_junit_and_github(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, slower = passes_of(tmp_path / "base", STEADY), passes_of(tmp_path / "slower", SLOWER)
    gates = ["--gate", "tpot_ms<=+5%", "--gate", "ttft_ms<=+30%", "--gate", "post_ms<=+5%"]
    report = tmp_path / "gates.xml"
    assert main(["compare", str(base), str(slower), *gates, "--junit", str(report), "--github"]) == 1
    suite = ElementTree.parse(report).getroot()
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3", "failures": "1", "errors": "1",
    }  # fmt: skip
    assert [(case.get("name"), [part.tag for part in case]) for case in suite.iter("testcase")] == [
        ("tpot_ms<=+5%", ["failure"]),
        ("ttft_ms<=+30%", []),
        ("post_ms<=+5%", ["error"]),
    ]
    said = capsys.readouterr().err.splitlines()
    assert [line.partition("::")[0] + line.split("::")[1].partition(" ")[0] for line in said] == [
        "error", "notice", "warning",
    ]  # fmt: skip
    assert said[0].startswith("::error title=llm-perf compare%3A tpot_ms<=+5%25 failed::+20.0 %25, ")
    # Without gates the verdict is the case.
    assert main(["compare", str(base), str(slower), "--junit", str(report), "--github"]) == 0
    assert capsys.readouterr().err.startswith("::notice title=llm-perf compare%3A worse::")


def test_a_program_and_a_model_run_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, program = run_of(tmp_path / "model", STEADY), program_of(tmp_path / "program", [100.0, 101.0])
    assert main(["compare", str(model), str(program)]) == 2
    assert capsys.readouterr().err == (
        f"error: compare: {model} is a model run, {program} is a program: they did different work; give two of one "
        "kind\n"
    )
    load, trace = vllm_result(tmp_path / "a.json", rate=5.0, tpot_ms=10.0), DATA / "h200" / "llama.trace.json.gz"
    assert main(["compare", str(load), str(trace)]) == 2
    assert f"error: compare: {load} is a load on a server, {trace} is a capture: " in capsys.readouterr().err
    assert main(["compare", str(program), str(trace)]) == 2
    assert capsys.readouterr().err.startswith(f"error: compare: {program} recorded no capture to compare with one: ")


def vllm_result(path: Path, *, rate: float, tpot_ms: float, completed: int = 400) -> Path:
    data = {
        "request_rate": "inf", "max_concurrency": 4, "num_prompts": 400, "completed": completed,
        "failed": 400 - completed,
        "request_throughput": rate, "output_throughput": 100 * rate, "model_id": "opt", "duration": 10.0,
        "median_ttft_ms": 50.0, "std_ttft_ms": 1.0, "p99_ttft_ms": 80.0,
        "median_tpot_ms": tpot_ms, "std_tpot_ms": 0.4, "p99_tpot_ms": 2 * tpot_ms,
    }  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data))
    return path


def test_results_of_a_load_generator_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = vllm_result(tmp_path / "a.json", rate=5.0, tpot_ms=10.0)
    after = vllm_result(tmp_path / "b.json", rate=8.0, tpot_ms=12.0)
    assert main(["compare", str(before), str(after), "-o", str(tmp_path / "out")]) == 0
    found = valid_file("compare", tmp_path / "out" / "compare.json")
    assert (found["what"], found["verdict"]) == ("opt", "difference observed")
    assert {row["metric"]: row["verdict"] for row in found["metrics"]} == {
        "ttft_ms": "no difference observed",
        "tpot_ms": "difference observed",
        "output_tokens_per_s": "difference observed",
        "requests_per_s": "difference observed",
        "ttft_p99_ms": "inconclusive",
        "tpot_p99_ms": "inconclusive",
    }
    # Several results in a directory are several starts.
    for number in range(4):
        vllm_result(tmp_path / "old" / f"{number}.json", rate=5.0 + number / 100, tpot_ms=10.0 + number / 100)
        vllm_result(tmp_path / "new" / f"{number}.json", rate=8.0 + number / 100, tpot_ms=12.0 + number / 100)
    gates = ["--gate", "tpot_ms<=+5%", "--gate", "output_tokens_per_s>=+50%"]
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new"), *gates]) == 1
    out = capsys.readouterr().out
    assert "gate tpot_ms<=+5%: failed" in out and "gate output_tokens_per_s>=+50%: passed" in out
    failed = vllm_result(tmp_path / "c.json", rate=0.0, tpot_ms=0.0, completed=0)
    assert main(["compare", str(before), str(failed)]) == 1
    assert "FAILED" in capsys.readouterr().out


def program_of(folder: Path, wall_ms: Sequence[float], *, steps_ms: Sequence[float] = (), old: bool = False) -> Path:
    """A run of a program without phases, or with these steps in each of its runs; `old` ones wrote no samples."""
    lines: list[dict[str, Any]] = []
    for repeat, wall in enumerate(wall_ms):
        common = {"pass": "clean", "repeat": repeat}
        lines += [{"sample_id": f"decode_step {n}", **common, "tpot_ms": ms} for n, ms in enumerate(steps_ms)]
        lines.append({"sample_id": "program", **common, "wall_ms": wall})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    metrics = {"wall_ms": Metric(value=sorted(wall_ms)[len(wall_ms) // 2], unit="ms", how="clean pass, median")}
    files = {} if old else {"samples": ("samples.jsonl", text)}
    write_run(folder, stage("torch_profiler", folder, files, metrics=metrics))
    workload = {"command": ["python", "gen.py"], "repeats": len(wall_ms)}
    write_manifest(folder, replace(read_manifest(folder), config={"workload": workload}))
    return folder


def test_programs_without_phases_are_compared_by_their_wall_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = program_of(tmp_path / "base", [1000.0, 1001.0, 999.0])
    slower = program_of(tmp_path / "slower", [1200.0, 1201.0, 1199.0, 1200.0])
    assert main(["compare", str(base), str(slower), "--gate", "wall_ms<=+5%"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[:4] == [
        f"WORSE: {base} → {slower}",
        "wall_ms 1,000 ms → 1,200 ms, +20.0 % (95 %: +19.7 to +20.3 %).",
        "compared: gen.py",
        "gate wall_ms<=+5%: failed (+20.0 %, +19.7 % to +20.3 %: none of the 95 % interval is within the limit)",
    ]
    # Other repeats are not other work; and each is its own start, so that nothing is reported of one start alone.
    assert "workload.repeats: 3 → 4" in out and "one start" not in out
    assert main(["runs", str(tmp_path)]) == 0
    assert [line.split()[6:8] for line in capsys.readouterr().out.splitlines()] == [
        ["TPOT", "wall"],
        ["–", "1,000"],
        ["–", "1,200"],
    ]
    old = program_of(tmp_path / "old", [1200.0, 1201.0, 1199.0], old=True)
    assert main(["compare", str(base), str(old)]) == 0
    assert "wall_ms 1,000 ms → 1,200 ms, +20.0 %" in capsys.readouterr().out


def test_steps_of_a_program_are_compared_by_the_runs_they_were_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [2.0, 2.01, 1.99] * 20
    base = program_of(tmp_path / "base", [100.0, 110.0, 100.0], steps_ms=steps)
    again = program_of(tmp_path / "again", [100.0, 110.0, 100.0], steps_ms=steps)
    assert main(["compare", str(base), str(again)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"SAME: {base} → {again}\ntpot_ms 2.000 ms → 2.000 ms, +0.0 % (95 %: +0.0 to +0.0 %).\n")
    # Where something was timed inside the program, its wall time is not asked unless a gate does.
    assert "wall_ms" not in out
    once = [program_of(tmp_path / f"once{n}", [100.0], steps_ms=steps) for n in (1, 2)]
    assert main(["compare", *map(str, once)]) == 0
    assert capsys.readouterr().out.startswith(f"INCONCLUSIVE: {once[0]} → {once[1]}\n")


def test_other_work_is_refused_with_the_list_and_force_says_so_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = run_of(tmp_path / "base", STEADY)
    other = run_of(tmp_path / "other", STEADY, config={"model": {"name": "large"}, "infer": {"max_new_tokens": 9}})
    assert main(["compare", str(base), str(other)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: compare: infer.max_new_tokens: 8 → 9",
        "error: compare: model.name: tiny → large",
        "error: compare: these runs did not do the same work; --force compares them anyway and marks every output",
    ]
    out = tmp_path / "out"
    assert main(["compare", str(base), str(other), "--force", "-o", str(out)]) == 0
    said = "infer.max_new_tokens: 8 → 9; model.name: tiny → large"
    assert f"FORCED, --force: configurations differ: {said}" in capsys.readouterr().out
    assert said in (out / "compare.md").read_text()
    assert 'id="forced"' in (out / "compare.html").read_text()
    assert valid_file("compare", out / "compare.json")["forced"] == said.split("; ")


def test_what_is_missing_or_wrong_in_a_run_is_told_on_terminal_page_and_by_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half, whole = run_of(tmp_path / "half", STEADY), run_of(tmp_path / "whole", STEADY)
    assert main(["report", str(whole)]) == 0
    assert (capsys.readouterr().err, "Damaged" in (whole / "report.html").read_text()) == ("", False)
    (half / "direct_inference" / "samples.jsonl").unlink()
    gone = "missing, though the manifest names it: direct_inference/samples.jsonl (stage direct_inference)"
    assert main(["report", str(half)]) == 0
    assert capsys.readouterr().err == f"warning: {gone}\n"
    assert f"<li>{gone}</li>" in (half / "report.html").read_text()
    assert "**Damaged:** missing, though the manifest names it: " in (half / "report.md").read_text()
    main(["compare", str(half), str(whole)])
    assert f"note: {half}: {gone}\n" in capsys.readouterr().out
    (whole / "direct_inference" / "samples.jsonl").write_text("no samples")
    assert main(["report", str(whole)]) == 0
    assert capsys.readouterr().err.startswith(
        "warning: direct_inference/samples.jsonl: cannot be read as samples of a clean pass ("
    )


def test_captures_taken_away_to_save_room_are_no_damage() -> None:
    """The run that is shown has neither its export of nsys nor the traces it names."""
    run = REPO / "tests" / "data" / "h200_run"
    manifest = read_manifest(run)
    assert any(not file.path.exists() for stage in manifest.stages for file in stage.files)
    assert read_run_files(manifest, run).damage == ()


def test_a_failed_run_never_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = run_of(tmp_path / "base", STEADY)
    failed = run_of(tmp_path / "failed", [1.0, 1.0, 1.0], status="failed")
    assert main(["compare", str(base), str(failed)]) == 1
    assert capsys.readouterr().out.startswith(
        f"FAILED: {base} → {failed}\nNo verdict, because a side did not finish or measured nothing"
    )
    assert main(["compare", str(base), str(failed), "--gate", "tpot_ms<=+5%"]) == 1
    assert main(["compare", str(failed), str(base), "--gate", "tpot_ms<=+5%"]) == 3
    empty = write_run(tmp_path / "empty", StageRecord(name="nsys", status="skipped", reason="no GPU"))
    assert main(["compare", str(base), str(empty), "--gate", "tpot_ms<=+5%", "--force"]) == 1


def test_a_run_interrupted_after_its_clean_pass_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = run_of(tmp_path / "base", STEADY)
    stopped = run_of(tmp_path / "stopped", SLOWER, status="interrupted")
    assert main(["compare", str(base), str(stopped)]) == 0
    assert capsys.readouterr().out.startswith(f"DIFFERENCE OBSERVED, ONE START EACH: {base} → {stopped}\n")
    early = write_run(tmp_path / "early", StageRecord(name="torch_profiler", status="skipped", reason="interrupted"))
    write_manifest(early, replace(read_manifest(early), status="interrupted"))
    assert main(["compare", str(base), str(early), "--force"]) == 1


def test_runs_are_compared_by_captures_of_the_same_stage(tmp_path: Path) -> None:
    one, two = capture(("gemm", 1, 100)), capture(("gemm", 1, 100), ("copy", 1, 10))
    folders = []
    for name, found in (
        ("base", {"nsys": two, "torch_profiler": one}),
        ("candidate", {"torch_profiler": one}),
        ("no", {}),
    ):
        files = {of: {"analysis_json": ("analysis.json", content)} for of, content in found.items()}
        folders.append(write_run(tmp_path / name, *(stage(of, tmp_path / name, each) for of, each in files.items())))
    base, candidate = read_sides(folders[0], folders[1])
    assert [s.input.capture and len(s.input.capture.kernels) for s in (base, candidate)] == [1, 1]
    alone, same = read_sides(folders[0], folders[0])
    assert [s.input.capture and len(s.input.capture.kernels) for s in (alone, same)] == [2, 2]
    assert [s.input.capture for s in read_sides(folders[0], folders[2])] == [None, None]


def test_directories_of_runs_are_passes_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        run_of(tmp_path / "base" / str(number), [float(number)])
        run_of(tmp_path / "candidate" / str(number), [1.2 * number])
    side = read_side(tmp_path / "base")
    assert [one["tpot_ms"][0].value for one in side.input.passes] == [1.0, 2.0, 10.0]
    out = tmp_path / "out"
    sides = [str(tmp_path / "base"), str(tmp_path / "candidate")]
    assert main(["compare", *sides, "--pairs", "-o", str(out)]) == 0
    found = valid_file("compare", out / "compare.json")
    assert (found["verdict"], found["paired"], found["base"]["passes"]) == ("worse", True, 3)
    assert found["metrics"][0]["how"] == "3 interleaved pairs, mean of their ratios"


def test_captures_of_one_kind_are_compared_and_their_timelines_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = DATA / "h200" / "llama.trace.json.gz"
    data = json.loads(gzip.decompress(trace.read_bytes()))
    kernels = [event for event in data["traceEvents"] if event.get("cat") == "kernel"]
    name = kernels[0]["name"]
    for event in kernels:
        if event["name"] == name:
            event["name"] = f"{name}_renamed_by_hand"
    (tmp_path / "other.json").write_text(json.dumps(data))
    out = tmp_path / "out"
    assert main(["compare", str(trace), str(tmp_path / "other.json"), "-o", str(out)]) == 0
    found = valid_file("compare", out / "compare.json")
    assert all(k["difference_ns"] == 0 for k in found["kernels"] if k["matched_by"] != "none")
    assert sum(k["difference_ns"] for k in found["kernels"]) == 0
    assert "Timelines" in (out / "compare.html").read_text()
    assert main(["compare", str(trace), str(trace)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("SAME: ") and said[-2].startswith("note: captures hold no clean times")


@pytest.mark.parametrize(("options", "has_tables"), [([], False), (["-v"], True), (["--top", "1"], True)])
def test_tables_of_kernels_are_printed_with_v(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], has_tables: bool
) -> None:
    for name, lasting in (("base", 10_000), ("candidate", 30_000)):
        export = Export()
        for i in range(40):
            export.call(50_000 * i, 50_000 * i + 4_000, i + 1)
            export.kernel("gemm", 50_000 * i + 3_000, 50_000 * i + 3_000 + lasting, i + 1)
        export.write(tmp_path / f"{name}.sqlite")
    sides = [str(tmp_path / f"{name}.sqlite") for name in ("base", "candidate")]
    assert main(["compare", *sides, *options]) == 0
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("kernel  ") for line in said) == has_tables
    assert said[-1].startswith("next: the same command with -v") == (not has_tables)


def test_a_capture_beside_one_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = DATA / "h200" / "llama.trace.json.gz"
    summary = DATA / "ncu_decode_kern_sum.csv"
    assert main(["compare", str(trace), str(summary)]) == 2
    assert "error: compare: kind of capture: torch → nsys_summary" in capsys.readouterr().err


def test_texts_of_others_are_no_markup(tmp_path: Path) -> None:
    sides = []
    for number, name in enumerate(("base", "candidate")):
        run = tmp_path / name
        data = capture((HOSTILE, 4 + number, 4_000_000), notes=(HOSTILE,))
        sides.append(str(write_run(run, stage("nsys", run, {"analysis_json": ("analysis.json", data)}))))
    assert main(["compare", *sides, "-o", str(tmp_path / "out")]) == 0
    assert "<script>" not in (tmp_path / "out" / "compare.html").read_text()
    assert "<script>" not in re.sub("`[^`]*`", "", (tmp_path / "out" / "compare.md").read_text())


def test_names_of_others_steer_no_terminal_in_any_file(tmp_path: Path) -> None:
    steering = "gemm\x1b]0;title\x07\u202eevil\x9b31m"
    sides = []
    for number, name in enumerate(("base", "candidate")):
        run = tmp_path / name
        data = capture((steering, 4 + number, 4_000_000), notes=(steering,))
        sides.append(str(write_run(run, stage("nsys", run, {"analysis_json": ("analysis.json", data)}))))
    assert main(["compare", *sides, "-o", str(tmp_path / "out")]) == 0
    for path in (tmp_path / "out").iterdir():
        text = path.read_text()
        assert "evil" in text and not {"\x1b", "\x07", "\u202e", "\x9b"} & set(text), path
    # As escapes: the name itself is kept.
    assert json.dumps(steering)[1:-1] in (tmp_path / "out" / "compare.json").read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "compare: two sides are needed (got 0), allowed: BASE CANDIDATE or --interleave N -- …"),
        (["a"], "compare: two sides are needed (got 1), allowed: BASE CANDIDATE or --interleave N -- …"),
        (["/no/a", "/no/b"], "/no/a: no such file or directory, allowed: a run, a directory of runs, or a capture"),
        (["a", "b", "--threshold", "150"], "--threshold: must be between 0 and 100 (got 150)"),
        (
            ["--interleave", "1", "--", "x=1"],
            "compare --interleave: needs a number of pairs (at least 2) or auto, and what to run after --",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_named(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    assert capsys.readouterr().err == f"error: {problem}\n"


def test_both_sides_are_checked_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["experiment=demo", "base.overrides=infer.batch=0", "candidate.overrides=infer.bach=2"]
    assert main(["compare", "--interleave", "3", "--", *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" (got")[0] for line in said] == [
        "error: base: infer.batch: not allowed",
        "error: candidate: infer.bach: unknown key",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "base", "base", "-o"],
        ["compare", "--interleave", "2", "-o", "PLACE", "--", "candidate.overrides=run.seed=0"],
        ["runs", ".", "--html"],
        ["export", "base", "--to", "prometheus", "-o"],
        ["optimize", "experiment=demo", "-o"],
    ],
)
def test_a_place_that_cannot_be_written_is_bad_input_of_its_option(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_of(tmp_path / "base", STEADY)
    (tmp_path / "a_file").write_text("in the way")
    place = str(tmp_path / "a_file" / "x")
    option = "--html" if "--html" in words else "-o"
    given = [place if word == "PLACE" else word for word in words]
    assert main(given if place in given else [*given, place]) == 2
    why = "cannot be written (Not a directory), allowed: a place in a directory you may write to"
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {option}: {place} {why}"


def test_an_experiment_says_what_both_sides_share_and_what_they_do_not() -> None:
    found = parse_experiment(
        ["experiment=demo", "base.overrides=a=1,b=[1,2]", "candidate.overrides=[a=2]", "candidate.ref=HEAD"]
    )
    assert found.common == ("experiment=demo",)
    assert found.overrides == {"base": ("a=1", "b=[1,2]"), "candidate": ("a=2",)}
    assert (found.refs, found.meant) == ({"candidate": "HEAD"}, frozenset({"a", "b"}))
    program = parse_experiment(["a=1", "candidate.overrides=b=2", "--", "python", "gen.py", "--", "base.overrides=x"])
    command = 'workload.command=["python","gen.py","--","base.overrides=x"]'
    assert (program.common, program.overrides["candidate"]) == ((command, "a=1"), ("b=2",))
    with pytest.raises(ConfigError, match="to compare one with itself, give a side a value it has already, such as "):
        parse_experiment(["experiment=demo"])
    for words in (["experiment=demo"], ["base.what=1"], ["base.overrides=a=1", "candidate.overrides=a=1"]):
        with pytest.raises(ConfigError, match="compare --interleave: "):
            parse_experiment(words)


def test_without_two_timelines_none_is_drawn(tmp_path: Path) -> None:
    from llm_perf_opt.comparison.comparison import compare_sides

    side = read_side(run_of(tmp_path / "run", STEADY))
    assert timeline_pair(compare_sides(side.input, side.input), (None, None)) == ""


@pytest.mark.parametrize(("slower", "pairs"), [(2.0, 3), (1.0, 24)])
def test_auto_makes_pairs_until_the_gate_has_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slower: float, pairs: int
) -> None:
    """Noise of 4 % from run to run: a factor of two shows at once, equality within 1 % never."""
    random = np.random.default_rng(3)

    def made(experiment: Experiment, side: str, folder: Path, place: Path | None) -> bool:
        level = (slower if side == "candidate" else 1.0) * float(np.exp(random.normal(0, 0.04)))
        run_of(folder, [level * value for value in STEADY])
        return True

    monkeypatch.setattr(interleave, "_run", made)
    words = ["--gate", "tpot_ms<=+1%", "--json", "-o", str(tmp_path / "out"), "--", "candidate.overrides=run.seed=0"]
    assert main(["compare", "--interleave", "auto", *words]) == (1 if slower > 1 else 3)
    assert len(list((tmp_path / "out" / "candidate").iterdir())) == pairs


def test_an_interrupted_comparison_compares_its_whole_pairs_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[str] = []

    def run(experiment: Experiment, side: str, folder: Path, place: Path | None) -> bool:
        made.append(f"{side}{folder.name}")
        if len(made) == 4:
            run_of(folder, [], status="interrupted")
            raise KeyboardInterrupt
        run_of(folder, [2.0 if side == "candidate" else 1.0] * 2)
        return True

    monkeypatch.setattr(interleave, "_run", run)
    words = ["--gate", "tpot_ms<=+5%", "-o", "out", "--", "candidate.overrides=run.seed=0"]
    assert main(["compare", "--interleave", "3", *words]) == 130
    said = capsys.readouterr().err.splitlines()[-2:]
    out = tmp_path / "out"
    assert said == [
        f"interrupted: all processes were ended; continue: llm-perf compare --resume {out}",
        f"finished so far: 1 pair; compare them: llm-perf compare --pairs {out / 'base'} {out / 'candidate'}",
    ]
    # Both commands work as they are printed.
    assert main(said[1].partition("llm-perf ")[2].split()) == 0
    made += ["resumed"]
    report = tmp_path / "gates.xml"
    assert main([*said[0].partition("llm-perf ")[2].split(), "--junit", str(report)]) == 1
    assert ElementTree.parse(report).getroot().get("failures") == "1"
    assert made == ["base1", "candidate1", "candidate2", "base2", "resumed", "base2", "base3", "candidate3"]
    found = valid_file("compare", out / "compare.json")
    assert (found["base"]["passes"], found["gates"][0]["status"]) == (3, "failed")
    assert main(["compare", "--resume", str(tmp_path)]) == 2
    assert main(["compare", "--resume", str(out), "a"]) == 2


@pytest.mark.slow
@pytest.mark.long
def test_pairs_are_made_in_turns_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["experiment=ocr_tiny", "run.repeats=2", "run.device=cpu", "candidate.overrides=model.attention=eager"]
    assert main(["compare", "--interleave", "2", "-o", "out", "--", *words]) == 0
    found = valid_file("compare", tmp_path / "out" / "compare.json")
    assert (found["paired"], found["base"]["passes"], found["candidate"]["passes"]) == (True, 2, 2)
    assert [row["metric"] for row in found["metrics"]][:2] == ["ttft_ms", "tpot_ms"]
    assert "model.attention" in [change["key"] for change in found["settings"]]
    started = {p.parent: read_manifest(p.parent).created_at for p in (tmp_path / "out").glob("*/*/manifest.json")}
    order = [f"{p.parent.name}{p.name}" for p, _ in sorted(started.items(), key=lambda item: item[1])]
    assert order == ["base1", "candidate1", "candidate2", "base2"]


def bench_run(folder: Path, *, late_ms: dict[int, float], ttft_s: float = 0.1) -> Path:
    """A run of bench at these concurrencies, with a client `late_ms` late; one request is ramp-up."""
    runs = [
        LoadRun(
            level=LoadLevel(concurrency=count),
            records=[
                RequestRecord(
                    index=n,
                    started_s=0.1 * n,
                    status="ok",
                    ttft_s=9.0 if n == 0 else ttft_s,
                    latency_s=9.5 if n == 0 else ttft_s + 0.3,
                    gaps_s=(0.1, 0.1, 0.1),
                    output_tokens=4,
                    is_ramp=n == 0,
                )
                for n in range(9)
            ],
            duration_s=4.0,
            lag=LoopLag(mean_s=late / 1e3, p99_s=0.1, most_s=0.1, n=99),
        )
        for count, late in late_ms.items()
    ]
    lines = [
        json.dumps({"level": run.level.key, **msgspec.to_builtins(record)}) for run in runs for record in run.records
    ]
    files: dict[str, tuple[str, Any]] = {
        "bench_json": ("bench.json", BenchDocument(levels=tuple(level_result(run, SloSection()) for run in runs))),
        "bench_requests": ("requests.jsonl", "\n".join(lines)),
    }
    return write_run(folder, stage("bench", folder, files))


def test_loads_are_compared_where_the_client_was_in_time_and_ramp_up_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = bench_run(tmp_path / "a", late_ms={1: 0.1, 4: 0.1, 8: 50.0})
    b = bench_run(tmp_path / "b", late_ms={1: 0.1, 4: 0.1, 8: 0.1})
    assert main(["compare", str(a), str(b), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["notes"][0].startswith("both under concurrency 4, ")
    row = next(row for row in found["metrics"] if row["metric"] == "ttft_ms")
    assert (row["base"]["median"], row["base"]["n"]) == (pytest.approx(100.0), 8)
    late = bench_run(tmp_path / "late", late_ms={8: 50.0})
    assert main(["compare", str(late), str(b), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("the client's event loop was late by 50.00 ms" in note for note in notes)
