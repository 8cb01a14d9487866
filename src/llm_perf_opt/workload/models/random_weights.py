"""Random weights, cheaply: one block of seeded noise laid over every matrix, on the device itself.

Drawing eight billion normal numbers takes minutes on a CPU; copying a block takes seconds. The block's length is a
prime, so rows of a matrix never repeat, and each tensor starts at another place of it.
"""

import math
from typing import Any

_BLOCK = 4_194_301
_STRIDE = 1_299_709


class NoiseSource:
    """Fills tensors with normal noise of a given spread; the same seed gives the same weights on every device."""

    def __init__(self, *, seed: int, device: str) -> None:
        import torch

        generator = torch.Generator(device="cpu").manual_seed(seed)
        block = torch.randn(_BLOCK, generator=generator, dtype=torch.float32)
        self._block = block.to(device)
        self._tensors = 0

    def fill(self, tensor: Any, *, std: float) -> None:
        """Overwrite the tensor in place."""
        flat = tensor.detach().view(-1)
        block = (self._take(min(flat.numel(), _BLOCK)) * std).to(tensor.dtype)
        whole = flat.numel() // _BLOCK
        if whole:
            flat[: whole * _BLOCK].view(whole, _BLOCK).copy_(block)
        rest = flat.numel() - whole * _BLOCK
        if rest:
            flat[whole * _BLOCK :].copy_(block[:rest])

    def _take(self, count: int) -> Any:
        """The next piece of noise, wrapped around the block's end."""
        import torch

        start = (self._tensors * _STRIDE) % _BLOCK
        self._tensors += 1
        piece = self._block[start : start + count]
        missing = count - piece.numel()
        return torch.cat([piece, self._block[:missing]]) if missing else piece


def fan_in(shape: Any) -> int:
    """Inputs of one output: the last dimension of a (stacked) matrix, all but the first of a convolution."""
    return int(math.prod(shape[1:])) if len(shape) == 4 else int(shape[-1])


def fill_matrices(module: Any, source: NoiseSource) -> list[Any]:
    """Noise for every parameter with two or more dimensions, spread so that activations keep their size.

    Returns the parameters filled. A tied parameter appears once, so it stays tied.
    """
    filled = []
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            source.fill(parameter, std=1.0 / math.sqrt(fan_in(parameter.shape)))
            filled.append(parameter)
    return filled
