"""What the founding documents want explained, and where."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest
import yaml

from llm_perf_opt.config.load import validate
from llm_perf_opt.profiling.stages.ncu import NcuCli, NcuConfig
from tests.founding.composing import TINY, stage, typed
from tests.support.fixtures_dir import REPO


def _comments(name: str) -> str:
    """The comments of a file as one line of words."""
    lines = (REPO / name).read_text().splitlines()
    return re.sub(r"\s+", " ", " ".join(line.partition("#")[2] for line in lines))


def _ncu_examples(name: str) -> list[dict[str, object]]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (REPO / name).read_text(), re.MULTILINE | re.DOTALL)
    return [loaded for loaded in map(yaml.safe_load, blocks) if "ncu_cli" in loaded]


@pytest.mark.parametrize("name", ["conf/config.yaml", "conf/profiling/nsys/nsys.default.yaml"])
def test_040_the_gating_rules_stand_in_the_comments(name: str) -> None:
    """000:121-125, 000:238"""
    text = _comments(name)
    for words in (
        "nvtx | cudaProfilerApi | hotkey | none",
        "null or empty is an error",
        "null or empty passes no flag",
    ):
        assert words in text


def test_138_the_keys_of_ncu_cli_stand_in_the_comments() -> None:
    """002:125-127"""
    wanted = "pipeline.ncu.ncu_cli.* (target_processes, nvtx.include, set, metrics, sections, export.*"
    assert wanted in _comments("conf/config.yaml")
    named = _comments("conf/profiling/ncu/ncu.default.yaml")
    whole = {"nvtx": "nvtx.include", "export": "export.csv"}
    keys = {whole.get(field.name, field.name) for field in fields(NcuCli)}
    assert {key for key in keys if key not in named} == set()


@pytest.mark.parametrize("name", ["docs/configuration.md", "conf/profiling/README.md"])
def test_140_142_an_example_of_ncu_cli_is_valid_and_has_list_metrics_and_a_nested_include(name: str) -> None:
    """002:129-133"""
    (example,) = _ncu_examples(name)
    config, problems = validate(NcuConfig, example, "pipeline.ncu")
    assert problems == []
    assert config is not None
    assert isinstance(config.ncu_cli.metrics, tuple)
    assert config.ncu_cli.nvtx.include in ("decode*", "decode/decode_step")


def test_182_the_four_output_overrides_are_shown_and_compose() -> None:
    """003:130-135"""
    output = "pipeline.torch_profiler.output"
    lines = (
        f"{output}.prediction.enable=true",
        f"{output}.prediction.save_dir=pred",
        f"{output}.extra.deepseek_ocr.prediction.strip_special_tokens=true",
        f"{output}.extra.deepseek_ocr.visualization.max_images=8",
    )
    text = (REPO / "docs" / "configuration.md").read_text()
    assert [line for line in lines if line not in text] == []
    found = stage(typed(*TINY, *lines), "torch_profiler").output
    assert (found.prediction.enable, found.prediction.save_dir) == (True, "pred")
    assert found.extra["deepseek_ocr"]["visualization"]["max_images"] == 8


@pytest.mark.parametrize("script", [[sys.executable, "ncu-profile-kernels.py"], ["bash", "ncu-profile-kernels.sh"]])
def test_149_the_help_of_both_scripts_names_the_presets(script: list[str]) -> None:
    """002:142, 002:149"""
    folder = REPO / "scripts" / "ncu" / "release"
    done = subprocess.run([*script, "--help"], cwd=folder, capture_output=True, text=True, check=True)
    text = re.sub(r"\s+", " ", done.stdout)
    assert "The defaults mirror the preset ncu.default of the runners" in text
    presets = [p.stem for p in (REPO / "conf" / "profiling" / "ncu").glob("*.yaml")]
    assert [name for name in presets if name not in text] == []


def test_128_the_memory_preset_of_the_rtx3090_is_as_written() -> None:
    """002:49-63; what is alongside it is reported in the file"""
    preset = yaml.safe_load((REPO / "conf/profiling/ncu/ncu.rtx3090.memory.yaml").read_text())
    assert preset["description"] == "Nsight Compute preset: RTX 3090 (GA102) — Memory focus"
    seed = {
        "target_processes": "all",
        "nvtx": {"include": "decode*"},
        "set": "roofline",
        "sections": ["SpeedOfLight", "MemoryWorkloadAnalysis"],
        "metrics": None,
        "export": {"csv": True},
    }
    assert {key: preset["ncu_cli"][key] for key in seed} == seed
    assert "clock_control locks the clocks to base" in _comments("conf/profiling/ncu/ncu.rtx3090.memory.yaml")


def test_076_old_paths_are_mapped_to_new_ones() -> None:
    """000:237"""
    text = (REPO / "docs" / "migration.md").read_text()
    assert "| `tmp/stage1/<time>`, `tmp/stage2/<time>` | `tmp/runs/<time>` |" in text
    assert "| `Artifacts.create_stage2_root()` | `Artifacts.for_run(root)` |" in text


@pytest.mark.slow
def test_081_every_command_of_the_quick_start_composes() -> None:
    """000:77"""
    text = (REPO / "docs" / "getting-started.md").read_text()
    commands = [line.partition("#")[0].split() for line in text.splitlines() if line.startswith("llm-perf profile ")]
    overrides = [[word for word in words[2:] if word != "…"] for words in commands]
    composed = [typed(*words) for words in overrides if not any(word.startswith("run.resume") for word in words)]
    assert {"nsys", "ncu"} in [set(config.stages) - {"static_analysis", "torch_profiler"} for config in composed]


def test_every_requirement_has_a_row_and_every_row_a_test_that_exists() -> None:
    """docs/founding.md: 219 requirements, numbered through"""
    text = (REPO / "docs" / "founding.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (00\d:[\d, -]+) \| .+ \| `([\w/]+\.py)::(\w+)` \| ", text, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 220))
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    gone = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (REPO / "tests" / file).read_text()]
    assert gone == []
