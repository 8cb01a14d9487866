"""Turns composed values into those the sections expect, before they are checked."""

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
    return _whole_numbers_as_words(_known_rates(_absolute_paths(raw, user_dir)))


def _whole_numbers_as_words(raw: dict[str, Any]) -> dict[str, Any]:
    """`[python,serve.py,--port,8000]` is a list of words, whatever YAML makes of its last one."""
    workload, pipeline = raw.get("workload"), raw.get("pipeline")
    out = dict(raw)
    if isinstance(workload, dict):
        out["workload"] = _worded(workload, "command")
    if isinstance(pipeline, dict):
        out["pipeline"] = {
            name: _worded(stage, "extra_args") if isinstance(stage, dict) else stage for name, stage in pipeline.items()
        }
    return out


def _worded(section: dict[str, Any], key: str) -> dict[str, Any]:
    words = section.get(key)
    if not isinstance(words, list):
        return section
    return {**section, key: [str(word) if type(word) is int else word for word in words]}


def _known_rates(raw: dict[str, Any]) -> dict[str, Any]:
    """Without the number formats that are only listed so that their keys exist: null is a rate nobody knows."""
    hardware = raw.get("hardware")
    if not isinstance(hardware, dict):
        return raw
    rates = {
        key: {name: rate for name, rate in hardware[key].items() if rate is not None}
        for key in _RATE_MAPS
        if isinstance(hardware.get(key), dict)
    }
    return {**raw, "hardware": {**hardware, **rates}}


def _absolute_paths(raw: dict[str, Any], user_dir: Path) -> dict[str, Any]:
    """Make relative paths absolute against the directory the user stood in."""
    out = dict(raw)
    for section, keys in _PATH_KEYS.items():
        values = out.get(section)
        if not isinstance(values, dict):
            continue
        changed = {
            key: str(user_dir / Path(values[key]).expanduser())
            for key in keys
            if isinstance(values.get(key), str) and values[key]
        }
        out[section] = {**values, **changed}
    return out
