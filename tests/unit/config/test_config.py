"""The composed configuration: presets, overrides, errors, old keys."""

import importlib
import itertools
import json
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from llm_perf_opt.config.legacy import translate
from llm_perf_opt.config.load import load_config
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.names import BUILT_IN
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.compose import ConfigEntry, compose_config, explain_composition_error, type_config
from llm_perf_opt.pipeline.plan import find_entry_points, load_registry
from llm_perf_opt.profiling.stages.nsys import NsysConfig
from tests.support.fixtures_dir import REPO

# Stages of ours that use the public surface alone, so that conf/ does not know their sections.
OUR_PLUGINS = ("energy", "memory")
TINY = ("model=llama_tiny", "dataset=synthetic")


def typed(*overrides: str, user_dir: Path = Path("/home/me")) -> AppConfig:
    return type_config(compose_config(overrides), user_dir=user_dir)


def problems(*overrides: str) -> tuple[str, ...]:
    """What a user reads for these overrides."""
    try:
        composed = compose_config(overrides)
    except HydraException as error:
        return explain_composition_error(error, overrides, user_dir=Path("/home/me")).problems
    with pytest.raises(ConfigError) as caught:
        type_config(composed, user_dir=Path("/home/me"))
    return caught.value.problems


def _choices(group: str) -> list[str]:
    return sorted(path.name.removesuffix(".yaml") for path in (conf_dir() / group).glob("*.yaml"))


def _preset_overrides() -> list[tuple[str, ...]]:
    groups = {
        "model": "model",
        "experiment": "experiment",
        "runner": "runner",
        "profiling/torch": "profiling/torch@pipeline.torch_profiler",
        "profiling/nsys": "profiling/nsys@pipeline.nsys",
        "profiling/ncu": "profiling/ncu@pipeline.ncu",
        "output": "output@pipeline.torch_profiler.output",
        "dataset/sampling": "dataset/sampling",
        "model/deepseek_ocr/arch": "model/deepseek_ocr/arch@model",
        "model/deepseek_ocr/infer": "model/deepseek_ocr/infer@infer",
    }
    cases: list[tuple[str, ...]] = [
        (f"{override}={name}",) for group, override in groups.items() for name in _choices(group)
    ]
    cases += [("dataset=omnidocbench",), ("dataset=synthetic",), ("dataset=prompts", "dataset.file=p.txt")]
    # Hardware is its own section, so each can be tried alongside any other preset.
    hardware = [(f"hardware={name}",) for name in _choices("hardware")]
    assert len(hardware) > len(cases)
    return [(*one, *other) for one, other in itertools.zip_longest(cases, hardware, fillvalue=())]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", _preset_overrides(), ids=" ".join)
def test_every_preset_composes_with_every_stage_enabled(overrides: tuple[str, ...]) -> None:
    stages = ("static_analysis", "torch_profiler", "nsys", "ncu", "direct_inference")
    config = typed(*overrides, *(f"pipeline.{stage}.enable=true" for stage in stages))
    assert set(config.stages) == set(stages)


def test_the_defaults_are_the_documented_ones() -> None:
    config = typed()
    assert set(config.stages) == {"static_analysis", "torch_profiler"}
    assert config.model.name == "deepseek_ocr"
    assert config.dataset.kind == "omnidocbench"
    run = config.run
    assert (run.mode, run.device, run.repeats, run.top_n_kernels, run.on_failure) == ("deep", "auto", 3, 30, "continue")
    assert (run.dry_run, run.resume, run.seed, run.representative_max_new_tokens) == (False, None, 0, None)


@pytest.mark.slow
def test_one_part_of_a_model_can_be_replaced() -> None:
    config = typed("model/deepseek_ocr/arch@model=deepseek_ocr.tiny")
    assert config.model.name == "deepseek_ocr_tiny"
    assert config.infer == typed().infer


def test_light_mode_is_a_quick_look() -> None:
    config = typed(*TINY, "run.mode=light", "infer.max_new_tokens=500", "dataset.sampling.num_samples_per_epoch=9")
    assert (config.run.repeats, config.infer.max_new_tokens) == (1, 16)
    assert config.dataset.sampling.num_samples_per_epoch == 1
    assert typed(*TINY, "run.mode=light", "infer.max_new_tokens=4").infer.max_new_tokens == 4


def test_light_mode_warms_up_once() -> None:
    config = typed(*TINY, "run.mode=light", "profiling/torch@pipeline.torch_profiler=torch-profiler.max")
    stage: Any = config.stages["torch_profiler"]
    assert stage.warmup_rounds == 1


def test_the_representative_token_budget_wins() -> None:
    config = typed(*TINY, "run.representative_max_new_tokens=7", "infer.max_new_tokens=99")
    assert config.infer.max_new_tokens == 7


def test_whole_numbers_in_a_command_are_words() -> None:
    config = typed(
        "workload.command=[python,serve.py,--port,8000]",
        "pipeline.nsys.enable=true",
        "pipeline.nsys.extra_args=[--kill,9]",
    )
    assert config.workload.command == ("python", "serve.py", "--port", "8000")
    nsys = config.stages["nsys"]
    assert isinstance(nsys, NsysConfig)
    assert nsys.extra_args == ("--kill", "9")


def test_relative_paths_are_meant_from_where_the_user_stood(tmp_path: Path) -> None:
    config = typed("dataset.root=data", "dataset.subset_filelist=lists/a b.txt", "model.path=m", user_dir=tmp_path)
    assert config.dataset.root == tmp_path / "data"
    assert config.dataset.subset_filelist == tmp_path / "lists/a b.txt"
    assert config.model.path == tmp_path / "m"


def test_the_run_wide_file_list_is_the_data_sets() -> None:
    assert typed("run.dataset_subset_filelist=/l.txt").dataset.subset_filelist == Path("/l.txt")


@pytest.mark.parametrize("key", ["run.dataset_subset_filelist", "+dataset.subset_filelist"])
def test_a_file_list_is_refused_where_the_data_set_reads_none(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        typed("dataset=synthetic", f"{key}=/nope.txt")
    text = "dataset.kind=synthetic reads no list of files (got /nope.txt), allowed: null, or dataset=omnidocbench"
    assert str(caught.value) == f"{key.lstrip('+')}: {text}"


def test_a_file_list_is_refused_for_a_program_of_the_users() -> None:
    (problem,) = problems(*TINY, "dataset=omnidocbench", "run.dataset_subset_filelist=/p.txt", "workload.command=[a]")
    text = "your own program reads its own inputs (got /p.txt), allowed: null"
    assert problem == f"run.dataset_subset_filelist: {text}"


def test_every_problem_is_reported_at_once_with_key_value_and_choices() -> None:
    assert problems(
        *TINY,
        "run.repeat=3",
        "run.mode=fast",
        "run.device=gpu",
        "run.top_n_kernels=0",
        "+pipeline.nsys.tracee=x",
        "model.dtype=float128",
        "infer.max_new_tokens=2.5",
        "infer.top_p=2",
        "pipeline.static_analysis.write_reports=maybe",
    ) == (
        "run.repeat: unknown key (got '3'), nearest known key: run.repeats",
        "run.mode: not one of the choices (got 'fast'), allowed: 'deep' or 'light'",
        "run.top_n_kernels: not allowed (got 0), allowed: a number ≥ 1",
        "model.dtype: not one of the choices (got 'float128'), allowed: 'float32', 'float16' or 'bfloat16' or 'auto'",
        "infer.max_new_tokens: not a whole number (got 2.5), allowed: a whole number",
        "infer.top_p: not allowed (got 2), allowed: a number ≤ 1",
        "pipeline.nsys.tracee: unknown key (got 'x'), nearest known key: pipeline.nsys.trace",
        "pipeline.static_analysis.write_reports: not true or false (got 'maybe'), allowed: true or false",
        "run.device: not a device (got 'gpu'), allowed: auto, cpu or cuda:N",
    )


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("model=llama9", "model: no such choice (got 'llama9'); did you mean llama3_8b?, allowed: {models}"),
        ("pipeline.nsyss.enable=true", "pipeline.nsyss.enable: unknown key (got 'true'), nearest known key: {nsys}"),
        ("+pipeline.mine.enable=true", "pipeline.mine: unknown key (got {{'enable': True}}), {nothing}"),
        ("run.repeats", "run.repeats: not an override, allowed: key=value"),
        ("+run.repeats=3", "run.repeats: already set, so + cannot add it (got '3'), allowed: run.repeats=… {without}"),
        ("infer.max_new_tokens=true", "infer.max_new_tokens: not a whole number (got True), allowed: a whole number"),
        ("infer.max_new_tokens=0", "infer.max_new_tokens: not allowed (got 0), allowed: a number ≥ 1"),
        ("run.device=cuda", "run.device: not a device (got 'cuda'), allowed: auto, cpu or cuda:N"),
        ("workload.command=[a,1.50]", "workload.command.1: not a string (got 1.5), allowed: a string"),
        ("workload.command=[]", "workload.command: not allowed (got []), allowed: at least 1 element"),
        (
            "model.adapter=nowhere:X",
            "model.adapter: cannot be imported (No module named 'nowhere') (got 'nowhere:X'), "
            "allowed: an import path package.module:ADAPTER",
        ),
    ],
)
def test_bad_input_gets_a_message_that_helps(override: str, problem: str) -> None:
    expected = problem.format(
        models=", ".join(_choices("model")),
        nsys="pipeline.nsys.enable",
        without="without the +",
        nothing="no known key is like it; `llm-perf profile --cfg job` lists all",
    )
    assert expected in problems("dataset=synthetic", override)


@pytest.mark.parametrize("value", ["null", "''", "' '", "[]"])
def test_nvtx_capture_is_needed_when_the_capture_range_is_nvtx(value: str) -> None:
    found = problems(
        *TINY, "pipeline.nsys.enable=true", "pipeline.nsys.capture_range=nvtx", f"pipeline.nsys.nvtx_capture={value}"
    )
    assert [p.partition(":")[0] for p in found] == ["pipeline.nsys.nvtx_capture"]


def test_rules_of_a_stage_are_checked_only_when_it_is_enabled() -> None:
    overrides = (*TINY, "pipeline.nsys.capture_range=nvtx", "pipeline.nsys.nvtx_capture=null")
    assert "nsys" not in typed(*overrides).stages
    found = problems(*overrides, "pipeline.nsys.enable=true")
    assert [problem.partition(":")[0] for problem in found] == ["pipeline.nsys.nvtx_capture"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("pipeline.ncu.timeout_s=nan", "timeout_s: not a finite number (got nan), allowed: a finite number"),
        ("pipeline.ncu.timeout_s=-inf", "timeout_s: not a finite number (got -inf), allowed: a finite number"),
        ("pipeline.ncu.timeout_s=1e400", "timeout_s: not a finite number (got inf), allowed: a finite number"),
        ("pipeline.ncu.timeout_s=-1", "timeout_s: not allowed (got -1), allowed: a number > 0"),
        ("pipeline.ncu.timeout_s=1e12", "timeout_s: not allowed (got 1000000000000.0), allowed: a number ≤ 2147483647"),
        ("pipeline.ncu.timeout_s=soon", "timeout_s: not a number (got 'soon'), allowed: a number"),
        ("pipeline.ncu.enable=maybe", "enable: not true or false (got 'maybe'), allowed: true or false"),
        (
            "+pipeline.ncu.x=1",
            "x: unknown key (got 1), no known key is like it; `llm-perf profile --cfg job` lists all",
        ),
    ],
)
def test_the_values_of_a_stage_that_is_off_are_checked_too(override: str, problem: str) -> None:
    assert problems(*TINY, override) == (f"pipeline.ncu.{problem}",)


@pytest.mark.slow
@pytest.mark.parametrize("override", ["pipeline.ncu=3", "pipeline.ncu=all", "+pipeline.memory=off"])
def test_a_section_of_a_stage_is_a_mapping_or_nothing(override: str) -> None:
    section = override.lstrip("+").partition("=")[0]
    (problem,) = problems(*TINY, override)
    assert problem.startswith(f"{section}: ") and "a mapping of keys" in problem
    assert "ncu" not in typed(*TINY, "pipeline.ncu=null").stages


def test_numbers_that_are_none_are_refused_where_any_value_is_taken() -> None:
    assert problems(*TINY, "+model.geometry.a.b=[1,nan]", "+model.geometry.c=-inf") == (
        "model.geometry.a.b.1: not a finite number (got nan), allowed: a finite number",
        "model.geometry.c: not a finite number (got -inf), allowed: a finite number",
    )


@pytest.mark.parametrize("number", [1e300, -1e300, 1e-300, int("9" * 40)])
@pytest.mark.parametrize("key", ["model.geometry.a", "infer.temperature", "pipeline.energy.min_s"])
def test_a_number_no_manifest_may_hold_is_refused_before_the_run(key: str, number: float) -> None:
    found = problems(*TINY, f"++{key}={number}")
    assert found[0].startswith(f"{key}: ") and f"(got {number!r}), allowed: " in found[0] and len(found) == 1


def test_what_is_wrong_with_a_number_no_manifest_may_hold_is_said() -> None:
    assert problems(*TINY, "+hardware.memory_gb=1e300") == (
        "hardware.memory_gb: nothing measures so much or so little (got 1e+300), allowed: 0, or from 1e-100 to 1e+30 "
        "either side of it",
    )


def test_a_number_that_is_none_is_refused_in_the_section_of_a_plug_in_that_cannot_be_imported() -> None:
    composed = compose_config([*TINY, "+pipeline.alpha.seconds=nan"])
    raw = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    classes = {
        name: stage.config_cls for name, stage in load_registry(find_entry_points(), set(BUILT_IN)).stages.items()
    }
    with pytest.raises(ConfigError) as caught:
        load_config(raw, user_dir=Path("/"), stage_classes=classes, known_stages=(*BUILT_IN, "alpha"))
    assert "pipeline.alpha.seconds: not a finite number (got nan), allowed: a finite number" in caught.value.problems


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("device=cpu", "run.device=cpu"),
        ("repeats=5", "run.repeats=5"),
        ("torch_profiler.enabled=false", "pipeline.torch_profiler.enable=false"),
        ("torch_profiler.activities=[cpu]", "pipeline.torch_profiler.activities=[cpu]"),
        ("pipeline.torch_profiler.enabled=true", "pipeline.torch_profiler.enable=true"),
        ("analysis.static.enabled=false", "pipeline.static_analysis.enable=false"),
        ("analysis.static.write_reports=false", "pipeline.static_analysis.write_reports=false"),
        ("runners.analysis.static.use_synthetic_inputs=true", "pipeline.static_analysis.use_synthetic_inputs=true"),
        ("runner@stage1_runner=stage1.no-static", "pipeline.static_analysis.enable=false"),
        ("run.stage1_repeats=4", "dataset.sampling.num_samples_per_epoch=4"),
        ("pipeline.ncu.nvtx_include=prefill", "pipeline.ncu.ncu_cli.nvtx.include=prefill"),
        ("pipeline.ncu.set=full", "pipeline.ncu.ncu_cli.set=full"),
        ("pipeline.ncu.metrics=a,b", "pipeline.ncu.ncu_cli.metrics='a,b'"),
        ("pipeline.ncu.sections=[SpeedOfLight]", "pipeline.ncu.ncu_cli.sections=[SpeedOfLight]"),
        ("pipeline.ncu.csv=false", "pipeline.ncu.ncu_cli.export.csv=false"),
        ("pipeline.ncu.target_processes=all", "pipeline.ncu.ncu_cli.target_processes=all"),
        ("ncu.set=full", "pipeline.ncu.ncu_cli.set=full"),
        ("ncu.gating_nvtx=false", "pipeline.ncu.gating_nvtx=false"),
        ("nsys.capture_range=none", "pipeline.nsys.capture_range=none"),
    ],
)
def test_an_old_key_is_translated_and_composes(old: str, new: str) -> None:
    translation = translate([old])
    assert [override.removeprefix("++") for override in translation.overrides] == [new]
    typed("dataset=synthetic", *translation.overrides, "pipeline.ncu.enable=true")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("outputs.save_predictions=true", "prediction.enable=true"),
        ("outputs.visualization.enable=false", "visualization.enable=false"),
        ("output.prediction.save_dir=p", "prediction.save_dir=p"),
        (
            "outputs.predictions.strip_special_tokens=true",
            "extra.deepseek_ocr.prediction.strip_special_tokens=true",
        ),
        ("outputs.visualization.max_images=3", "extra.deepseek_ocr.visualization.max_images=3"),
    ],
)
def test_an_old_output_key_is_one_of_both_stages_that_write_outputs(old: str, new: str) -> None:
    translation = translate([old])
    # Options of DeepSeek-OCR are there for that model alone; an old command line may name them with another.
    sign = "++" if new.startswith("extra.") else ""
    assert translation.overrides == (
        f"{sign}pipeline.torch_profiler.output.{new}",
        f"{sign}pipeline.direct_inference.output.{new}",
    )
    for model in ("deepseek_ocr", "llama_tiny"):
        typed(f"model={model}", "dataset=synthetic", *translation.overrides, "pipeline.direct_inference.enable=true")


def test_what_belongs_to_one_model_is_mounted_for_that_model_alone() -> None:
    outputs = {model: typed(f"model={model}").stages["torch_profiler"] for model in ("deepseek_ocr_tiny", "llama_tiny")}
    assert {model: dict(stage.output.extra) for model, stage in outputs.items()} == {  # type: ignore[attr-defined]
        "deepseek_ocr_tiny": {
            "deepseek_ocr": {
                "prediction": {"strip_special_tokens": False},
                "visualization": {"max_images": 16, "thumbnail_width": 480},
            }
        },
        "llama_tiny": {},
    }


def test_one_notice_lists_every_old_key_and_new_keys_pass_unchanged() -> None:
    translation = translate(["device=cpu", "run.seed=1", "--cfg", "job", "output@x=y", "repeats=2"])
    assert translation.overrides == ("run.device=cpu", "run.repeats=2", "run.seed=1", "--cfg", "job", "output@x=y")
    assert translation.notice == (
        "old keys translated (see docs/migration.md): device -> run.device, repeats -> run.repeats"
    )
    assert translate(["run.seed=1"]).notice is None


@pytest.mark.slow
def test_every_pixi_task_runs_the_stages_it_is_named_for() -> None:
    tasks = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["pixi"]["tasks"]
    orchestrator = ["python", "-m", "llm_perf_opt.runners.profile_orchestrator"]
    expected = {
        "stage1-run": {"static_analysis", "torch_profiler"},
        "stage1-run-no-static": {"torch_profiler"},
        "stage2-profile": {"nsys", "ncu"},
    }
    for task, stages in expected.items():
        words = tasks[task].split()
        assert words[:3] == orchestrator
        assert set(typed(*words[3:]).stages) == stages
    assert tasks["direct-infer"] == "python -m llm_perf_opt.runners.direct_inference_runner"


def test_every_documented_key_is_known_and_every_key_is_documented() -> None:
    """docs/configuration.md has one table row per key, with its default; those of `llm-perf bench` are separate."""
    whole = (REPO / "docs" / "configuration.md").read_text()
    before, bench = whole.split("## Keys of `llm-perf bench` alone")
    ours = _plain(compose_config([]))
    for name in OUR_PLUGINS:
        stage = importlib.import_module(f"llm_perf_opt.plugins.{name}.stage").STAGE
        ours["pipeline"][name] = asdict(stage.config_cls())
    _assert_documented(before, ours)
    entry = _plain(compose_config([], ConfigEntry(name="bench", is_of_a_run=False)))
    _assert_documented(bench, {name: entry[name] for name in ("server", "load", "traffic", "capture")})


def _assert_documented(text: str, config: dict[str, Any]) -> None:
    documented: dict[str, str] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) == 3 and cells[0].startswith("`") and "." in cells[0]:
            documented |= dict.fromkeys(_expand(cells[0].strip("`")), cells[1].strip("`"))
    actual = dict(_leaves(config))
    assert documented.keys() == actual.keys()
    wrong = {
        key: (documented[key], value)
        for key, value in actual.items()
        if key in documented and not _is_computed(value) and json.loads(documented[key]) != value
    }
    assert wrong == {}


def _expand(key: str) -> list[str]:
    """`a.{b,c}` as a.b and a.c."""
    start, brace, rest = key.partition("{")
    return [start + name for name in rest.removesuffix("}").split(",")] if brace else [key]


def _plain(cfg: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(plain, dict)
    plain.pop("hydra")
    return {str(k): v for k, v in plain.items()}


def _leaves(node: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        return list(itertools.chain.from_iterable(_leaves(v, f"{prefix}{k}.") for k, v in node.items()))
    return [(prefix[:-1], node)]


def _is_computed(value: Any) -> bool:
    return isinstance(value, str) and "${" in value
