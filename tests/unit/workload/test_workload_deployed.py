"""Our own loop as people deploy it: batches, static cache, compiled steps; the tokens stay those of batch 1."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.config.schema import InferSection
from llm_perf_opt.core.names import SOURCE_NODES_FILE
from llm_perf_opt.diagnosis.experiments import load_experiments
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.plugins.memory.watcher import storages_of
from llm_perf_opt.profiling.generated import read_nodes
from llm_perf_opt.workload.dataset import Planned, plan_batches
from llm_perf_opt.workload.generation import BatchPicker, Generator, HostClock, TokenPicker
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.models.compiled_nodes import NoteModules
from llm_perf_opt.workload.models.decode_steps import pad_left
from llm_perf_opt.workload.models.joined import join_projections
from llm_perf_opt.workload.models.quantization import quantize
from llm_perf_opt.workload.nvtx import silent
from tests.support.model_presets import compose_preset, load_preset
from tests.unit.workload.test_models_causal_lm import TINY as GEOMETRY
from tests.unit.workload.test_models_causal_lm import WITHOUT_SDPA

pytestmark = pytest.mark.slow

NEW_TOKENS = 12
JOIN = "model.join_projections=true"
LENGTHS = (23, 9, 17, 30)
TINY = ["llama_tiny", "qwen3_moe_tiny", "deepseek_v2_tiny"]


def samples() -> tuple[Sample, ...]:
    draw = torch.Generator().manual_seed(5)
    return tuple(
        Sample(sample_id=str(n), token_ids=tuple(torch.randint(2, 512, (length,), generator=draw).tolist()))
        for n, length in enumerate(LENGTHS)
    )


def run(preset: str, *overrides: str, batch: bool) -> tuple[tuple[int, ...], ...]:
    loaded = load_preset(f"model={preset}", "dataset=synthetic", f"infer.max_new_tokens={NEW_TOKENS}", *overrides)
    infer = InferSection(max_new_tokens=NEW_TOKENS)
    generator = Generator(loaded, clock=HostClock(), ranges=silent("test"), ignore_eos=True)

    def picker(sample: Sample) -> TokenPicker:
        return TokenPicker(infer, device="cpu", seed=0, prompt_ids=())

    with torch.inference_mode():
        if not batch:
            return tuple(generator.generate(loaded.prepare(s), picker(s), NEW_TOKENS).token_ids for s in samples())
        inputs = loaded.prepare(Sample(sample_id="all", batch=samples()))
        rows = BatchPicker([picker(s) for s in samples()])
        return generator.generate(inputs, rows, NEW_TOKENS).sequences


@pytest.mark.parametrize(
    ("preset", "cache"),
    [
        pytest.param(preset, cache, marks=() if (preset, cache) == (TINY[0], "dynamic") else pytest.mark.long)
        for preset in TINY
        for cache in ("dynamic", "static")
    ],
)
def test_a_ragged_batch_gives_each_sequence_the_tokens_it_gets_alone(preset: str, cache: str) -> None:
    alone = run(preset, batch=False)
    assert len(set(alone)) == len(LENGTHS)
    assert run(preset, f"infer.cache={cache}", batch=True) == alone


@pytest.mark.long
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", WITHOUT_SDPA)
def test_a_ragged_batch_without_sdpa_and_longer_than_the_window_gives_the_same_tokens(
    family: str, cache: str, tmp_path: Path
) -> None:
    geometry = {"model_type": family, **GEOMETRY, **WITHOUT_SDPA[family], "sliding_window": 16}
    (tmp_path / "config.json").write_text(json.dumps(geometry))
    where = (f"model.path='{tmp_path}'", "model.weights=random")
    assert run("causal_lm", *where, f"infer.cache={cache}", batch=True) == run("causal_lm", *where, batch=False)


@pytest.mark.parametrize("preset", [TINY[0], *(pytest.param(name, marks=pytest.mark.long) for name in TINY[1:])])
def test_a_static_cache_changes_no_token_and_is_emptied_between_samples(preset: str) -> None:
    assert run(preset, "infer.cache=static", batch=False) == run(preset, batch=False)


def test_a_static_cache_is_in_the_state_of_every_step_for_whoever_measures_it() -> None:
    model = load_preset("model=llama_tiny", "infer.cache=static")
    with torch.inference_mode():
        first = model.prefill(model.prepare(samples()[0]), silent("test"))
        held = storages_of(first.state)
        second = model.decode(first.logits.argmax(-1, keepdim=True), first.state)
    assert sum(held.values()) > 0 and storages_of(second.state) == held


@pytest.mark.long
def test_a_compiled_step_changes_no_token_and_tells_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    compiled = run("llama_tiny", "infer.cache=static", "infer.compile=default", batch=True)
    assert compiled == run("llama_tiny", batch=False)
    nodes = read_nodes(tmp_path / SOURCE_NODES_FILE)
    assert {"model.layers.0.mlp.act_fn", "model.layers.0.self_attn.q_proj", "model.norm", "lm_head"} <= set(
        nodes.values()
    )


def test_what_notes_modules_can_be_pickled_so_that_stages_share_what_was_compiled() -> None:
    again = pickle.loads(pickle.dumps(NoteModules()))
    assert again.uuid() == NoteModules().uuid() != ""


def test_prompts_of_one_length_are_not_padded_and_shorter_ones_are_on_the_left() -> None:
    even = pad_left([(5, 6), (7, 8)], device="cpu")
    assert (even.ids.tolist(), even.mask) == ([[5, 6], [7, 8]], None)
    ragged = pad_left([(5, 6, 7), (8,)], device="cpu")
    assert ragged.mask is not None
    assert (ragged.ids.tolist(), ragged.mask.tolist()) == ([[5, 6, 7], [0, 0, 8]], [[1, 1, 1], [0, 0, 1]])


def test_every_batch_is_full_and_the_last_one_is_filled_from_the_first_samples() -> None:
    planned = [Planned(epoch=0, sample=Sample(sample_id=name, token_ids=(1,))) for name in "abc"]
    batches = plan_batches(planned, 2)
    assert [[m.sample_id for m in b.sample.members] for b in batches] == [["a", "b"], ["c", "a"]]
    assert [b.sample.sample_id for b in batches] == ["a+b", "c+a"]
    assert plan_batches(planned, 1) == tuple(planned)


class Scripted:
    """A model whose sequences end at different steps: token 31 ends one."""

    device = "cpu"
    eos_token_ids = frozenset([31])
    parts = ()
    notes = ()

    def __init__(self, script: list[list[int]]) -> None:
        self._script = script

    def _step(self, number: int) -> Any:
        from llm_perf_opt.workload.models.base import StepOutput

        logits = torch.zeros(len(self._script), 32)
        for row, tokens in enumerate(self._script):
            logits[row, tokens[number]] = 1.0
        return StepOutput(logits=logits, state=number + 1)

    def prefill(self, inputs: Any, ranges: Any) -> Any:
        return self._step(0)

    def decode(self, token: Any, state: int) -> Any:
        return self._step(state)


def test_a_batch_goes_on_until_its_last_sequence_ends_and_each_keeps_its_own_length() -> None:
    model: Any = Scripted([[1, 31, 9, 9], [2, 3, 31, 9]])
    generator = Generator(model, clock=HostClock(), ranges=silent("test"), ignore_eos=False)
    picker = BatchPicker([TokenPicker(InferSection(), device="cpu", seed=0, prompt_ids=()) for _ in range(2)])
    generation = generator.generate(torch.zeros(2, 1), picker, 8)
    assert (generation.sequences, generation.steps) == (((1, 31), (2, 3, 31)), 2)


def test_sampling_in_a_batch_draws_what_each_sequence_draws_alone() -> None:
    infer = InferSection(temperature=0.8, top_k=5, no_repeat_ngram_size=2)
    logits = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))

    def picker(row: int) -> TokenPicker:
        return TokenPicker(infer, device="cpu", seed=row, prompt_ids=(1, 2))

    together = BatchPicker([picker(row) for row in range(3)]).pick(logits)
    alone = [int(picker(row).pick(logits[row : row + 1])) for row in range(3)]
    assert together.reshape(-1).tolist() == alone


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["infer.compile=default"],
            "infer.cache: infer.compile=default needs a cache that stays where it is (got 'dynamic'), allowed: static",
        ),
        (
            ["infer.cuda_graph=true"],
            "infer.cache: infer.cuda_graph=true needs a cache that stays where it is (got 'dynamic'), allowed: static",
        ),
        (
            ["infer.cache=static", "infer.cuda_graph=true", "infer.compile=reduce-overhead"],
            "infer.cuda_graph: infer.compile=reduce-overhead captures CUDA graphs itself (got true), allowed: false",
        ),
    ],
)
def test_settings_that_cannot_go_together_are_refused_before_anything_runs(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose_preset("model=llama_tiny", *overrides)
    assert str(error.value) == message


def test_without_a_gpu_the_reason_for_no_cuda_graph_is_a_note() -> None:
    loaded = load_preset("model=llama_tiny", "infer.cache=static", "infer.cuda_graph=true")
    assert loaded.notes[-1] == (
        "infer.cuda_graph=true: no CUDA graph was captured, decode steps run without it: the model runs on cpu"
    )


def test_quantisation_without_torchao_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchao", None)
    with pytest.raises(ConfigError) as error:
        quantize(torch.nn.Linear(2, 2), "int8")
    assert str(error.value).startswith("model.quantization: torchao is needed and cannot be imported (")
    assert str(error.value).endswith(
        "(got 'int8'); pip install 'llm-perf-opt[quantization]', or set model.quantization=none"
    )


@pytest.mark.parametrize(
    ("preset", "joined"), [("llama_tiny", 4), pytest.param("qwen3_moe_tiny", 2, marks=pytest.mark.long)]
)
def test_joined_projections_are_fewer_products_for_the_same_tokens(preset: str, joined: int) -> None:
    assert run(preset, "model.join_projections=true", batch=True) == run(preset, batch=False)
    plain, one = (load_preset(f"model={preset}", "dataset=synthetic", *more) for more in ((), (JOIN,)))
    linears = [sum(type(part) is torch.nn.Linear for part in loaded.module.modules()) for loaded in (plain, one)]
    sizes = [sum(p.numel() for p in loaded.module.parameters()) for loaded in (plain, one)]
    assert linears[1] < linears[0] and sizes[1] == sizes[0]
    assert f"projections of one input are joined: {joined} products instead of several each" in one.notes


def test_projections_called_in_another_order_or_with_another_input_are_their_own() -> None:
    owner = torch.nn.Module()
    for name, size in (("q_proj", 6), ("k_proj", 2), ("v_proj", 2)):
        setattr(owner, name, torch.nn.Linear(4, size))
    first, second = torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad():
        wanted = [owner.v_proj(first), owner.q_proj(second), owner.q_proj(first), owner.k_proj(first)]
        join_projections(owner)
        found = [owner.v_proj(first), owner.q_proj(second), owner.q_proj(first), owner.k_proj(first)]
    assert all(torch.allclose(a, b) for a, b in zip(wanted, found, strict=True))


@pytest.mark.long
def test_the_code_a_remedy_gives_to_paste_runs() -> None:
    """That of fixes which need neither a GPU nor another package; a compiled step is made here, not run."""
    threads = torch.get_num_threads()
    ran = []
    for remedy in load_experiments().values():
        if remedy.guard.place == "gpu" or remedy.guard.package is not None or remedy.batch > 1:
            continue
        module = load_preset("model=llama_tiny", "dataset=synthetic").module
        names: dict[str, Any] = {"torch": torch, "model": module, "prompt": 8, "new_tokens": 4}
        try:
            exec(remedy.code, names)
        finally:
            torch.set_num_threads(threads)
        out = names["model"](input_ids=torch.tensor([[1, 2, 3]])).logits
        assert out.shape == (1, 3, 512)
        ran.append(remedy.id)
    assert sorted(ran) == ["bfloat16", "compile", "joined_projections", "one_thread", "sdpa", "static_cache"]
