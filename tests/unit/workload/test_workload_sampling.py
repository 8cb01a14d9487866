"""Picking tokens: greedy, seeded draws, top-k, top-p, and the n-gram rule, also against transformers."""

from typing import Any

import pytest
import torch

from llm_perf_opt.config.schema import InferSection
from llm_perf_opt.workload.generation import Generator, HostClock, NgramBan, TokenPicker, seed_for
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.nvtx import silent
from tests.support.model_presets import load_preset

pytestmark = pytest.mark.slow

LOGITS = torch.tensor([[0.0, 3.0, 1.0, 2.0, -5.0]])


def pick_many(infer: InferSection, *, seed: int = 1, count: int = 200) -> list[int]:
    picker = TokenPicker(infer, device="cpu", seed=seed, prompt_ids=())
    return [int(picker.pick(LOGITS)) for _ in range(count)]


def test_greedy_picks_the_highest_logit_in_the_shape_decode_wants() -> None:
    token = TokenPicker(InferSection(), device="cpu", seed=0, prompt_ids=()).pick(LOGITS)
    assert token.tolist() == [[1]]


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    warm = InferSection(temperature=1.0)
    assert pick_many(warm, seed=7) == pick_many(warm, seed=7)
    assert pick_many(warm, seed=7) != pick_many(warm, seed=8)


def test_top_k_draws_only_from_the_k_best() -> None:
    assert set(pick_many(InferSection(temperature=5.0, top_k=2))) == {1, 3}


def test_top_p_keeps_the_smallest_set_that_reaches_it_and_always_the_first() -> None:
    # Softmax of LOGITS is 0.032, 0.643, 0.087, 0.236, 0.000.
    assert set(pick_many(InferSection(temperature=1.0, top_p=0.6))) == {1}
    assert set(pick_many(InferSection(temperature=1.0, top_p=0.65))) == {1, 3}
    assert set(pick_many(InferSection(temperature=1.0, top_p=0.9), count=2000)) == {1, 2, 3}


def test_a_low_temperature_draws_what_greedy_picks() -> None:
    assert set(pick_many(InferSection(temperature=0.05))) == {1}


def test_the_ngram_rule_bans_what_would_repeat_the_prompt_or_the_output() -> None:
    ban = NgramBan(3, [1, 2, 3, 1, 2])
    assert ban.banned() == [3]
    ban.add(4)
    assert ban.banned() == []
    for token in (1, 2):
        ban.add(token)
    assert ban.banned() == [3, 4]


def test_an_ngram_of_one_bans_every_token_seen() -> None:
    assert NgramBan(1, [5, 2, 5]).banned() == [2, 5]


def test_greedy_with_a_banned_best_token_takes_the_next() -> None:
    picker = TokenPicker(InferSection(no_repeat_ngram_size=1), device="cpu", seed=0, prompt_ids=[1])
    assert picker.reads_tokens
    assert int(picker.pick(LOGITS)) == 3


def test_a_seed_belongs_to_the_sample_and_the_run() -> None:
    assert seed_for(0, "a") == seed_for(0, "a")
    assert len({seed_for(0, "a"), seed_for(0, "b"), seed_for(1, "a")}) == 3


def generate(loaded: Any, ids: tuple[int, ...], infer: InferSection) -> list[int]:
    inputs = loaded.prepare(Sample(sample_id="s", token_ids=ids))
    picker = TokenPicker(infer, device="cpu", seed=0, prompt_ids=loaded.prompt_ids(inputs))
    generator = Generator(loaded, clock=HostClock(), ranges=silent("a test"), ignore_eos=True)
    with torch.inference_mode():
        return list(generator.generate(inputs, picker, infer.max_new_tokens).token_ids)


@pytest.mark.parametrize("size", [0, 2, 3])
def test_our_loop_equals_generate_token_for_token_with_and_without_the_ngram_rule(size: int) -> None:
    loaded = load_preset("model=llama_tiny", "dataset=synthetic")
    ids = tuple(range(3, 15)) * 2
    theirs = loaded.module.generate(
        torch.tensor([ids]),
        max_new_tokens=24,
        do_sample=False,
        no_repeat_ngram_size=size,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(ids) :].tolist()
    assert generate(loaded, ids, InferSection(max_new_tokens=24, no_repeat_ngram_size=size)) == theirs
