"""The page reader in torch: the module, how it is filled, and a page through it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from page_reader import PARTS
from PIL import Image
from torch import Tensor, nn

from llm_perf_opt.plugin import (
    ModelSection,
    ProfilingError,
    RangeFactory,
    Sample,
    Shape,
    StepOutput,
    choose_dtype,
    group_modules,
)
from llm_perf_opt.workload.models.causal_lm_torch import LoadedCausalLM, materialise
from llm_perf_opt.workload.models.causal_lm_torch import build_on_meta as build_text
from llm_perf_opt.workload.models.decode_steps import GrowingSteps


class PageReader(nn.Module):
    """Patches stand behind the first token."""

    def __init__(self, geometry: Mapping[str, Any], dtype: str) -> None:
        super().__init__()
        patch = geometry["patch"]
        with torch.device("meta"):
            self.look = nn.Conv2d(
                3, geometry["decoder"]["hidden_size"], patch, stride=patch, dtype=getattr(torch, dtype)
            )
        self.text = build_text(geometry["decoder"], dtype=dtype, attention=None, experts=None)

    def forward(
        self,
        input_ids: Tensor,
        seen: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = True,
        logits_to_keep: int = 1,
    ) -> Any:
        embedded = self.text.get_input_embeddings()(input_ids)
        if seen is not None:
            tokens = seen.flatten(2).transpose(1, 2)
            embedded = torch.cat([embedded[:, :1], tokens, embedded[:, 1 + tokens.shape[1] :]], dim=1)
        return self.text(
            inputs_embeds=embedded,
            past_key_values=past_key_values,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
        )


@dataclass(frozen=True, kw_only=True)
class LoadedPageReader(LoadedCausalLM):
    """A page and two tokens in, then one token at a time as any decoder."""

    side: int
    patch: int

    def prepare(self, sample: Sample) -> Any:
        if sample.image is None:
            raise ProfilingError(f"sample {sample.sample_id}: the page reader needs a page")
        with Image.open(sample.image) as opened:
            pixels = np.asarray(opened.convert("RGB").resize((self.side, self.side)), dtype=np.float32) / 255
        picture = torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]
        ids = torch.zeros(1, (self.side // self.patch) ** 2 + 2, dtype=torch.long, device=self.device)
        return ids, picture.to(device=self.device, dtype=getattr(torch, self.dtype))

    def prompt_tokens(self, inputs: Any) -> int:
        return int(inputs[0].shape[1])

    def prompt_ids(self, inputs: Any) -> list[int]:
        return [int(i) for i in inputs[0][0].tolist()]

    def prefill(self, inputs: Any, ranges: RangeFactory) -> StepOutput:
        ids, picture = inputs
        with torch.no_grad():
            with ranges("look"):
                seen = self.module.look(picture)
            out = self.module(ids, seen=seen)
        return StepOutput(logits=out.logits[:, -1, :], state=(out.past_key_values, None))

    def module_groups(self) -> Mapping[str, str]:
        return group_modules(self.module, claimed=PARTS)


def build_on_meta(geometry: Mapping[str, Any], *, dtype: str) -> PageReader:
    return PageReader(geometry, dtype).eval()


def load(model: ModelSection, geometry: Mapping[str, Any], *, device: str, seed: int) -> LoadedPageReader:
    dtype = choose_dtype(model.dtype, device=device, stored=None).value
    module = build_on_meta(geometry, dtype=dtype)
    materialise(module.text, device=device, seed=seed)
    module.look.to_empty(device=device)
    torch.manual_seed(seed)
    for parameter in module.look.parameters():
        nn.init.normal_(parameter, std=0.02)
    return LoadedPageReader(
        module=module,
        device=device,
        dtype=dtype,
        eos_token_ids=frozenset({geometry["decoder"]["eos_token_id"]}),
        load_notes=("weights are random: the text means nothing",),
        tokenizer=None,
        vocabulary=geometry["decoder"]["vocab_size"],
        steps=GrowingSteps(module, {"use_cache": True, "logits_to_keep": 1}),
        parts=("look",),
        side=geometry["side"],
        patch=geometry["patch"],
    )


def page_prefill(module: PageReader, shape: Shape) -> Any:
    """On the meta device, for counting."""
    ids = torch.zeros(1, shape.prompt, dtype=torch.long, device="meta")
    (view,) = shape.views
    picture = torch.empty(view.count, 3, view.size, view.size, dtype=module.look.weight.dtype, device="meta")
    return module(ids, seen=module.look(picture)).past_key_values
