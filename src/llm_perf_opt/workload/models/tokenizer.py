"""Loads a snapshot's tokenizer, and stands in where there is none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.models.snapshot_files import has_tokenizer


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
