"""Builds and loads DeepSeek-OCR. Imported only where torch is wanted; transformers only for a snapshot."""

from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.models.choices import Choice, choose_dtype, torch_dtype
from llm_perf_opt.workload.models.deepseek_ocr import OcrInfer, OcrModel
from llm_perf_opt.workload.models.deepseek_ocr_geometry import OcrGeometry
from llm_perf_opt.workload.models.deepseek_ocr_model import DeepseekOcr
from llm_perf_opt.workload.models.deepseek_ocr_preprocess import ViewSizes
from llm_perf_opt.workload.models.deepseek_ocr_run import LoadedOcr, RemoteOcr
from llm_perf_opt.workload.models.deepseek_ocr_weights import fill_from_snapshot, fill_with_noise
from llm_perf_opt.workload.models.snapshot_files import read_config, stored_dtype
from llm_perf_opt.workload.models.tokenizer import first_line, load_tokenizer


def build_on_meta(geometry: OcrGeometry, *, dtype: str) -> DeepseekOcr:
    """The module without memory; `auto` is the published bfloat16."""
    with torch.device("meta"):
        module = DeepseekOcr(geometry)
    module.to(torch_dtype("bfloat16" if dtype == "auto" else dtype))
    module.model.rotary.refill()
    module.eval()
    return module


def load_random(model: OcrModel, infer: OcrInfer, geometry: OcrGeometry, *, device: str, seed: int) -> LoadedOcr:
    """The real geometry with noise for weights and checksums of words for a tokenizer."""
    dtype = choose_dtype(model.dtype, device=device, stored=None)
    module = build_on_meta(geometry, dtype=dtype.value)
    fill_with_noise(module, device=device, seed=seed)
    notes = (
        "weights are random: the text means nothing",
        "no tokenizer: the prompt's words are hashed to token ids, text is shown as token ids",
        *dtype.notes,
        *_attention_notes(model),
    )
    fields = _shared_fields(infer, geometry, device, dtype.value, tokenizer=None)
    return LoadedOcr(module=module, notes=notes, **fields)


def load_snapshot(model: OcrModel, infer: OcrInfer, geometry: OcrGeometry, *, device: str) -> LoadedOcr:
    """The snapshot's weights, run by its own code where that can run here, else by ours."""
    if model.path is None:
        raise ConfigError("model.path: missing (got null), set it to the folder of a DeepSeek-OCR snapshot")
    config = read_config(model.path)
    dtype = choose_dtype(model.dtype, device=device, stored=stored_dtype(config))
    reason = _why_not_remote(model, config, device)
    if reason is None:
        return _load_remote(model, infer, geometry, device=device, dtype=dtype)
    module = build_on_meta(geometry, dtype=dtype.value)
    fill_from_snapshot(module, model.path, device=device)
    tokenizer = _required_tokenizer(model.path, trust=False)
    notes = (f"the snapshot's weights run in the built-in code: {reason}", *dtype.notes, *_attention_notes(model))
    fields = _shared_fields(infer, geometry, device, dtype.value, tokenizer=tokenizer)
    return LoadedOcr(module=module, notes=notes, **fields)


def _load_remote(model: OcrModel, infer: OcrInfer, geometry: OcrGeometry, *, device: str, dtype: Choice) -> LoadedOcr:
    from transformers import AutoModel

    assert model.path is not None
    attention = _remote_attention(model, device=device, dtype=dtype.value)
    try:
        module = AutoModel.from_pretrained(
            model.path,
            trust_remote_code=True,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch_dtype(dtype.value),
            attn_implementation=attention.value,
        )
    except (ImportError, AttributeError, ValueError, KeyError, OSError) as error:
        raise ConfigError(
            f"model.implementation: the snapshot's own code could not be loaded "
            f"({type(error).__name__}: {first_line(error)}), use model.implementation=builtin or install what it needs"
        ) from error
    tokenizer = _required_tokenizer(model.path, trust=True)
    notes = (f"the snapshot's own code runs, from {model.path}", *dtype.notes, *attention.notes)
    fields = _shared_fields(infer, geometry, device, dtype.value, tokenizer=tokenizer)
    return RemoteOcr(module=module.to(device).eval(), notes=notes, **fields)


def _why_not_remote(model: OcrModel, config: dict[str, Any], device: str) -> str | None:
    """None where the snapshot's code is to run. As published it calls CUDA by name and the caches of transformers 4."""
    if model.implementation == "remote":
        return None
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
    return None


def _remote_attention(model: OcrModel, *, device: str, dtype: str) -> Choice:
    """The published code knows flash attention and eager, not sdpa."""
    if model.attention in ("eager", "sdpa"):
        return Choice(value=model.attention)
    from transformers.utils import is_flash_attn_2_available

    if is_flash_attn_2_available() and device.startswith("cuda") and dtype != "float32":
        return Choice(value="flash_attention_2")
    note = "flash_attention_2 is not installed or cannot run here, eager used instead"
    return Choice(value="eager", notes=(note,))


def _attention_notes(model: OcrModel) -> tuple[str, ...]:
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
        "sizes": ViewSizes(
            base_size=infer.base_size,
            image_size=infer.image_size,
            patch_size=infer.patch_size,
            downsample_ratio=infer.downsample_ratio,
        ),
        "crop_mode": infer.crop_mode,
        "vocabulary": geometry.decoder.vocab_size,
        "bos_token_id": geometry.decoder.bos_token_id,
        "torch_dtype": torch_dtype(dtype),
    }
