"""The stage static_analysis and its child, with a real child process and with a failing one."""

import sys
from pathlib import Path

import pytest

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import CommandFailed
from llm_perf_opt.model.hardware.hardware import Device
from llm_perf_opt.model.hardware.work import Shape
from llm_perf_opt.model.static.operator_count import Count, Tally
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.profiling.stages.static_analysis import STAGE, StaticAnalysisConfig
from llm_perf_opt.profiling.static_child import Facts, write_counts, write_facts
from llm_perf_opt.profiling.vendor.launch import build_work_argv, stage_overrides, workload_overrides
from llm_perf_opt.testing import plain_host, scratch_context
from tests.support.schemas import valid_file

HOST = plain_host(cpu="Test CPU")


def configure(tmp_path: Path, *overrides: str) -> AppConfig:
    composed = compose_config([f"artifacts.runs_dir={tmp_path}/run", *overrides])
    return type_config(composed, user_dir=tmp_path)


def settings(config: AppConfig) -> StaticAnalysisConfig:
    stage = config.stages["static_analysis"]
    assert isinstance(stage, StaticAnalysisConfig)
    return stage


def context(config: AppConfig, tmp_path: Path) -> StageContext:
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    return scratch_context("static_analysis", tmp_path / "run", config=config, host=HOST, env=env)


@pytest.mark.long
@pytest.mark.slow
def test_the_tiny_ocr_model_is_analysed_in_both_books(tmp_path: Path) -> None:
    config = configure(tmp_path, "experiment=ocr_tiny")
    ctx = context(config, tmp_path)
    output = STAGE.run(settings(config), ctx)
    assert {f.role: f.path for f in output.files} == {
        "static_json": ctx.out_dir / "static.json",
        "static_md": ctx.out_dir / "static_compute.md",
    }
    data = valid_file("static", ctx.out_dir / "static.json")
    values = {name: metric.value for name, metric in output.metrics.items()}
    assert (values["params_total"], values["double_entry_disagreements"]) == (1_274_432, 0)
    assert data["parameters"] == {**data["parameters"], "total": 1_274_432, "activated": 1_053_248}
    for phase in ("prefill", "decode"):
        part = data["phases"][phase]
        assert part["counted_flops"] == part["flops"] == values[f"flops_{phase}"]
        assert part["bound_ms"]["datasheet"] is None
        assert part["bound_ms"]["achievable"] == values[f"bound_{phase}_ms"]
        assert part["bound_ms"]["achievable"] > 0
        assert part["operators_how"] == "counted"
        assert part["limit"] in ("compute", "memory", "launch")
    assert data["phases"]["prefill"]["groups"]["sam"]["counted_flops"] > 0
    assert data["hardware"]["calibrated"] is True
    assert data["workload"]["views"] == [{"size": 128, "count": 6}, {"size": 256, "count": 1}]
    assert all(e["agrees"] for e in data["double_entry"])
    assert "Both counts agree within 1 % everywhere." in (ctx.out_dir / "static_compute.md").read_text()
    kept = list((tmp_path / "cache/llm-perf/calibration").glob("*.json"))
    assert len(kept) == 1
    assert all(m.source == "static_analysis/static.json" for m in output.metrics.values() if m.value is not None)


def test_the_closed_form_stands_alone_when_counting_fails(tmp_path: Path) -> None:
    config = configure(tmp_path, "model=llama_tiny", "dataset=synthetic", "dataset.prompt_tokens=100")
    ctx = context(config, tmp_path)
    output = STAGE.run(StaticAnalysisConfig(enable=True, timeout_s=0.1, write_reports=False), ctx)
    assert output.files == ()
    assert list(ctx.out_dir.iterdir()) == []
    assert output.notes[0].startswith("operators could not be counted: the child was ended after")
    assert output.notes[0].endswith("(log: tmp/static_analysis/log.txt); only the closed form is used")
    assert (
        output.metrics["flops_prefill"].value
        == 2 * 100 * 2 * (64 * (64 + 64 + 64) + 3 * 64 * 192) + 2 * 4 * 64 * 100**2 + 2 * 64 * 512
    )
    assert output.metrics["double_entry_disagreements"].reason == "operators were not counted"
    assert output.metrics["bound_decode_ms"].value is None
    assert output.metrics["bound_decode_ms"].reason is not None


def test_counts_of_an_earlier_attempt_are_not_taken_for_this_one_s(tmp_path: Path) -> None:
    config = configure(tmp_path, "model=qwen3_moe_tiny", "dataset=synthetic", "dataset.prompt_tokens=100")
    ctx = context(config, tmp_path)
    cpu = Device(name="Another CPU", is_cpu=True, driver="", memory_bytes=1 << 30)
    shape = Shape(batch=1, prompt=7, context=9, how="of another model")
    write_facts(ctx.tmp_dir, Facts(device=cpu, dtype="fp32", shape=shape, calibration=None))
    tally = Tally(flops=4711, bytes=11, operators=1)
    write_counts(ctx.tmp_dir, {"prefill": Count(groups={"mlp": tally}, operators={"aten.mm": tally})})
    output = STAGE.run(StaticAnalysisConfig(enable=True, timeout_s=0.05), ctx)
    data = valid_file("static", ctx.out_dir / "static.json")
    assert data["phases"]["prefill"]["counted_flops"] is None
    assert (data["workload"]["prompt_tokens"], data["double_entry"]) == (100, [])
    assert output.notes[0].endswith("only the closed form is used")


def test_without_the_fallback_a_failed_count_fails_the_stage(tmp_path: Path) -> None:
    config = configure(tmp_path, "model=llama_tiny", "dataset=synthetic")
    ctx = context(config, tmp_path)
    with pytest.raises(CommandFailed, match="operators could not be counted"):
        STAGE.run(StaticAnalysisConfig(enable=True, timeout_s=0.1, use_analytic_fallback=False), ctx)


def test_asking_for_other_hardware_gives_its_bounds_and_says_so(tmp_path: Path) -> None:
    config = configure(tmp_path, "model=llama3_1b", "dataset=synthetic", "hardware=h200", "workload.context=1024")
    ctx = context(config, tmp_path)
    output = STAGE.run(StaticAnalysisConfig(enable=True, timeout_s=0.1, write_reports=False), ctx)
    # The CPU of this host runs float32: 4 bytes for each weight at 4.8 TB/s.
    assert output.metrics["bound_decode_ms"].value == pytest.approx(4 * 1_252_600_000 / 4.8e9, rel=0.001)
    assert output.metrics["bound_decode_ms"].how == "data-sheet peaks of h200"
    assert output.metrics["bound_achievable_decode_ms"].reason == "h200 has no measured peak for fp32"
    assert any(
        note.startswith("hardware=h200 was requested, the model runs on Test CPU: bounds are those of h200")
        for note in output.notes
    )


def run_child_here(config: AppConfig, out_dir: Path, stage: dict[str, object]) -> tuple[Facts, dict[str, Count]]:
    """The child's work in this process, which has torch already."""
    from llm_perf_opt.children.static_counts import main
    from llm_perf_opt.profiling.static_child import read_counts, read_facts

    out_dir.mkdir()
    overrides = [*workload_overrides(config), *stage_overrides("static_analysis", {"enable": True, **stage})]
    argv = build_work_argv("llm_perf_opt.children.static_counts", overrides, hydra_run_dir=out_dir, chdir=False)
    assert main(argv[argv.index("--child") :]) == 0
    facts = read_facts(out_dir)
    assert facts is not None
    return facts, read_counts(out_dir)


@pytest.mark.long
@pytest.mark.slow
def test_a_real_sample_sets_the_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prompts = ["model=qwen3_moe_tiny", "dataset=synthetic", "dataset.prompt_tokens=77", "workload.context=300"]
    facts, counts = run_child_here(configure(tmp_path, *prompts), tmp_path / "a", {"use_synthetic_inputs": False})
    assert (facts.shape.prompt, facts.shape.context, facts.shape.batch) == (77, 300, 1)
    assert facts.shape.how == "sample synthetic-0000 of the data set"
    assert set(counts) == {"prefill", "decode"}
    pages = ["experiment=ocr_tiny", "dataset.page_width=100", "dataset.page_height=90"]
    facts, _ = run_child_here(configure(tmp_path, *pages), tmp_path / "b", {"use_synthetic_inputs": False})
    # A page smaller than a tile is not cut.
    assert [(v.size, v.count) for v in facts.shape.views] == [(256, 1)]
    assert facts.shape.how.startswith("sample synthetic-0000 of the data set, 100 × 90 pixels")
    assert "torch" in sys.modules


PERSIMMON = ("model=llama_tiny", "model.geometry.model_type=persimmon", "dataset=synthetic", "dataset.prompt_tokens=64")


@pytest.mark.long
@pytest.mark.slow
def test_a_family_without_a_closed_form_is_counted_by_operators_alone(tmp_path: Path) -> None:
    config = configure(tmp_path, *PERSIMMON, "workload.context=72")
    ctx = context(config, tmp_path)
    output = STAGE.run(settings(config), ctx)
    reason = "the closed form does not know the family 'persimmon'"
    assert output.notes == (f"{reason}: FLOPs and bytes are counted by operators alone, and there are no bounds",)
    data = valid_file("static", ctx.out_dir / "static.json")
    assert data["closed_form_reason"] == data["memory"]["reason"] == reason
    assert data["parameters"]["total"] == output.metrics["params_total"].value == 149_248
    decode = data["phases"]["decode"]
    assert (decode["flops"], decode["counted_flops"], decode["bound_ms"]["achievable_reason"]) == (
        None,
        266_752,
        reason,
    )
    assert output.metrics["flops_decode"].value == 266_752
    assert output.metrics["bound_decode_ms"].reason == reason
    assert f"Operators alone: {reason}." in (ctx.out_dir / "static_compute.md").read_text()


def test_without_a_count_and_without_a_closed_form_the_stage_fails(tmp_path: Path) -> None:
    config = configure(tmp_path, *PERSIMMON)
    with pytest.raises(CommandFailed, match=r"operators could not be counted: .*, and the closed form does not know"):
        STAGE.run(StaticAnalysisConfig(enable=True, timeout_s=0.05), context(config, tmp_path))
