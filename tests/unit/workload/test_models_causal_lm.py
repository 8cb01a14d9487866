"""Decoder-only models: random weights, snapshots, and greedy decoding token for token as `generate` does it."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.config.schema import ModelSection
from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.models.causal_lm import ADAPTER
from llm_perf_opt.workload.models.random_weights import require_room
from llm_perf_opt.workload.models.registry import Choice, choose_attention, choose_dtype
from llm_perf_opt.workload.models.snapshot import read_config
from tests.support.model_presets import adapter_of, compose_preset, load_preset

pytestmark = pytest.mark.slow

PROMPT = tuple(range(7, 30))
NEW_TOKENS = 24


def no_range(_name: str) -> Any:
    return nullcontext()


def decode_greedily(loaded: Any, sample: Sample, count: int) -> list[int]:
    step = loaded.prefill(loaded.prepare(sample), no_range)
    ids: list[int] = []
    for _ in range(count):
        token = step.logits.argmax(dim=-1, keepdim=True)
        ids.append(int(token))
        step = loaded.decode(token, step.state)
    return ids


@pytest.mark.parametrize(
    "preset", ["llama_tiny", *(pytest.param(n, marks=pytest.mark.long) for n in ("qwen3_moe_tiny", "deepseek_v2_tiny"))]
)
def test_greedy_decoding_equals_generate_token_for_token(preset: str) -> None:
    loaded = load_preset(f"model={preset}", "dataset=synthetic")
    ours = decode_greedily(loaded, Sample(sample_id="a", token_ids=PROMPT), NEW_TOKENS)
    ids = torch.tensor([PROMPT])
    theirs = loaded.module.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
    )
    assert ours == theirs[0, len(PROMPT) :].tolist()
    # A model whose weights were never set would repeat one token for ever.
    assert len(set(ours)) > 3


def test_a_prefill_gives_the_logits_of_the_last_position_only() -> None:
    loaded = load_preset("model=llama_tiny", "dataset=synthetic")
    inputs = loaded.prepare(Sample(sample_id="a", token_ids=PROMPT))
    step = loaded.prefill(inputs, no_range)
    whole = loaded.module(inputs).logits
    assert step.logits.shape == (1, 512)
    assert torch.allclose(step.logits, whole[:, -1], atol=1e-5)
    assert (loaded.prompt_tokens(inputs), loaded.prompt_ids(inputs)) == (len(PROMPT), list(PROMPT))


def test_random_weights_depend_on_the_seed_alone_and_norms_and_rotary_tables_are_real() -> None:
    one, same, other = (load_preset("model=llama_tiny", "dataset=synthetic", seed=s).module for s in (3, 3, 4))
    q = "model.layers.0.self_attn.q_proj.weight"
    state = [m.state_dict() for m in (one, same, other)]
    assert all(torch.equal(a, b) for a, b in zip(state[0].values(), state[1].values(), strict=True))
    assert not torch.equal(state[0][q], state[2][q])
    assert not torch.equal(state[0][q], state[0]["model.layers.1.self_attn.q_proj.weight"])
    assert abs(float(state[0][q].std()) - 64**-0.5) < 0.01
    assert torch.equal(state[0]["model.norm.weight"], torch.ones(64))
    expected = 500000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float32) / 16)
    assert torch.allclose(one.model.rotary_emb.inv_freq, expected)


def test_random_weights_spread_tokens_over_all_experts() -> None:
    loaded = load_preset("model=qwen3_moe_tiny", "dataset=synthetic")
    chosen: list[torch.Tensor] = []
    for name, part in loaded.module.named_modules():
        if name.endswith(".mlp.experts"):
            part.register_forward_pre_hook(lambda _module, args: chosen.append(args[1]))
    ids = torch.randint(2, 512, (256,), generator=torch.Generator().manual_seed(0)).tolist()
    loaded.prefill(loaded.prepare(Sample(sample_id="a", token_ids=tuple(ids))), no_range)
    assert len(chosen) == 2
    for layer in chosen:
        load = torch.bincount(layer.reshape(-1), minlength=8) / (256 * 2 / 8)
        assert 0.3 < float(load.min()) <= float(load.max()) < 2.0


def test_weights_that_share_a_tensor_take_its_memory_once_while_loading() -> None:
    made: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.empty_like.default and found.device.type == "cpu":
                made.append(found.nbytes)
            return found

    with Watch():
        loaded = load_preset("model=llama_tiny", "dataset=synthetic", "model.geometry.tie_word_embeddings=true")
    weights = {p.data_ptr(): p.nbytes for p in loaded.module.parameters()}
    buffers = sum(b.nbytes for b in loaded.module.buffers())
    assert sum(made) == sum(weights.values()) + buffers


def test_tied_embeddings_stay_one_tensor_with_random_weights() -> None:
    loaded = load_preset("model=llama_tiny", "dataset=synthetic", "model.geometry.tie_word_embeddings=true")
    assert loaded.module.lm_head.weight is loaded.module.model.embed_tokens.weight
    assert sum(p.numel() for p in loaded.module.parameters()) == 164_160 - 512 * 64


def test_without_a_tokenizer_the_text_is_the_ids_and_text_prompts_are_refused() -> None:
    loaded = load_preset("model=llama_tiny", "dataset=synthetic")
    assert loaded.text([5, 9, 1], strip_special=False) == "[5] [9] [1]"
    assert loaded.text([5, 9, 1], strip_special=True) == "[5] [9]"
    with pytest.raises(ProfilingError) as error:
        loaded.prepare(Sample(sample_id="p-1", text="hello"))
    assert str(error.value) == (
        "sample p-1: it is text, but the model has no tokenizer; "
        "use dataset=synthetic, or set model.path to a snapshot that brings a tokenizer"
    )


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (Sample(sample_id="x", token_ids=(5, 512)), "sample x: token id 512 is outside the vocabulary of 512"),
        (Sample(sample_id="x", token_ids=()), "sample x: the prompt has no tokens, give it text or token ids"),
        (Sample(sample_id="x", image=Path("a.png")), "sample x: a text model needs text or token ids, not a page"),
    ],
)
def test_a_sample_that_cannot_be_run_is_refused_by_name(sample: Sample, message: str) -> None:
    loaded = load_preset("model=llama_tiny", "dataset=synthetic")
    with pytest.raises(ProfilingError) as error:
        loaded.prepare(sample)
    assert str(error.value) == message


def test_module_groups_of_a_mixture_of_experts_do_not_overlap() -> None:
    groups = load_preset("model=deepseek_v2_tiny", "dataset=synthetic").module_groups()
    layer = {
        name.removeprefix("model.layers.1."): g for name, g in groups.items() if name.startswith("model.layers.1.")
    }
    assert layer == {
        "self_attn": "attention",
        "mlp.experts": "experts",
        "mlp.gate": "router",
        "mlp.shared_experts": "experts",
        "input_layernorm": "norm",
        "post_attention_layernorm": "norm",
    }
    assert (groups["model.embed_tokens"], groups["model.layers.0.mlp"], groups["lm_head"]) == (
        "embedding",
        "mlp",
        "lm_head",
    )
    assert not [a for a in groups for b in groups if b.startswith(a + ".")]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real snapshot of a tiny Llama with a tokenizer of eight words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("snapshot")
    load_preset("model=llama_tiny", "dataset=synthetic").module.save_pretrained(folder)
    words = {w: i for i, w in enumerate(["<s>", "</s>", "<unk>", "the", "cat", "sat", "on", "mat"])}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


def test_a_snapshot_round_trips_through_the_adapter(snapshot: Path) -> None:
    loaded = load_preset("model=causal_lm", f"model.path='{snapshot}'", "dataset=synthetic")
    made = load_preset("model=llama_tiny", "dataset=synthetic")
    inputs = loaded.prepare(Sample(sample_id="a", text="the cat sat on the mat"))
    assert loaded.prompt_ids(inputs) == [3, 4, 5, 6, 3, 7]
    assert loaded.text([3, 4, 1], strip_special=True) == "the cat"
    assert loaded.text([3, 4, 1], strip_special=False) == "the cat </s>"
    assert (loaded.eos_token_ids, loaded.dtype, loaded.notes, loaded.parts) == (frozenset({1}), "float32", (), ())
    sample = Sample(sample_id="a", token_ids=PROMPT)
    assert decode_greedily(loaded, sample, 12) == decode_greedily(made, sample, 12)


def test_random_weights_can_take_only_the_config_of_a_snapshot(snapshot: Path) -> None:
    loaded = load_preset("model=causal_lm", f"model.path='{snapshot}'", "model.weights=random", "dataset=synthetic")
    assert sum(p.numel() for p in loaded.module.parameters()) == 164_160
    assert loaded.notes == ("weights are random: the text means nothing",)
    assert loaded.text([4, 5], strip_special=False) == "cat sat"


def test_a_snapshot_in_another_dtype_and_attention_says_so(snapshot: Path) -> None:
    where = f"model.path='{snapshot}'"
    loaded = load_preset(
        "model=causal_lm", where, "dataset=synthetic", "model.dtype=bfloat16", "model.attention=flash_attention_2"
    )
    assert loaded.module.dtype == torch.bfloat16
    assert loaded.module.config._attn_implementation == "sdpa"
    assert loaded.notes == (
        "dtype bfloat16 used (model.dtype=bfloat16), the model's own is float32",
        "flash_attention_2 is not installed, sdpa used instead",
    )


TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "sliding_window": 64,
}
WITHOUT_SDPA: dict[str, dict[str, float]] = {
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 32},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("family", WITHOUT_SDPA)
def test_a_model_without_sdpa_runs_with_what_its_code_has(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **TINY, **WITHOUT_SDPA[family]}))
    where = (f"model.path='{tmp_path}'", "model.weights=random", "dataset=synthetic")
    loaded = load_preset("model=causal_lm", *where)
    assert loaded.notes == (
        "weights are random: the text means nothing",
        "the model's code has no sdpa attention, eager used instead",
    )
    assert len(decode_greedily(loaded, Sample(sample_id="a", token_ids=PROMPT), NEW_TOKENS)) == NEW_TOKENS
    # Random weights are those of the seed, also where the model's own rule draws them.
    torch.manual_seed(99)
    again = load_preset("model=causal_lm", *where).module.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in loaded.module.state_dict().items())


def problems_of(*overrides: str) -> tuple[str, ...]:
    config = compose_preset("dataset=synthetic", *overrides)
    return adapter_of(config).check(config.model)


def test_a_path_that_is_no_snapshot_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    bare, pickled = tmp_path / "bare", tmp_path / "pickled"
    bare.mkdir()
    pickled.mkdir()
    (pickled / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (pickled / "pytorch_model.bin").write_bytes(b"")
    gone = tmp_path / "gone"
    assert problems_of("model=causal_lm", f"model.path='{gone}'") == (
        f"model.path: no such folder (got '{gone}'), download the snapshot there or set model.path",
    )
    assert problems_of("model=causal_lm", f"model.path='{bare}'") == (
        f"model.path: no config.json in '{bare}', set it to the folder of a Hugging Face snapshot",
    )
    assert problems_of("model=causal_lm", f"model.path='{pickled}'") == (
        f"model.path: no *.safetensors in '{pickled}' (found pytorch_model.bin, convert to safetensors), "
        "or use model.weights=random",
    )
    assert problems_of("model=llama3_8b", f"model.path='{pickled}'") == (
        f"model.path: given together with model.geometry (got '{pickled}'), set model.weights=snapshot to load it, "
        "or model.geometry=null to take only its config.json",
    )


def test_a_broken_config_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    config = compose_preset("model=causal_lm", f"model.path='{tmp_path}'", "model.weights=random", "dataset=synthetic")
    with pytest.raises(ConfigError) as error:
        adapter_of(config).load(config.model, config.infer, device="cpu", seed=0)
    assert str(error.value).startswith(f"model.path: {tmp_path / 'config.json'} could not be read (Expecting")


def test_a_geometry_transformers_cannot_build_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model\.geometry: transformers cannot build a decoder-only model from it"):
        load_preset("model=llama_tiny", "dataset=synthetic", "model.geometry.model_type=no_such_model")


@pytest.mark.parametrize(
    ("asked", "device", "stored", "choice"),
    [
        ("auto", "cuda:0", "bfloat16", Choice(value="bfloat16")),
        ("auto", "cpu", None, Choice(value="float32")),
        (
            "auto",
            "cpu",
            "bfloat16",
            Choice(value="float32", notes=("dtype float32 used (model.dtype=auto), the model's own is bfloat16",)),
        ),
        ("float16", "cuda:0", "float16", Choice(value="float16")),
    ],
)
def test_the_dtype_is_chosen_by_device_and_a_change_is_stated(
    asked: str, device: str, stored: str | None, choice: Choice
) -> None:
    assert choose_dtype(asked, device=device, stored=stored) == choice


@pytest.mark.parametrize(
    ("asked", "device", "dtype", "installed", "choice"),
    [
        ("auto", "cuda:0", "bfloat16", True, Choice(value="sdpa")),
        ("eager", "cpu", "float32", False, Choice(value="eager")),
        ("flash_attention_2", "cuda:0", "bfloat16", True, Choice(value="flash_attention_2")),
        (
            "flash_attention_2",
            "cpu",
            "float32",
            True,
            Choice(value="sdpa", notes=("flash_attention_2 does not run on cpu, sdpa used instead",)),
        ),
        (
            "flash_attention_2",
            "cuda:0",
            "float32",
            True,
            Choice(value="sdpa", notes=("flash_attention_2 does not run in float32, sdpa used instead",)),
        ),
    ],
)
def test_flash_attention_that_cannot_run_becomes_sdpa_and_says_why(
    asked: str, device: str, dtype: str, installed: bool, choice: Choice
) -> None:
    assert choose_attention(asked, device=device, dtype=dtype, flash_installed=installed) == choice


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", 10**12), ("num_hidden_layers", 10**9), ("num_attention_heads", 10**6)]
)
def test_sizes_no_model_has_are_refused_before_anything_is_built(tmp_path: Path, key: str, value: int) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=rf"config.json: {key}: too large \(got {value}\), allowed: at most "):
        read_config(tmp_path)
    model = ModelSection(name="x", adapter="y", weights="random", geometry=config)
    (problem,) = ADAPTER.check(model)
    assert problem.startswith(f"model.geometry.{key}: too large (got {value})")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": NaN}', '{"a": ' + "9" * 5000 + "}", "\x00", '{"a": 1e999}'])
def test_a_damaged_configuration_is_said_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_model_the_device_has_no_room_for_is_refused_before_memory_is_taken() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(1 << 24, 1 << 24)
    with pytest.raises(ConfigError, match=r"^model: its weights take 1,125,900\.0 GB, cpu has "):
        require_room(module, device="cpu")
