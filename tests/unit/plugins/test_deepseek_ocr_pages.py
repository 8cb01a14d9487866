"""How DeepSeek-OCR cuts a page into views and tokens; nothing here needs torch."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.plugins.deepseek_ocr.preprocess import (
    ViewSizes,
    choose_grid,
    count_page_tokens,
    count_tile_tokens,
    cut_views,
    hash_words,
    image_token_id,
    join_prompt,
    read_views,
)
from tests.support.model_presets import compose_preset

DEFAULT = ViewSizes(base_size=1024, image_size=640, patch_size=16, downsample_ratio=4)
SMALL = ViewSizes(base_size=64, image_size=64, patch_size=16, downsample_ratio=4)
GREY = np.float32((np.float32(127) / np.float32(255) - np.float32(0.5)) / np.float32(0.5))


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((640, 640), (1, 1)),
        ((300, 200), (1, 1)),
        ((641, 640), (2, 2)),
        ((909, 615), (3, 2)),
        ((1240, 1754), (2, 3)),
        ((2000, 500), (4, 1)),
        ((500, 2000), (1, 4)),
        ((6400, 100), (9, 1)),
        # Equal ratios: the finer grid only where the page has pixels for more than half of it.
        ((1280, 640), (2, 1)),
        ((2560, 1280), (4, 2)),
        ((1000, 1000), (2, 2)),
        ((1500, 1500), (3, 3)),
    ],
)
def test_the_grid_is_the_closest_in_aspect_ratio(size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert choose_grid(*size, image_size=640) == grid


@pytest.mark.parametrize(("side", "tokens"), [(512, 73), (640, 111), (1024, 273), (1280, 421)])
def test_tokens_of_the_global_view(side: int, tokens: int) -> None:
    sizes = ViewSizes(base_size=side, image_size=640, patch_size=16, downsample_ratio=4)
    assert count_page_tokens(sizes) == tokens


def test_tokens_of_the_tiles_are_laid_side_by_side_with_one_row_end_a_row() -> None:
    counts = [count_tile_tokens(grid, DEFAULT) for grid in ((1, 1), (2, 1), (1, 2), (2, 3), (3, 3))]
    assert counts == [0, 21 * 10, 11 * 20, 21 * 30, 31 * 30]


def test_the_global_view_is_centred_on_grey_and_scaled_to_minus_one_to_one() -> None:
    views = cut_views(Image.new("RGB", (64, 32), (255, 0, 255)), SMALL, crop_mode=True)
    assert (views.page.shape, views.page.dtype, views.tiles, views.grid) == ((1, 3, 64, 64), np.float32, None, (1, 1))
    assert np.array_equal(
        views.page[0, :, 16:48], np.broadcast_to(np.array([[[1]], [[-1]], [[1]]], np.float32), (3, 32, 64))
    )
    grey = np.concatenate([views.page[0, :, :16], views.page[0, :, 48:]])
    assert np.array_equal(grey, np.full((6, 16, 64), GREY))


def test_tiles_go_row_by_row_and_only_in_crop_mode() -> None:
    picture = Image.new("RGB", (128, 192))
    for i, shade in enumerate((0, 51, 102, 153, 204, 255)):
        x, y = i % 2 * 64, i // 2 * 64
        picture.paste((shade, shade, shade), (x, y, x + 64, y + 64))
    views = cut_views(picture, SMALL, crop_mode=True)
    assert views.tiles is not None
    assert (views.grid, views.tiles.shape) == ((2, 3), (6, 3, 64, 64))
    assert [round(float(tile[:, 32, 32].mean()), 3) for tile in views.tiles] == [-1.0, -0.6, -0.2, 0.2, 0.6, 1.0]
    whole = cut_views(picture, SMALL, crop_mode=False)
    assert (whole.tiles, whole.grid) == (None, (1, 1))


def test_the_orientation_in_exif_is_honoured(tmp_path: Path) -> None:
    picture = Image.new("RGB", (40, 20), (0, 0, 0))
    picture.paste((255, 255, 255), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter to the right
    picture.save(tmp_path / "turned.png", exif=exif)
    page = read_views(tmp_path / "turned.png", SMALL, crop_mode=True).page[0, 0]
    # Upright it is 20 wide and 40 high: grey left and right, white above black.
    assert [round(float(page[32, 4]), 3), round(float(page[8, 32]), 3), round(float(page[56, 32]), 3)] == [
        round(float(GREY), 3),
        1.0,
        -1.0,
    ]


def test_a_page_that_is_no_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "page.png").write_text("not a picture")
    with pytest.raises(ProfilingError) as error:
        read_views(tmp_path / "page.png", SMALL, crop_mode=True)
    assert str(error.value).startswith(f"{tmp_path / 'page.png'}: the page could not be read (cannot identify")


def test_words_become_the_same_ids_every_time_clear_of_special_ids() -> None:
    ids = hash_words("\n<|grounding|>Convert the document to markdown.", vocabulary=1024)
    assert ids == hash_words("\n<|grounding|>Convert the document to markdown.", vocabulary=1024)
    assert len(ids) == 8
    assert all(2 <= i < 1023 for i in ids)
    assert hash_words("the the cat", vocabulary=1024)[:2] == [ids[3], ids[3]]


def test_the_prompt_has_the_page_between_its_texts() -> None:
    assert join_prompt([7], [8, 9], image_tokens=3, bos=0, image_id=5) == [0, 7, 5, 5, 5, 8, 9]
    assert (image_token_id(129_280), image_token_id(1024)) == (128_815, 1023)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("infer.base_size=100", "infer.base_size: not allowed (got 100), allowed: Input should be a multiple of 16"),
        ("infer.image_size=32", "infer.image_size: not allowed (got 32), allowed: a number ≥ 64"),
        ("infer.patch_size=14", "infer.patch_size: not one of the choices (got 14), allowed: 16"),
        ("infer.downsample_ratio=2", "infer.downsample_ratio: not one of the choices (got 2), allowed: 4"),
        (
            "infer.prompt=hello",
            "infer.prompt: not allowed (got 'hello'), allowed: a text that holds <image> exactly once",
        ),
        ("model.implementation=mine", "model.implementation: not one of the choices (got 'mine')"),
    ],
)
def test_a_bad_key_of_deepseek_ocr_is_refused_before_torch(override: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose_preset(override)
    assert str(error.value).startswith(problem)
