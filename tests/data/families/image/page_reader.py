"""A family added from outside: one convolution cuts a page into patches, a Llama reads them. No torch here."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.plugin import (
    ConfigError,
    Dtypes,
    Fields,
    InferSection,
    LoadedModel,
    Model,
    ModelSection,
    PagePrompt,
    Sample,
    Shape,
    View,
    Work,
    group_modules,
    read_decoder,
    text_decode,
    text_prefill,
)

PARTS = {"look": "look"}


@dataclass(frozen=True, kw_only=True)
class Patches:
    """The convolution that makes tokens of `width` from squares of `patch` pixels."""

    patch: int
    width: int

    def params(self) -> Mapping[str, int]:
        return {"look": (3 * self.patch**2 + 1) * self.width}

    def work(self, views: tuple[View, ...], dtypes: Dtypes) -> Mapping[str, Work]:
        total = Work()
        for view in views:
            pixels, tokens = view.count * view.size**2, view.count * (view.size // self.patch) ** 2
            total += Work(
                flops=2 * tokens * 3 * self.patch**2 * self.width,
                weight_bytes=(3 * self.patch**2 + 1) * self.width * dtypes.compute_bytes,
                activation_bytes=(3 * pixels + tokens * self.width) * dtypes.compute_bytes,
            )
        return {"look": total}

    def peak_bytes(self, views: tuple[View, ...], dtypes: Dtypes) -> float:
        return sum(v.count * (3 + self.width / self.patch**2) * v.size**2 for v in views) * dtypes.compute_bytes

    def operators(self, view_batches: int) -> int:
        return view_batches


class NoisePages:
    """Synthetic pages of noise; nothing but its text is shown of a page."""

    def draw(self, path: Path, *, width: int, height: int, seed: str) -> Path:
        from PIL import Image

        path.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("L", (width, height), random.Random(seed).randbytes(width * height)).save(path)
        return path

    def strip_markup(self, text: str) -> str:
        return text

    def describe(self, sample: Sample, text: str, folder: Path, *, thumbnail_width: int) -> str | None:
        return None


class PageReaderAdapter:
    """Offers what `ModelAdapter` lists."""

    config_cls = ModelSection
    infer_cls = InferSection
    data_kind = "pages"
    page_files = NoisePages()

    def check(self, model: ModelSection) -> tuple[str, ...]:
        return () if model.geometry else ("model.geometry: missing, see conf/model/page_reader/arch/page_reader.yaml",)

    def geometry(self, model: ModelSection) -> Mapping[str, Any]:
        if model.geometry is None:
            raise ConfigError(self.check(model))
        return model.geometry

    def parts(self, geometry: Mapping[str, Any], *, where: str) -> Model:
        f = Fields(geometry, where)
        decoder = read_decoder(f.section("decoder"))
        return Model(decoder=decoder, images=Patches(patch=f.integer("patch"), width=decoder.hidden))

    def page_prompt(self, geometry: Mapping[str, Any], infer: InferSection, *, width: int, height: int) -> PagePrompt:
        """Every page is drawn to one side; a start and an end token stand around its patches."""
        side, patch = int(geometry["side"]), int(geometry["patch"])
        return PagePrompt(tokens=(side // patch) ** 2 + 2, views=(View(size=side, count=1),))

    def load(self, model: ModelSection, infer: InferSection, *, device: str, seed: int) -> LoadedModel:
        from page_reader_torch import load

        loaded: LoadedModel = load(model, self.geometry(model), device=device, seed=seed)
        return loaded

    def build_meta(self, model: ModelSection) -> Any:
        from page_reader_torch import build_on_meta

        return build_on_meta(self.geometry(model), dtype="bfloat16" if model.dtype == "auto" else model.dtype)

    def meta_groups(self, module: Any) -> Mapping[str, str]:
        return group_modules(module, claimed=PARTS)

    def meta_prefill(self, module: Any, shape: Shape) -> Any:
        if not shape.views:
            return text_prefill(module, shape)
        from page_reader_torch import page_prefill

        return page_prefill(module, shape)

    def meta_decode(self, module: Any, shape: Shape, state: Any) -> None:
        text_decode(module, shape, state)


ADAPTER = PageReaderAdapter()
