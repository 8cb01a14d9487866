"""DeepSeek-OCR in plain torch, under the checkpoint's names: decoder, routed experts, and the whole model."""

# torch is not type-checked here, so its Module is Any.
# mypy: disallow-subclassing-any=False

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.plugin import RangeFactory
from llm_perf_opt.plugins.deepseek_ocr.adapter import DecoderGeometry, OcrGeometry, ProjectorGeometry
from llm_perf_opt.plugins.deepseek_ocr.vision import ClipEncoder, SamEncoder

ExpertsMode = Literal["grouped", "loop", "batched"]


def choose_experts_mode(device: torch.device, dtype: torch.dtype, *, is_repeated: bool = False) -> ExpertsMode:
    """Grouped GEMMs need bfloat16 and compute capability 8; meta has no values to loop over.

    A step that is compiled or captured (`is_repeated`) cannot ask the host which experts were chosen either.
    """
    if device.type == "cuda" and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) >= (8, 0):
        return "grouped"
    return "batched" if is_repeated or device.type == "meta" else "loop"


class Router(nn.Module):
    """Softmax over all experts in float32, then the largest few."""

    def __init__(self, g: DecoderGeometry) -> None:
        super().__init__()
        self.top = g.num_experts_per_tok
        self.normalises = g.norm_topk_prob
        self.scale = g.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(g.n_routed_experts, g.hidden_size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.linear(x.float(), self.weight.float()).softmax(dim=-1)
        shares, chosen = scores.topk(self.top, dim=-1)
        if self.normalises:
            return chosen, (shares / (shares.sum(dim=-1, keepdim=True) + 1e-20)).to(x.dtype)
        return chosen, (shares * self.scale).to(x.dtype)


class Experts(nn.Module):
    """Gated MLPs stacked in two tensors: [experts, 2 * inner, width] and [experts, width, inner]."""

    def __init__(self, g: DecoderGeometry) -> None:
        super().__init__()
        self.mode: ExpertsMode = "batched"
        self.gate_up_proj = nn.Parameter(torch.empty(g.n_routed_experts, 2 * g.moe_intermediate_size, g.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(g.n_routed_experts, g.hidden_size, g.moe_intermediate_size))

    def forward(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        if self.mode == "grouped":
            return self._grouped(x, chosen, shares)
        if self.mode == "batched":
            return self._batched(x, chosen, shares)
        return self._one_token(x, chosen, shares) if x.shape[0] == 1 else self._loop(x, chosen, shares)

    def _grouped(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Rows sorted by expert, one product for all experts; nothing waits for the host, sums in a fixed order."""
        tokens, top = chosen.shape
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        counts = (flat[:, None] == torch.arange(self.gate_up_proj.shape[0], device=flat.device)).sum(dim=0)
        ends = counts.cumsum(dim=0).to(torch.int32)
        hidden = F.grouped_mm(x[order // top], self.gate_up_proj.transpose(-2, -1), offs=ends)
        rows = F.grouped_mm(gated(hidden), self.down_proj.transpose(-2, -1), offs=ends)
        back = rows[order.argsort()].view(tokens, top, -1)
        return (back * shares[..., None]).sum(dim=1)

    def _batched(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """One product per token and expert with the weights gathered: no control flow, memory in proportion."""
        tokens, top = chosen.shape
        flat = chosen.reshape(-1)
        rows = x.repeat_interleave(top, dim=0)[..., None]
        hidden = torch.bmm(self.gate_up_proj[flat], rows)[..., 0]
        out = torch.bmm(self.down_proj[flat], gated(hidden)[..., None])[..., 0]
        return (out.view(tokens, top, -1) * shares[..., None]).sum(dim=1)

    def _loop(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Expert after expert, each with its tokens: reads only the weights that are used."""
        tokens, top = chosen.shape
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)
        rows = x.new_empty(tokens * top, x.shape[1])
        start = 0
        for expert, count in enumerate(flat.bincount(minlength=self.gate_up_proj.shape[0]).tolist()):
            if count:
                at = order[start : start + count]
                rows[at] = self._expert(x[at // top], expert)
                start += count
        return (rows.view(tokens, top, -1) * shares[..., None]).sum(dim=1)

    def _one_token(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        rows = torch.cat([self._expert(x, expert) for expert in chosen[0].tolist()])
        return shares @ rows

    def _expert(self, x: Tensor, expert: int) -> Tensor:
        return F.linear(gated(F.linear(x, self.gate_up_proj[expert])), self.down_proj[expert])


def gated(hidden: Tensor) -> Tensor:
    """The first half opens the second."""
    gate, up = hidden.chunk(2, dim=-1)
    return F.silu(gate) * up


_GROW_BY = 256


class KeyValueCache:
    """Keys and values of all layers in memory that grows by blocks, so that a token seldom copies the past."""

    def __init__(self, layers: int) -> None:
        self.length = 0
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers

    def get_seq_length(self) -> int:
        return self.length

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """The positions of the tokens of a forward pass."""
        if tokens > 1 and self.length:
            raise ValueError("more than one token behind a past is not supported, decode token by token")
        return torch.arange(self.length, self.length + tokens, device=device, dtype=torch.float32)

    def mask(self, tokens: int) -> Tensor | None:
        """What a token may look at; None: all that `append` returns, a prompt's tokens only back."""
        return None

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add [batch, heads, new, d] behind the past and return all of it. `advance` moves the end once a forward."""
        end = self.length + keys.shape[2]
        all_keys = self._room(self._keys, layer, keys, end)
        all_values = self._room(self._values, layer, values, end)
        all_keys[:, :, self.length : end] = keys
        all_values[:, :, self.length : end] = values
        return all_keys[:, :, :end], all_values[:, :, :end]

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def _room(self, store: list[Tensor | None], layer: int, like: Tensor, end: int) -> Tensor:
        held = store[layer]
        if held is not None and held.shape[2] >= end:
            return held
        batch, heads, _, size = like.shape
        grown = like.new_empty(batch, heads, end + _GROW_BY, size)
        if held is not None:
            grown[:, :, : self.length] = held[:, :, : self.length]
        store[layer] = grown
        return grown


class StaticKeyValueCache:
    """Keys and values in memory of a fixed length that stays where it is, so that a step can be compiled or captured.

    How many tokens it holds is known on the device alone: a step that is replayed does not come past the host. A
    prompt always starts it again.
    """

    def __init__(self, layers: int, *, heads: int, length: int, size: int, like: Tensor) -> None:
        self._keys = [like.new_zeros(1, heads, length, size) for _ in range(layers)]
        self._values = [like.new_zeros(1, heads, length, size) for _ in range(layers)]
        self._places = torch.arange(length, device=like.device)
        self.held = torch.zeros(1, dtype=torch.long, device=like.device)
        for tensor in (*self._keys, *self._values, self._places, self.held):
            torch._dynamo.mark_static_address(tensor)

    @property
    def capacity(self) -> int:
        return int(self._places.shape[0])

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        return self.held.float() if tokens == 1 else torch.arange(tokens, device=device, dtype=torch.float32)

    def mask(self, tokens: int) -> Tensor | None:
        return (self._places <= self.held)[None, None, None] if tokens == 1 else None

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        tokens = keys.shape[2]
        if tokens == 1:
            return (
                self._keys[layer].index_copy_(2, self.held, keys),
                self._values[layer].index_copy_(2, self.held, values),
            )
        self._keys[layer][:, :, :tokens] = keys
        self._values[layer][:, :, :tokens] = values
        return keys, values

    def advance(self, tokens: int) -> None:
        """A prompt sets how many tokens there are; behind a step the caller counts on, outside of what is compiled."""
        if tokens > 1:
            self.held.fill_(tokens)


class Rotary(nn.Module):
    """Cosine and sine of each position; the table of frequencies is filled once the module has memory."""

    def __init__(self, g: DecoderGeometry) -> None:
        super().__init__()
        self.size = g.hidden_size // g.num_attention_heads
        self.theta = g.rope_theta
        self.frequencies: Tensor
        self.register_buffer("frequencies", self._frequencies(), persistent=False)

    def refill(self) -> None:
        with torch.device("cpu"):
            table = self._frequencies()
        self.frequencies = table.to(self.frequencies.device)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angles = torch.outer(positions, self.frequencies).repeat(1, 2)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def _frequencies(self) -> Tensor:
        return self.theta ** -(torch.arange(0, self.size, 2, dtype=torch.float32) / self.size)


Cache = KeyValueCache | StaticKeyValueCache


@dataclass(frozen=True, kw_only=True)
class Place:
    """The positions of the tokens of a forward pass: cosine and sine, and what they may look at."""

    turn: tuple[Tensor, Tensor]
    mask: Tensor | None


class Attention(nn.Module):
    """Multi-head attention, causal over the prompt, over the whole cache for one token."""

    def __init__(self, g: DecoderGeometry) -> None:
        super().__init__()
        self.heads = g.num_attention_heads
        width = g.hidden_size
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, place: Place, cache: Cache, layer: int) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            proj(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        keys, values = cache.append(layer, rotate(k, place.turn), v)
        out = F.scaled_dot_product_attention(
            rotate(q, place.turn), keys, values, attn_mask=place.mask, is_causal=tokens > 1
        )
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, width))


class Mlp(nn.Module):
    """Gated MLP, also used for the shared experts."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoeBlock(nn.Module):
    """Routed experts plus the shared ones, which see every token."""

    def __init__(self, g: DecoderGeometry) -> None:
        super().__init__()
        self.gate = Router(g)
        self.experts = Experts(g)
        self.shared_experts = Mlp(g.hidden_size, g.moe_intermediate_size * g.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        chosen, shares = self.gate(flat)
        routed = self.experts(flat, chosen, shares).view_as(x)
        return routed + self.shared_experts(x)


class DecoderLayer(nn.Module):
    """Attention, then a dense MLP or experts."""

    def __init__(self, g: DecoderGeometry, index: int) -> None:
        super().__init__()
        self.index = index
        self.input_layernorm = nn.RMSNorm(g.hidden_size, eps=g.rms_norm_eps)
        self.self_attn = Attention(g)
        self.post_attention_layernorm = nn.RMSNorm(g.hidden_size, eps=g.rms_norm_eps)
        dense = index < g.first_k_dense_replace
        self.mlp: nn.Module = Mlp(g.hidden_size, g.intermediate_size) if dense else MoeBlock(g)

    def forward(self, x: Tensor, place: Place, cache: Cache) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), place, cache, self.index)
        return x + self.mlp(self.post_attention_layernorm(x))


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of a head's halves by its position's angle."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


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
    """Logits of the last position, [batch, 1, vocabulary], and the cache to continue with."""

    logits: Tensor
    past_key_values: Cache


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
        past_key_values: Cache | None = None,
        views: Views | None = None,
        ranges: RangeFactory = no_range,
        use_cache: bool = True,
        logits_to_keep: int = 1,
    ) -> OcrOutput:
        """A prompt without a past, or one token with it. `logits_to_keep` 0 gives the logits of every position."""
        tokens = input_ids.shape[1]
        cache = KeyValueCache(len(self.model.layers)) if past_key_values is None else past_key_values
        positions = cache.positions(tokens, input_ids.device)
        x = self.model.embed(input_ids, views, ranges)
        place = Place(turn=self.model.rotary(positions, x.dtype), mask=cache.mask(tokens))
        for layer in self.model.layers:
            x = layer(x, place, cache)
        cache.advance(tokens)
        return OcrOutput(logits=self.lm_head(self.model.norm(x[:, -logits_to_keep:])), past_key_values=cache)

    def static_cache(self, length: int) -> StaticKeyValueCache:
        """An empty cache of one sequence with this many positions."""
        g = self.geometry.decoder
        size = g.hidden_size // g.num_attention_heads
        return StaticKeyValueCache(
            g.num_hidden_layers, heads=g.num_attention_heads, length=length, size=size, like=self.lm_head.weight
        )

    def set_experts_mode(self, mode: ExpertsMode) -> None:
        for part in self.modules():
            if isinstance(part, Experts):
                part.mode = mode
