"""One forward on the meta device, for modules that are called as those of `transformers` are."""

import inspect
from typing import Any

from llm_perf_opt.analysis.hardware.work import Shape


def text_prefill(module: Any, shape: Shape) -> Any:
    """A prompt of token ids into an empty cache; returns the cache."""
    import torch

    ids = torch.zeros(shape.batch, shape.prompt, dtype=torch.long, device="meta")
    return module(input_ids=ids, use_cache=True, **last_logits(module)).past_key_values


def text_decode(module: Any, shape: Shape, cache: Any) -> None:
    """One more token for each sequence."""
    import torch

    ids = torch.zeros(shape.batch, 1, dtype=torch.long, device="meta")
    module(input_ids=ids, past_key_values=cache, use_cache=True, **last_logits(module))


def last_logits(module: Any) -> dict[str, int]:
    """The option for logits of the last position alone, which not every module has."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(module.forward).parameters else {}
