"""How many operators an eager PyTorch model starts in one forward: the closed form's share of launch cost.

The numbers per part are those of transformers' plain modules (a norm in half precision is eight operators: two casts,
square, mean, add, reciprocal root, two products). The operator count replaces this estimate where it was run.
"""

from llm_perf_opt.analysis.static.architecture import (
    DenseMlp,
    GroupedAttention,
    Layer,
    Model,
    Moe,
)

NORM = 8
OUTSIDE_LAYERS = 21
RESIDUALS = 2
ROTARY = 10
CACHE = 2
LATENT_ATTENTION = 22
ROUTED = 23
SHARED = 8


def estimate_operators(model: Model, *, is_prefill: bool, view_batches: int = 0) -> int:
    """Operators of one forward. `view_batches`: how many times the image side runs."""
    decoder = model.decoder
    # The causal mask of a prompt costs one more operator in each layer.
    mask = 1 if is_prefill else 0
    text = OUTSIDE_LAYERS + sum(count * (_layer(layer) + mask) for layer, count in decoder.blocks)
    if model.images is None or not is_prefill:
        return text
    return text + model.images.operators(view_batches)


def _layer(layer: Layer) -> int:
    return layer.norms * NORM + RESIDUALS + _attention(layer) + _feed_forward(layer)


def _attention(layer: Layer) -> int:
    a = layer.attention
    if not isinstance(a, GroupedAttention):
        return LATENT_ATTENTION + (NORM + 1 if a.q_rank is not None else 0)
    projections = 2 if a.is_fused_qkv else 4
    norms = 2 * NORM if a.norm_elements else 0
    return projections + norms + ROTARY + CACHE + 1


def _feed_forward(layer: Layer) -> int:
    block = layer.feed_forward
    if isinstance(block, Moe):
        return ROUTED + (SHARED if block.shared_width else 0)
    return _dense(block)


def _dense(mlp: DenseMlp) -> int:
    if not mlp.is_gated:
        return 3
    return 4 if mlp.is_fused_gate else 5
