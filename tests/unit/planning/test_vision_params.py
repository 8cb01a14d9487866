"""What a wrapper holds alongside its text model, against the model transformers builds of the same configuration."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main

pytestmark = pytest.mark.slow

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 2048,
}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
QWEN_TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
WRAPPERS: dict[str, dict[str, Any]] = {
    "llava": {
        "model_type": "llava",
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**TOWER, "model_type": "clip_vision_model", "image_size": 28, "patch_size": 14},
        "tie_word_embeddings": False,
    },
    # As its files have it: the sizes of the text model lie outside.
    "qwen2_5_vl": {"model_type": "qwen2_5_vl", **TEXT, "vision_config": QWEN_TOWER, "tie_word_embeddings": False},
    "gemma3": {
        "model_type": "gemma3",
        "text_config": {**TEXT, "model_type": "gemma3_text"},
        "vision_config": {**TOWER, "model_type": "siglip_vision_model", "image_size": 56, "patch_size": 14},
        "mm_tokens_per_image": 4,
    },
    "mistral3": {
        "model_type": "mistral3",
        "text_config": {**TEXT, "model_type": "mistral"},
        "vision_config": {**TOWER, "model_type": "pixtral", "head_dim": 16, "image_size": 56, "patch_size": 14},
        "tie_word_embeddings": False,
    },
}


def predict(capsys: pytest.CaptureFixture[str], folder: Path, geometry: dict[str, Any], *more: str) -> str:
    (folder / "config.json").write_text(json.dumps(geometry))
    assert main(["predict", f"model.path={folder}", "hardware=h200", *more]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_has_as_many_parameters_as_transformers_builds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    geometry = WRAPPERS[name]
    with torch.device("meta"):
        whole = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**geometry))
    whole.tie_weights()
    (found,) = json.loads(predict(capsys, tmp_path, geometry, "--json"))["predictions"]
    parameters = found["parameters"]
    assert parameters["total"] == sum(tensor.numel() for tensor in whole.parameters())
    assert parameters["groups"]["vision"] == parameters["total"] - parameters["activated"] > 0
    assert found["memory"]["weights_bytes"] == 2 * parameters["total"]


def test_the_vision_part_is_shown_apart_and_costs_batch_but_no_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    geometry = WRAPPERS["llava"]
    text = {**geometry["text_config"], "tie_word_embeddings": False}
    room = ("hardware.memory_gb=0.002", "workload.prompt=64")
    alone = json.loads(predict(capsys, tmp_path, text, "--json", *room))["predictions"][0]
    both = json.loads(predict(capsys, tmp_path, geometry, "--json", *room))["predictions"][0]
    assert both["memory"]["largest_batch"] < alone["memory"]["largest_batch"]
    assert both["phases"]["prefill"]["estimate_ms"] == alone["phases"]["prefill"]["estimate_ms"]
    total, vision = both["parameters"]["total"], both["parameters"]["groups"]["vision"]
    said = " ".join(predict(capsys, tmp_path, geometry).split())
    assert f"{total:,} parameters (text {total - vision:,}, vision {vision:,})" in said
    assert "what reads images or sound (vision) is in the memory, unquantised; times and FLOPs are the text" in said


def test_a_model_that_speaks_is_counted_without_what_speaks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    audio = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "output_dim": 64}
    thinker = {
        "text_config": {**TEXT, "model_type": "qwen2_5_omni_text"},
        "vision_config": QWEN_TOWER,
        "audio_config": audio,
    }
    said = " ".join(predict(capsys, tmp_path, {"model_type": "qwen2_5_omni", "thinker_config": thinker}).split())
    assert re.search(r"\(text [\d,]+, audio [\d,]+, vision [\d,]+\)", said)
    assert "what speaks is its own model and not counted" in said


def test_a_type_transformers_does_not_have_says_that_the_rest_is_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = " ".join(predict(capsys, tmp_path, {**WRAPPERS["llava"], "model_type": "kimi_vl"}).split())
    assert "not what reads images or sound; transformers cannot build them: it has no model of type 'kimi_vl'" in said


@pytest.mark.parametrize("command", ["predict", "plan"])
def test_a_size_of_another_type_leaves_the_rest_out_in_words(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    vision = {**WRAPPERS["llava"]["vision_config"], "image_size": "large"}
    (tmp_path / "config.json").write_text(json.dumps({**WRAPPERS["llava"], "vision_config": vision}))
    assert main([command, f"model.path={tmp_path}", "hardware=h200"]) == 0
    said = capsys.readouterr()
    assert "transformers cannot build them: Validation error for field 'image_size'" in " ".join(
        (said.out + said.err).split()
    )


def test_without_torch_the_way_to_count_the_rest_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    said = " ".join(predict(capsys, tmp_path, WRAPPERS["llava"]).split())
    assert (
        "counting them needs torch and transformers: pip install 'llm-perf-opt[run]', then this command again" in said
    )
