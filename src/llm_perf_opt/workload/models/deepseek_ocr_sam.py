"""DeepSeek-OCR's first encoder: a windowed vision transformer and convolutions that leave 16 times fewer tokens.

Parameters carry the names of the published checkpoint, so that it loads without a table of names.
"""

# torch is not type-checked here, so its Module is Any.
# mypy: disallow-subclassing-any=False

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.workload.models.deepseek_ocr_geometry import SamGeometry

_NORM_EPS = 1e-6


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
        self.norm1 = nn.LayerNorm(g.width, eps=_NORM_EPS)
        self.attn = SamAttention(g, side=window or side)
        self.norm2 = nn.LayerNorm(g.width, eps=_NORM_EPS)
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
        return F.layer_norm(last, last.shape[-1:], self.weight, self.bias, _NORM_EPS).permute(0, 3, 1, 2)


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
