"""Old override keys to new ones, before composition."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TORCH = "pipeline.torch_profiler"
_OUTPUT = f"{_TORCH}.output"
_OCR = f"{_OUTPUT}.extra.deepseek_ocr"

# Whole keys first, then prefixes; the first match wins.
_KEYS = {
    "device": "run.device",
    "repeats": "run.repeats",
    "run.stage1_repeats": "dataset.sampling.num_samples_per_epoch",
    "pipeline.ncu.nvtx_include": "pipeline.ncu.ncu_cli.nvtx.include",
    "pipeline.ncu.set": "pipeline.ncu.ncu_cli.set",
    "pipeline.ncu.metrics": "pipeline.ncu.ncu_cli.metrics",
    "pipeline.ncu.sections": "pipeline.ncu.ncu_cli.sections",
}
for _old in ("outputs", "output"):
    _KEYS |= {
        f"{_old}.save_predictions": f"{_OUTPUT}.prediction.enable",
        f"{_old}.predictions.strip_special_tokens": f"{_OCR}.prediction.strip_special_tokens",
        f"{_old}.prediction.strip_special_tokens": f"{_OCR}.prediction.strip_special_tokens",
        f"{_old}.visualization.max_images": f"{_OCR}.visualization.max_images",
        f"{_old}.visualization.thumbnail_width": f"{_OCR}.visualization.thumbnail_width",
    }
_PREFIXES = (
    ("torch_profiler.", f"{_TORCH}."),
    ("runners.analysis.static.", "pipeline.static_analysis."),
    ("analysis.static.", "pipeline.static_analysis."),
    ("outputs.predictions.", f"{_OUTPUT}.prediction."),
    ("output.predictions.", f"{_OUTPUT}.prediction."),
    ("outputs.", f"{_OUTPUT}."),
    ("output.", f"{_OUTPUT}."),
)
_RUNNER = {
    "stage1.no-static": "pipeline.static_analysis.enable=false",
    "stage1.default": "pipeline.static_analysis.enable=true",
}
_ENABLED = re.compile(r"(pipeline\.\w+)\.enabled")
_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[\w./@-]+)(?:=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """The overrides to compose with, and each old key with its new path."""

    overrides: tuple[str, ...]
    changed: tuple[tuple[str, str], ...]

    @property
    def notice(self) -> str | None:
        """One line for all old keys, or None."""
        if not self.changed:
            return None
        pairs = ", ".join(f"{old} -> {new}" for old, new in self.changed)
        return f"old keys translated (see docs/migration.md): {pairs}"


def translate(overrides: Sequence[str]) -> Translation:
    """Translate every old key; anything else passes unchanged."""
    out: list[str] = []
    changed: list[tuple[str, str]] = []
    for override in overrides:
        new = _translate_one(override)
        out.append(new)
        if new != override:
            changed.append((_key(override), _key(new)))
    return Translation(overrides=tuple(out), changed=tuple(changed))


def _translate_one(override: str) -> str:
    match = _OVERRIDE.fullmatch(override)
    if match is None or override.startswith("-") or match["value"] is None:
        return override
    key, value = match["key"], match["value"]
    if key == "runner@stage1_runner":
        return _RUNNER.get(value, override)
    new = _new_key(key)
    if new == key:
        return override
    if new.endswith("ncu_cli.metrics") and "," in value and value[:1] not in "['\"":
        value = f"'{value}'"
    return f"{new}={value}"


def _new_key(key: str) -> str:
    new = _KEYS.get(key)
    if new is None:
        prefix = next(((old, to) for old, to in _PREFIXES if key.startswith(old)), None)
        new = prefix[1] + key[len(prefix[0]) :] if prefix else key
    return _ENABLED.sub(r"\1.enable", new) if _ENABLED.fullmatch(new) else new


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
