"""What a model must offer to be profiled. Adapters import torch only inside their methods."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llm_perf_opt.config.schema import InferSection, ModelSection
from llm_perf_opt.model.hardware.work import PagePrompt, Shape
from llm_perf_opt.model.static.parts import Model


class RangeFactory(Protocol):
    """Opens a named range (NVTX and clock) around a part of prefill; the session provides it."""

    def __call__(self, name: str, /) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One input: a page (`image`) for OCR models; token ids or text for text models.

    Or, where `infer.batch` is above 1, the samples of one batch: then `batch` holds them and nothing else is set.
    """

    sample_id: str
    image: Path | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    batch: tuple["Sample", ...] = ()

    @property
    def members(self) -> tuple["Sample", ...]:
        """The samples that run at once: those of the batch, or this one."""
        return self.batch or (self,)


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """The result of one forward: logits of the last position, [batch, vocabulary], and the state to continue from."""

    logits: Any
    state: Any


class LoadedModel(Protocol):
    """A model in memory. `prepare` is host work before the clock starts; `prefill`, `decode` are one forward each."""

    @property
    def module(self) -> Any:
        """The torch module, for hooks and parameter counts."""
        ...

    @property
    def device(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Stated fallbacks, such as "flash_attention_2 is not installed, sdpa used instead"."""
        ...

    @property
    def replays_graph(self) -> bool:
        """Whether decode steps are replayed from a CUDA graph of our own: asked for and captured."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the ranges opened inside prefill (sam, clip, projector), or none."""
        ...

    def prepare(self, sample: Sample) -> Any: ...

    def prompt_tokens(self, inputs: Any) -> int:
        """How many positions prefill processes for each sequence, image tokens and padding included."""
        ...

    def prompt_ids(self, inputs: Any) -> Sequence[int]:
        """The prompt's token ids, for n-gram rules."""
        ...

    def prefill(self, inputs: Any, ranges: RangeFactory) -> StepOutput: ...

    def decode(self, token: Any, state: Any) -> StepOutput:
        """One more token for each sequence, a tensor of shape [batch, 1] on the device."""
        ...

    def text(self, token_ids: Sequence[int], *, strip_special: bool) -> str: ...

    def module_groups(self) -> Mapping[str, str]:
        """Qualified module name to module group (attention, mlp, experts, router, norm, embedding, lm_head, …)."""
        ...


class PageFiles(Protocol):
    """What the adapter of a model that reads pages may offer as `page_files`.

    Without it a data set of real pages is needed, warm-up runs show the model pages of that data set, and the gallery
    holds texts alone.
    """

    def draw(self, path: Path, *, width: int, height: int, seed: str) -> Path:
        """Write a synthetic page as a picture to `path`; the same seed gives the same page."""
        ...

    def strip_markup(self, text: str) -> str:
        """The text as people read it, without what the model writes for programs."""
        ...

    def describe(self, sample: Sample, text: str, folder: Path, *, thumbnail_width: int) -> str | None:
        """Write what the gallery shows of a sample into its folder; the name of its thumbnail, or None."""
        ...


class ModelAdapter(Protocol):
    """One family of models, named by import path in `model.adapter`.

    `config_cls` and `infer_cls` extend the shared sections with the family's own keys, so that a bad key is refused
    before torch is imported.
    """

    @property
    def config_cls(self) -> type[ModelSection]: ...

    @property
    def infer_cls(self) -> type[InferSection]: ...

    @property
    def data_kind(self) -> str:
        """ "pages" or "tokens": what the synthetic data set must make for it."""
        ...

    def check(self, model: Any) -> tuple[str, ...]:
        """Problems that can be seen without torch (missing path, no safetensors, ...), each `key: text`."""
        ...

    def geometry(self, model: Any) -> Mapping[str, Any]:
        """The model's configuration as `config.json` would hold it, read without torch or transformers."""
        ...

    def load(self, model: Any, infer: Any, *, device: str, seed: int) -> LoadedModel: ...

    def parts(self, geometry: Mapping[str, Any], *, where: str) -> Model:
        """The sizes the closed form works from; raises NotInClosedForm where it has no rule for the model.

        `where` is the file or key the geometry came from, for messages.
        """
        ...

    def page_prompt(self, geometry: Mapping[str, Any], infer: Any, *, width: int, height: int) -> PagePrompt:
        """What a page of this size becomes. Asked only where `data_kind` is "pages"."""
        ...

    def build_meta(self, model: Any) -> Any:
        """The torch module on the meta device in its real geometry, for counting parameters and operators."""
        ...

    def meta_groups(self, module: Any) -> Mapping[str, str]:
        """Module groups of a module built on meta, as `LoadedModel.module_groups` has them."""
        ...

    def meta_prefill(self, module: Any, shape: Shape) -> Any:
        """One forward on meta over an input of this shape; returns the state to decode from.

        A shape without views is text alone, also for a model that reads pages: that is how a cache is filled.
        """
        ...

    def meta_decode(self, module: Any, shape: Shape, state: Any) -> None:
        """One decode step on meta for each sequence of the shape's batch."""
        ...
