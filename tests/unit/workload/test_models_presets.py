"""The presets under conf/model: they compose, name an adapter, and build models of the published size."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.errors import ConfigError
from tests.support.fixtures_dir import REPO
from tests.support.model_presets import adapter_of, compose_preset

TEXT_PRESETS = {
    "llama3_1b": 1_235_814_400,
    "llama3_8b": 8_030_261_248,
    "qwen3_8b": 8_190_735_360,
    "qwen3_30b_a3b": 30_532_122_624,
    "deepseek_v2_lite": 15_706_484_224,
    "llama_110m": 109_529_856,
    "llama_tiny": 164_160,
    "qwen3_moe_tiny": 189_824,
    "deepseek_v2_tiny": 277_536,
}


def count(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("preset", TEXT_PRESETS)
def test_text_preset_builds_the_published_number_of_parameters_on_meta(preset: str) -> None:
    config = compose_preset(f"model={preset}", "dataset=synthetic")
    adapter = adapter_of(config)
    module = adapter.build_meta(config.model)
    assert adapter.check(config.model) == ()
    assert (config.model.name, config.model.weights, config.model.path) == (preset, "random", None)
    assert {p.device.type for p in module.parameters()} == {"meta"}
    assert count(module) == TEXT_PRESETS[preset]


def test_the_documented_bundle_of_a_new_model_works_as_written(tmp_path: Path) -> None:
    text = (REPO / "docs" / "models.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("## Adding a model")
    bundle = rest.partition("```yaml\n")[2].partition("```")[0].replace("<name>", "newcomer")
    arch = tmp_path / "model" / "causal_lm" / "arch" / "newcomer.yaml"
    arch.parent.mkdir(parents=True)
    shipped = (REPO / "conf/model/causal_lm/arch/llama_tiny.yaml").read_text(encoding="utf-8")
    arch.write_text(shipped.replace("name: llama_tiny", "name: newcomer"), encoding="utf-8")
    (tmp_path / "model" / "newcomer.yaml").write_text(bundle, encoding="utf-8")
    config = compose_preset("model=newcomer", f"hydra.searchpath=[file://{tmp_path}]")
    assert (config.model.name, config.dataset.kind, config.infer.max_new_tokens > 0) == ("newcomer", "synthetic", True)
    assert adapter_of(config).data_kind == "tokens"


@pytest.mark.slow
def test_meta_dtype_is_the_presets_own_unless_one_is_asked_for() -> None:
    own = compose_preset("model=llama3_1b", "dataset=synthetic")
    asked = compose_preset("model=llama3_1b", "dataset=synthetic", "model.dtype=float16")
    dtypes = [str(adapter_of(c).build_meta(c.model).dtype) for c in (own, asked)]
    assert dtypes == ["torch.bfloat16", "torch.float16"]


@pytest.mark.slow
def test_deepseek_ocr_has_the_published_number_of_parameters_in_every_part() -> None:
    config = compose_preset("model=deepseek_ocr", "model.weights=random")
    module = adapter_of(config).build_meta(config.model)
    backbone = module.model
    parts = {
        "sam": count(backbone.sam_model),
        "clip": count(backbone.vision_model),
        "projector": count(backbone.projector),
        "vectors": backbone.image_newline.numel() + backbone.view_seperator.numel(),
    }
    total = count(module)
    assert parts == {"sam": 95_569_152, "clip": 303_177_728, "projector": 2_622_720, "vectors": 2_560}
    assert total - sum(parts.values()) == 2_934_734_080
    assert total == 3_336_106_240
    assert {p.device.type for p in module.parameters()} == {"meta"}


def test_the_arch_of_deepseek_ocr_can_be_swapped_alone() -> None:
    config = compose_preset("model/deepseek_ocr/arch@model=deepseek_ocr.tiny")
    assert (config.model.name, config.model.weights, config.infer.max_new_tokens) == (
        "deepseek_ocr_tiny",
        "random",
        512,
    )


def test_the_demo_is_a_llama_whose_weights_take_a_few_hundred_megabytes() -> None:
    config = compose_preset("experiment=demo")
    shown = (config.model.name, config.model.weights, config.dataset.kind, config.dataset.num_samples)
    assert shown == ("llama_110m", "random", "synthetic", 2)
    assert adapter_of(config).check(config.model) == ()


def test_the_tiny_ocr_model_reads_generated_pages() -> None:
    config = compose_preset("experiment=ocr_tiny")
    shown = (config.model.name, config.dataset.kind, config.infer.max_new_tokens, config.dataset.num_samples)
    assert shown == ("deepseek_ocr_tiny", "synthetic", 32, 2)
    assert adapter_of(config).check(config.model) == ()


def test_causal_lm_without_a_path_says_which_key_to_set() -> None:
    config = compose_preset("model=causal_lm", "dataset=synthetic")
    assert adapter_of(config).check(config.model) == (
        "model.path: missing (got null), set it to the folder of a local snapshot, e.g. model.path=/models/Qwen3-8B",
    )
    with pytest.raises(ConfigError, match=r"^model\.path: missing"):
        adapter_of(config).geometry(config.model)


@pytest.mark.slow
def test_the_geometry_is_read_without_torch_and_importing_adapters_does_not_import_it() -> None:
    script = (
        "import sys\n"
        "from tests.support.model_presets import adapter_of, compose_preset\n"
        "for preset in ('llama3_8b', 'deepseek_ocr'):\n"
        "    config = compose_preset(f'model={preset}')\n"
        "    print(adapter_of(config).geometry(config.model)['model_type'])\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'PIL'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["llama", "deepseek_ocr", "[]"]
