"""DeepSeek-OCR's encoders: SAM's windowed vision transformer, and a CLIP fed with its features.

Parameters carry the names of the published checkpoint, its spelling included, so that it loads without a table of
names.
"""

# torch is not type-checked here, so its Module is Any.
# mypy: disallow-subclassing-any=False

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.plugins.deepseek_ocr.adapter import ClipGeometry, SamGeometry

_SAM_NORM_EPS = 1e-6


class SamEncoder(nn.Module):
    """Pictures [n, 3, side, side] to features [n, channels, side/64, side/64]."""

    def __init__(self, g: SamGeometry) -> None:
        super().__init__()
        side = g.image_size // g.patch
        self.patch_embed = PatchEmbed(g)
        self.pos_embed = nn.Parameter(torch.empty(1, side, side, g.width))
        self.blocks = nn.ModuleList(
            SamBlock(g, window=0 if i in g.global_layers else g.window, side=side) for i in range(g.layers)
        )
        self.neck = nn.Sequential(
            nn.Conv2d(g.width, g.neck, kernel_size=1, bias=False),
            ChannelNorm(g.neck),
            nn.Conv2d(g.neck, g.neck, kernel_size=3, padding=1, bias=False),
            ChannelNorm(g.neck),
        )
        first, second = g.downsample
        self.net_2 = nn.Conv2d(g.neck, first, kernel_size=3, stride=2, padding=1, bias=False)
        self.net_3 = nn.Conv2d(first, second, kernel_size=3, stride=2, padding=1, bias=False)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patch_embed(pictures)
        x = x + resize_grid(self.pos_embed, x.shape[1])
        for block in self.blocks:
            x = block(x)
        x = self.neck(x.permute(0, 3, 1, 2))
        return self.net_3(self.net_2(x))


class PatchEmbed(nn.Module):
    """Patches as one convolution; channels go last."""

    def __init__(self, g: SamGeometry) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, g.width, kernel_size=g.patch, stride=g.patch)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.proj(pictures).permute(0, 2, 3, 1)


class SamBlock(nn.Module):
    """Attention in windows of `window` patches (0: over the whole picture), then an MLP."""

    def __init__(self, g: SamGeometry, *, window: int, side: int) -> None:
        super().__init__()
        self.window = window
        self.norm1 = nn.LayerNorm(g.width, eps=_SAM_NORM_EPS)
        self.attn = SamAttention(g, side=window or side)
        self.norm2 = nn.LayerNorm(g.width, eps=_SAM_NORM_EPS)
        self.mlp = SamMlp(g)

    def forward(self, x: Tensor) -> Tensor:
        side = x.shape[1]
        h = self.norm1(x)
        if self.window:
            h, padded = split_windows(h, self.window)
            h = join_windows(self.attn(h), self.window, padded, side)
        else:
            h = self.attn(h)
        x = x + h
        return x + self.mlp(self.norm2(x))


class SamMlp(nn.Module):
    """Two linear maps with a GELU between them."""

    def __init__(self, g: SamGeometry) -> None:
        super().__init__()
        self.lin1 = nn.Linear(g.width, g.mlp_width)
        self.lin2 = nn.Linear(g.mlp_width, g.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin2(F.gelu(self.lin1(x)))


class SamAttention(nn.Module):
    """Attention with a learned bias for the distance in rows and one for the distance in columns."""

    def __init__(self, g: SamGeometry, *, side: int) -> None:
        super().__init__()
        self.heads = g.heads
        self.qkv = nn.Linear(g.width, 3 * g.width)
        self.proj = nn.Linear(g.width, g.width)
        self.rel_pos_h = nn.Parameter(torch.empty(2 * side - 1, g.width // g.heads))
        self.rel_pos_w = nn.Parameter(torch.empty(2 * side - 1, g.width // g.heads))

    def forward(self, x: Tensor) -> Tensor:
        n, side, _, width = x.shape
        q, k, v = self.qkv(x).view(n, side * side, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        grid = q.reshape(n, self.heads, side, side, -1)
        rows = torch.einsum("nhrcd,rkd->nhrck", grid, distances(self.rel_pos_h, side))
        columns = torch.einsum("nhrcd,ckd->nhrck", grid, distances(self.rel_pos_w, side))
        # Written into memory of its own: the sum of two strided tensors could not be viewed as a matrix without a copy.
        bias = q.new_empty(n, self.heads, side, side, side, side)
        torch.add(rows[..., :, None], columns[..., None, :], out=bias)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.view(n, self.heads, side * side, side * side))
        return self.proj(out.transpose(1, 2).reshape(n, side, side, width))


class ChannelNorm(nn.Module):
    """Layer norm over the channels of a picture."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        last = x.permute(0, 2, 3, 1)
        return F.layer_norm(last, last.shape[-1:], self.weight, self.bias, _SAM_NORM_EPS).permute(0, 3, 1, 2)


def distances(table: Tensor, side: int) -> Tensor:
    """The table's row for each pair of positions, [side, side, d]; interpolated for a side it was not made for."""
    rows = 2 * side - 1
    if table.shape[0] != rows:
        resized = F.interpolate(table.float().t()[None], size=rows, mode="linear")
        table = resized[0].t().to(table.dtype)
    at = torch.arange(side, device=table.device)
    return table[at[:, None] - at[None, :] + (side - 1)]


def resize_grid(table: Tensor, side: int) -> Tensor:
    """A table of positions [1, s, s, d] for another side."""
    if table.shape[1] == side:
        return table
    channels_first = table.float().permute(0, 3, 1, 2)
    resized: Any = F.interpolate(channels_first, size=(side, side), mode="bicubic", antialias=True, align_corners=False)
    return resized.permute(0, 2, 3, 1).to(table.dtype)


def split_windows(x: Tensor, window: int) -> tuple[Tensor, int]:
    """[n, side, side, d] to [n * windows, window, window, d], padded with zeros; also the padded side."""
    n, side, _, width = x.shape
    missing = -side % window
    if missing:
        x = F.pad(x, (0, 0, 0, missing, 0, missing))
    count = (side + missing) // window
    x = x.view(n, count, window, count, window, width).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(-1, window, window, width), side + missing


def join_windows(x: Tensor, window: int, padded: int, side: int) -> Tensor:
    """Undo `split_windows` and drop the padding."""
    count = padded // window
    width = x.shape[-1]
    x = x.view(-1, count, count, window, window, width).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(-1, padded, padded, width)[:, :side, :side]


_CLIP_NORM_EPS = 1e-5


class ClipEncoder(nn.Module):
    """Features [n, width, s, s] to tokens [n, 1 + s*s, width], the class token first; no norm at the end."""

    def __init__(self, g: ClipGeometry) -> None:
        super().__init__()
        self.embeddings = ClipEmbeddings(g)
        self.pre_layrnorm = nn.LayerNorm(g.width, eps=_CLIP_NORM_EPS)
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
        self.layer_norm1 = nn.LayerNorm(g.width, eps=_CLIP_NORM_EPS)
        self.self_attn = ClipAttention(g)
        self.layer_norm2 = nn.LayerNorm(g.width, eps=_CLIP_NORM_EPS)
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
