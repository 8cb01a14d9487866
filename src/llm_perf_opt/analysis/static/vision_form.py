"""Closed form of DeepSeek-OCR's vision part: SAM (windowed and global attention), CLIP, and the projector.

Relative position terms are part of SAM's attention; windows are padded to whole ones, as SAM does, and the padding is
computed like any token.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from llm_perf_opt.analysis.static.architecture import ClipTower, OcrModel, SamTower
from llm_perf_opt.analysis.static.dtypes import Dtypes
from llm_perf_opt.analysis.static.work import Work, linear, linear_params

COLOURS = 3


@dataclass(frozen=True, kw_only=True)
class View:
    """`count` square images of `size` pixels that go through the towers as one batch."""

    size: int
    count: int


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


def projector_params(model: OcrModel) -> int:
    return linear_params(model.projector_in, model.projector_out, bias=True)


def feature_side(sam: SamTower, size: int) -> int:
    """Tokens along one side after SAM's stride-2 convolutions."""
    side = size // sam.patch
    for _ in sam.downsample:
        side = math.ceil(side / 2)
    return side


def vision_work(model: OcrModel, views: tuple[View, ...], dtypes: Dtypes) -> dict[str, Work]:
    """FLOPs and bytes of the towers and the projector, each view's batch reading the weights once."""
    sam, clip, projector = Work(), Work(), Work()
    for view in views:
        tokens = feature_side(model.sam, view.size) ** 2
        sam += _sam_work(model.sam, view, dtypes)
        clip += _clip_work(model.clip, tokens + 1, view.count, dtypes)
        rows = tokens * view.count
        projector += linear(rows, model.projector_in, model.projector_out, dtypes, bias=True, is_quantised=False)
    return {"sam": sam, "clip": clip, "projector": projector}


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
