"""Builds DeepSeek-OCR and fills it, with a snapshot or with noise. Imported only where torch is wanted."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from llm_perf_opt.plugin import (
    Choice,
    ConfigError,
    NoiseSource,
    begin_step,
    choose_dtype,
    fill_matrices,
    load_tokenizer,
    read_config,
    require_room,
    stored_dtype,
)
from llm_perf_opt.plugins.deepseek_ocr.adapter import OcrGeometry, OcrInfer, OcrSection, view_sizes
from llm_perf_opt.plugins.deepseek_ocr.loaded import (
    GrowingOcrSteps,
    LoadedOcr,
    OcrSteps,
    RemoteOcrSteps,
    StaticOcrSteps,
)
from llm_perf_opt.plugins.deepseek_ocr.network import DeepseekOcr, choose_experts_mode


def build_on_meta(geometry: OcrGeometry, *, dtype: str) -> DeepseekOcr:
    """The module without memory; `auto` is the published bfloat16."""
    with torch.device("meta"):
        module = DeepseekOcr(geometry)
    module.to(getattr(torch, "bfloat16" if dtype == "auto" else dtype))
    module.model.rotary.refill()
    module.eval()
    return module


def load_random(model: OcrSection, infer: OcrInfer, geometry: OcrGeometry, *, device: str, seed: int) -> LoadedOcr:
    """The real geometry with noise for weights and checksums of words for a tokenizer."""
    dtype = choose_dtype(model.dtype, device=device, stored=None)
    module = build_on_meta(geometry, dtype=dtype.value)
    begin_step("weights")
    fill_with_noise(module, device=device, seed=seed)
    notes = (
        "weights are random: the text means nothing",
        "no tokenizer: the prompt's words are hashed to token ids, text is shown as token ids",
        *dtype.notes,
        *_attention_notes(model),
    )
    fields = _shared_fields(infer, geometry, device, dtype.value, tokenizer=None)
    return LoadedOcr(module=module, load_notes=notes, steps=choose_steps(module, infer, device=device), **fields)


def load_snapshot(model: OcrSection, infer: OcrInfer, geometry: OcrGeometry, *, device: str) -> LoadedOcr:
    """The snapshot's weights, run by its own code where that can run here, else by ours."""
    if model.path is None:
        raise ConfigError("model.path: missing (got null), set it to the folder of a DeepSeek-OCR snapshot")
    config = read_config(model.path)
    dtype = choose_dtype(model.dtype, device=device, stored=stored_dtype(config))
    reason = _why_not_remote(model, infer, config, device)
    if reason is None:
        return _load_remote(model, infer, geometry, device=device, dtype=dtype)
    module = build_on_meta(geometry, dtype=dtype.value)
    fill_from_snapshot(module, model.path, device=device)
    tokenizer = _required_tokenizer(model.path, trust=False)
    notes = (f"the snapshot's weights run in the built-in code: {reason}", *dtype.notes, *_attention_notes(model))
    fields = _shared_fields(infer, geometry, device, dtype.value, tokenizer=tokenizer)
    return LoadedOcr(module=module, load_notes=notes, steps=choose_steps(module, infer, device=device), **fields)


def choose_steps(module: DeepseekOcr, infer: OcrInfer, *, device: str) -> OcrSteps:
    """The steps `infer.cache`, `infer.compile` and `infer.cuda_graph` ask for, and experts that can run in them."""
    is_repeated = infer.compile != "none" or infer.cuda_graph
    dtype = module.lm_head.weight.dtype
    module.set_experts_mode(choose_experts_mode(torch.device(device), dtype, is_repeated=is_repeated))
    return GrowingOcrSteps(module) if infer.cache == "dynamic" else StaticOcrSteps(module, infer, device=device)


def _load_remote(model: OcrSection, infer: OcrInfer, geometry: OcrGeometry, *, device: str, dtype: Choice) -> LoadedOcr:
    from transformers import AutoModel

    assert model.path is not None
    attention = _remote_attention(model, device=device, dtype=dtype.value)
    try:
        module = AutoModel.from_pretrained(
            model.path,
            trust_remote_code=True,
            local_files_only=True,
            use_safetensors=True,
            dtype=getattr(torch, dtype.value),
            attn_implementation=attention.value,
        )
    except (ImportError, AttributeError, ValueError, KeyError, OSError) as error:
        said = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"model.implementation: the snapshot's own code could not be loaded "
            f"({type(error).__name__}: {said}), use model.implementation=builtin or install what it needs"
        ) from error
    tokenizer = _required_tokenizer(model.path, trust=True)
    notes = (f"the snapshot's own code runs, from {model.path}", *dtype.notes, *attention.notes)
    fields = _shared_fields(infer, geometry, device, dtype.value, tokenizer=tokenizer)
    module = module.to(device).eval()
    return LoadedOcr(module=module, load_notes=notes, steps=RemoteOcrSteps(module=module), **fields)


def _why_not_remote(model: OcrSection, infer: OcrInfer, config: dict[str, Any], device: str) -> str | None:
    """None where the snapshot's code is to run. As published it calls CUDA by name and the caches of transformers 4."""
    if model.implementation == "remote":
        if infer.cache == "static":
            raise ConfigError(
                "infer.cache: the snapshot's own code makes its cache itself (got 'static' with "
                "model.implementation=remote), allowed: dynamic, or model.implementation=builtin"
            )
        return None
    if infer.cache == "static":
        return "its own code knows no static cache"
    if model.implementation == "builtin":
        return "model.implementation=builtin"
    if "auto_map" not in config:
        return "the snapshot brings no code"
    if not device.startswith("cuda"):
        return f"its own code needs CUDA, the device is {device}"
    import transformers

    written_for = config.get("transformers_version")
    if isinstance(written_for, str) and written_for.split(".")[0] != transformers.__version__.split(".")[0]:
        return f"its own code was written for transformers {written_for}, {transformers.__version__} is installed"
    return None if model.trust_remote_code else "its own code is not trusted (model.trust_remote_code=false)"


def _remote_attention(model: OcrSection, *, device: str, dtype: str) -> Choice:
    """The published code knows flash attention and eager, not sdpa."""
    if model.attention in ("eager", "sdpa"):
        return Choice(value=model.attention)
    from transformers.utils import is_flash_attn_2_available

    if is_flash_attn_2_available() and device.startswith("cuda") and dtype != "float32":
        return Choice(value="flash_attention_2")
    note = "flash_attention_2 is not installed or cannot run here, eager used instead"
    return Choice(value="eager", notes=(note,))


def _attention_notes(model: OcrSection) -> tuple[str, ...]:
    if model.attention in ("auto", "sdpa"):
        return ()
    return (f"the built-in code has no {model.attention} attention, sdpa used instead",)


def _required_tokenizer(path: Path, *, trust: bool) -> Any:
    tokenizer = load_tokenizer(path, trust_remote_code=trust)
    if tokenizer is None:
        raise ConfigError(f"model.path: no tokenizer in {str(path)!r}, download the snapshot again")
    return tokenizer


def _shared_fields(
    infer: OcrInfer, geometry: OcrGeometry, device: str, dtype: str, *, tokenizer: Any | None
) -> dict[str, Any]:
    eos = {geometry.decoder.eos_token_id}
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        eos = {int(tokenizer.eos_token_id)}
    return {
        "device": device,
        "dtype": dtype,
        "eos_token_ids": frozenset(eos),
        "tokenizer": tokenizer,
        "prompt": infer.prompt.strip(),
        "sizes": view_sizes(infer),
        "crop_mode": infer.crop_mode,
        "vocabulary": geometry.decoder.vocab_size,
        "bos_token_id": geometry.decoder.bos_token_id,
        "torch_dtype": getattr(torch, dtype),
    }


# Tables that older code stored alongside the weights; ours are computed.
_COMPUTED = re.compile(r".*\.(position_ids|inv_freq)")
_SHOWN = 3


def fill_with_noise(module: DeepseekOcr, *, device: str, seed: int) -> None:
    """Memory on the device, noise in matrices and learned vectors, ones in norms, zeros in biases."""
    require_room(module, device=device)
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
    module.model.rotary.refill()


def fill_from_snapshot(module: DeepseekOcr, path: Path, *, device: str) -> None:
    """Copy every tensor of the snapshot to its place; anything missing or left over is an error."""
    require_room(module, device=device)
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
    module.model.rotary.refill()


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
        for name in opened.keys():  # noqa: SIM118 - the handle is not a mapping
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
