"""DeepSeek-OCR in plain torch: both encoders, the projector and the decoder, under the checkpoint's names."""

# torch is not type-checked here, so its Module is Any.
# mypy: disallow-subclassing-any=False

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from llm_perf_opt.workload.models.base import RangeFactory
from llm_perf_opt.workload.models.deepseek_ocr_clip import ClipEncoder
from llm_perf_opt.workload.models.deepseek_ocr_decoder import DecoderLayer, KeyValueCache, Rotary
from llm_perf_opt.workload.models.deepseek_ocr_experts import Experts, ExpertsMode
from llm_perf_opt.workload.models.deepseek_ocr_geometry import OcrGeometry, ProjectorGeometry
from llm_perf_opt.workload.models.deepseek_ocr_sam import SamEncoder


@dataclass(frozen=True, kw_only=True)
class Views:
    """A page on the device: the global view [1, 3, s, s], tiles [n, 3, t, t] or None, tiles across and down.

    `start` is where the page's tokens begin in the prompt.
    """

    page: Tensor
    tiles: Tensor | None
    grid: tuple[int, int]
    start: int


@dataclass(frozen=True, kw_only=True)
class OcrOutput:
    """Logits of the last position, [batch, 1, vocabulary], and the cache to go on with."""

    logits: Tensor
    past_key_values: KeyValueCache


@contextmanager
def no_range(_name: str) -> Iterator[None]:
    """Ranges for a caller that wants none."""
    yield


class Projector(nn.Module):
    """One linear map to the decoder's width."""

    def __init__(self, g: ProjectorGeometry) -> None:
        super().__init__()
        self.layers = nn.Linear(g.input, g.output)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class OcrBackbone(nn.Module):
    """What the checkpoint keeps under `model.`"""

    def __init__(self, g: OcrGeometry) -> None:
        super().__init__()
        d = g.decoder
        self.embed_tokens = nn.Embedding(d.vocab_size, d.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(d, i) for i in range(d.num_hidden_layers))
        self.norm = nn.RMSNorm(d.hidden_size, eps=d.rms_norm_eps)
        self.rotary = Rotary(d)
        self.sam_model = SamEncoder(g.sam)
        self.vision_model = ClipEncoder(g.clip)
        self.projector = Projector(g.projector)
        self.image_newline = nn.Parameter(torch.empty(d.hidden_size))
        # Spelled as in the published checkpoint.
        self.view_seperator = nn.Parameter(torch.empty(d.hidden_size))

    def see(self, pictures: Tensor, ranges: RangeFactory) -> Tensor:
        """Pictures of one size to tokens [n, s, s, width]."""
        with ranges("sam"):
            features = self.sam_model(pictures)
        with ranges("clip"):
            tokens = self.vision_model(features)
        with ranges("projector"):
            both = torch.cat([tokens[:, 1:], features.flatten(2).transpose(1, 2)], dim=-1)
            projected = self.projector(both)
        side = features.shape[-1]
        return projected.view(pictures.shape[0], side, side, -1)

    def page_tokens(self, views: Views, ranges: RangeFactory) -> Tensor:
        """The page's tokens in reading order: tiles laid side by side, the global view, the separator."""
        found = []
        if views.tiles is not None:
            across, down = views.grid
            tiles = self.see(views.tiles, ranges)
            side, width = tiles.shape[1], tiles.shape[-1]
            laid = tiles.view(down, across, side, side, width).permute(0, 2, 1, 3, 4)
            found.append(self._end_rows(laid.reshape(down * side, across * side, width)))
        found.append(self._end_rows(self.see(views.page, ranges)[0]))
        return torch.cat([*found, self.view_seperator[None]])

    def _end_rows(self, grid: Tensor) -> Tensor:
        rows, _, width = grid.shape
        return torch.cat([grid, self.image_newline.expand(rows, 1, width)], dim=1).view(-1, width)

    def embed(self, ids: Tensor, views: Views | None, ranges: RangeFactory) -> Tensor:
        """Embeddings of the prompt, with the page's tokens at their places."""
        embedded = self.embed_tokens(ids)
        if views is None:
            return embedded
        page = self.page_tokens(views, ranges).to(embedded.dtype)
        end = views.start + page.shape[0]
        if end > ids.shape[1]:
            raise ValueError(f"the page takes {page.shape[0]} tokens, the prompt keeps too few places for them")
        return torch.cat([embedded[:, : views.start], page[None], embedded[:, end:]], dim=1)


class DeepseekOcr(nn.Module):
    """The whole model. Called as `transformers` models are, so that one loop can drive both."""

    def __init__(self, g: OcrGeometry) -> None:
        super().__init__()
        self.geometry = g
        self.model = OcrBackbone(g)
        self.lm_head = nn.Linear(g.decoder.hidden_size, g.decoder.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: KeyValueCache | None = None,
        views: Views | None = None,
        ranges: RangeFactory = no_range,
        use_cache: bool = True,
        logits_to_keep: int = 1,
    ) -> OcrOutput:
        """A prompt without a past, or one token with it. `logits_to_keep` 0 gives the logits of every position."""
        tokens = input_ids.shape[1]
        cache = KeyValueCache(len(self.model.layers)) if past_key_values is None else past_key_values
        if tokens > 1 and cache.length:
            raise ValueError("more than one token behind a past is not supported, decode token by token")
        x = self.model.embed(input_ids, views, ranges)
        turn = self.model.rotary(cache.length, tokens, x.dtype)
        for layer in self.model.layers:
            x = layer(x, turn, cache)
        cache.advance(tokens)
        return OcrOutput(logits=self.lm_head(self.model.norm(x[:, -logits_to_keep:])), past_key_values=cache)

    def set_experts_mode(self, mode: ExpertsMode) -> None:
        for part in self.modules():
            if isinstance(part, Experts):
                part.mode = mode
