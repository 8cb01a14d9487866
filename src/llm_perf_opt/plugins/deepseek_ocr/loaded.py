"""DeepSeek-OCR in memory: a page and the prompt in one forward, then one forward a token."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from llm_perf_opt.plugin import (
    InferSection,
    ProfilingError,
    RangeFactory,
    RepeatedStep,
    Sample,
    Shape,
    StepOutput,
    cache_length,
    group_modules,
    show_text,
)
from llm_perf_opt.plugins.deepseek_ocr.network import Views
from llm_perf_opt.plugins.deepseek_ocr.preprocess import (
    IMAGE_MARK,
    PARTS,
    PageViews,
    ViewSizes,
    count_page_tokens,
    count_tile_tokens,
    hash_words,
    image_token_id,
    join_prompt,
    read_views,
)


def page_prefill(module: Any, shape: Shape) -> Any:
    """A page in its views at the start of the prompt, on meta; where it is does not change the count."""
    ids = torch.zeros(1, shape.prompt, dtype=torch.long, device="meta")
    kind = module.lm_head.weight.dtype
    *tiles, page = [torch.empty(view.count, 3, view.size, view.size, dtype=kind, device="meta") for view in shape.views]
    grid = (shape.views[0].count, 1) if tiles else (1, 1)
    views = Views(page=page, tiles=tiles[0] if tiles else None, grid=grid, start=1)
    return module(input_ids=ids, views=views, use_cache=True, logits_to_keep=1).past_key_values


@dataclass(frozen=True, kw_only=True)
class OcrInputs:
    """One page ready for prefill: token ids [1, n], the page's views on the device."""

    ids: torch.Tensor
    views: Views
    page_tokens: int


class OcrSteps(Protocol):
    """Prefill and decode of the model. `notes` are what did not go as asked."""

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def replays_graph(self) -> bool: ...

    def prefill(self, inputs: OcrInputs, ranges: RangeFactory) -> StepOutput: ...

    def decode(self, token: Any, state: Any) -> StepOutput: ...


class GrowingOcrSteps:
    """The cache grows with every token; it is the state handed on."""

    notes: tuple[str, ...] = ()
    replays_graph = False

    def __init__(self, module: Any) -> None:
        self._module = module

    def prefill(self, inputs: OcrInputs, ranges: RangeFactory) -> StepOutput:
        with torch.no_grad():
            out = self._module(inputs.ids, views=inputs.views, ranges=ranges)
        return StepOutput(logits=out.logits[:, -1, :], state=out.past_key_values)

    def decode(self, token: Any, state: Any) -> StepOutput:
        with torch.no_grad():
            out = self._module(token, past_key_values=state)
        return StepOutput(logits=out.logits[:, -1, :], state=out.past_key_values)


class StaticOcrSteps:
    """One cache that stays where it is, emptied for every page; the decode step is compiled or captured once."""

    def __init__(self, module: Any, infer: InferSection, *, device: str) -> None:
        self._module = module
        self._new_tokens = infer.max_new_tokens
        self._step = RepeatedStep(self._forward, infer, device=device)
        self._cache: Any = None

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._step.notes)

    @property
    def replays_graph(self) -> bool:
        return self._step.replays_graph

    def prefill(self, inputs: OcrInputs, ranges: RangeFactory) -> StepOutput:
        tokens = inputs.ids.shape[1] + self._new_tokens
        if self._cache is None or self._cache.capacity < tokens:
            self._cache = self._module.static_cache(cache_length(tokens))
            self._step.start_over(counter=self._cache.held, also_moved=list, no_graph=lambda: None)
        with torch.no_grad():
            out = self._module(inputs.ids, past_key_values=self._cache, views=inputs.views, ranges=ranges)
        return StepOutput(logits=out.logits[:, -1, :], state=self._cache)

    def decode(self, token: Any, state: Any) -> StepOutput:
        return StepOutput(logits=self._step.run(token, ()), state=self._cache)

    def _forward(self, token: Any) -> Any:
        return self._module(token, past_key_values=self._cache).logits[:, -1, :]


@dataclass(frozen=True, kw_only=True)
class LoadedOcr:
    """The model in this project's code; how it steps is in `steps`."""

    module: Any
    device: str
    dtype: str
    eos_token_ids: frozenset[int]
    load_notes: tuple[str, ...]
    tokenizer: Any | None
    prompt: str
    sizes: ViewSizes
    crop_mode: bool
    vocabulary: int
    bos_token_id: int
    torch_dtype: Any
    steps: "OcrSteps"
    parts: tuple[str, ...] = tuple(PARTS.values())

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.load_notes, *self.steps.notes)

    @property
    def replays_graph(self) -> bool:
        return self.steps.replays_graph

    def prepare(self, sample: Sample) -> OcrInputs:
        if sample.image is None:
            raise ProfilingError(f"sample {sample.sample_id}: DeepSeek-OCR needs a page, not text or token ids")
        views = read_views(sample.image, self.sizes, crop_mode=self.crop_mode)
        before, after = (self._encode(text) for text in self.prompt.split(IMAGE_MARK))
        places = count_tile_tokens(views.grid, self.sizes) + count_page_tokens(self.sizes)
        ids = join_prompt(
            before, after, image_tokens=places, bos=self.bos_token_id, image_id=image_token_id(self.vocabulary)
        )
        return OcrInputs(
            ids=torch.tensor([ids], dtype=torch.long, device=self.device),
            views=self._on_device(views, start=1 + len(before)),
            page_tokens=places,
        )

    def prompt_tokens(self, inputs: OcrInputs) -> int:
        return int(inputs.ids.shape[1])

    def prompt_ids(self, inputs: OcrInputs) -> Sequence[int]:
        return [int(i) for i in inputs.ids[0].tolist()]

    def prefill(self, inputs: OcrInputs, ranges: RangeFactory) -> StepOutput:
        return self.steps.prefill(inputs, ranges)

    def decode(self, token: Any, state: Any) -> StepOutput:
        return self.steps.decode(token, state)

    def text(self, token_ids: Sequence[int], *, strip_special: bool) -> str:
        return show_text(self.tokenizer, token_ids, strip_special=strip_special, special=self.eos_token_ids)

    def module_groups(self) -> Mapping[str, str]:
        return group_modules(self.module, claimed=PARTS)

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            return hash_words(text, vocabulary=self.vocabulary)
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)] if text else []

    def _on_device(self, views: PageViews, *, start: int) -> Views:
        page, tiles = (
            None if array is None else torch.from_numpy(array).to(device=self.device, dtype=self.torch_dtype)
            for array in (views.page, views.tiles)
        )
        assert page is not None
        return Views(page=page, tiles=tiles, grid=views.grid, start=start)


@dataclass(frozen=True, kw_only=True)
class RemoteOcrSteps:
    """The snapshot's own code, which takes the page through its forward and makes its cache itself."""

    module: Any
    notes: tuple[str, ...] = ()
    replays_graph: bool = False

    def prefill(self, inputs: OcrInputs, ranges: RangeFactory) -> StepOutput:
        views = inputs.views
        # Its code takes tiles of zeros for "no tiles".
        tiles = torch.zeros_like(views.page) if views.tiles is None else views.tiles
        places = torch.zeros_like(inputs.ids, dtype=torch.bool)
        places[:, views.start : views.start + inputs.page_tokens] = True
        with torch.no_grad(), self._ranges_around_parts(ranges):
            out = self.module(
                input_ids=inputs.ids,
                images=[(tiles, views.page)],
                images_seq_mask=places,
                images_spatial_crop=torch.tensor([views.grid], dtype=torch.long),
                use_cache=True,
                return_dict=True,
            )
        return StepOutput(logits=out.logits[:, -1, :], state=out.past_key_values)

    def decode(self, token: Any, state: Any) -> StepOutput:
        with torch.no_grad():
            out = self.module(input_ids=token, past_key_values=state, use_cache=True, return_dict=True)
        return StepOutput(logits=out.logits[:, -1, :], state=out.past_key_values)

    @contextmanager
    def _ranges_around_parts(self, ranges: RangeFactory) -> Iterator[None]:
        """Open a range whenever one of the encoders or the projector runs, through hooks: the code is not ours."""
        with ExitStack() as hooks:
            for name, part in PARTS.items():
                for handle in _hook_range(self.module.get_submodule(name), part, ranges):
                    hooks.callback(handle.remove)
            yield


def _hook_range(module: Any, part: str, ranges: RangeFactory) -> Iterator[Any]:
    opened = ExitStack()

    def enter(_module: Any, _args: Any) -> None:
        opened.enter_context(ranges(part))

    def leave(_module: Any, _args: Any, _out: Any) -> None:
        opened.close()

    yield module.register_forward_pre_hook(enter)
    yield module.register_forward_hook(leave, always_call=True)
