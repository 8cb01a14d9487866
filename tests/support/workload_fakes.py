"""A model small enough to reason about: used through the real session, and by children of tests."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.config.schema import (
    AppConfig,
    ArtifactsSection,
    DatasetSection,
    HardwareSection,
    InferSection,
    ModelSection,
    RunSection,
    StageConfig,
    WorkloadSection,
)
from llm_perf_opt.plugins.deepseek_ocr.gallery import OcrPageFiles
from llm_perf_opt.workload.models.base import PageFiles, RangeFactory, Sample, StepOutput

VOCABULARY = 32
GROUNDED = "<|ref|>title<|/ref|><|det|>[[0, 0, 999, 499]]<|/det|>\nHello"


@dataclass(frozen=True, kw_only=True)
class FakeLoaded:
    """Counts upwards: after token t comes t + 1, and token 31 ends a sample."""

    module: Any
    kind: str
    slow_s: float = 0.0
    device: str = "cpu"
    dtype: str = "float32"
    eos_token_ids: frozenset[int] = frozenset([31])
    notes: tuple[str, ...] = ("fake weights",)
    replays_graph: bool = False
    parts: tuple[str, ...] = ("sam",)

    def prepare(self, sample: Sample) -> Any:
        import torch
        from PIL import Image

        if sample.image is not None:
            with Image.open(sample.image) as page:
                page.load()
                return torch.tensor([[page.width % 7, 3]])
        if sample.text is not None:
            if sample.text.startswith("bad"):
                raise ValueError("this prompt is bad\nand this line is not shown")
            return torch.tensor([[int(word) for word in sample.text.split()]])
        return torch.tensor([list(sample.token_ids or ())])

    def prompt_tokens(self, inputs: Any) -> int:
        return int(inputs.shape[1])

    def prompt_ids(self, inputs: Any) -> Sequence[int]:
        return [int(i) for i in inputs[0]]

    def prefill(self, inputs: Any, ranges: RangeFactory) -> StepOutput:
        with ranges("sam"):
            hidden = self.module.mlp(self.module.embed(inputs))
        if "FAKE_HUGE_BYTES" in os.environ:
            import torch

            torch.empty(int(os.environ["FAKE_HUGE_BYTES"]), dtype=torch.uint8)
        return self._step(inputs[:, -1:], hidden)

    def decode(self, token: Any, state: Any) -> StepOutput:
        time.sleep(self.slow_s)
        return self._step(token, self.module.mlp(self.module.embed(token)))

    def text(self, token_ids: Sequence[int], *, strip_special: bool) -> str:
        end = "" if strip_special else "<|end|>"
        return GROUNDED + end if self.kind == "pages" else " ".join(map(str, token_ids)) + end

    def module_groups(self) -> Mapping[str, str]:
        return {"embed": "embedding", "mlp": "mlp", "mlp.norm": "norm", "lm_head": "lm_head"}

    def _step(self, token: Any, hidden: Any) -> StepOutput:
        import torch

        logits = self.module.lm_head(hidden[:, -1, :]) * 0.0
        wanted = torch.clamp(token + 1, max=VOCABULARY - 1)
        return StepOutput(logits=logits.scatter(1, wanted, 1.0), state=None)


@dataclass(frozen=True, kw_only=True)
class FakeAdapter:
    """`data_kind` is "tokens" or "pages"; FAKE_SLOW_S slows every decode step down.

    FAKE_HUGE_BYTES are requested in prefill.
    """

    data_kind: str
    config_cls: type[ModelSection] = ModelSection
    infer_cls: type[InferSection] = InferSection
    page_files: PageFiles = field(default_factory=OcrPageFiles)

    def check(self, model: Any) -> tuple[str, ...]:
        return ()

    def geometry(self, model: Any) -> Mapping[str, Any]:
        return {"vocab_size": VOCABULARY, "eos_token_id": 31}

    def load(self, model: Any, infer: Any, *, device: str, seed: int) -> FakeLoaded:
        import torch
        from torch import nn

        torch.manual_seed(seed)

        class Mlp(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up = nn.Linear(16, 64)
                self.norm = nn.LayerNorm(64)
                self.down = nn.Linear(64, 16)

            def forward(self, x: Any) -> Any:
                return self.down(self.norm(torch.relu(self.up(x))))

        module = nn.Module()
        module.embed = nn.Embedding(VOCABULARY, 16)
        module.mlp = Mlp()
        module.lm_head = nn.Linear(16, VOCABULARY)
        return FakeLoaded(module=module, kind=self.data_kind, slow_s=float(os.environ.get("FAKE_SLOW_S", "0")))

    def build_meta(self, model: Any) -> Any:
        raise NotImplementedError


TOKENS = FakeAdapter(data_kind="tokens")
PAGES = FakeAdapter(data_kind="pages")


@dataclass(frozen=True, kw_only=True)
class FakeConfig:
    """Builds an AppConfig around a fake model."""

    dataset: DatasetSection
    adapter: str = "tests.support.workload_fakes:TOKENS"
    infer: InferSection = field(default_factory=lambda: InferSection(max_new_tokens=4))
    repeats: int = 2
    stages: Mapping[str, StageConfig] = field(default_factory=dict)

    def build(self, root: Path) -> AppConfig:
        return AppConfig(
            run=RunSection(repeats=self.repeats, device="cpu"),
            artifacts=ArtifactsSection(runs_dir=root),
            workload=WorkloadSection(),
            dataset=self.dataset,
            model=ModelSection(name="fake", adapter=self.adapter, weights="random"),
            infer=self.infer,
            hardware=HardwareSection(),
            stages=self.stages,
            resolved={},
            user_dir=root,
        )


def prompts(path: Path, lines: Sequence[str], **changes: Any) -> DatasetSection:
    """A data set of these prompts."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return replace(DatasetSection(kind="prompts", file=path), **changes)
