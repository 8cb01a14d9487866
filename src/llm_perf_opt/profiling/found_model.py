"""The model that a user's program generates with, as the clean pass found it in a call of a known library."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import msgspec

from llm_perf_opt.config.schema import AppConfig, Dtype, InferSection, ModelSection
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.system.files import read_limited

ADAPTER = "llm_perf_opt.workload.models.causal_lm:ADAPTER"
FOLDER, CONFIG_FILE = "found_model", "config.json"
LARGEST_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """What `inject/_llm_perf_generated.py` wrote of a model: its configuration, and what it was loaded as."""

    name: str
    dtype: str
    device: str
    config: Mapping[str, Any]


def read_found_model(clean_dir: Path) -> FoundModel | None:
    """That of the first process that generated; None where none did, or its file is cut off."""
    for path in sorted(clean_dir.glob("marks-*/model-*.json")):
        try:
            return msgspec.json.decode(read_limited(path, LARGEST_BYTES), type=FoundModel)
        except (OSError, msgspec.DecodeError):
            # A program that was ended while it wrote.
            continue
    return None


def with_found_model(config: AppConfig, found: FoundModel, folder: Path) -> AppConfig:
    """The configuration with the model found instead of an unnamed one."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / CONFIG_FILE, found.config)
    section = ModelSection(
        name=found.name,
        adapter=ADAPTER,
        weights="random",
        path=place,
        dtype=next((known for known in get_args(Dtype) if known == found.dtype), "auto"),
        geometry=None,
    )
    run = replace(config.run, device="cpu") if found.device == "cpu" else config.run
    return replace(config, model=section, infer=InferSection(batch=config.infer.batch), run=run)
