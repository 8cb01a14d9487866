"""How a decoder-only model steps: with a growing or a static cache, eager, compiled, or replayed from a CUDA graph.

Prefill is always eager: prompts differ in length, and it is the decode step that is run again and again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from llm_perf_opt.config.schema import InferSection
from llm_perf_opt.workload.models.base import StepOutput
from llm_perf_opt.workload.models.repeated_step import RepeatedStep, cache_length


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Prompts of one batch, [sequences, positions]. `mask` is 0 at the padding on the left; None: nothing is padded."""

    ids: Any
    mask: Any | None


def pad_left(prompts: Sequence[Sequence[int]], *, device: str) -> Prompts:
    """One batch of prompts of any length; shorter ones are padded on the left with token 0 and masked."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], dtype=torch.long, device=device)
    if all(len(prompt) == longest for prompt in prompts):
        return Prompts(ids=ids, mask=None)
    rows = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    return Prompts(ids=ids, mask=torch.tensor(rows, dtype=torch.long, device=device))


class Steps(Protocol):
    """Prefill and decode of one model. `notes` are what did not go as asked."""

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def replays_graph(self) -> bool: ...

    def prefill(self, prompts: Prompts) -> StepOutput: ...

    def decode(self, token: Any, state: Any) -> StepOutput: ...


def choose_steps(module: Any, infer: InferSection, options: Mapping[str, Any], *, device: str) -> Steps:
    """The steps `infer.cache`, `infer.compile` and `infer.cuda_graph` ask for."""
    if infer.cache == "dynamic":
        return GrowingSteps(module, options)
    return StaticSteps(module, infer, options, device=device)


@dataclass(frozen=True, kw_only=True)
class Padding:
    """What a padded batch carries from step to step: the whole mask so far, and each sequence's next position."""

    mask: Any
    positions: Any


class GrowingSteps:
    """The cache the model makes itself grows with every token; the state handed on is that cache and the padding."""

    notes: tuple[str, ...] = ()
    replays_graph = False

    def __init__(self, module: Any, options: Mapping[str, Any]) -> None:
        self._module = module
        self._options = options

    def prefill(self, prompts: Prompts) -> StepOutput:
        if prompts.mask is None:
            return self._forward(prompts.ids, None, None, {})
        positions = _positions(prompts.mask)
        padding = Padding(mask=prompts.mask, positions=positions[:, -1:] + 1)
        return self._forward(prompts.ids, None, padding, {"attention_mask": prompts.mask, "position_ids": positions})

    def decode(self, token: Any, state: Any) -> StepOutput:
        cache, padding = state
        if padding is None:
            return self._forward(token, cache, None, {})
        mask = torch.cat([padding.mask, padding.mask.new_ones(padding.mask.shape[0], 1)], dim=1)
        grown = Padding(mask=mask, positions=padding.positions + 1)
        return self._forward(token, cache, grown, {"attention_mask": mask, "position_ids": padding.positions})

    def _forward(self, ids: Any, cache: Any, padding: Padding | None, given: Mapping[str, Any]) -> StepOutput:
        with torch.no_grad():
            out = self._module(input_ids=ids, past_key_values=cache, **given, **self._options)
        return StepOutput(logits=out.logits[:, -1, :], state=(out.past_key_values, padding))


class StaticSteps:
    """One cache of a fixed length at a fixed address, emptied for every batch, so that a step can be compiled or
    captured once.

    Mask and positions of a batch are buffers too: the mask is 1 at every place that is not padding, and the model's own
    causal mask hides those not written yet.
    """

    def __init__(self, module: Any, infer: InferSection, options: Mapping[str, Any], *, device: str) -> None:
        self._module = module
        self._options = options
        self._device = device
        self._new_tokens = infer.max_new_tokens
        self._step = RepeatedStep(self._forward, infer, device=device)
        self._cache: Any = None
        self._mask: Any = None
        self._positions: Any = None

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._step.notes)

    @property
    def replays_graph(self) -> bool:
        return self._step.replays_graph

    def prefill(self, prompts: Prompts) -> StepOutput:
        batch, longest = prompts.ids.shape
        self._open(batch, longest + self._new_tokens)
        mask = torch.ones_like(prompts.ids) if prompts.mask is None else prompts.mask
        self._mask.fill_(1)
        self._mask[:, :longest] = mask
        positions = _positions(mask)
        self._positions.copy_(positions[:, -1:] + 1)
        with torch.no_grad():
            out = self._module(
                input_ids=prompts.ids,
                past_key_values=self._cache,
                position_ids=positions,
                **({} if prompts.mask is None else {"attention_mask": prompts.mask}),
                **self._options,
            )
        return StepOutput(logits=out.logits[:, -1, :], state=self._cache)

    def decode(self, token: Any, state: Any) -> StepOutput:
        logits = self._step.run(token, (self._positions, self._mask))
        return StepOutput(logits=logits, state=self._cache)

    def _forward(self, token: Any, positions: Any, mask: Any) -> Any:
        out = self._module(
            input_ids=token,
            past_key_values=self._cache,
            position_ids=positions,
            # One sequence is never padded, and a mask of ones would only be looked through.
            attention_mask=mask if token.shape[0] > 1 else None,
            **self._options,
        )
        return out.logits[:, -1, :]

    def _open(self, batch: int, tokens: int) -> None:
        """An empty cache with room for this many tokens: the one there is, or a new one where it is too small."""
        from transformers import StaticCache

        if self._mask is not None and self._mask.shape[0] == batch and self._mask.shape[1] >= tokens:
            # A second prompt into a cache that was not emptied writes behind its end.
            self._cache.reset()
            return
        length = cache_length(tokens)
        self._cache = StaticCache(config=self._module.config, max_cache_len=length)
        self._mask = torch.ones(batch, length, dtype=torch.long, device=self._device)
        self._positions = torch.zeros(batch, 1, dtype=torch.long, device=self._device)
        for buffer in (self._mask, self._positions):
            torch._dynamo.mark_static_address(buffer)
        self._step.start_over(counter=self._positions, also_moved=self._lengths, no_graph=self._why_no_graph)

    def _lengths(self) -> list[Any]:
        return [layer.cumulative_length for layer in self._cache.layers]

    def _why_no_graph(self) -> str | None:
        return "layers with a sliding window count their tokens on the host" if any(self._cache.is_sliding) else None


def _positions(mask: Any) -> Any:
    """Each token's place in its own sequence; padding counts as the first place."""
    return (mask.cumsum(dim=1) - 1).clamp(min=0)
