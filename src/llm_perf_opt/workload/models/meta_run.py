"""One forward on the meta device, for modules that are called as those of `transformers` are."""

import inspect
from collections.abc import Mapping
from typing import Any

from llm_perf_opt.model.hardware.work import Shape


def text_prefill(module: Any, shape: Shape) -> Any:
    """A prompt of token ids into an empty cache; returns the cache."""
    import torch

    ids = torch.zeros(shape.batch, shape.prompt, dtype=torch.long, device="meta")
    return getattr(module(input_ids=ids, use_cache=True, **last_logits(module)), _cache_name(module))


def text_decode(module: Any, shape: Shape, cache: Any) -> None:
    """One more token for each sequence."""
    import torch

    ids = torch.zeros(shape.batch, 1, dtype=torch.long, device="meta")
    module(input_ids=ids, use_cache=True, **{_cache_name(module): cache}, **last_logits(module))


def cache_elements(state: Any) -> int:
    """Numbers that a cache keeps, of any kind: keys and values, latents, states, keys of an indexer."""
    import torch

    seen: set[int] = set()
    found, left = 0, [state]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found += one.numel() if one.is_floating_point() else 0
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        elif type(one).__module__.startswith("transformers.") and "config" not in type(one).__module__:
            left += vars(one).values()
    return found


def _cache_name(module: Any) -> str:
    """What a module calls its cache: models that keep a state alone have their own name for it."""
    names = inspect.signature(module.forward).parameters
    return next((name for name in ("past_key_values", "cache_params", "state") if name in names), "past_key_values")


def last_logits(module: Any) -> dict[str, int]:
    """The option for logits of the last position alone, which not every module has."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(module.forward).parameters else {}
