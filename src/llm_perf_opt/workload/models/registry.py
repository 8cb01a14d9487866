"""Finds a model adapter by the import path in `model.adapter`.

Which dtype and attention a model runs with, and what to say where that is not what one would expect.
"""

import importlib
from dataclasses import dataclass
from typing import Any, cast

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.models.base import ModelAdapter, PageFiles

_NEEDED = ("config_cls", "infer_cls", "data_kind", "check", "geometry", "load")
# Adapters by the name they had up to version 0.2, for presets of users.
_MOVED = {"llm_perf_opt.workload.models.deepseek_ocr": "llm_perf_opt.plugins.deepseek_ocr"}


def load_adapter(path: str) -> ModelAdapter:
    """Import `package.module:ATTRIBUTE`. Importing an adapter must not import torch."""
    module_name, _, attribute = path.partition(":")
    module_name = _MOVED.get(module_name, module_name)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError, ValueError, NameError, AttributeError, TypeError) as error:
        # A module of the user's own may be wrong in any of these ways.
        raise ConfigError(
            f"model.adapter: cannot be imported ({error}) (got {path!r}), "
            "allowed: an import path package.module:ADAPTER"
        ) from error
    if attribute not in vars(module):
        raise ConfigError(
            f"model.adapter: {module_name} has no {attribute or 'attribute named'} (got {path!r}), "
            "allowed: an import path package.module:ADAPTER"
        )
    adapter = vars(module)[attribute]
    missing = [name for name in _NEEDED if name not in dir(adapter)]
    if missing:
        raise ConfigError(
            f"model.adapter: {path} is not an adapter, it has no {missing[0]} (got {path!r}), "
            "allowed: an import path package.module:ADAPTER"
        )
    return cast(ModelAdapter, adapter)


def page_files_of(adapter: ModelAdapter) -> PageFiles | None:
    """What the adapter does with pages besides reading them; None where it offers nothing."""
    return cast("PageFiles | None", getattr(adapter, "page_files", None))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A setting as it will be used, and the note to show when it needs one."""

    value: str
    notes: tuple[str, ...] = ()


def choose_dtype(asked: str, *, device: str, stored: str | None) -> Choice:
    """`auto` is bfloat16 on CUDA and float32 on a CPU, where half precision is often slower."""
    value = asked
    if asked == "auto":
        value = "bfloat16" if device.startswith("cuda") else "float32"
    if stored is None or stored == value:
        return Choice(value=value)
    return Choice(value=value, notes=(f"dtype {value} used (model.dtype={asked}), the model's own is {stored}",))


def choose_attention(asked: str, *, device: str, dtype: str, flash_installed: bool) -> Choice:
    """`auto` is sdpa; flash and flex attention fall back to sdpa where they cannot run, and say so."""
    if asked == "auto":
        return Choice(value="sdpa")
    if asked == "flex_attention" and not device.startswith("cuda"):
        return Choice(value="sdpa", notes=(f"flex_attention does not run on {device}, sdpa used instead",))
    if asked != "flash_attention_2":
        return Choice(value=asked)
    if not flash_installed:
        reason = "flash_attention_2 is not installed"
    elif not device.startswith("cuda"):
        reason = f"flash_attention_2 does not run on {device}"
    elif dtype == "float32":
        reason = "flash_attention_2 does not run in float32"
    else:
        return Choice(value=asked)
    return Choice(value="sdpa", notes=(f"{reason}, sdpa used instead",))


def torch_dtype(name: str) -> Any:
    """The torch dtype of a name the configuration allows."""
    import torch

    return {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[name]
