"""What a local Hugging Face snapshot holds, seen without torch or transformers.

Loads a snapshot's tokenizer, and is in where there is none.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.system.files import read_limited

CONFIG_FILE = "config.json"
LARGEST_CONFIG_BYTES = 16 << 20
# Ten times what the largest published models have, and more.
LARGEST_SIZE = 1 << 31
MOST_PARTS = 20_000
_COUNTS_PARTS = re.compile(r"layers?$|experts?$|heads?$|blocks?$|n_shared|depth|num_key_value")
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
        data = json.loads(read_limited(file, LARGEST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"model.path: {file} could not be read ({error}), repair or download it again") from error
    if not isinstance(data, dict):
        raise ConfigError(f"model.path: {file} holds no JSON object, repair or download it again")
    problems = find_size_problems(data, where=f"model.path: {file}")
    if problems:
        raise ConfigError(problems)
    return data


def find_size_problems(geometry: Mapping[str, Any], *, where: str) -> tuple[str, ...]:
    """Sizes no model has, which would take all memory before anything is reported about them."""
    found: list[str] = []
    for key, value in geometry.items():
        name = f"{where}.{key}" if ": " not in where else f"{where}: {key}"
        if isinstance(value, Mapping):
            found += find_size_problems(value, where=name)
        elif isinstance(value, float) and not math.isfinite(value):
            found.append(f"{name}: not a number (got {value!r}), allowed: a finite one")
        elif isinstance(value, int) and not isinstance(value, bool):
            largest = MOST_PARTS if _COUNTS_PARTS.search(str(key)) else LARGEST_SIZE
            if abs(value) > largest:
                found.append(f"{name}: too large (got {str(value)[:24]}), allowed: at most {largest}")
    return tuple(found)


def build_config(fields: Mapping[str, Any]) -> Any:
    """Make transformers' configuration of these fields; a value of a type it refuses is a ConfigError."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(**fields)
    except StrictDataclassError as error:
        # Its text begins with the field, and has the reason on the lines after it.
        raise ConfigError(" ".join(str(error).split())) from error


def has_tokenizer(path: Path) -> bool:
    """Whether the snapshot brings a tokenizer."""
    return any((path / name).is_file() for name in _TOKENIZER_FILES)


def stored_dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype the configuration names, under its new or its old key."""
    for key in ("dtype", "torch_dtype"):
        if isinstance(config.get(key), str):
            return str(config[key]).removeprefix("torch.")
    return None


def load_tokenizer(path: Path, *, trust_remote_code: bool = False) -> Any | None:
    """The snapshot's tokenizer from local files, or None where it brings none."""
    if not has_tokenizer(path):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    except (ValueError, KeyError, ImportError, OSError) as error:
        text = f"model.path: the tokenizer in {str(path)!r} could not be loaded ({first_line(error)})"
        raise ConfigError(f"{text}, download its files again") from error


def show_text(tokenizer: Any | None, ids: Sequence[int], *, strip_special: bool, special: frozenset[int]) -> str:
    """The text of the ids; without a tokenizer the ids themselves, never invented words."""
    if tokenizer is not None:
        return str(tokenizer.decode(list(ids), skip_special_tokens=strip_special))
    left_out = special if strip_special else frozenset()
    return " ".join(f"[{i}]" for i in ids if i not in left_out)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a message of one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
