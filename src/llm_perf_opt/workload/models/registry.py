"""Finds a model adapter by the import path in `model.adapter`."""

import importlib
from typing import cast

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.models.base import ModelAdapter


def load_adapter(path: str) -> ModelAdapter:
    """Import `package.module:ATTRIBUTE`. Importing an adapter must not import torch."""
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"model.adapter: cannot be imported ({error}) (got {path!r}), "
            "allowed: an import path package.module:ADAPTER"
        ) from error
    if attribute not in vars(module):
        raise ConfigError(
            f"model.adapter: {module_name} has no {attribute or 'attribute named'} (got {path!r}), "
            "allowed: an import path package.module:ADAPTER"
        )
    return cast(ModelAdapter, vars(module)[attribute])
