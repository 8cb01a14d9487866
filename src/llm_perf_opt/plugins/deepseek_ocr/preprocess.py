"""How DeepSeek-OCR sees a page: views, tiles and how many tokens they take. No torch here."""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.plugin import ProfilingError

IMAGE_MARK = "<image>"
# The id of <image> in the published tokenizer; a smaller vocabulary uses its last id.
IMAGE_TOKEN_ID = 128815
MIN_TILES, MAX_TILES = 2, 9
GREY = (127, 127, 127)
# Modules of the image side under the checkpoint's names, and what they are called in ranges and tables.
PARTS: Mapping[str, str] = {"model.sam_model": "sam", "model.vision_model": "clip", "model.projector": "projector"}


@dataclass(frozen=True, kw_only=True)
class ViewSizes:
    """Sizes in pixels, and what one side of a view becomes in tokens."""

    base_size: int
    image_size: int
    patch_size: int
    downsample_ratio: int

    def side_tokens(self, pixels: int) -> int:
        return -(-(pixels // self.patch_size) // self.downsample_ratio)


@dataclass(frozen=True, kw_only=True)
class PageViews:
    """One page as arrays [views, 3, side, side] in -1..1. `grid` is tiles across and down; 1×1 has no tiles."""

    page: Any
    tiles: Any | None
    grid: tuple[int, int]


def choose_grid(width: int, height: int, *, image_size: int) -> tuple[int, int]:
    """Tiles across and down, closest to the page's aspect ratio; (1, 1) where the page fits into one tile.

    Of two grids with the same ratio the finer one is taken when the page has pixels for more than half of it.
    """
    if width <= image_size and height <= image_size:
        return (1, 1)
    sizes = range(1, MAX_TILES + 1)
    grids = [(w, h) for w in sizes for h in sizes if MIN_TILES <= w * h <= MAX_TILES]
    best, best_distance = (1, 1), float("inf")
    for w, h in sorted(grids, key=lambda grid: (grid[0] * grid[1], grid[0])):
        distance = abs(width / height - w / h)
        fills = width * height > 0.5 * image_size * image_size * w * h
        if distance < best_distance or (distance == best_distance and fills):
            best, best_distance = (w, h), distance
    return best


def count_page_tokens(sizes: ViewSizes) -> int:
    """Tokens of the global view: a row-end after each row and the view separator last."""
    q = sizes.side_tokens(sizes.base_size)
    return (q + 1) * q + 1


def count_tile_tokens(grid: tuple[int, int], sizes: ViewSizes) -> int:
    """Tokens of all tiles laid side by side, a row-end after each row; none for a 1×1 grid."""
    across, down = grid
    if grid == (1, 1):
        return 0
    q = sizes.side_tokens(sizes.image_size)
    return (q * across + 1) * (q * down)


def read_views(path: Path, sizes: ViewSizes, *, crop_mode: bool) -> PageViews:
    """Open a page, turn it as its EXIF says, and cut it into views."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ProfilingError(f"{path}: the page could not be read ({error}), replace or remove it") from error
    return cut_views(picture, sizes, crop_mode=crop_mode)


def cut_views(picture: Any, sizes: ViewSizes, *, crop_mode: bool) -> PageViews:
    """The global view on grey, and the tiles where crop mode asks for more than one."""
    import numpy as np
    from PIL import Image, ImageOps

    side = sizes.base_size
    padded = ImageOps.pad(picture, (side, side), method=Image.Resampling.BICUBIC, color=GREY)
    grid = choose_grid(picture.width, picture.height, image_size=sizes.image_size) if crop_mode else (1, 1)
    page = normalise(padded)[None]
    if grid == (1, 1):
        return PageViews(page=page, tiles=None, grid=grid)
    across, down = grid
    tile = sizes.image_size
    whole = picture.resize((tile * across, tile * down), Image.Resampling.BICUBIC)
    boxes = [(x * tile, y * tile, (x + 1) * tile, (y + 1) * tile) for y in range(down) for x in range(across)]
    return PageViews(page=page, tiles=np.stack([normalise(whole.crop(box)) for box in boxes]), grid=grid)


def normalise(picture: Any) -> Any:
    """Pixels 0..255 to floats -1..1 (mean and deviation 0.5), channels first."""
    import numpy as np

    pixels = np.asarray(picture, dtype=np.float32).transpose(2, 0, 1)
    return (pixels / np.float32(255.0) - np.float32(0.5)) / np.float32(0.5)


def image_token_id(vocabulary: int) -> int:
    """The id that is at the places of image tokens."""
    return IMAGE_TOKEN_ID if vocabulary > IMAGE_TOKEN_ID else vocabulary - 1


def hash_words(text: str, *, vocabulary: int) -> list[int]:
    """Token ids without a tokenizer: each word's checksum, clear of the special ids at both ends of the vocabulary."""
    words = re.findall(r"<\|[^|]*\|>|\w+|[^\w\s]|\n", text)
    return [2 + zlib.crc32(word.encode()) % (vocabulary - 3) for word in words]


def join_prompt(
    before: Sequence[int], after: Sequence[int], *, image_tokens: int, bos: int, image_id: int
) -> list[int]:
    """The prompt's ids: start, the text before the page, the page's places, the text after it."""
    return [bos, *before, *([image_id] * image_tokens), *after]
