"""Keys, defaults, groups and calls the founding documents write down, composed and built, never run."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from llm_perf_opt.children.start import load_child_config
from llm_perf_opt.config.legacy import translate
from llm_perf_opt.pipeline.compose import ConfigEntry, compose_config
from llm_perf_opt.profiling.artifacts import Artifacts
from llm_perf_opt.profiling.nsys.nsys_capture import workload_argv
from llm_perf_opt.profiling.vendor.launch import INFERENCE_RUNNER, PROFILE_RUNNER, build_work_argv
from llm_perf_opt.profiling.vendor.nsys import build_nsys_cmd
from llm_perf_opt.testing import scratch_context
from tests.founding.composing import TINY, stage, typed
from tests.support.fixtures_dir import REPO

SECTIONS = ["SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats"]
TORCH, NSYS, NCU = "pipeline.torch_profiler", "pipeline.nsys", "pipeline.ncu"
# key, default, document and lines
DEFAULTS = [
    ("run.mode", "deep", "000:95"),
    ("run.device", "auto", "000:96"),
    ("run.repeats", 3, "000:97"),
    ("run.dataset_subset_filelist", None, "000:98"),
    ("run.top_n_kernels", 30, "000:99"),
    ("run.representative_max_new_tokens", None, "001:24"),
    ("pipeline.static_analysis.enable", True, "000:106"),
    ("pipeline.static_analysis.write_reports", True, "000:108"),
    ("pipeline.static_analysis.use_analytic_fallback", True, "000:109"),
    ("pipeline.static_analysis.use_synthetic_inputs", True, "000:110"),
    (f"{TORCH}.enable", True, "000:113"),
    (f"{TORCH}.activities", ["cpu", "cuda"], "000:115"),
    (f"{NSYS}.enable", False, "000:118"),
    (f"{NSYS}.gating_nvtx", True, "000:119"),
    (f"{NCU}.enable", False, "000:128"),
    (f"{NCU}.gating_nvtx", True, "000:129"),
    (f"{NCU}.max_kernels", 30, "000:99"),
    (f"{NCU}.ncu_cli.target_processes", "all", "002:15"),
    (f"{NCU}.ncu_cli.nvtx.include", "decode*", "002:16"),
    (f"{NCU}.ncu_cli.set", "roofline", "002:17"),
    (f"{NCU}.ncu_cli.sections", SECTIONS, "002:19, 002:140"),
    (f"{NCU}.ncu_cli.metrics", None, "002:18, 002:141"),
    (f"{NCU}.ncu_cli.export.csv", True, "002:20"),
    (f"{TORCH}.output.prediction.enable", False, "003:33"),
    (f"{TORCH}.output.prediction.save_dir", "pred", "003:37"),
    (f"{TORCH}.output.visualization.enable", True, "003:39"),
    (f"{TORCH}.output.visualization.save_dir", "viz", "003:43"),
    (f"{TORCH}.output.extra.deepseek_ocr.prediction.strip_special_tokens", False, "003:52"),
    (f"{TORCH}.output.extra.deepseek_ocr.visualization.max_images", 16, "003:54"),
    (f"{TORCH}.output.extra.deepseek_ocr.visualization.thumbnail_width", 480, "003:55"),
]
GROUPS = [
    "dataset=omnidocbench",
    "dataset/sampling=default",
    "model/deepseek_ocr/arch@model=deepseek_ocr.default",
    "model/deepseek_ocr/infer@infer=deepseek_ocr.default",
    *(f"profiling/torch@{TORCH}=torch-profiler.{name}" for name in ("default", "min", "max")),
    f"profiling/nsys@{NSYS}=nsys.default",
    *(f"profiling/ncu@{NCU}=ncu.{name}" for name in ("default", "rtx3090", "rtx3090.compute", "rtx3090.memory")),
    f"output@{TORCH}.output=torch.default",
    *(f"runner={name}" for name in ("default", "stage1.default", "stage1.no-static", "stage2")),
]


def _plain(value: object) -> object:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def test_every_key_has_the_default_the_documents_give() -> None:
    """000:94-131, 002:14-20, 003:30-56"""
    composed = compose_config([])
    found = {key: _plain(OmegaConf.select(composed, key, throw_on_missing=True)) for key, _, _ in DEFAULTS}
    assert found == {key: value for key, value, _ in DEFAULTS}


@pytest.mark.slow
@pytest.mark.parametrize("override", GROUPS)
def test_every_group_the_documents_mount_composes(override: str) -> None:
    """000:86-92, 000:59, 002:5, 002:33, 003:29, 003:47"""
    assert set(typed("pipeline.nsys.enable=true", "pipeline.ncu.enable=true", override).stages) >= {"nsys", "ncu"}


def test_every_preset_of_ncu_says_what_it_is_for_and_keeps_its_flags_under_ncu_cli() -> None:
    """002:14, 002:21, 002:51"""
    flags = {"target_processes", "nvtx", "nvtx_include", "set", "metrics", "sections", "export", "csv"}
    for path in sorted((REPO / "conf" / "profiling" / "ncu").glob("*.yaml")):
        preset = OmegaConf.load(path)
        assert preset.description
        assert flags & set(preset) == set()
        assert {"target_processes", "nvtx", "set", "metrics", "sections", "export"} <= set(preset.ncu_cli)


def test_the_hydra_node_is_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """000:101-102, 000:133-138, 004:33-35"""
    monkeypatch.chdir(tmp_path)
    composed = compose_config([])
    assert str(composed.artifacts.runs_dir).startswith(f"{tmp_path}/tmp/runs/")
    assert composed.hydra.run.dir == composed.artifacts.runs_dir
    assert (composed.hydra.output_subdir, composed.hydra.job.chdir) == (None, True)


def test_the_calls_of_document_004_build_an_nsys_command(tmp_path: Path) -> None:
    """004:112-123"""
    artifacts = Artifacts.from_root(tmp_path)
    work = build_work_argv(
        PROFILE_RUNNER,
        overrides=["pipeline.torch_profiler.enable=false", "pipeline.static_analysis.enable=false"],
        hydra_run_dir=str(artifacts.tmp_dir("workload")),
        chdir=True,
    )
    argv = build_nsys_cmd(artifacts.out_dir("nsys") / "run", work)
    assert argv[:3] == ["nsys", "profile", f"--output={tmp_path}/nsys/run"]
    assert argv[-len(work) :] == work
    assert f'hydra.run.dir="{tmp_path}/tmp/workload"' in work


def test_the_call_of_document_000_builds_an_nsys_command() -> None:
    """000:194-201"""
    argv = build_nsys_cmd(
        Path("/run/nsys/run"),
        ["work"],
        nvtx_capture="decode",
        trace="cuda,nvtx",
        sample="none",
        capture="nvtx",
        capture_end="repeat:2",
    )
    assert argv == [
        *("nsys", "profile", "--output=/run/nsys/run", "--force-overwrite=true", "--trace=cuda,nvtx", "--sample=none"),
        *("--cpuctxsw=none", "--cuda-graph-trace=node", "--capture-range=nvtx", "--capture-range-end=repeat:2"),
        *("--nvtx-capture=decode", "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0", "work"),
    ]


def test_the_call_of_document_000_without_gating_applies_no_gate() -> None:
    """000:194-201: `nvtx_capture="none"` is passed when `gating_nvtx` is false, regardless of `capture_range`."""
    argv = build_nsys_cmd(
        Path("/run/nsys/run"),
        ["work"],
        nvtx_capture="none",
        trace=["cuda", "nvtx"],
        sample="none",
        capture="nvtx",
        capture_end=None,
    )
    assert argv == build_nsys_cmd(Path("/run/nsys/run"), ["work"], trace="cuda,nvtx")


def test_the_defaults_lists_of_document_003_compose_as_written(tmp_path: Path) -> None:
    """003:64-65, in a file and on the command line, with and without a plus"""
    general = f"output/torch@{TORCH}.output"
    mounts = {general: "default", f"model/deepseek_ocr/{general}.extra.deepseek_ocr": "default"}
    listed = ["config", *({key: value} for key, value in mounts.items()), "_self_"]
    (tmp_path / "entry.yaml").write_text(yaml.safe_dump({"defaults": listed}))
    expected = OmegaConf.to_container(compose_config([]).pipeline.torch_profiler.output)
    words = [f"{key}={value}" for key, value in mounts.items()]
    from_file = compose_config([], ConfigEntry(name="entry", extra_dir=tmp_path))
    from_words = [compose_config(translate(given).overrides) for given in (words, [f"+{word}" for word in words])]
    for composed in (from_file, *from_words):
        assert OmegaConf.to_container(composed.pipeline.torch_profiler.output) == expected
    assert translate(words).notice is None


def test_the_workload_under_nsys_is_the_run_s_own(tmp_path: Path) -> None:
    """000:66-68, 001:10-14, 001:34-41: device, file list, sampling, model and token budget, as they were given"""
    given = (
        *("run.device=cpu", "run.repeats=2", "infer.max_new_tokens=20", "dataset=omnidocbench"),
        *("dataset.root=/data", "run.dataset_subset_filelist=/data/list.txt", "dataset.fallback_patterns=['*.png']"),
        *(
            "dataset.sampling.num_epochs=2",
            "dataset.sampling.num_samples_per_epoch=3",
            "dataset.sampling.randomize=true",
        ),
    )
    config = typed("model=deepseek_ocr_tiny", "runner=stage2", *given)
    ctx = scratch_context("nsys", tmp_path / "run", config=config)
    argv = workload_argv(ctx)
    assert argv[2] == INFERENCE_RUNNER
    child, out_dir = load_child_config([word for word in argv[3:] if not word.startswith("hydra.job.chdir")])
    assert out_dir == tmp_path / "run" / "tmp" / "workload" / "torch_profiler"
    assert (child.run.device, child.run.repeats) == ("cpu", 2)
    assert (child.dataset, child.model, child.infer) == (config.dataset, config.model, config.infer)
    assert "pipeline.direct_inference.enable=true" in [word.removeprefix("++") for word in argv]


def test_top_n_kernels_is_how_many_ncu_looks_at() -> None:
    """000:99"""
    assert stage(typed(*TINY, "runner=stage2", "run.top_n_kernels=2"), "ncu").max_kernels == 2


def test_stage1_repeats_is_the_number_of_samples() -> None:
    """001:61"""
    assert typed(*TINY, "run.stage1_repeats=2").dataset.sampling.num_samples_per_epoch == 2


def test_the_apis_nsys_traces_are_a_text_or_a_list() -> None:
    for given in ("pipeline.nsys.trace=[cuda,nvtx]", "pipeline.nsys.trace=cuda,nvtx"):
        assert stage(typed(*TINY, "pipeline.nsys.enable=true", given), "nsys").traced == "cuda,nvtx"
