"""The workload's command line: every value survives the way through Hydra."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.children.start import load_child_config
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.profiling.vendor.launch import (
    build_work_argv,
    bytecode_environment,
    capture_overrides,
    quote,
    workload_overrides,
)

pytestmark = pytest.mark.slow

NASTY = [
    "",
    " ",
    "a=b,c",
    "it's",
    'say "hi"',
    "${oc.env:HOME}",
    r"\${x}",
    "back\\slash\\",
    "ü 字 🎉",
    "[1,2]",
    "{a: b}",
    "null",
    "true",
]
ROOT = "data, with 'quotes', ${braces} and spaces"


def _round_trip(value: str) -> str:
    return str(compose_config([f"dataset.root={quote(value)}"]).dataset.root)


@pytest.mark.parametrize("value", NASTY)
def test_a_string_survives_hydra(value: str) -> None:
    assert _round_trip(value) == value


def test_random_strings_survive_hydra() -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    parser = OverridesParser.create()
    rng = random.Random(0)
    for _ in range(1500):
        text = "".join(rng.choice("\\\\$${{}}\"'=,: ax\nü[]#%") for _ in range(rng.randint(0, 9)))
        value = parser.parse_override(f"k={quote(text)}").value()
        assert OmegaConf.to_container(OmegaConf.create({"k": value}), resolve=True) == {"k": text}


def test_other_values_are_written_in_hydras_grammar() -> None:
    assert [quote(v) for v in (None, True, 3, 1.5, Path("/a b"), ("x", 1), {"k": "v"})] == [
        "null", "true", "3", "1.5", '"/a b"', '["x",1]', '{k:"v"}',
    ]  # fmt: skip


def test_the_whole_argv() -> None:
    argv = build_work_argv("pkg.mod", ["a=1"], hydra_run_dir="/runs/x y", chdir=False, run_mode="light", python="/py")
    assert argv == [
        "/py",
        "-m",
        "pkg.mod",
        "--child",
        "a=1",
        "run.mode=light",
        'artifacts.runs_dir="/runs/x y"',
        'hydra.run.dir="/runs/x y"',
        "hydra.job.chdir=false",
    ]
    assert build_work_argv("m", [], hydra_run_dir="/r")[:4] == [sys.executable, "-m", "m", "--child"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["llama3_8b", "qwen3_30b_a3b", "deepseek_v2_lite", "deepseek_ocr", "deepseek_ocr_tiny"]
)
def test_a_child_sees_the_same_workload(model: str, tmp_path: Path) -> None:
    config = type_config(
        compose_config(
            [
                f"model={model}",
                "dataset=omnidocbench",
                "run.device=cpu",
                "run.repeats=auto",
                "run.target_ci=0.01",
                "run.max_repeats=12",
                "run.seed=5",
                "run.representative_max_new_tokens=11",
                f"dataset.root={quote(ROOT)}",
                "dataset.subset_filelist='lists/a=b,c.txt'",
                "dataset.fallback_patterns=['**/*.png','x,y.jpg']",
                "dataset.sampling.num_samples_per_epoch=3",
                "dataset.sampling.randomize=true",
            ]
        ),
        user_dir=tmp_path,
    )
    overrides = workload_overrides(config)
    assert not [o for o in overrides if o.lstrip("+~").startswith("dataset/sampling")]
    argv = build_work_argv("m", overrides, hydra_run_dir=tmp_path / "work dir", chdir=False)
    child, out_dir = load_child_config(argv[3:])
    assert out_dir == tmp_path / "work dir"
    assert (child.model, child.infer, child.dataset) == (config.model, config.infer, config.dataset)
    assert child.infer.max_new_tokens == 11
    shared = ("device", "repeats", "seed", "mode")
    assert [getattr(child.run, k) for k in shared] == [getattr(config.run, k) for k in shared]


def test_under_a_vendor_tool_only_plain_inference_runs(tmp_path: Path) -> None:
    config = type_config(compose_config(["experiment=ocr_tiny"]), user_dir=tmp_path)
    argv = build_work_argv("m", capture_overrides(config), hydra_run_dir=tmp_path, chdir=False)
    child, _ = load_child_config(argv[3:])
    assert list(child.stages) == ["direct_inference"]
    assert "visualization=VisualizationOutput(enable=False" in repr(child.stages["direct_inference"])


def test_light_mode_reaches_the_child_unchanged(tmp_path: Path) -> None:
    config = type_config(compose_config(["experiment=ocr_tiny", "run.mode=light"]), user_dir=tmp_path)
    argv = build_work_argv("m", workload_overrides(config), hydra_run_dir=tmp_path, chdir=False)
    child, _ = load_child_config(argv[3:])
    assert replace(child.infer) == config.infer
    assert (child.run.repeats, child.infer.max_new_tokens) == (1, 16)


def test_a_stage_of_a_light_run_may_ask_its_child_for_more_repeats(tmp_path: Path) -> None:
    config = type_config(compose_config(["experiment=ocr_tiny", "run.mode=light"]), user_dir=tmp_path)
    overrides = [*workload_overrides(config), "run.repeats=24"]
    child, _ = load_child_config(build_work_argv("m", overrides, hydra_run_dir=tmp_path, chdir=False)[3:])
    assert (child.run.repeats, child.infer.max_new_tokens) == (24, 16)


def test_compiled_modules_are_kept_where_an_installation_has_none_and_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "large_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(package.parent))
    folder, forbidden = tmp_path / "kept", {"PYTHONDONTWRITEBYTECODE": "1"}

    def asked(environ: dict[str, str]) -> dict[str, str]:
        return bytecode_environment(environ, folder, ["large_package", "no_such_package"])

    # Python will write them itself, or knows where.
    assert asked({}) == {}
    assert asked({**forbidden, "PYTHONPYCACHEPREFIX": "/elsewhere"}) == {}
    kept = asked(forbidden)
    assert kept == {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    environ = {**os.environ, **forbidden, **kept, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", "import large_package"]
    subprocess.run(command, env=environ, check=True, timeout=60, stdin=subprocess.DEVNULL)
    written = [path.name for path in folder.rglob("large_package/*.pyc")]
    assert written == [f"__init__.{sys.implementation.cache_tag}.pyc"]
    subprocess.run(command, env=environ | {"PYTHONPYCACHEPREFIX": ""}, check=True, timeout=60)
    assert asked(forbidden) == {}
