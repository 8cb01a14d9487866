"""A page in the gallery: its boxes drawn, cut out and described, and synthetic pages.

Reads the grounding markup of OCR text: `<|ref|>label<|/ref|><|det|>[[x1, y1, x2, y2], …]<|/det|>`.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import UNSET, UnsetType

from llm_perf_opt.plugin import Sample, write_json
from llm_perf_opt.plugins.deepseek_ocr.pages import PageStyle, write_page

# Coordinates run from 0 to this number, regardless of the page's size.
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


def strip_markup(text: str) -> str:
    """The text without grounding markup: labels and coordinates gone, what the page says kept."""
    return _LOOSE.sub("", _TAG.sub("", text))


def _boxes(label: str, text: str) -> list[Box] | None:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return None
    rows = [rows] if isinstance(rows, list) and rows and not isinstance(rows[0], list) else rows
    if not isinstance(rows, list) or not rows or not all(_is_box(row) for row in rows):
        return None
    return [Box(label=label, x1=min(a, c), y1=min(b, d), x2=max(a, c), y2=max(b, d)) for a, b, c, d in rows]


def _is_box(row: object) -> bool:
    return isinstance(row, list) and len(row) == 4 and all(isinstance(v, int | float) for v in row)


def _clip(value: int, most: int) -> int:
    return max(0, min(value, most))


# How many times as tall as wide a thumbnail may be, and what the format takes.
TALLEST = 4
THUMBNAIL = "thumbnail.jpg"
LARGEST_JPEG_SIDE = 65_500
COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")


@dataclass(frozen=True, kw_only=True)
class DrawnBox:
    """One box in pixels (left, top, right, bottom); `cutout` is None where nothing lies inside it."""

    label: str
    box_px: tuple[int, int, int, int]
    cutout: str | None


@dataclass(frozen=True, kw_only=True)
class DrawnPage:
    """A page's size and the boxes drawn on it."""

    width: int
    height: int
    boxes: tuple[DrawnBox, ...]


@dataclass(frozen=True, kw_only=True)
class GalleryInfo:
    """`info.json` of one sample in the gallery; a sample without a page has neither picture nor size."""

    sample_id: str
    labels: Mapping[str, int]
    malformed_tags: int
    image: str | UnsetType = UNSET
    width: int | UnsetType = UNSET
    height: int | UnsetType = UNSET
    boxes: tuple[DrawnBox, ...] = ()


class OcrPageFiles:
    """What `PageFiles` asks of an adapter of a model that reads pages."""

    def draw(self, path: Path, *, width: int, height: int, seed: str) -> Path:
        return write_page(path, PageStyle(width=width, height=height), seed=seed)

    def strip_markup(self, text: str) -> str:
        return strip_markup(text)

    def describe(self, sample: Sample, text: str, folder: Path, *, thumbnail_width: int) -> str | None:
        """`info.json`, boxes and cutouts; the name of the thumbnail, or None for a sample without a page."""
        grounding = parse_grounding(text)
        info = GalleryInfo(
            sample_id=sample.sample_id,
            labels=dict(Counter(box.label for box in grounding.boxes)),
            malformed_tags=grounding.malformed,
        )
        if sample.image is not None:
            page = draw_boxes(sample.image, grounding.boxes, folder, thumbnail_width)
            image, width, height = str(sample.image), page.width, page.height
            info = replace(info, image=image, width=width, height=height, boxes=page.boxes)
        write_json(folder / "info.json", info)
        return THUMBNAIL if sample.image is not None else None


def draw_boxes(page: Path, boxes: tuple[Box, ...], folder: Path, thumbnail_width: int) -> DrawnPage:
    """Draw the boxes on a copy of the page, cut each out, and make a thumbnail of the copy."""
    from PIL import Image, ImageDraw, ImageOps

    with Image.open(page) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    drawn = image.copy()
    pen = ImageDraw.Draw(drawn)
    line = max(2, image.width // 400)
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(dict.fromkeys(b.label for b in boxes))}
    described: list[DrawnBox] = []
    for number, box in enumerate(boxes):
        pixels = box.in_pixels(image.width, image.height)
        pen.rectangle(pixels, outline=colours[box.label], width=line)
        pen.text((pixels[0] + line, pixels[1] + line), box.label, fill=colours[box.label])
        described.append(DrawnBox(label=box.label, box_px=pixels, cutout=_cut_out(image, box, folder, number)))
    # A page of one pixel by twenty thousand is not a page, but one that was measured.
    scale = min(thumbnail_width / image.width, TALLEST * thumbnail_width / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    small = drawn.resize(size, Image.Resampling.LANCZOS)
    drawn.thumbnail((LARGEST_JPEG_SIDE, LARGEST_JPEG_SIDE))
    drawn.save(folder / "boxes.jpg", quality=90)
    small.save(folder / THUMBNAIL, quality=85)
    return DrawnPage(width=image.width, height=image.height, boxes=tuple(described))


def _cut_out(image: Any, box: Box, folder: Path, number: int) -> str | None:
    """Save what lies inside a box; None when nothing does."""
    left, top, right, bottom = box.in_pixels(image.width, image.height)
    if right <= left or bottom <= top:
        return None
    name = f"cutouts/{number:03d}_{re.sub(r'[^A-Za-z0-9._-]+', '_', box.label).strip('._')[:80] or 'box'}.png"
    (folder / "cutouts").mkdir(exist_ok=True)
    image.crop((left, top, right, bottom)).save(folder / name)
    return name
