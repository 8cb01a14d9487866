"""The input shape a static analysis assumes, worked out from the configuration alone. Imports no torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_perf_opt.analysis.static.shape import Shape
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.workload.dataset import PAGES
from llm_perf_opt.workload.models.base import ModelAdapter


def shape_from_config(config: AppConfig, adapter: ModelAdapter, geometry: Mapping[str, Any]) -> Shape:
    """A made-up input: a page of `dataset.page_width` × `page_height`, or a prompt as long as the data set's."""
    if adapter.data_kind == PAGES:
        width, height = config.dataset.page_width, config.dataset.page_height
        return page_shape(config, adapter, geometry, width, height, how=f"a made-up page of {width} × {height} pixels")
    if config.dataset.kind == "synthetic":
        return text_shape(config, config.dataset.prompt_tokens, how="a made-up prompt of dataset.prompt_tokens")
    return text_shape(config, config.workload.prompt, how="a made-up prompt of workload.prompt tokens")


def text_shape(config: AppConfig, prompt: int, *, how: str) -> Shape:
    """One sequence at a time, because that is how the workload runs and what its times will be compared with."""
    return _with_context(config, Shape(batch=1, prompt=prompt, context=prompt, how=how))


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
    half = config.infer.max_new_tokens // 2
    return replace(shape, context=shape.prompt + half, how=f"{shape.how}, decode half-way through infer.max_new_tokens")
