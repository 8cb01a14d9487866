"""A decoder-only model in memory: one forward for the prompt, one for each token after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.workload.models.base import RangeFactory, Sample, StepOutput
from llm_perf_opt.workload.models.module_groups import group_modules
from llm_perf_opt.workload.models.tokenizer import show_text


@dataclass(frozen=True, kw_only=True)
class LoadedCausalLM:
    """Keys and values stay in the cache the model makes; the state handed on is that cache."""

    module: Any
    device: str
    dtype: str
    eos_token_ids: frozenset[int]
    notes: tuple[str, ...]
    tokenizer: Any | None
    vocabulary: int
    forward_options: Mapping[str, Any]
    parts: tuple[str, ...] = ()

    def prepare(self, sample: Sample) -> Any:
        ids = list(self._ids_of(sample))
        if not ids:
            raise ProfilingError(f"sample {sample.sample_id}: the prompt has no tokens, give it text or token ids")
        wrong = next((i for i in ids if not 0 <= i < self.vocabulary), None)
        # On a GPU an id out of range ends the process with a device assertion.
        if wrong is not None:
            raise ProfilingError(
                f"sample {sample.sample_id}: token id {wrong} is outside the vocabulary of {self.vocabulary}"
            )
        return torch.tensor([ids], dtype=torch.long, device=self.device)

    def prompt_tokens(self, inputs: Any) -> int:
        return int(inputs.shape[1])

    def prompt_ids(self, inputs: Any) -> Sequence[int]:
        return [int(i) for i in inputs[0].tolist()]

    def prefill(self, inputs: Any, ranges: RangeFactory) -> StepOutput:
        return self._forward(inputs, None)

    def decode(self, token: Any, state: Any) -> StepOutput:
        return self._forward(token, state)

    def text(self, token_ids: Sequence[int], *, strip_special: bool) -> str:
        return show_text(self.tokenizer, token_ids, strip_special=strip_special, special=self.eos_token_ids)

    def module_groups(self) -> Mapping[str, str]:
        return group_modules(self.module)

    def _forward(self, ids: Any, cache: Any) -> StepOutput:
        with torch.no_grad():
            out = self.module(input_ids=ids, past_key_values=cache, **self.forward_options)
        return StepOutput(logits=out.logits[:, -1, :], state=out.past_key_values)

    def _ids_of(self, sample: Sample) -> Sequence[int]:
        if sample.token_ids is not None:
            return sample.token_ids
        if sample.text is None:
            raise ProfilingError(f"sample {sample.sample_id}: a text model needs text or token ids, not a page")
        if self.tokenizer is None:
            raise ProfilingError(
                f"sample {sample.sample_id}: it is text, but the model has no tokenizer; "
                "use dataset=synthetic, or set model.path to a snapshot that brings a tokenizer"
            )
        return [int(i) for i in self.tokenizer(sample.text)["input_ids"]]
