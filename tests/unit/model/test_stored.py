"""Bytes of quantised checkpoints: against published files, and rule by rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.errors import ParseError
from llm_perf_opt.model.families.known import read_text_model
from llm_perf_opt.model.static.config_json import read_config_json
from llm_perf_opt.model.static.quantised import read_quantised, stored_weights
from llm_perf_opt.model.static.stored import ModuleRule, parse_rule
from tests.support.fixtures_dir import REPO
from tests.support.static_cases import preset_geometry

PUBLISHED = json.loads((REPO / "tests" / "data" / "published_models.json").read_text())
BLOCK_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def stored_bytes(geometry: dict[str, Any], formats: dict[str, Any]) -> float:
    data = {**geometry, "quantization_config": formats}
    quantised = read_quantised(data, where="config.json")
    assert quantised is not None
    found = stored_weights(read_text_model(data, where="config.json"), quantised, wide_bytes=2)
    assert found is not None
    return found.total_bytes


# Each with its source; `beyond`: bytes of what the checkpoint holds and the text model does not. {layer}: every layer.
CHECKPOINTS: list[dict[str, Any]] = json.loads((REPO / "tests" / "data" / "published_checkpoints.json").read_text())
# Families without a closed form: transformers builds them, which takes seconds.
COUNTED = ("deepseek_v4",)


def geometry_of(checkpoint: dict[str, Any]) -> dict[str, Any]:
    if "preset" in checkpoint:
        return preset_geometry(f"causal_lm/arch/{checkpoint['preset']}")
    found: dict[str, Any] = checkpoint.get("geometry") or PUBLISHED[checkpoint["model"]]
    return found


def in_every_layer(formats: dict[str, Any], layers: int) -> dict[str, Any]:
    """The configuration with names of every layer written out, as checkpoints have them."""

    def names(listed: list[str]) -> list[str]:
        return [name.replace("{layer}", str(i)) for name in listed for i in range(layers if "{layer}" in name else 1)]

    found = {
        key: names(value) if key in ("ignore", "modules_to_not_convert") else value for key, value in formats.items()
    }
    if "quantized_layers" in formats:
        found["quantized_layers"] = {n: how for key, how in formats["quantized_layers"].items() for n in names([key])}
    return found


def is_counted(checkpoint: dict[str, Any]) -> bool:
    return str(geometry_of(checkpoint)["model_type"]) in COUNTED


@pytest.mark.parametrize("checkpoint", [c for c in CHECKPOINTS if not is_counted(c)], ids=lambda c: c["name"])
def test_published_checkpoints_are_met_to_half_a_percent(checkpoint: dict[str, Any]) -> None:
    geometry = geometry_of(checkpoint)
    formats = in_every_layer(checkpoint["quantization_config"], geometry["num_hidden_layers"])
    beyond = sum(checkpoint.get("beyond", {}).values())
    assert stored_bytes(geometry, formats) + beyond == pytest.approx(checkpoint["bytes"], rel=0.005)


@pytest.mark.long
@pytest.mark.parametrize("checkpoint", [c for c in CHECKPOINTS if is_counted(c)], ids=lambda c: c["name"])
def test_published_checkpoints_of_counted_families_are_met_too(
    checkpoint: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    geometry = geometry_of(checkpoint)
    formats = in_every_layer(checkpoint["quantization_config"], geometry["num_hidden_layers"])
    (tmp_path / "config.json").write_text(json.dumps({**geometry, "quantization_config": formats}))
    assert main(["predict", f"model.path={tmp_path}", "hardware=b200", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    beyond = sum(checkpoint.get("beyond", {}).values())
    assert found["memory"]["weights_bytes"] + beyond == pytest.approx(checkpoint["bytes"], rel=0.005)


def test_twenty_checkpoints_of_all_formats_were_compared() -> None:
    methods = [c["quantization_config"]["quant_method"] for c in CHECKPOINTS]
    assert len(CHECKPOINTS) >= 20
    assert {"gptq", "awq", "mxfp4", "fp8", "modelopt", "compressed-tensors"} == set(methods)


LLAMA = PUBLISHED["Llama-3.1-405B"]
MATRICES = 401_646_551_040
REST = 405_853_388_800 - MATRICES


@pytest.mark.parametrize(
    ("formats", "each"),
    [
        (BLOCK_FP8, 1 + 4 / 128**2),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, 1.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, 0.5625),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, "type": "int"}}
                },
            },
            0.5 + 2 / 32,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, "type": "float"}}
                },
            },
            0.5 + 1 / 32,
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 0.5 + 1 / 64),
    ],
)
def test_scales_are_those_of_the_method(formats: dict[str, Any], each: float) -> None:
    assert stored_bytes(LLAMA, formats) == pytest.approx(MATRICES * each + REST * 2, rel=1e-9)


def test_modules_left_alone_stay_wide_in_their_layers_alone() -> None:
    hidden, layers = 16384, 126
    attention = hidden * 128 * (128 + 128 + 8 + 8)
    inside = [f"model.layers.{i}.self_attn*" for i in range(layers)]
    nvfp4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    whole = stored_bytes(LLAMA, nvfp4)
    assert stored_bytes(LLAMA, {**nvfp4, "exclude_modules": inside}) - whole == pytest.approx(
        layers * attention * (2 - 0.5625)
    )
    # One layer as a whole, and one matrix of another.
    first = {**nvfp4, "exclude_modules": ["model.layers.0*", "model.layers.7.mlp.down_proj"]}
    left = attention + 3 * hidden * 53248 + hidden * 53248
    assert stored_bytes(LLAMA, first) - whole == pytest.approx(left * (2 - 0.5625))
    # Every layer, by a regular expression.
    every = {**nvfp4, "ignore": ["lm_head", "re:.*self_attn.*"]}
    assert stored_bytes(LLAMA, every) == stored_bytes(LLAMA, {**nvfp4, "exclude_modules": inside})


def test_mixed_checkpoints_take_the_format_of_each_module() -> None:
    geometry = {**PUBLISHED["Qwen3-235B-A22B"], "num_hidden_layers": 2}
    named = {f"model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(2)}
    named |= {f"model.layers.{i}.self_attn.{name}_proj": {"quant_algo": "FP8"} for i in range(2) for name in "qkvo"}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": named}
    hidden, experts = 4096, 2 * 3 * 128 * 4096 * 1536
    attention = 2 * hidden * 128 * (64 + 64 + 4 + 4)
    rest = 2 * 151936 * hidden + 2 * (hidden * 128 + 2 * hidden + 256) + hidden
    assert stored_bytes(geometry, mixed) == pytest.approx(experts * 0.5625 + attention + rest * 2)
    quantised = read_quantised({**geometry, "quantization_config": mixed}, where="config.json")
    assert quantised is not None and quantised.weight == "nvfp4"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("lm_head", None),
        ("mtp.layers.0*", None),
        ("patch_merge_mlp", None),
        ("model.visual.blocks.0.attn.qkv", None),
        ("model.language_model.layers.3.linear_attn.in_proj_b", None),
        ("model.layers.3.mlp.gate", None),
        ("model.layers.3.input_layernorm", None),
        ("model.layers.1.self_attn.indexer.k_norm", None),
        (
            "language_model.model.layers.12.mlp.shared_experts*",
            ModuleRule(layer="12", is_prefix=False, parts=frozenset({"shared"}), projections=frozenset()),
        ),
        (
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            ModuleRule(layer=None, is_prefix=False, parts=frozenset({"mlp"}), projections=frozenset()),
        ),
        (
            "backbone.layers.5.mixer.q_proj",
            ModuleRule(layer="5", is_prefix=False, parts=frozenset({"attention"}), projections=frozenset({"q_proj"})),
        ),
        (
            "model.layers.4.self_attn.qkv_proj",
            ModuleRule(
                layer="4",
                is_prefix=False,
                parts=frozenset({"attention"}),
                projections=frozenset({"q_proj", "k_proj", "v_proj"}),
            ),
        ),
    ],
)
def test_names_of_modules_are_sorted_into_layer_part_and_projection(name: str, rule: ModuleRule | None) -> None:
    assert parse_rule(name) == rule


def test_what_modelopt_writes_beside_the_configuration_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    formats = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": formats})
    )
    assert main(["predict", f"model.path={folder}", "hardware=h200", "workload.tp=8", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert (found["dtypes"]["weight"], found["dtypes"]["kv"]) == ("fp8", "fp8")
    assert found["memory"]["weights_bytes"] == pytest.approx(MATRICES + REST * 2)
    (folder / "hf_quant_config.json").write_text('{"quantization": "fp8"}')
    with pytest.raises(ParseError, match=r"hf_quant_config\.json: quantization: not a mapping"):
        read_config_json(folder)
