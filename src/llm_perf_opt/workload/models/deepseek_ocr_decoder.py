"""DeepSeek-OCR's decoder: plain attention with rotary positions, a dense layer first, mixtures of experts after it."""

# torch is not type-checked here, so its Module is Any.
# mypy: disallow-subclassing-any=False

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.workload.models.deepseek_ocr_experts import Experts, Router
from llm_perf_opt.workload.models.deepseek_ocr_geometry import DecoderGeometry

_GROW_BY = 256


class KeyValueCache:
    """Keys and values of all layers in memory that grows by blocks, so that a token seldom copies the past."""

    def __init__(self, layers: int) -> None:
        self.length = 0
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers

    def get_seq_length(self) -> int:
        return self.length

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

    def forward(self, start: int, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        at = torch.arange(start, start + tokens, device=self.frequencies.device, dtype=torch.float32)
        angles = torch.outer(at, self.frequencies).repeat(1, 2)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def _frequencies(self) -> Tensor:
        return self.theta ** -(torch.arange(0, self.size, 2, dtype=torch.float32) / self.size)


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

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], cache: KeyValueCache, layer: int) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            proj(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        keys, values = cache.append(layer, rotate(k, turn), v)
        out = F.scaled_dot_product_attention(rotate(q, turn), keys, values, is_causal=tokens > 1)
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

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], cache: KeyValueCache) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, cache, self.index)
        return x + self.mlp(self.post_attention_layernorm(x))


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of a head's halves by its position's angle."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
