"""The input shape a static analysis assumes, worked out from the configuration alone. Imports no torch."""

from dataclasses import replace

from llm_perf_opt.analysis.static.architecture import Model, OcrModel
from llm_perf_opt.analysis.static.shape import Shape
from llm_perf_opt.analysis.static.vision_form import View
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.models.deepseek_ocr.adapter import OcrInfer
from llm_perf_opt.workload.models.deepseek_ocr.preprocess import (
    IMAGE_MARK,
    ViewSizes,
    choose_grid,
    count_page_tokens,
    count_tile_tokens,
    hash_words,
)


def shape_from_config(config: AppConfig, model: Model) -> Shape:
    """A made-up input: a page of `dataset.page_width` × `page_height`, or a prompt as long as the data set's."""
    if isinstance(model, OcrModel):
        width, height = config.dataset.page_width, config.dataset.page_height
        return page_shape(config, model, width, height, how=f"a made-up page of {width} × {height} pixels")
    if config.dataset.kind == "synthetic":
        return text_shape(config, config.dataset.prompt_tokens, how="a made-up prompt of dataset.prompt_tokens")
    return text_shape(config, config.workload.prompt, how="a made-up prompt of workload.prompt tokens")


def text_shape(config: AppConfig, prompt: int, *, how: str) -> Shape:
    """One sequence at a time, because that is how the workload runs and what its times will be compared with."""
    return _with_context(config, Shape(batch=1, prompt=prompt, context=prompt, how=how))


def page_shape(
    config: AppConfig, model: OcrModel, width: int, height: int, *, how: str, text_tokens: int | None = None
) -> Shape:
    """A page of this size with the configured prompt around it; pages come one at a time."""
    infer = config.infer
    if not isinstance(infer, OcrInfer):
        raise ConfigError("infer: not the section of a model that reads pages")
    sizes = ViewSizes(
        base_size=infer.base_size,
        image_size=infer.image_size,
        patch_size=infer.patch_size,
        downsample_ratio=infer.downsample_ratio,
    )
    grid = choose_grid(width, height, image_size=infer.image_size) if infer.crop_mode else (1, 1)
    tiles = () if grid == (1, 1) else (View(size=infer.image_size, count=grid[0] * grid[1]),)
    if text_tokens is None:
        text_tokens = _word_count(infer.prompt, model.decoder.vocab)
    prompt = 1 + text_tokens + count_tile_tokens(grid, sizes) + count_page_tokens(sizes)
    views = (*tiles, View(size=infer.base_size, count=1))
    return _with_context(config, Shape(batch=1, prompt=prompt, context=prompt, how=how, views=views))


def _word_count(prompt: str, vocabulary: int) -> int:
    """Tokens of the text around the page; one per word, as the model without a tokenizer takes it."""
    return sum(len(hash_words(part, vocabulary=vocabulary)) for part in prompt.split(IMAGE_MARK))


def _with_context(config: AppConfig, shape: Shape) -> Shape:
    """Decode at the given context, or half-way through the tokens that will be generated: the mean of all steps."""
    given = config.workload.context
    if given is not None:
        return replace(shape, context=given)
    half = config.infer.max_new_tokens // 2
    return replace(shape, context=shape.prompt + half, how=f"{shape.how}, decode half-way through infer.max_new_tokens")
