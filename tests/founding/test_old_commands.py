"""Old command lines, keys and files work as they did. The numbers are document and lines of the founding documents."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.children.start import load_child_config
from llm_perf_opt.commands.profile import INFER_OVERRIDES
from llm_perf_opt.config.arguments import parse_arguments
from llm_perf_opt.config.legacy import translate
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline import compose
from llm_perf_opt.pipeline.compose import ConfigEntry, explain_composition_error
from llm_perf_opt.profiling.vendor.launch import PROFILE_RUNNER, build_work_argv
from llm_perf_opt.runners.deep_profile_runner import LEGACY_OVERRIDES as DEEP
from llm_perf_opt.runners.llm_profile_runner import LEGACY_OVERRIDES as STAGE1
from tests.founding.composing import TINY, stage, typed, write
from tests.support.fixtures_dir import REPO
from tests.support.orchestrator import dry_code_of_ncu, environment
from tests.support.pixi import pixi_task

pytestmark = pytest.mark.slow

OUTPUT = "pipeline.torch_profiler.output"


def _run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", *argv]
    return subprocess.run(words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300, check=False)


def test_055_deep_profile_runner_runs_nsys_and_ncu_only() -> None:
    """000:52-53"""
    assert list(typed(*TINY, implied=DEEP).stages) == ["nsys", "ncu"]


def test_054_llm_profile_runner_runs_static_analysis_and_the_torch_profiler() -> None:
    """000:52-53"""
    assert set(typed(*TINY, implied=STAGE1).stages) == {"static_analysis", "torch_profiler"}


def test_058_pixi_stage2_profile_runs_nsys_and_ncu_only() -> None:
    """000:54, 000:233"""
    module, *overrides = pixi_task("stage2-profile")
    assert module == "llm_perf_opt.runners.profile_orchestrator"
    assert list(typed(*TINY, *overrides).stages) == ["nsys", "ncu"]


def test_056_wrappers_take_hydra_flags_behind_overrides(tmp_path: Path) -> None:
    """000:52-53"""
    (tmp_path / "mine").mkdir()
    done = _run(
        "llm_perf_opt.runners.deep_profile_runner",
        *("experiment=demo", "--config-dir", "mine", "run.seed=4", "--cfg", "job", "--package", "run"),
        cwd=tmp_path,
    )
    assert (done.returncode, "seed: 4" in done.stdout.splitlines()) == (0, True), done.stderr


@pytest.mark.long
def test_059_pixi_tasks_take_a_sweep_behind_their_own_overrides(tmp_path: Path) -> None:
    """000:54"""
    words = [*pixi_task("stage1-run"), "--", "experiment=demo", "-m", "infer.max_new_tokens=2,4", "run.dry_run=true"]
    done = _run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (sweep,) = (tmp_path / "tmp" / "runs").iterdir()
    assert sorted(p.parent.name for p in sweep.glob("*/plan.json")) == ["0", "1"]


def test_056_flags_and_overrides_are_told_apart_wherever_they_stand() -> None:
    """000:52-54"""
    found = parse_arguments(
        ["a=1", "-m", "--config-dir", "X", "b=2,3", "--", "--cfg", "job", "--info", "c=4", "--resolve"]
    )
    assert found.flags == ("-m", "--config-dir", "X", "--cfg", "job", "--info", "all", "--resolve")
    assert found.overrides == ("a=1", "b=2,3", "c=4")
    assert found.config_dir == Path("X")


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        (["a=1", "--info", "defaults-tree"], ("--info", "defaults-tree")),
        (["--info", "a=1"], ("--info", "all")),
        (["a=1", "-i"], ("-i", "all")),
        (["--info=plugins", "a=1"], ("--info=plugins",)),
    ],
)
def test_056_info_takes_its_own_values_and_never_an_override(argv: list[str], flags: tuple[str, ...]) -> None:
    """000:52-54"""
    found = parse_arguments(argv)
    assert (found.flags, found.overrides) == (flags, ("a=1",))


def test_060_runner_default_exists_and_changes_nothing() -> None:
    """000:53, 000:234"""
    assert typed(*TINY, "runner=default").stages == typed(*TINY).stages


@pytest.mark.parametrize("model", ["llama_tiny", "deepseek_ocr_tiny"])
def test_055_058_any_model_runs_under_stage2(model: str) -> None:
    """000:53-54"""
    config = typed(f"model={model}", "dataset=synthetic", "outputs.save_predictions=true", implied=DEEP)
    output = stage(config, "nsys").output
    assert (output.prediction.enable, output.visualization.enable) == (True, True)
    assert list(output.extra) in ([], ["deepseek_ocr"])


@pytest.mark.parametrize("words", [("runner=stage2",), ("--config-name", "runner/stage2"), ("-cn=runner/stage2.yaml",)])
def test_063_runner_stage2_is_nsys_and_ncu_as_a_group_and_as_an_entry(words: tuple[str, ...]) -> None:
    """000:144, 000:151"""
    assert list(typed(*TINY, *words).stages) == ["nsys", "ncu"]


def test_041_the_alias_analysis_static_is_a_mapping_in_yaml_and_on_the_command_line(tmp_path: Path) -> None:
    """000:33"""
    folder = write(
        tmp_path,
        "experiment/old.yaml",
        "# @package _global_\nanalysis:\n  static:\n    enabled: true\n    write_reports: false\n",
    )
    by_file = typed(*TINY, "experiment=old", config_dir=folder)
    by_hand = typed(*TINY, "analysis.static={enabled: true, write_reports: false}")
    assert by_file.stages == by_hand.stages
    assert stage(by_file, "static_analysis").write_reports is False


def test_042_the_alias_torch_profiler_is_a_mapping_in_yaml_and_on_the_command_line(tmp_path: Path) -> None:
    """000:34"""
    folder = write(tmp_path, "experiment/old.yaml", "# @package _global_\ntorch_profiler: {enabled: false}\n")
    assert list(typed(*TINY, "experiment=old", config_dir=folder).stages) == ["static_analysis"]
    assert list(typed(*TINY, "torch_profiler={enabled: false}").stages) == ["static_analysis"]


@pytest.mark.long
def test_048_the_argv_of_the_document_runs_as_a_child(tmp_path: Path) -> None:
    """000:180-191: old keys in a child, which then runs the plain workload"""
    argv = build_work_argv(
        PROFILE_RUNNER,
        overrides=[
            *TINY,
            *("dataset.num_samples=1", "dataset.page_width=160", "dataset.page_height=160", "infer.max_new_tokens=2"),
            *("device=cpu", "repeats=1", "torch_profiler.enabled=false", "analysis.static.enabled=false"),
        ],
        hydra_run_dir=str(tmp_path / "workload"),
        chdir=True,
        run_mode="deep",
    )
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "workload" / "metrics.json").read_text())
    assert (measured["model"]["device"], measured["clean"]["repeats"]) == ("cpu", 1)


def test_048_a_child_answers_an_unknown_key_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """000:180-191"""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^run.devise: unknown key \(got 'cpu'\), nearest known key: run.device$"):
        load_child_config(["--child", *TINY, "run.devise=cpu", f"hydra.run.dir={tmp_path}"])


@pytest.mark.parametrize(
    ("old", "name", "key", "value"),
    [
        ("nsys.capture_range=cudaProfilerApi", "nsys", "capture_range", "cudaProfilerApi"),
        ("nsys.gating_nvtx=false", "nsys", "gating_nvtx", False),
        ("nsys={trace: 'cuda,nvtx'}", "nsys", "trace", "cuda,nvtx"),
        ("ncu.gating_nvtx=false", "ncu", "gating_nvtx", False),
    ],
)
def test_068_old_root_keys_of_stage2_are_translated(old: str, name: str, key: str, value: object) -> None:
    """000:71-73"""
    config = typed(*TINY, "runner=stage2", old)
    assert getattr(stage(config, name), key) == value


@pytest.mark.parametrize("prefix", ["ncu", "pipeline.ncu"])
def test_068_135_136_old_keys_of_ncu_are_translated(prefix: str) -> None:
    """000:73, 002:39-46"""
    argv = [
        *(f"{prefix}.nvtx_include=prefill", f"{prefix}.set=full", f"{prefix}.sections=[Occupancy]"),
        *(f"{prefix}.metrics=a,b", f"{prefix}.csv=false", f"{prefix}.target_processes=application-only"),
    ]
    cli = stage(typed(*TINY, "runner=stage2", *argv), "ncu").ncu_cli
    assert (cli.nvtx.include, cli.set, cli.sections, cli.metrics) == ("prefill", "full", ("Occupancy",), "a,b")
    assert (cli.export.csv, cli.target_processes) == (False, "application-only")


def test_137_an_old_preset_of_ncu_is_translated(tmp_path: Path) -> None:
    """002:37-47"""
    text = (
        "target_processes: all\nnvtx_include: decode*\nset: roofline\n"
        "sections:\n  - SpeedOfLight\n  - MemoryWorkloadAnalysis\nmetrics: null\ncsv: true\n"
    )
    folder = write(tmp_path, "profiling/ncu/old.yaml", text)
    argv = (*TINY, "runner=stage2", "profiling/ncu@pipeline.ncu=old")
    cli = stage(typed(*argv, config_dir=folder), "ncu").ncu_cli
    assert (cli.target_processes, cli.nvtx.include, cli.set) == ("all", "decode*", "roofline")
    assert (cli.sections, cli.metrics, cli.export.csv) == (("SpeedOfLight", "MemoryWorkloadAnalysis"), None, True)
    for other in ("pipeline.ncu.set=full", "ncu={set: full}"):
        assert stage(typed(*argv, other, config_dir=folder), "ncu").ncu_cli.set == "full"


@pytest.mark.long
def test_137_keys_an_old_preset_leaves_out_are_set_by_their_new_names(tmp_path: Path) -> None:
    """002:37-47, 003:139: new keys win over those of the file"""
    write(tmp_path, "profiling/ncu/old.yaml", "nvtx_include: prefill\nset: roofline\n")
    done = _run(
        "llm_perf_opt.cli",
        *("profile", "experiment=demo", "runner=stage2", "--config-dir", ".", "profiling/ncu@pipeline.ncu=old"),
        *("pipeline.nsys.enable=false", "pipeline.ncu.ncu_cli.set=full", "pipeline.ncu.max_kernels=2"),
        *("run.dry_run=true", "run.plan_file=plan.json"),
        cwd=tmp_path,
    )
    assert done.returncode == dry_code_of_ncu(), done.stderr
    plan = tmp_path / "plan.json"
    (planned,) = json.loads(plan.read_text())["stages"]
    cli = planned["settings"]["ncu_cli"]
    assert (planned["settings"]["max_kernels"], cli["set"], cli["nvtx"]) == (2, "full", {"include": "prefill"})


OLD_OUTPUTS = """\
# @package _global_
outputs:
  save_predictions: true
  predictions:
    strip_special_tokens: true
  visualization:
    enable: false
    max_images: 3
"""


def test_174_old_outputs_in_a_file_are_read(tmp_path: Path) -> None:
    """003:13, 003:101"""
    folder = write(tmp_path, "experiment/old.yaml", OLD_OUTPUTS)
    output = stage(typed(*TINY, "experiment=old", config_dir=folder), "torch_profiler").output
    assert (output.prediction.enable, output.visualization.enable) == (True, False)
    extra = output.extra["deepseek_ocr"]
    assert extra["prediction"] == {"strip_special_tokens": True}
    assert extra["visualization"] == {"max_images": 3, "thumbnail_width": 480}


def test_175_old_outputs_are_read_as_a_mapping() -> None:
    """003:74-75"""
    output = stage(
        typed(*TINY, "outputs={save_predictions: true, visualization: {enable: false}}"), "torch_profiler"
    ).output
    assert (output.prediction.enable, output.visualization.enable) == (True, False)


def test_176_per_stage_keys_win_over_old_ones_whatever_the_order(tmp_path: Path) -> None:
    """003:139"""
    new, old = f"{OUTPUT}.prediction.enable=false", "outputs.save_predictions=true"
    folder = write(tmp_path, "experiment/old.yaml", OLD_OUTPUTS)
    both = write(
        tmp_path,
        "experiment/both.yaml",
        f"{OLD_OUTPUTS}pipeline:\n  torch_profiler:\n    output:\n      visualization: {{save_dir: v}}\n"
        "      extra: {deepseek_ocr: {visualization: {max_images: 5}}}\n",
    )
    for argv in ((new, old), (old, new), (new, "experiment=old")):
        output = stage(typed(*TINY, *argv, config_dir=folder), "torch_profiler").output
        assert output.prediction.enable is False, argv
    output = stage(typed(*TINY, "experiment=both", config_dir=both), "torch_profiler").output
    assert (output.prediction.enable, output.extra["deepseek_ocr"]["visualization"]["max_images"]) == (True, 5)


def test_178_old_output_keys_act_on_infer_too(tmp_path: Path) -> None:
    """003:13"""
    folder = write(tmp_path, "experiment/no.yaml", "# @package _global_\noutputs: {save_predictions: false}\n")
    plain = typed(*TINY, implied=INFER_OVERRIDES)
    by_hand = typed(*TINY, "outputs.save_predictions=false", implied=INFER_OVERRIDES)
    by_file = typed(*TINY, "experiment=no", implied=INFER_OVERRIDES, config_dir=folder)
    enabled = [stage(c, "direct_inference").output.prediction.enable for c in (plain, by_hand, by_file)]
    assert enabled == [True, False, False]


@pytest.mark.parametrize("sign", ["", "+"])
def test_083_the_sampling_preset_is_accepted_with_and_without_a_plus(sign: str) -> None:
    """001:9, 001:20"""
    assert typed(*TINY, f"{sign}dataset/sampling@dataset.sampling=default").dataset == typed(*TINY).dataset


@pytest.mark.long
def test_082_the_config_of_the_document_is_an_entry_that_runs(tmp_path: Path) -> None:
    """000:81-139: sections it leaves out take their defaults"""
    text = (REPO / "tests" / "founding" / "seed_config.yaml").read_text()
    folder = write(tmp_path, "seed.yaml", text)
    config = typed("--config-name", "seed", config_dir=folder)
    default = typed()
    assert set(config.stages) == {"static_analysis", "torch_profiler"}
    assert (config.workload, config.hardware.name) == (default.workload, "auto")
    assert (config.model, config.infer, config.run.device) == (default.model, default.infer, "cuda:0")
    done = _run(
        "llm_perf_opt.cli",
        *("profile", "--config-name", "seed", "--config-dir", ".", "run.device=cpu", "run.dry_run=true"),
        *("dataset=synthetic", "model.weights=random"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "static_analysis → torch_profiler" in done.stderr


def test_177_one_notice_names_every_old_key() -> None:
    """003:140"""
    found = translate(["device=cpu", "run.seed=1", "outputs.save_predictions=true"])
    assert found.notice == (
        "old keys translated (see docs/migration.md): device -> run.device, outputs.save_predictions -> "
        f"{OUTPUT}.prediction.enable and pipeline.direct_inference.output.prediction.enable"
    )


def _problems(*overrides: str) -> tuple[str, ...]:
    error = compose._try(overrides, ConfigEntry())
    assert error is not None
    return explain_composition_error(error, overrides, user_dir=Path("/home/me")).problems


def test_a_malformed_override_is_blamed_and_no_other() -> None:
    """000:236: composition errors name the key that is wrong"""
    assert _problems("run.seed=1", "infer.prompt=a", "model=llama_tiny", "pipeline.nsys.trace=[cuda") == (
        "pipeline.nsys.trace: no viable alternative at input '[cuda' (got '[cuda'), "
        "allowed: an override in Hydra's grammar",
        "infer.prompt: unknown key (got 'a'), `llm-perf profile --cfg job` lists all keys",
    )


def test_a_plus_is_named_only_where_one_was_given() -> None:
    """000:236"""
    assert _problems("model=llama_tiny", "model.geometry.sam.layers=2") == (
        "model.geometry.sam.layers: unknown key (got '2'), `llm-perf profile --cfg job` lists all keys",
    )
    assert _problems("+run.seed=2") == (
        "run.seed: already set, so + cannot add it (got '2'), allowed: run.seed=… without the +",
    )


def test_a_package_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """000:16: stages are plug-ins, so without their entry points there are none"""
    monkeypatch.setattr(compose, "find_entry_points", dict)
    with pytest.raises(ConfigError) as caught:
        typed(*TINY)
    assert caught.value.problems == (
        "pipeline: no stage is installed, since the package has no entry points in the group 'llm_perf_opt.stages': a "
        "path to its source is not enough; install it (`pip install .`, or `pip install -e .` in a checkout)",
    )
