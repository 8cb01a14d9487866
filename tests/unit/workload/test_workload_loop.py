"""The generation loop on a scripted clock: which times it takes, and where the ranges open and close."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from llm_perf_opt.config.schema import InferSection
from llm_perf_opt.workload.generation import Generation, Generator, TokenPicker
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.nvtx import RangeEmitter
from tests.support.workload_fakes import TOKENS


class StepClock:
    """Every reading is one millisecond later than the last; it records the reader."""

    def __init__(self, seen: list[str]) -> None:
        self._ms = 0
        self._seen = seen

    def _tick(self, what: str) -> int:
        self._seen.append(what)
        self._ms += 1
        return self._ms

    def edge_ns(self) -> int:
        return self._tick("edge") * 1_000_000

    def mark(self) -> Any:
        return self._tick("mark")

    def between_ms(self, first: Any, second: Any) -> float:
        return float(second - first)


def run(prompt: Sequence[int], max_new_tokens: int, *, ignore_eos: bool = False) -> tuple[Generation, list[str]]:
    seen: list[str] = []
    ranges = RangeEmitter(push=lambda name: seen.append(f"+{name}"), pop=lambda: seen.append("-"), backend="a list")
    loaded = TOKENS.load(None, None, device="cpu", seed=0)
    infer = InferSection(max_new_tokens=max_new_tokens)
    picker = TokenPicker(infer, device="cpu", seed=0, prompt_ids=())
    generator = Generator(loaded, clock=StepClock(seen), ranges=ranges, ignore_eos=ignore_eos)
    with torch.inference_mode():
        inputs = loaded.prepare(Sample(sample_id="s", token_ids=tuple(prompt)))
        return generator.generate(inputs, picker, max_new_tokens), seen


def test_edges_are_taken_at_phase_ends_only_and_ranges_nest() -> None:
    generation, seen = run([1, 2], 3)
    assert seen == [
        "edge",
        *("+prefill", "+sam", "mark", "mark", "-", "edge", "-"),
        *("mark", "edge"),
        *("+decode", "+decode_step", "mark", "-", "+decode_step", "mark", "-", "edge", "-"),
    ]
    # Looks are 1 ms apart: edges at 1, 4, 6 and 9, marks of tokens at 5, 7 and 8, of sam at 2 and 3.
    assert generation == Generation(
        token_ids=(3, 4, 5),
        prefill_ms=3.0,
        ttft_ms=5.0,
        decode_ms=3.0,
        itl_ms=(2.0, 1.0),
        parts_ms={"sam": 1.0},
        start_ns=1_000_000,
    )


def test_one_token_has_no_decode_time_and_opens_no_decode_range() -> None:
    generation, seen = run([7], 1)
    assert (generation.token_ids, generation.decode_ms, generation.itl_ms) == ((8,), None, ())
    assert "+decode" not in seen


def test_the_end_token_ends_the_sample_and_counts() -> None:
    assert run([27], 20)[0].token_ids == (28, 29, 30, 31)
    assert run([30], 20)[0].token_ids == (31,)


def test_ignore_eos_goes_on_to_the_budget() -> None:
    assert run([29], 5, ignore_eos=True)[0].token_ids == (30, 31, 31, 31, 31)


def test_ranges_are_closed_when_a_forward_fails() -> None:
    seen: list[str] = []
    ranges = RangeEmitter(push=lambda name: seen.append("+"), pop=lambda: seen.append("-"), backend="a list")
    loaded = TOKENS.load(None, None, device="cpu", seed=0)
    picker = TokenPicker(InferSection(), device="cpu", seed=0, prompt_ids=())
    generator = Generator(loaded, clock=StepClock([]), ranges=ranges, ignore_eos=False)
    with pytest.raises(IndexError):
        generator.generate(torch.tensor([[99]]), picker, 4)
    assert seen.count("+") == seen.count("-") > 0
