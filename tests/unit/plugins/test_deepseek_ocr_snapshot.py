"""A DeepSeek-OCR snapshot in the published layout: its weights in our code, and its own code driven through ours."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.plugins.deepseek_ocr.adapter import OcrInfer, OcrSection, geometry_of_snapshot, parse_geometry
from llm_perf_opt.plugins.deepseek_ocr.build import _why_not_remote, build_on_meta, fill_with_noise
from llm_perf_opt.workload.models.base import Sample
from tests.support.model_presets import adapter_of, compose_preset, load_preset

pytestmark = pytest.mark.slow

# The layout of the published config.json with small numbers.
CONFIG = {
    "model_type": "deepseek_vl_v2",
    "auto_map": {"AutoConfig": "modeling_small.SmallConfig", "AutoModel": "modeling_small.SmallOcr"},
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.3",
    "language_config": {
        "bos_token_id": 0,
        "eos_token_id": 1,
        "first_k_dense_replace": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "kv_lora_rank": None,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 2,
        "num_attention_heads": 2,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "topk_method": "greedy",
        "use_mla": False,
        "vocab_size": 64,
    },
    "projector_config": {"input_dim": 64, "n_embed": 32, "projector_type": "linear"},
    "vision_config": {
        "image_size": 256,
        "width": {
            "clip-l-14-224": {"heads": 2, "image_size": 56, "layers": 1, "patch_size": 14, "width": 32},
            "sam_vit_b": {
                "downsample_channels": [48, 32],
                "global_attn_indexes": [1],
                "heads": 2,
                "layers": 2,
                "width": 32,
            },
        },
    },
}
REMOTE = ("model.implementation=remote", "model.trust_remote_code=true")
SMALL_VIEWS = ("infer.base_size=128", "infer.image_size=64")

# Takes what the published forward takes, refuses anything else, and leaves a trace of it in the logits.
REMOTE_CODE = """
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class SmallConfig(PretrainedConfig):
    model_type = "small_ocr"


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sam_model = torch.nn.AvgPool2d(16)
        self.vision_model = torch.nn.Identity()
        self.projector = torch.nn.Linear(1, 1)


class SmallOcr(PreTrainedModel):
    config_class = SmallConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = Inner()
        self.post_init()

    def forward(self, input_ids=None, past_key_values=None, images=None, images_seq_mask=None,
                images_spatial_crop=None, use_cache=None, return_dict=None):
        logits = torch.zeros(1, input_ids.shape[1], 64)
        if input_ids.shape[1] != 1:
            (tiles, page), = images
            for pictures in ([tiles] if torch.sum(tiles).item() != 0 else []) + [page]:
                self.model.projector(self.model.vision_model(self.model.sam_model(pictures)).flatten()[:, None])
            across, down = images_spatial_crop[0].tolist()
            logits[0, -1, :5] = torch.tensor(
                [tiles.shape[0], page.shape[-1], across, down, int(images_seq_mask.sum())], dtype=torch.float32)
            past_key_values = input_ids.shape[1]
        else:
            past_key_values += 1
            logits[0, -1, 0] = past_key_values
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)
"""


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", "<unk>", "Convert", "the", "document", "to", "markdown", "."]
    backend = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.save_pretrained(folder)


def published_names(module: Any) -> dict[str, torch.Tensor]:
    """The state as the published checkpoint stores it: every expert's three matrices apart."""
    tensors = {}
    for name, tensor in module.state_dict().items():
        if ".experts." not in name or "shared" in name:
            tensors[name] = tensor
            continue
        parent, leaf = name.rsplit(".", 1)
        for i, matrix in enumerate(tensor):
            kinds, pieces = (("down",), (matrix,)) if leaf == "down_proj" else (("gate", "up"), matrix.chunk(2))
            for kind, piece in zip(kinds, pieces, strict=True):
                tensors[f"{parent}.{i}.{kind}_proj.weight"] = piece.contiguous()
    return tensors


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder, and the module whose weights are in it."""
    folder = tmp_path_factory.mktemp("DeepSeek-OCR")
    geometry = parse_geometry(geometry_of_snapshot(CONFIG, where="config.json"))
    module = build_on_meta(geometry, dtype="float32")
    fill_with_noise(module, device="cpu", seed=5)
    tensors = published_names(module)
    names = sorted(tensors)
    half = len(names) // 2
    save_file({n: tensors[n] for n in names[:half]}, folder / "model-00001-of-00002.safetensors")
    save_file({n: tensors[n] for n in names[half:]}, folder / "model-00002-of-00002.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "modeling_small.py").write_text(REMOTE_CODE)
    write_tokenizer(folder)
    return folder, module


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "page.png"
    Image.linear_gradient("L").resize((120, 180)).convert("RGB").save(path)
    return path


@contextmanager
def silent(_name: str) -> Iterator[None]:
    yield


def test_the_published_checkpoint_loads_into_our_code_tensor_by_tensor(snapshot: tuple[Path, Any], page: Path) -> None:
    folder, module = snapshot
    loaded = load_preset(f"model.path='{folder}'", *SMALL_VIEWS)
    ours = loaded.module.state_dict()
    assert ours.keys() == module.state_dict().keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in module.state_dict().items())
    inputs = loaded.prepare(Sample(sample_id="a", image=page))
    with torch.no_grad():
        expected = module(inputs.ids, views=inputs.views).logits[:, -1]
    assert torch.allclose(loaded.prefill(inputs, silent).logits, expected, atol=1e-5)
    # Tiles 2x3 of side 1, the page of side 2, then: < | grounding |> is unknown to this tokenizer, six known words.
    assert inputs.page_tokens == 3 * 3 + 3 * 2 + 1
    assert loaded.prompt_ids(inputs)[17:][-6:] == [3, 4, 5, 6, 7, 8]
    assert loaded.text([4, 5, 1], strip_special=True) == "the document"
    assert loaded.notes == (
        "the snapshot's weights run in the built-in code: its own code needs CUDA, the device is cpu",
        "dtype float32 used (model.dtype=auto), the model's own is bfloat16",
    )


def test_the_geometry_comes_from_the_snapshots_config(snapshot: tuple[Path, Any]) -> None:
    config = compose_preset(f"model.path='{snapshot[0]}'")
    geometry = adapter_of(config).geometry(config.model)
    assert geometry["sam"] == {
        "layers": 2,
        "width": 32,
        "heads": 2,
        "mlp_width": 128,
        "window": 14,
        "global_layers": (1,),
        "patch": 16,
        "image_size": 256,
        "neck": 256,
        "downsample": (48, 32),
    }
    assert (geometry["clip"]["mlp_width"], geometry["decoder"]["vocab_size"]) == (128, 64)


def test_a_checkpoint_with_a_tensor_missing_is_refused(snapshot: tuple[Path, Any], tmp_path: Path) -> None:
    for file in snapshot[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    second = tmp_path / "model-00002-of-00002.safetensors"
    tensors = load_file(second)
    del tensors["model.view_seperator"]
    save_file(tensors, second)
    with pytest.raises(ConfigError) as error:
        load_preset(f"model.path='{tmp_path}'", *SMALL_VIEWS)
    assert str(error.value) == (
        f"model.path: '{tmp_path}' does not hold tensors (model.view_seperator), it is not a complete DeepSeek-OCR"
    )


def test_a_snapshot_of_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    config = compose_preset(f"model.path='{tmp_path}'")
    file = tmp_path / "config.json"
    assert adapter_of(config).check(config.model) == (
        f"model.path: {file} is not the configuration of DeepSeek-OCR ('language_config' is missing), "
        "set model.path to its snapshot or use model=causal_lm",
    )


def test_the_snapshots_own_code_gets_the_page_as_the_published_forward_takes_it(
    snapshot: tuple[Path, Any], page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "own_code"
    folder.mkdir()
    for file in snapshot[0].iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    projector = {"model.projector.weight": torch.ones(1, 1), "model.projector.bias": torch.zeros(1)}
    save_file(projector, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = load_preset(
        f"model.path='{folder}'",
        *SMALL_VIEWS,
        "model.implementation=remote",
        "model.trust_remote_code=true",
        "model.attention=eager",
    )
    names: list[str] = []

    @contextmanager
    def ranges(name: str) -> Iterator[None]:
        names.append(f"+{name}")
        yield
        names.append(f"-{name}")

    inputs = loaded.prepare(Sample(sample_id="a", image=page))
    step = loaded.prefill(inputs, ranges)
    # Six tiles, a page of side 128, two tiles across and three down, 16 places for the page.
    assert step.logits[0, :5].tolist() == [6.0, 128.0, 2.0, 3.0, 16.0]
    once = ["+sam", "-sam", "+clip", "-clip", "+projector", "-projector"]
    assert names == once * 2
    length = loaded.prompt_tokens(inputs)
    assert loaded.decode(torch.tensor([[3]]), step.state).logits[0, 0].item() == length + 1
    loaded.prefill(inputs, silent)
    assert len(names) == 12


def test_own_code_that_cannot_be_imported_says_what_to_do(
    snapshot: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    for file in snapshot[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    # The published code imports a class that transformers 5 no longer has.
    broken = "from transformers.models.llama.modeling_llama import LlamaFlashAttention2\n"
    (tmp_path / "modeling_small.py").write_text(broken)
    with pytest.raises(ConfigError) as error:
        load_preset(f"model.path='{tmp_path}'", *SMALL_VIEWS, *REMOTE)
    said = str(error.value)
    assert said.startswith("model.implementation: the snapshot's own code could not be loaded (ImportError: ")
    assert said.endswith("use model.implementation=builtin or install what it needs")


def test_code_of_a_snapshot_never_runs_unless_it_is_trusted(snapshot: tuple[Path, Any], tmp_path: Path) -> None:
    for file in snapshot[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ran = tmp_path / "ran"
    (tmp_path / "modeling_small.py").write_text(f"open({str(ran)!r}, 'w')\n")
    with pytest.raises(ConfigError, match=r"^model.trust_remote_code: needed because model.implementation is remote"):
        load_preset(f"model.path='{tmp_path}'", *SMALL_VIEWS, "model.implementation=remote")
    loaded = load_preset(f"model.path='{tmp_path}'", *SMALL_VIEWS)
    assert loaded.notes[0].startswith("the snapshot's weights run in the built-in code: ")
    model = OcrSection(name="x", adapter="y")
    assert _why_not_remote(model, OcrInfer(), {"auto_map": {}}, "cuda:0") == (
        "its own code is not trusted (model.trust_remote_code=false)"
    )
    static = OcrInfer(cache="static")
    assert _why_not_remote(model, static, {"auto_map": {}}, "cuda:0") == "its own code knows no static cache"
    remote = OcrSection(name="x", adapter="y", implementation="remote")
    with pytest.raises(ConfigError, match=r"^infer.cache: the snapshot's own code makes its cache itself"):
        _why_not_remote(remote, static, {"auto_map": {}}, "cuda:0")
    assert not ran.exists()
