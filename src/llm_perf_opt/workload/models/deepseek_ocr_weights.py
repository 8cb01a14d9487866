"""Fills our DeepSeek-OCR: with a published checkpoint, whose experts are stored one by one, or with noise."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.models.deepseek_ocr_experts import choose_experts_mode
from llm_perf_opt.workload.models.deepseek_ocr_model import DeepseekOcr
from llm_perf_opt.workload.models.random_weights import NoiseSource, fill_matrices

# Tables that older code stored beside the weights; ours are computed.
_COMPUTED = re.compile(r".*\.(position_ids|inv_freq)")
_SHOWN = 3


def fill_with_noise(module: DeepseekOcr, *, device: str, seed: int) -> None:
    """Memory on the device, noise in matrices and learned vectors, ones in norms, zeros in biases."""
    module.to_empty(device=device)
    source = NoiseSource(seed=seed, device=device)
    with torch.no_grad():
        fill_matrices(module, source, unit=module.model.embed_tokens.weight)
        for name, parameter in module.named_parameters():
            if parameter.dim() >= 2:
                continue
            if name.endswith(".bias"):
                parameter.zero_()
            elif name.endswith(".weight"):
                parameter.fill_(1.0)
            else:
                source.fill(parameter, std=1.0 / math.sqrt(parameter.numel()))
    _finish(module, device)


def fill_from_snapshot(module: DeepseekOcr, path: Path, *, device: str) -> None:
    """Copy every tensor of the snapshot to its place; anything missing or left over is an error."""
    module.to_empty(device=device)
    places = dict(_places(module))
    unknown: list[str] = []
    with torch.no_grad():
        for file in sorted(path.glob("*.safetensors")):
            for name, tensor in _read(file):
                place = places.pop(name, None)
                if place is not None:
                    _copy(name, tensor, place, file)
                elif not _COMPUTED.fullmatch(name):
                    unknown.append(name)
    _refuse("does not hold", sorted(places), path)
    _refuse("holds unknown", sorted(unknown), path)
    _finish(module, device)


def _places(module: DeepseekOcr) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the checkpoint by its published name."""
    for name, parameter in module.named_parameters():
        parent, _, leaf = name.rpartition(".")
        if not parent.endswith(".mlp.experts"):
            yield name, parameter
            continue
        for expert, matrix in enumerate(parameter):
            if leaf == "down_proj":
                yield f"{parent}.{expert}.down_proj.weight", matrix
                continue
            inner = matrix.shape[0] // 2
            yield f"{parent}.{expert}.gate_proj.weight", matrix[:inner]
            yield f"{parent}.{expert}.up_proj.weight", matrix[inner:]


def _read(file: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, framework="pt", device="cpu") as opened:
        for name in opened.keys():  # noqa: SIM118 - the handle is no mapping
            yield name, opened.get_tensor(name)


def _copy(name: str, tensor: Tensor, place: Tensor, file: Path) -> None:
    if tensor.shape != place.shape:
        raise ConfigError(
            f"model.path: {name} in {file} has the shape {tuple(tensor.shape)}, config.json asks for "
            f"{tuple(place.shape)}, download the snapshot again"
        )
    place.copy_(tensor)


def _refuse(what: str, names: list[str], path: Path) -> None:
    if names:
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise ConfigError(f"model.path: {str(path)!r} {what} tensors ({shown}), it is not a complete DeepSeek-OCR")


def _finish(module: DeepseekOcr, device: str) -> None:
    module.model.rotary.refill()
    module.set_experts_mode(choose_experts_mode(torch.device(device), module.lm_head.weight.dtype))
