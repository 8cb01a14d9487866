"""Closed form of an image side with two towers: SAM (windowed and global attention), CLIP behind it, and a projector.

Relative position terms are part of SAM's attention; windows are padded to whole ones, as SAM does, and the padding is
computed like any token. They add a learned bias to every score, so SAM's attention holds one matrix of all tokens by
all tokens for each head, which fused attention cannot avoid. Views go through the towers one after the other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from llm_perf_opt.plugin import Dtypes, View, Work, linear, linear_params

COLOURS = 3
# Operators of one layer as plain torch modules start them.
SAM_BLOCK = 30
CLIP_LAYER = 14


@dataclass(frozen=True, kw_only=True)
class SamTower:
    """SAM's image encoder: windowed attention with relative positions, a neck, then stride-2 convolutions."""

    layers: int
    width: int
    heads: int
    mlp_width: int
    window: int
    global_layers: tuple[int, ...]
    patch: int
    image_size: int
    neck: int
    downsample: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ClipTower:
    """CLIP's image encoder, fed with another tower's features."""

    layers: int
    width: int
    heads: int
    mlp_width: int
    patch: int
    image_size: int


@dataclass(frozen=True, kw_only=True)
class SamClipImages:
    """SAM, CLIP fed with its features, one linear projector over both, and the two vectors that end rows and views."""

    sam: SamTower
    clip: ClipTower
    projector_in: int
    projector_out: int

    def params(self) -> Mapping[str, int]:
        return {
            "sam": sam_params(self.sam),
            "clip": clip_params(self.clip),
            "projector": linear_params(self.projector_in, self.projector_out, bias=True),
            # The row-end and the view-separator vector.
            "other": 2 * self.projector_out,
        }

    def work(self, views: tuple[View, ...], dtypes: Dtypes) -> Mapping[str, Work]:
        """Each view's batch reads the weights once."""
        sam, clip, projector = Work(), Work(), Work()
        for view in views:
            tokens = feature_side(self.sam, view.size) ** 2
            sam += _sam_work(self.sam, view, dtypes)
            clip += _clip_work(self.clip, tokens + 1, view.count, dtypes)
            rows = tokens * view.count
            projector += linear(rows, self.projector_in, self.projector_out, dtypes, bias=True, is_quantised=False)
        return {"sam": sam, "clip": clip, "projector": projector}

    def peak_bytes(self, views: tuple[View, ...], dtypes: Dtypes) -> float:
        """All pictures, and the widest point of the view that needs most."""
        pictures = sum(COLOURS * view.size**2 * view.count for view in views)
        widest = max(
            (max(_sam_elements(self.sam, view), _clip_elements(self.sam, self.clip, view)) for view in views), default=0
        )
        return (pictures + widest) * dtypes.compute_bytes

    def operators(self, view_batches: int) -> int:
        return view_batches * (self.sam.layers * SAM_BLOCK + self.clip.layers * CLIP_LAYER)


def sam_params(sam: SamTower) -> int:
    side = sam.image_size // sam.patch
    head_dim = sam.width // sam.heads
    block = (
        4 * sam.width
        + linear_params(sam.width, 3 * sam.width, bias=True)
        + linear_params(sam.width, sam.width, bias=True)
        + linear_params(sam.width, sam.mlp_width, bias=True)
        + linear_params(sam.mlp_width, sam.width, bias=True)
    )
    reach = [side if i in sam.global_layers else sam.window for i in range(sam.layers)]
    positions = sum(2 * (2 * r - 1) * head_dim for r in reach)
    patches = linear_params(COLOURS * sam.patch**2, sam.width, bias=True) + side**2 * sam.width
    neck = sam.width * sam.neck + 9 * sam.neck**2 + 4 * sam.neck
    widths = (sam.neck, *sam.downsample)
    down = sum(9 * a * b for a, b in pairwise(widths))
    return patches + sam.layers * block + positions + neck + down


def clip_params(clip: ClipTower) -> int:
    side = clip.image_size // clip.patch
    block = (
        4 * clip.width
        + linear_params(clip.width, 3 * clip.width, bias=True)
        + linear_params(clip.width, clip.width, bias=True)
        + linear_params(clip.width, clip.mlp_width, bias=True)
        + linear_params(clip.mlp_width, clip.width, bias=True)
    )
    embeddings = clip.width + COLOURS * clip.patch**2 * clip.width + (side**2 + 1) * clip.width
    return embeddings + 2 * clip.width + clip.layers * block


def feature_side(sam: SamTower, size: int) -> int:
    """Tokens along one side after SAM's stride-2 convolutions."""
    side = size // sam.patch
    for _ in sam.downsample:
        side = math.ceil(side / 2)
    return side


def _sam_work(sam: SamTower, view: View, dtypes: Dtypes) -> Work:
    side = view.size // sam.patch
    tokens = side**2 * view.count
    total = _conv(tokens, view.size**2 * view.count, COLOURS, sam.width, sam.patch, dtypes, bias=True)
    padded = math.ceil(side / sam.window) * sam.window
    windows = (padded // sam.window) ** 2 * view.count
    for index in range(sam.layers):
        if index in sam.global_layers:
            total += _sam_attention(sam, view.count, side, dtypes)
        else:
            total += _sam_attention(sam, windows, sam.window, dtypes)
        total += _mlp(tokens, sam.width, sam.mlp_width, dtypes)
    total += _conv(tokens, tokens, sam.width, sam.neck, 1, dtypes)
    total += _conv(tokens, tokens, sam.neck, sam.neck, 3, dtypes)
    widths = (sam.neck, *sam.downsample)
    for n_in, n_out in pairwise(widths):
        smaller = math.ceil(side / 2)
        total += _conv(smaller**2 * view.count, side**2 * view.count, n_in, n_out, 3, dtypes)
        side = smaller
    return total


def _sam_attention(sam: SamTower, batch: int, side: int, dtypes: Dtypes) -> Work:
    """Attention inside `batch` squares of side × side tokens, with the two relative position terms."""
    tokens = side**2
    head_dim = sam.width // sam.heads
    attention = _attention(batch, tokens, sam.width, dtypes)
    flops = 2 * 2 * batch * sam.heads * tokens * side * head_dim
    # Each term reads all queries and a table of side × side positions, and writes one score per row or column.
    per_term = batch * sam.heads * tokens * (head_dim + side) + side * side * head_dim
    return attention + Work(flops=flops, activation_bytes=2 * per_term * dtypes.compute_bytes)


def _attention(batch: int, tokens: int, width: int, dtypes: Dtypes) -> Work:
    rows = batch * tokens
    qkv = linear(rows, width, 3 * width, dtypes, bias=True, is_quantised=False)
    scores = Work(flops=4 * batch * tokens**2 * width, activation_bytes=4 * rows * width * dtypes.compute_bytes)
    return qkv + scores + linear(rows, width, width, dtypes, bias=True, is_quantised=False)


def _clip_work(clip: ClipTower, tokens: int, batch: int, dtypes: Dtypes) -> Work:
    """SAM's features stand in for CLIP's own patches, so its patch convolution does not run."""
    layer = _attention(batch, tokens, clip.width, dtypes) + _mlp(batch * tokens, clip.width, clip.mlp_width, dtypes)
    return layer.times(clip.layers)


def _mlp(rows: int, width: int, inner: int, dtypes: Dtypes) -> Work:
    up = linear(rows, width, inner, dtypes, bias=True, is_quantised=False)
    return up + linear(rows, inner, width, dtypes, bias=True, is_quantised=False)


def _conv(
    out_pixels: int, in_pixels: int, n_in: int, n_out: int, kernel: int, dtypes: Dtypes, *, bias: bool = False
) -> Work:
    weights = n_in * n_out * kernel**2
    size = dtypes.compute_bytes
    return Work(
        flops=2 * out_pixels * weights,
        weight_bytes=(weights + (n_out if bias else 0)) * size,
        activation_bytes=(in_pixels * n_in + out_pixels * n_out) * size,
    )


def _sam_elements(sam: SamTower, view: View) -> int:
    """Elements alive in SAM's widest layer."""
    side = view.size // sam.patch
    tokens = side**2 * view.count
    # Residual, the attention's result, which is still named, and the norm's output; the inner layer around its GELU.
    found = [tokens * (3 * sam.width + 2 * sam.mlp_width)]
    layers = set(range(sam.layers))
    if layers & set(sam.global_layers):
        found.append(tokens * sam.width + _sam_attention_elements(sam, view.count, side))
    if layers - set(sam.global_layers):
        windows = math.ceil(side / sam.window) ** 2 * view.count
        found.append(tokens * sam.width + _sam_attention_elements(sam, windows, sam.window))
    return max(found)


def _sam_attention_elements(sam: SamTower, squares: int, side: int) -> int:
    """Inside `squares` of side × side tokens: input, queries, keys, values, a copy of the queries, result; the bias."""
    tokens = squares * side**2
    terms = 2 * tokens * sam.heads * side
    return tokens * 6 * sam.width + terms + tokens * sam.heads * side**2


def _clip_elements(sam: SamTower, clip: ClipTower, view: View) -> int:
    """Elements alive in CLIP's widest layer, SAM's features alongside it."""
    patches = feature_side(sam, view.size) ** 2
    attention = 6 * clip.width
    # Residual and norm's output; the inner layer with the two factors of its activation.
    mlp = 2 * clip.width + 3 * clip.mlp_width
    return view.count * (patches * sam.downsample[-1] + (patches + 1) * max(attention, mlp))
