"""DeepSeek-OCR's second encoder: a CLIP vision transformer that takes the first one's features for its patches.

Parameters carry the names of the published checkpoint, its spelling included.
"""

# torch is not type-checked here, so its Module is Any.
# mypy: disallow-subclassing-any=False

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.workload.models.deepseek_ocr_geometry import ClipGeometry
from llm_perf_opt.workload.models.deepseek_ocr_sam import resize_grid

_NORM_EPS = 1e-5


class ClipEncoder(nn.Module):
    """Features [n, width, s, s] to tokens [n, 1 + s*s, width], the class token first; no norm at the end."""

    def __init__(self, g: ClipGeometry) -> None:
        super().__init__()
        self.embeddings = ClipEmbeddings(g)
        self.pre_layrnorm = nn.LayerNorm(g.width, eps=_NORM_EPS)
        self.transformer = ClipTransformer(g)

    def forward(self, features: Tensor) -> Tensor:
        return self.transformer(self.pre_layrnorm(self.embeddings(features)))


class ClipEmbeddings(nn.Module):
    """Adds the class vector and the positions. The patch convolution is part of the checkpoint but never runs."""

    def __init__(self, g: ClipGeometry) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.empty(g.width))
        self.patch_embedding = nn.Conv2d(3, g.width, kernel_size=g.patch, stride=g.patch, bias=False)
        self.position_embedding = nn.Embedding((g.image_size // g.patch) ** 2 + 1, g.width)

    def forward(self, features: Tensor) -> Tensor:
        n, width, side, _ = features.shape
        patches = features.flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_embedding.expand(n, 1, width), patches], dim=1)
        return tokens + resize_positions(self.position_embedding.weight, side)


class ClipTransformer(nn.Module):
    """The stack of layers."""

    def __init__(self, g: ClipGeometry) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ClipLayer(g) for _ in range(g.layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ClipLayer(nn.Module):
    """Attention over all tokens, then an MLP, each after a norm."""

    def __init__(self, g: ClipGeometry) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(g.width, eps=_NORM_EPS)
        self.self_attn = ClipAttention(g)
        self.layer_norm2 = nn.LayerNorm(g.width, eps=_NORM_EPS)
        self.mlp = ClipMlp(g)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class ClipAttention(nn.Module):
    """Plain attention, one matrix for queries, keys and values."""

    def __init__(self, g: ClipGeometry) -> None:
        super().__init__()
        self.heads = g.heads
        self.qkv_proj = nn.Linear(g.width, 3 * g.width)
        self.out_proj = nn.Linear(g.width, g.width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv_proj(x).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(out.transpose(1, 2).reshape(n, tokens, width))


class ClipMlp(nn.Module):
    """Two linear maps with CLIP's own approximation of GELU between them."""

    def __init__(self, g: ClipGeometry) -> None:
        super().__init__()
        self.fc1 = nn.Linear(g.width, g.mlp_width)
        self.fc2 = nn.Linear(g.mlp_width, g.width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        return self.fc2(h * torch.sigmoid(1.702 * h))


def resize_positions(table: Tensor, side: int) -> Tensor:
    """Positions of the class token and of side × side patches, interpolated where the table has another side."""
    made_for = round((table.shape[0] - 1) ** 0.5)
    if made_for == side:
        return table
    grid = resize_grid(table[1:].view(1, made_for, made_for, -1), side)
    return torch.cat([table[:1], grid.view(side * side, -1)])
