"""Random weights, cheaply: one block of seeded noise laid over every matrix, on the device itself.

Drawing eight billion normal numbers takes minutes on a CPU; copying a block takes seconds. The block's length is a
prime, so rows of a matrix never repeat, and each tensor starts at another place of it.
"""

import math
from typing import Any

from llm_perf_opt.errors import ConfigError

_BLOCK = 4_194_301
_STRIDE = 1_299_709
# Matrices that write to the residual stream. Damped, as in training, or every layer would make tokens more alike.
_BLOCK_OUTPUTS = ("o_proj", "out_proj", "down_proj", "c_proj", "dense_4h_to_h")
_DAMPING = 0.25


def require_room(module: Any, *, device: str) -> None:
    """Refuse a module built on meta that the device has no memory for, before any of it is taken."""
    import psutil
    import torch

    needed = sum(t.numel() * t.element_size() for t in map(own_part, (*module.parameters(), *module.buffers())))
    is_cuda = device.startswith("cuda")
    free = torch.cuda.mem_get_info(device)[0] if is_cuda else psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"model: its weights take {needed / 1e9:,.1f} GB, {device} has {free / 1e9:,.1f} GB free; choose a smaller "
            "model, another model.dtype or another device, and compare the geometry with the model's config.json"
        )


def own_part(tensor: Any) -> Any:
    """What this process holds of a tensor: a piece where ranks split the model, else all of it."""
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class NoiseSource:
    """Fills tensors with normal noise of a given spread; the same seed gives the same weights on every device."""

    def __init__(self, *, seed: int, device: str) -> None:
        import torch

        generator = torch.Generator(device="cpu").manual_seed(seed)
        block = torch.randn(_BLOCK, generator=generator, dtype=torch.float32)
        self._block = block.to(device)
        self._tensors = 0

    def fill(self, tensor: Any, *, std: float) -> None:
        """Overwrite the tensor in place; a split one with its piece of what the whole one would get."""
        if own_part(tensor) is not tensor:
            self._fill_piece(tensor, std)
            return
        flat = tensor.detach().view(-1)
        block = (self._take(min(flat.numel(), _BLOCK)) * std).to(tensor.dtype)
        whole = flat.numel() // _BLOCK
        if whole:
            flat[: whole * _BLOCK].view(whole, _BLOCK).copy_(block)
        rest = flat.numel() - whole * _BLOCK
        if rest:
            flat[whole * _BLOCK :].copy_(block[:rest])

    def _fill_piece(self, tensor: Any, std: float) -> None:
        import torch
        from torch.distributed.tensor import distribute_tensor

        piece = own_part(tensor)
        whole = torch.empty(tensor.shape, dtype=piece.dtype, device=piece.device)
        self.fill(whole, std=std)
        # Every rank made the same one, so none has to be sent.
        piece.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local())

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


def fill_matrices(module: Any, source: NoiseSource, *, unit: Any | None) -> list[Any]:
    """Noise for every parameter with two or more dimensions, spread so that activations keep their size.

    `unit` gets a spread of one: token embeddings that are not also the output's weights. Tokens then stay different
    from each other through the layers, and a router spreads them over the experts.
    Returns the parameters filled. A tied parameter appears once, so it stays tied.
    """
    filled = []
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            continue
        std = 1.0 if parameter is unit else 1.0 / math.sqrt(fan_in(parameter.shape))
        is_damped = any(part in _BLOCK_OUTPUTS for part in name.split("."))
        source.fill(parameter, std=std * (_DAMPING if is_damped else 1.0))
        filled.append(parameter)
    return filled
