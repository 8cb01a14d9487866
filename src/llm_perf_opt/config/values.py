"""Turns composed values into those the sections expect, before they are checked."""

from copy import deepcopy
from pathlib import Path
from typing import Any

_PATH_KEYS = {
    "run": ("dataset_subset_filelist", "resume"),
    "dataset": ("root", "subset_filelist", "file"),
    "model": ("path",),
}
_RATE_MAPS = ("peak_tflops", "achieved_tflops")


def plain_values(raw: dict[str, Any], user_dir: Path) -> dict[str, Any]:
    """Paths absolute from where the user stood, rates without those nobody knows, commands as words."""
    out = deepcopy(raw)
    _make_paths_absolute(out, user_dir)
    _drop_unknown_rates(out.get("hardware"))
    _write_numbers_as_words(out.get("workload"), "command")
    pipeline = out.get("pipeline")
    for stage in pipeline.values() if isinstance(pipeline, dict) else ():
        _write_numbers_as_words(stage, "extra_args")
    return out


def _write_numbers_as_words(section: Any, key: str) -> None:
    """`[python,serve.py,--port,8000]` is a list of words, whatever YAML makes of its last one."""
    words = section.get(key) if isinstance(section, dict) else None
    if isinstance(words, list):
        section[key] = [str(word) if type(word) is int else word for word in words]


def _drop_unknown_rates(hardware: Any) -> None:
    """Without the number formats that are only listed so that their keys exist: null is a rate nobody knows."""
    for key in _RATE_MAPS if isinstance(hardware, dict) else ():
        if isinstance(hardware.get(key), dict):
            hardware[key] = {name: rate for name, rate in hardware[key].items() if rate is not None}


def _make_paths_absolute(raw: dict[str, Any], user_dir: Path) -> None:
    """Relative paths are meant from the directory the user stood in."""
    for section, keys in _PATH_KEYS.items():
        values = raw.get(section)
        if not isinstance(values, dict):
            continue
        for key in keys:
            if isinstance(values.get(key), str) and values[key]:
                values[key] = str(user_dir / Path(values[key]).expanduser())
