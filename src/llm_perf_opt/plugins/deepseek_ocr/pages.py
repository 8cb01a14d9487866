"""Draws document-like pages from a seed: headings, paragraphs, a table and a figure."""

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

WORDS = (
    "latency",
    "memory",
    "kernel",
    "tensor",
    "batch",
    "cache",
    "token",
    "decode",
    "prefill",
    "roofline",
    "bandwidth",
    "warp",
    "block",
    "page",
    "layer",
    "head",
    "vector",
    "matrix",
    "figure",
    "table",
    "result",
    "method",
    "model",
    "data",
    "system",
    "test",
    "value",
    "order",
    "time",
    "rate",
    "share",
    "limit",
)
INK = (25, 25, 30)
FAINT = (120, 120, 130)


@dataclass(frozen=True, kw_only=True)
class PageStyle:
    """The page's size in pixels; everything on it scales with the width."""

    width: int
    height: int

    @property
    def margin(self) -> int:
        return max(2, self.width // 14)

    @property
    def line(self) -> int:
        return max(8, self.width // 60)


def write_page(path: Path, style: PageStyle, *, seed: str) -> Path:
    """Draw one page and save it; the same seed gives the same page."""
    from PIL import Image, ImageDraw

    rng = random.Random(seed)
    image = Image.new("RGB", (style.width, style.height), (255, 255, 255))
    pen = _Pen(draw=ImageDraw.Draw(image), style=style, rng=rng, top=style.margin)
    pen.heading(1.8)
    blocks = [pen.paragraph, pen.table, pen.paragraph, pen.figure, pen.paragraph]
    while pen.has_room():
        pen.heading(1.3)
        rng.shuffle(blocks)
        for block in blocks:
            if pen.has_room():
                block()
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


@dataclass(kw_only=True)
class _Pen:
    """Draws blocks from the top of the page downwards."""

    draw: Any
    style: PageStyle
    rng: random.Random
    top: int

    def has_room(self) -> bool:
        return self.top < self.style.height - self.style.margin - 3 * self.style.line

    def heading(self, scale: float) -> None:
        size = round(self.style.line * scale)
        self._text(self.style.margin, self.top, self._words(self.rng.randint(2, 5)).title(), size)
        self.top += round(size * 1.8)

    def paragraph(self) -> None:
        step = round(self.style.line * 1.5)
        width = self.style.width - 2 * self.style.margin
        for _ in range(self.rng.randint(3, 8)):
            if not self.has_room():
                break
            words = self._words(max(2, width // (self.style.line * 4)))
            self._text(self.style.margin, self.top, words, self.style.line)
            self.top += step
        self.top += step

    def table(self) -> None:
        rows, columns = self.rng.randint(3, 6), self.rng.randint(3, 5)
        high = round(self.style.line * 1.8)
        wide = (self.style.width - 2 * self.style.margin) // columns
        for row in range(rows):
            for column in range(columns):
                left, top = self.style.margin + column * wide, self.top + row * high
                self.draw.rectangle((left, top, left + wide, top + high), outline=INK)
                cell = self._words(1) if row == 0 else f"{self.rng.uniform(0, 1000):.2f}"
                self._text(left + 3, top + 2, cell, self.style.line)
        self.top += rows * high + high

    def figure(self) -> None:
        width = self.style.width - 2 * self.style.margin
        high = max(self.style.line * 6, width // 4)
        left, bottom = self.style.margin, self.top + high
        self.draw.rectangle((left, self.top, left + width, bottom), outline=FAINT, fill=(242, 244, 248))
        bars = self.rng.randint(5, 12)
        for bar in range(bars):
            x = left + (bar + 1) * width // (bars + 2)
            y = bottom - round(high * self.rng.uniform(0.1, 0.9))
            self.draw.rectangle((x, y, x + max(1, width // (bars * 3)), bottom), fill=(70, 110, 180))
        self._text(left, bottom + self.style.line // 2, f"Figure: {self._words(4)}", self.style.line)
        self.top = bottom + self.style.line * 3

    def _words(self, count: int) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(count))

    def _text(self, left: int, top: int, text: str, size: int) -> None:
        self.draw.text((left, top), text, fill=INK, font=_font(size))


@cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)
