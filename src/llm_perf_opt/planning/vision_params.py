"""Count the parameters of the vision and audio parts of a wrapper on the meta device.

transformers builds the whole model without memory; what lies outside its decoder is counted. That takes seconds and
needs torch, so it is done only for a configuration that names such a part.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.preflight import RUN_EXTRA
from llm_perf_opt.planning.counted_rows import REFUSALS
from llm_perf_opt.system.terminal import cut_text
from llm_perf_opt.workload.models.snapshot import build_config, find_size_problems, first_line

_PARTS = ("vision_config", "audio_config")
# Read for what they say of sizes alone; the weights' format changes no count.
_NOT_SIZES = ("architectures", "transformers_version", "auto_map", "quantization_config", "torch_dtype", "dtype")
_AUDIO = re.compile(r"audio|speech|sound")


@dataclass(frozen=True, kw_only=True)
class Beside:
    """`params`: by group, vision or audio. `reason`: what is not counted and why; None: nothing is missing."""

    params: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None


def count_beside(geometry: Mapping[str, Any], *, where: str) -> Beside:
    """The parts of a wrapper that are not its text model."""
    if isinstance(thinker := geometry.get("thinker_config"), Mapping):
        heard = count_beside({"model_type": f"{geometry.get('model_type')}_thinker", **thinker}, where=where)
        return replace(heard, reason=heard.reason or "what speaks is its own model and not counted")
    if not any(isinstance(geometry.get(key), Mapping) for key in _PARTS):
        return Beside()
    problems = find_size_problems(geometry, where=where)
    if problems:
        return Beside(reason=problems[0])
    try:
        found = _outside_decoder({key: value for key, value in geometry.items() if key not in _NOT_SIZES})
    except ModuleNotFoundError as error:
        return Beside(
            reason=f"counting them needs torch and transformers: {RUN_EXTRA}, then this command again ({error})"
        )
    except (*REFUSALS, AssertionError) as error:
        return Beside(reason=f"transformers cannot build them: {cut_text(first_line(error), 160)}")
    if not found:
        return Beside(reason="transformers does not separate them from the text model")
    return Beside(params=found)


def _outside_decoder(fields: Mapping[str, Any]) -> dict[str, int]:
    import torch
    from transformers import CONFIG_MAPPING, AutoModel

    if (kind := str(fields.get("model_type"))) not in CONFIG_MAPPING:
        raise ConfigError(f"it has no model of type {kind!r}")
    config = build_config(fields)
    with torch.device("meta"):
        module = AutoModel.from_config(config, trust_remote_code=False)
    text = {id(tensor) for tensor in module.get_decoder().parameters()}
    found: Counter[str] = Counter()
    for name, tensor in module.named_parameters():
        if id(tensor) not in text:
            found["audio" if _AUDIO.search(name) else "vision"] += tensor.numel()
    return dict(found)
