"""Reads the grounding markup of OCR text: `<|ref|>label<|/ref|><|det|>[[x1, y1, x2, y2], …]<|/det|>`."""

import json
import re
from dataclasses import dataclass

# Coordinates run from 0 to this number, whatever the page's size.
SCALE = 999
_TAG = re.compile(r"<\|ref\|>(?P<label>.*?)<\|/ref\|>\s*<\|det\|>(?P<boxes>.*?)<\|/det\|>", re.DOTALL)
_LOOSE = re.compile(r"<\|/?(?:ref|det|grounding)\|>")


@dataclass(frozen=True, kw_only=True)
class Box:
    """One labelled rectangle in the model's own coordinates, corners in order."""

    label: str
    x1: float
    y1: float
    x2: float
    y2: float

    def in_pixels(self, width: int, height: int) -> tuple[int, int, int, int]:
        """The rectangle on a page of this size: left, top, right, bottom, kept inside the page."""
        left, right = (_clip(round(x / SCALE * width), width) for x in (self.x1, self.x2))
        top, bottom = (_clip(round(y / SCALE * height), height) for y in (self.y1, self.y2))
        return left, top, right, bottom


@dataclass(frozen=True, kw_only=True)
class Grounding:
    """All boxes of a text in order, and how many tags could not be read."""

    boxes: tuple[Box, ...]
    malformed: int


def parse_grounding(text: str) -> Grounding:
    """Every box of the text. A tag whose coordinates are not lists of four numbers counts as malformed."""
    boxes: list[Box] = []
    malformed = 0
    for tag in _TAG.finditer(text):
        found = _boxes(tag["label"].strip(), tag["boxes"])
        malformed += found is None
        boxes += found or []
    return Grounding(boxes=tuple(boxes), malformed=malformed)


def clean_text(text: str) -> str:
    """The text without grounding markup: labels and coordinates gone, what the page says kept."""
    without = _LOOSE.sub("", _TAG.sub("", text))
    return re.sub(r"\n{3,}", "\n\n", without).strip()


def _boxes(label: str, text: str) -> list[Box] | None:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError:
        return None
    rows = [rows] if isinstance(rows, list) and rows and not isinstance(rows[0], list) else rows
    if not isinstance(rows, list) or not rows or not all(_is_box(row) for row in rows):
        return None
    return [Box(label=label, x1=min(a, c), y1=min(b, d), x2=max(a, c), y2=max(b, d)) for a, b, c, d in rows]


def _is_box(row: object) -> bool:
    return isinstance(row, list) and len(row) == 4 and all(isinstance(v, int | float) for v in row)


def _clip(value: int, most: int) -> int:
    return max(0, min(value, most))
