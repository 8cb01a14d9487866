"""What the vision towers of DeepSeek-OCR hold at their widest point.

Attention with relative positions adds a learned bias to every score, so SAM's attention holds one matrix of all tokens
by all tokens for each head, which fused attention cannot avoid. Views go through the towers one after the other.
"""

import math

from llm_perf_opt.analysis.static.architecture import ClipTower, OcrModel, SamTower
from llm_perf_opt.analysis.static.dtypes import Dtypes
from llm_perf_opt.analysis.static.vision_form import COLOURS, View, feature_side


def vision_bytes(model: OcrModel, views: tuple[View, ...], dtypes: Dtypes) -> float:
    """All pictures, and the widest point of the view that needs most."""
    pictures = sum(COLOURS * view.size**2 * view.count for view in views)
    widest = max((max(_sam(model.sam, view), _clip(model, view)) for view in views), default=0)
    return (pictures + widest) * dtypes.compute_bytes


def _sam(sam: SamTower, view: View) -> int:
    """Elements alive in SAM's widest layer."""
    side = view.size // sam.patch
    tokens = side**2 * view.count
    # Residual, the attention's result, which is still named, and the norm's output; the inner layer around its GELU.
    found = [tokens * (3 * sam.width + 2 * sam.mlp_width)]
    layers = set(range(sam.layers))
    if layers & set(sam.global_layers):
        found.append(tokens * sam.width + _sam_attention(sam, view.count, side))
    if layers - set(sam.global_layers):
        windows = math.ceil(side / sam.window) ** 2 * view.count
        found.append(tokens * sam.width + _sam_attention(sam, windows, sam.window))
    return max(found)


def _sam_attention(sam: SamTower, squares: int, side: int) -> int:
    """Inside `squares` of side × side tokens: input, queries, keys, values, a copy of the queries, result; the bias."""
    tokens = squares * side**2
    terms = 2 * tokens * sam.heads * side
    return tokens * 6 * sam.width + terms + tokens * sam.heads * side**2


def _clip(model: OcrModel, view: View) -> int:
    """Elements alive in CLIP's widest layer, SAM's features beside it."""
    clip: ClipTower = model.clip
    patches = feature_side(model.sam, view.size) ** 2
    attention = 6 * clip.width
    # Residual and norm's output; the inner layer with the two factors of its activation.
    mlp = 2 * clip.width + 3 * clip.mlp_width
    return view.count * (patches * model.sam.downsample[-1] + (patches + 1) * max(attention, mlp))
