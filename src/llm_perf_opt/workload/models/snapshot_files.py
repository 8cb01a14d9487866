"""What a local Hugging Face snapshot holds, seen without torch or transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ConfigError

CONFIG_FILE = "config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def find_config_problems(path: Path | None, *, example: str) -> tuple[str, ...]:
    """Why `model.path` cannot be read as the folder of a model, or nothing."""
    if path is None:
        return (f"model.path: missing (got null), set it to the folder of a local snapshot, e.g. model.path={example}",)
    if not path.exists():
        return (f"model.path: no such folder (got {str(path)!r}), download the snapshot there or set model.path",)
    if not path.is_dir():
        return (f"model.path: not a folder (got {str(path)!r}), set it to the folder that holds {CONFIG_FILE}",)
    if not (path / CONFIG_FILE).is_file():
        return (f"model.path: no {CONFIG_FILE} in {str(path)!r}, set it to the folder of a Hugging Face snapshot",)
    return ()


def find_weight_problems(path: Path) -> tuple[str, ...]:
    """Why the snapshot's weights cannot be loaded, or nothing. Only safetensors are read: pickles can run code."""
    if any(path.glob("*.safetensors")):
        return ()
    pickles = sorted(p.name for p in path.glob("*.bin"))
    found = f"found {', '.join(pickles)}, convert to safetensors" if pickles else "complete the download"
    return (f"model.path: no *.safetensors in {str(path)!r} ({found}), or use model.weights=random",)


def read_config(path: Path) -> dict[str, Any]:
    """The snapshot's config.json as plain data."""
    file = path / CONFIG_FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"model.path: {file} could not be read ({error}), repair or download it again") from error
    if not isinstance(data, dict):
        raise ConfigError(f"model.path: {file} holds no JSON object, repair or download it again")
    return data


def has_tokenizer(path: Path) -> bool:
    """Whether the snapshot brings a tokenizer."""
    return any((path / name).is_file() for name in _TOKENIZER_FILES)


def stored_dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype the configuration names, under its new or its old key."""
    for key in ("dtype", "torch_dtype"):
        if isinstance(config.get(key), str):
            return str(config[key]).removeprefix("torch.")
    return None
