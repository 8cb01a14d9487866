"""Old keys to new ones: on the command line before composition, in files after it. New keys win over old ones."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

_TORCH = "pipeline.torch_profiler"
# Both stages that run the model to the end write predictions and a gallery; the old keys knew no stage.
_OUTPUTS = (f"{_TORCH}.output", "pipeline.direct_inference.output")
_OCR = "extra.deepseek_ocr"

# Whole keys first, then prefixes; the first match wins.
_KEYS = {
    "device": "run.device",
    "repeats": "run.repeats",
    "run.stage1_repeats": "dataset.sampling.num_samples_per_epoch",
    "pipeline.ncu.nvtx_include": "pipeline.ncu.ncu_cli.nvtx.include",
    "pipeline.ncu.set": "pipeline.ncu.ncu_cli.set",
    "pipeline.ncu.metrics": "pipeline.ncu.ncu_cli.metrics",
    "pipeline.ncu.sections": "pipeline.ncu.ncu_cli.sections",
    "pipeline.ncu.target_processes": "pipeline.ncu.ncu_cli.target_processes",
    "pipeline.ncu.csv": "pipeline.ncu.ncu_cli.export.csv",
}
_PREFIXES = (
    ("torch_profiler.", f"{_TORCH}."),
    ("runners.analysis.static.", "pipeline.static_analysis."),
    ("analysis.static.", "pipeline.static_analysis."),
    ("nsys.", "pipeline.nsys."),
    ("ncu.", "pipeline.ncu."),
)
# Below `outputs.` or `output.`, and below `pipeline.<stage>.output.`.
_OUTPUT_KEYS = {
    "save_predictions": "prediction.enable",
    "predictions.strip_special_tokens": f"{_OCR}.prediction.strip_special_tokens",
    "prediction.strip_special_tokens": f"{_OCR}.prediction.strip_special_tokens",
    "visualization.max_images": f"{_OCR}.visualization.max_images",
    "visualization.thumbnail_width": f"{_OCR}.visualization.thumbnail_width",
}
_RUNNER = {
    "stage1.no-static": "pipeline.static_analysis.enable=false",
    "stage1.default": "pipeline.static_analysis.enable=true",
}
# Hydra knows a group mounted where its path says by its path alone.
_SAMPLING = "dataset/sampling"
# Presets under the names of document 003; conf/config.yaml mounts them under shorter ones.
_TORCH_OUTPUT = re.compile(r"(?:model/\w+/)?output/torch@[^=]+")
_ENABLED = re.compile(r"(pipeline\.(?:static_analysis|torch_profiler|nsys|ncu))\.enabled")
_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[\w./@-]+)(?:=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """The overrides to compose with, those for old keys first, and each old key with its new path."""

    overrides: tuple[str, ...]
    changed: tuple[tuple[str, str], ...]

    @property
    def notice(self) -> str | None:
        """One line for all old keys, or None."""
        return notice(self.changed)


def notice(changed: Sequence[tuple[str, str]]) -> str | None:
    """One line that names every old key and its new path; None when there is none."""
    if not changed:
        return None
    pairs = ", ".join(f"{old} -> {new}" for old, new in changed)
    return f"old keys translated (see docs/migration.md): {pairs}"


def translate(overrides: Sequence[str]) -> Translation:
    """Translate every old key; anything else passes unchanged.

    What stands for old keys comes first, so that a new key wins over an old one wherever the user put it.
    """
    old: list[str] = []
    rest: list[str] = []
    changed: list[tuple[str, str]] = []
    for override in overrides:
        if _TORCH_OUTPUT.fullmatch(override.partition("=")[0]):
            rest.append(f"+{override}")
            continue
        new = _translate_one(override)
        if new == (override,):
            rest.append(override)
            continue
        old += new
        changed += _pairs(override, new)
    return Translation(overrides=(*old, *rest), changed=tuple(changed))


def translate_mapping(
    raw: Mapping[str, Any], keeps: Callable[[str], bool]
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """The same for a composed configuration, whose files may hold old keys; `keeps` says which new keys stay as is."""
    out: dict[str, Any] = deepcopy(dict(raw))
    changed: list[tuple[str, str]] = []
    for key, value in list(_leaves("", raw)):
        new = _new_keys(key)
        if new == (key,):
            continue
        _remove(out, key)
        changed.append((key, " and ".join(new)))
        for path in new:
            if not keeps(path):
                _set(out, path, value)
    return out, tuple(changed)


def _translate_one(override: str) -> tuple[str, ...]:
    match = _OVERRIDE.fullmatch(override)
    if match is None or override.startswith("-") or match["value"] is None:
        return (override,)
    key, value = match["key"], match["value"]
    if key == "runner@stage1_runner":
        return (_RUNNER.get(value, override),)
    if key == f"{_SAMPLING}@{_SAMPLING.replace('/', '.')}":
        return (f"{_SAMPLING}={value}",)
    if value.lstrip().startswith("{"):
        return _translate_mapping_override(override)
    new = _new_keys(key)
    if new == (key,):
        return (override,)
    if new[0].endswith("ncu_cli.metrics") and "," in value and value[:1] not in "['\"":
        value = f"'{value}'"
    return tuple(_override(path, value) for path in new)


def _translate_mapping_override(override: str) -> tuple[str, ...]:
    """`outputs={save_predictions: true}` as one override a key; unchanged when none of its keys is an old one."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        # Composition explains it, with the whole override in sight.
        return (override,)
    value = parsed.value()
    leaves = list(_leaves(f"{parsed.key_or_group}.", value)) if isinstance(value, Mapping) else []
    if all(_new_keys(key) == (key,) for key, _ in leaves):
        return (override,)
    return tuple(_override(new, _as_override(item)) for key, item in leaves for new in _new_keys(key))


def _override(path: str, value: str) -> str:
    """Options of one model's outputs are mounted by that model alone, and an old preset of ncu has no `ncu_cli`; an old
    command line may name them all the same.
    """
    return f"++{path}={value}" if f".{_OCR}." in path or ".ncu_cli." in path else f"{path}={value}"


def _as_override(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _new_keys(key: str) -> tuple[str, ...]:
    """Where an old key lives now; the key itself when it is not an old one."""
    root, _, rest = key.partition(".")
    if root in ("outputs", "output") and rest:
        rest = _OUTPUT_KEYS.get(rest, re.sub(r"^predictions\.", "prediction.", rest))
        return tuple(f"{stage}.{rest}" for stage in _OUTPUTS)
    prefix = next(((old, to) for old, to in _PREFIXES if key.startswith(old)), None)
    new = prefix[1] + key[len(prefix[0]) :] if prefix else key
    new = _KEYS.get(new, new)
    return (_ENABLED.sub(r"\1.enable", new) if _ENABLED.fullmatch(new) else new,)


def _pairs(override: str, new: Sequence[str]) -> list[tuple[str, str]]:
    """What the notice says: each old key once, with all its new paths."""
    paths: list[str] = [override_key(text) for text in new]
    return [(override_key(override), " and ".join(dict.fromkeys(paths)))]


def split_override(override: str) -> tuple[str, str, str]:
    """Key without Hydra's signs in front of it, `=` or nothing, value."""
    return override.lstrip("+~").partition("=")


def override_key(override: str) -> str:
    return split_override(override)[0]


def _leaves(prefix: str, value: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _leaves(f"{prefix}{name}.", item)
        else:
            yield f"{prefix}{name}", item


def _remove(tree: dict[str, Any], key: str) -> None:
    """Take a key out, and the mappings that it leaves empty."""
    head, _, rest = key.partition(".")
    if rest:
        _remove(tree[head], rest)
    if not rest or not tree[head]:
        del tree[head]


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for name in path:
        if not isinstance(tree.get(name), dict):
            tree[name] = {}
        tree = tree[name]
    tree[last] = value
