"""Stages torch_profiler and direct_inference through their real child process, on a fake model."""

import csv
import gzip
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.config.output import OutputConfig, PredictionOutput, VisualizationOutput
from llm_perf_opt.config.schema import AppConfig, InferSection, StageConfig, WorkloadSection
from llm_perf_opt.core.documents import CleanPass, MetricsDocument, RanModel, Stats
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.core.records import Metric, Spread, StageFile, StageRecord
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import CommandFailed
from llm_perf_opt.profiling.baseline import (
    clean_baseline,
    clean_metrics,
    last_words,
    notes_of,
    own_clean_pass,
    profiled_slowdown,
)
from llm_perf_opt.profiling.stages.direct_inference import STAGE as INFERENCE
from llm_perf_opt.profiling.stages.direct_inference import DirectInferenceConfig
from llm_perf_opt.profiling.stages.torch_profiler import STAGE, TorchProfilerConfig
from llm_perf_opt.report.run_files import read_run_files
from llm_perf_opt.report.view.report_view import build_view
from llm_perf_opt.testing import plain_host, scratch_context
from tests.support.fixtures_dir import REPO
from tests.support.report_runs import write_run
from tests.support.schemas import valid_file
from tests.support.workload_fakes import FakeConfig, prompts

HOST = plain_host()
OUTPUT = OutputConfig(
    prediction=PredictionOutput(enable=True, save_dir="mine, too"), visualization=VisualizationOutput(enable=True)
)


def context(
    config: AppConfig, run_dir: Path, name: str, earlier: Mapping[str, StageRecord] | None = None
) -> StageContext:
    # The child imports the fake model.
    env = {"PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "src")])}
    return scratch_context(name, run_dir, config=config, host=HOST, env=env, earlier=earlier)


def fake_config(tmp_path: Path, lines: Sequence[str], stages: Mapping[str, StageConfig] | None = None) -> AppConfig:
    dataset = prompts(tmp_path / "p, 1.txt", lines, max_bad_fraction=0.5)
    return FakeConfig(dataset=dataset, infer=InferSection(max_new_tokens=6), stages=stages or {}).build(tmp_path)


@pytest.mark.slow
def test_both_passes_run_in_a_child_and_every_file_and_metric_is_reported(tmp_path: Path) -> None:
    cfg = TorchProfilerConfig(enable=True, max_samples=1, max_decode_steps=3, warmup_rounds=1, output=OUTPUT)
    ctx = context(fake_config(tmp_path, ["1 2", "bad", "3"]), tmp_path / "run", "torch_profiler")
    # An attempt on a GPU left it; this one is on the CPU.
    (ctx.out_dir / "kernels.csv").write_text("name\n")
    output = STAGE.run(cfg, ctx)
    folder = tmp_path / "run" / "torch_profiler"
    assert [(f.role, f.path.relative_to(folder).as_posix()) for f in output.files] == [
        ("metrics", "metrics.json"),
        ("samples", "samples.jsonl"),
        ("operators_csv", "operators.csv"),
        ("operators_md", "operators.md"),
        ("trace", "trace.json.gz"),
        ("analysis_json", "analysis.json"),
        ("timeline_json", "timeline.json"),
        ("predictions", "mine, too/predictions.jsonl"),
        ("gallery", "viz/predictions.md"),
    ]
    data = valid_file("metrics", folder / "metrics.json")
    ttft = data["clean"]["metrics"]["ttft_ms"]
    assert output.metrics["ttft_ms"] == Metric(
        value=ttft["p50"],
        unit="ms",
        how="clean pass, median of 4",
        source="torch_profiler/metrics.json",
        spread=Spread(p10=ttft["p10"], p90=ttft["p90"], n=4),
    )
    assert data["profiled"] | {"metrics": {}} == {
        "repeats": 1,
        "samples": 1,
        "max_samples": 1,
        "max_decode_steps": 3,
        "bounded": True,
        "activities": ["cpu"],
        "metrics": {},
    }
    assert data["profiled"]["metrics"]["tokens"]["p50"] == 4
    for phase in ("prefill", "decode"):
        assert output.metrics[f"slowdown_{phase}"].value == data["slowdown"][phase] > 0
        assert sum(data["modules"][phase].values()) == pytest.approx(1.0)
    assert data["modules_by"] == "cpu_time"
    assert [s["sample_id"] for s in output.samples] == ["p, 1.txt:1", "p, 1.txt:2", "p, 1.txt:3"]
    assert output.notes == (
        "activities: cuda was requested, the model runs on cpu; cpu alone was recorded",
        "the profiled pass was limited to 1 sample and 4 tokens each (pipeline.torch_profiler.max_samples, "
        ".max_decode_steps; null lifts the bound)",
        "fake weights",
        "skipped 1 sample that could not be run: p, 1.txt:2",
    )
    trace = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    names = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    assert [names.count(n) for n in ("prefill", "decode", "decode_step", "sam")] == [1, 1, 3, 1]
    with (folder / "operators.csv").open(newline="") as file:
        calls = {row["name"]: 0 for row in csv.DictReader(file)}
    assert {"aten::addmm", "aten::argmax", "aten::embedding"} <= set(calls)
    assert not (tmp_path / "run/tmp/torch_profiler/trace.json").exists()
    run = write_run(tmp_path / "run", StageRecord(name="torch_profiler", status="ok", files=output.files))
    view = build_view(read_run_files(read_manifest(run), run)).modules
    assert [(phase.phase, phase.time_by, phase.tree_of) for phase in view.phases] == [
        ("prefill", "cpu_time", "operator time"),
        ("decode", "cpu_time", "operator time"),
    ]
    for shown in view.phases:
        assert {row.group: row.time_share for row in shown.rows} == data["modules"][shown.phase]
        assert sum(node.share for node in shown.tree) == pytest.approx(1.0)
    assert view.operators_of == "operator time"


@pytest.mark.slow
def test_a_failing_child_is_told_in_its_own_words_and_keeps_its_files(tmp_path: Path) -> None:
    ctx = context(fake_config(tmp_path, ["1", "bad", "bad"]), tmp_path / "run", "direct_inference")
    with pytest.raises(CommandFailed) as error:
        INFERENCE.run(DirectInferenceConfig(enable=True, warmup_rounds=0), ctx)
    log = tmp_path / "run/direct_inference/log.txt"
    assert str(error.value) == (
        "the workload failed with exit code 1: 2 of 3 samples are bad (66.7 %), more than dataset.max_bad_fraction=0.5 "
        "allows; what was measured is kept; the first: p, 1.txt:2 (ValueError: this prompt is bad) "
        f"(log: {log})"
    )
    assert len((tmp_path / "run/direct_inference/samples.jsonl").read_text().splitlines()) == 1


def test_a_child_that_fails_at_once_leaves_no_results_of_an_earlier_attempt(tmp_path: Path) -> None:
    ctx = context(fake_config(tmp_path, ["1"]), tmp_path / "run", "direct_inference")
    for name in ("metrics.json", "samples.jsonl", "inputs.json"):
        (ctx.out_dir / name).write_text("[]")
    with pytest.raises(CommandFailed):
        INFERENCE.run(DirectInferenceConfig(enable=True, timeout_s=0.05), ctx)
    assert sorted(path.name for path in ctx.out_dir.iterdir()) == ["cmd.txt", "log.txt"]


def test_a_program_of_the_user_s_own_gets_no_clean_pass_of_our_workload(tmp_path: Path) -> None:
    config = fake_config(tmp_path, ["1"])
    clean = tmp_path / "run/tmp/workload/clean"
    clean.mkdir(parents=True)
    (clean / "metrics.json").write_text('{"clean": {}}')
    own = replace(config, workload=WorkloadSection(command=("true",)))
    assert own_clean_pass(context(own, tmp_path / "run", "nsys")) == ({}, ())


@pytest.mark.slow
def test_a_baseline_is_measured_once_and_taken_from_an_earlier_stage_when_there_is_one(tmp_path: Path) -> None:
    config = fake_config(tmp_path, ["1", "2"])
    ctx = context(config, tmp_path / "run", "nsys")
    measured = clean_baseline(ctx, timeout_s=60)
    assert measured is not None
    assert measured.source == "tmp/workload/clean/metrics.json"
    assert (measured.metrics.clean.repeats, measured.metrics.clean.metrics["tpot_ms"].n) == (1, 2)
    assert not (tmp_path / "run/tmp/workload/clean/viz").exists()
    again = clean_baseline(context(config, tmp_path / "run", "ncu"), timeout_s=0.01)
    assert again == measured
    changed = replace(config, infer=InferSection(max_new_tokens=3))
    with pytest.raises(CommandFailed, match=r"the clean pass did not end within 0 s \(pipeline.ncu.timeout_s\)"):
        clean_baseline(context(changed, tmp_path / "run", "ncu"), timeout_s=0.01)
    # What failed is not mistaken for a result, neither of the new settings nor of the old ones.
    assert list((tmp_path / "run/tmp/workload/clean").glob("*.json")) == []
    measured = clean_baseline(ctx, timeout_s=60)
    assert measured is not None
    file = StageFile(role="metrics", path=tmp_path / "run/tmp/workload/clean/metrics.json")
    record = StageRecord(name="direct_inference", status="ok", files=(file,))
    reused = clean_baseline(context(config, tmp_path / "run", "nsys", {"direct_inference": record}), timeout_s=0.01)
    assert reused == replace(measured, source="direct_inference/metrics.json")
    other = replace(config, workload=WorkloadSection(command=("true",)))
    program = clean_baseline(context(other, tmp_path / "run", "nsys"), timeout_s=60).metrics
    assert (program.model.name, list(program.clean.metrics)) == ("true", ["wall_ms"])


def test_the_last_words_of_a_child_are_its_error_or_the_last_line_of_a_traceback() -> None:
    log = "x\nerror: a.b: bad\nc.d: worse\n"
    assert last_words(log) == "a.b: bad; c.d: worse"
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1\n    boom()\nRuntimeError: no kernel\n\n'
    assert last_words(trace) == "RuntimeError: no kernel"
    assert last_words("") == ""


def test_metrics_without_a_value_carry_the_reason() -> None:
    stats = Stats(mean=None, std=None, p50=None, p90=None, p99=None, n=0, reason="one token")
    data = MetricsDocument(
        model=RanModel(name="m", device_name="a CPU"),
        clean=CleanPass(
            metrics={"tpot_ms": stats, "decode_tokens_per_s": stats},
            peak_memory_how="VmHWM",
            peak_memory_reason="not here",
        ),
        slowdown={"prefill": 2.0, "decode": None},
    )
    metrics = {**clean_metrics(data, "f"), **profiled_slowdown(data, "f")}
    assert {name: (m.value, m.unit, m.reason) for name, m in metrics.items()} == {
        "tpot_ms": (None, "ms", "one token"),
        "decode_tokens_per_s": (None, "tokens/s", "one token"),
        "peak_memory_bytes": (None, "bytes", "not here"),
        "device_name": ("a CPU", "", None),
        "slowdown_prefill": (2.0, "x", None),
        "slowdown_decode": (None, "x", "no decode step was measured in both passes"),
    }
    assert notes_of(data) == ()


def test_a_machine_without_torch_is_told_before_the_run() -> None:
    without = replace(HOST, packages={"torch": None})
    assert [str(f) for f in STAGE.preflight(TorchProfilerConfig(), without)] == [
        "torch is not installed, so the model cannot run — pip install 'torch>=2.11'"
    ]
    assert STAGE.preflight(TorchProfilerConfig(), HOST) == ()
