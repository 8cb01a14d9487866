"""What the stage static_analysis and its counting child agree on: the input assumed, the files the child answers in."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.errors import ParseError
from llm_perf_opt.model.hardware.hardware import Calibration, Device
from llm_perf_opt.model.hardware.work import Shape
from llm_perf_opt.model.static.operator_count import Count, count_operators
from llm_perf_opt.workload.dataset import PAGES
from llm_perf_opt.workload.models.base import ModelAdapter
from llm_perf_opt.workload.models.meta_run import cache_elements


def shape_from_config(config: AppConfig, adapter: ModelAdapter, geometry: Mapping[str, Any]) -> Shape:
    """A synthetic input: a page of `dataset.page_width` × `page_height`, or a prompt as long as the data set's."""
    if config.workload.command is not None:
        return text_shape(config, config.workload.prompt, how=f"a prompt of {config.workload.prompt} tokens")
    if adapter.data_kind == PAGES:
        width, height = config.dataset.page_width, config.dataset.page_height
        return page_shape(
            config, adapter, geometry, width, height, how=f"a synthetic page of {width} × {height} pixels"
        )
    if config.dataset.kind == "synthetic":
        return text_shape(config, config.dataset.prompt_tokens, how="a synthetic prompt of dataset.prompt_tokens")
    return text_shape(config, config.workload.prompt, how="a synthetic prompt of workload.prompt tokens")


def text_shape(config: AppConfig, prompt: int, *, how: str) -> Shape:
    """As many sequences at once as the workload runs, because its times will be compared with this."""
    return _with_context(config, Shape(batch=batch_that_runs(config), prompt=prompt, context=prompt, how=how))


def batch_that_runs(config: AppConfig) -> int:
    """Our own loop runs `infer.batch` sequences at once; of another program only the user knows."""
    return config.infer.batch if config.workload.command is None else config.workload.batch


def page_shape(
    config: AppConfig, adapter: ModelAdapter, geometry: Mapping[str, Any], width: int, height: int, *, how: str
) -> Shape:
    """A page of this size with the configured prompt around it; pages come one at a time."""
    page = adapter.page_prompt(geometry, config.infer, width=width, height=height)
    return _with_context(config, Shape(batch=1, prompt=page.tokens, context=page.tokens, how=how, views=page.views))


def _with_context(config: AppConfig, shape: Shape) -> Shape:
    """Decode at the given context, or half-way through the tokens that will be generated: the mean of all steps."""
    given = config.workload.context
    if given is not None:
        return replace(shape, context=given)
    is_ours = config.workload.command is None
    output = config.infer.max_new_tokens if is_ours else config.workload.output or 0
    how = f"{shape.how}, decode half-way through {'infer.max_new_tokens' if is_ours else 'the output'}"
    return replace(shape, context=shape.prompt + output // 2, end=shape.prompt + output, how=how)


FACTS_FILE = "facts.json"
COUNTS_FILE = "counts.json"
PARAMETERS_FILE = "parameters.json"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the child found out before it counted."""

    device: Device
    dtype: str
    shape: Shape
    calibration: Calibration | None
    notes: tuple[str, ...] = ()


def write_facts(folder: Path, facts: Facts) -> Path:
    return _write(folder / FACTS_FILE, facts)


def write_counts(folder: Path, counts: Mapping[str, Count]) -> Path:
    """The counts by phase."""
    return _write(folder / COUNTS_FILE, counts)


def write_parameters(folder: Path, parameters: Mapping[str, int]) -> Path:
    """Parameters of the module that was counted, by module group."""
    return _write(folder / PARAMETERS_FILE, parameters)


def read_facts(folder: Path) -> Facts | None:
    """None where the child did not get as far as writing it."""
    return _read(folder / FACTS_FILE, Facts)


def read_counts(folder: Path) -> dict[str, Count]:
    """Empty where the child did not finish counting."""
    return _read(folder / COUNTS_FILE, dict[str, Count]) or {}


def read_parameters(folder: Path) -> dict[str, int]:
    """Empty where the child did not get as far as building the module."""
    return _read(folder / PARAMETERS_FILE, dict[str, int]) or {}


def _write(path: Path, data: Any) -> Path:
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(msgspec.json.encode(data))
    scratch.replace(path)
    return path


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{path}: cannot be read ({error})") from error


def count_phases(adapter: ModelAdapter, module: Any, groups: Mapping[str, str], shape: Shape) -> dict[str, Count]:
    """One prefill and one decode step on the meta device."""
    import torch

    with torch.no_grad():
        counts = {}
        counts[PREFILL], state = count_operators(module, groups, lambda: adapter.meta_prefill(module, shape))
        if shape.context != shape.prompt:
            # Image tokens are tokens like any other to the cache, so a text of the context's length fills it.
            text = replace(shape, prompt=shape.context, views=())
            _, state = count_operators(module, {}, lambda: adapter.meta_prefill(module, text))
        kept = cache_elements(state)
        step, _ = count_operators(module, groups, lambda: adapter.meta_decode(module, shape, state))
        counts[DECODE] = replace(step, cache_elements=kept or None)
    return counts
