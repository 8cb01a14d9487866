"""Predictions, gallery, grounding boxes, and the options that shape them."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from llm_perf_opt.config.output import OutputConfig, PredictionOutput, VisualizationOutput
from llm_perf_opt.config.schema import Problem
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.plugins.deepseek_ocr.gallery import Box, Grounding, draw_boxes, parse_grounding, strip_markup
from llm_perf_opt.workload.generation import Generation
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.outputs import (
    OutputDirs,
    OutputOptions,
    folder_name,
    open_outputs,
    options_for,
    output_problems,
    resolve_dirs,
)
from llm_perf_opt.workload.results import SampleResult
from tests.support.schemas import valid_file
from tests.support.workload_fakes import PAGES

OCR = "llm_perf_opt.plugins.deepseek_ocr:ADAPTER"


def result(name: str, epoch: int = 0) -> SampleResult:
    generation = Generation(token_ids=(1, 2), prefill_ms=10.0, ttft_ms=11.0, decode_ms=4.0, itl_ms=(4.0,))
    return SampleResult(
        sample_id=name,
        pass_name="clean",
        repeat=0,
        epoch=epoch,
        prompt_tokens=9,
        prepare_ms=5.0,
        generation=generation,
        peak_memory_bytes=None,
    )


def asked(*, pred: bool, viz: bool, extra: Mapping[str, object] | None = None) -> OutputConfig:
    return OutputConfig(
        prediction=PredictionOutput(enable=pred),
        visualization=VisualizationOutput(enable=viz),
        extra={} if extra is None else {"deepseek_ocr": extra},
    )


def test_boxes_are_read_from_the_markup_and_bad_ones_counted() -> None:
    text = (
        "<|ref|>title<|/ref|><|det|>[[10, 20, 500, 40]]<|/det|>\n# Hi\n"
        "<|ref|>image<|/ref|><|det|>[[0,0,999,999], [900, 800, 100, 100]]<|/det|>"
        "<|ref|>table<|/ref|><|det|>[[1, 2, 3]]<|/det|><|ref|>t<|/ref|><|det|>oops<|/det|>"
    )
    assert parse_grounding(text) == Grounding(
        boxes=(
            Box(label="title", x1=10, y1=20, x2=500, y2=40),
            Box(label="image", x1=0, y1=0, x2=999, y2=999),
            Box(label="image", x1=100, y1=100, x2=900, y2=800),
        ),
        malformed=2,
    )
    assert strip_markup(text + "<|grounding|>\nend") == "\n# Hi\n\nend"


def test_coordinates_scale_from_999_and_stay_on_the_page() -> None:
    assert Box(label="", x1=0, y1=0, x2=999, y2=499.5).in_pixels(200, 100) == (0, 0, 200, 50)
    assert Box(label="", x1=-50, y1=0, x2=2000, y2=10).in_pixels(100, 100) == (0, 0, 100, 1)


def test_save_dirs_are_below_the_stage_unless_absolute_and_null_is_the_default(tmp_path: Path) -> None:
    output = OutputConfig(
        prediction=PredictionOutput(enable=True, save_dir=None),
        visualization=VisualizationOutput(enable=True, save_dir=str(tmp_path / "elsewhere")),
    )
    stage = tmp_path / "stage"
    assert resolve_dirs(output, stage) == OutputDirs(prediction=stage / "pred", visualization=tmp_path / "elsewhere")
    relative = OutputConfig(
        prediction=PredictionOutput(enable=False), visualization=VisualizationOutput(save_dir="a/b")
    )
    assert resolve_dirs(relative, stage) == OutputDirs(prediction=None, visualization=stage / "a/b")


def test_predictions_and_gallery_are_independent_of_each_other(tmp_path: Path) -> None:
    assert open_outputs(asked(pred=False, viz=False), tmp_path, adapter=OCR) is None
    assert open_outputs(None, tmp_path, adapter=OCR) is None
    model = PAGES.load(None, None, device="cpu", seed=0)
    for pred, viz in ((True, False), (False, True)):
        folder = tmp_path / f"{pred}"
        writer = open_outputs(asked(pred=pred, viz=viz), folder, adapter=OCR)
        assert writer is not None
        writer.add(Sample(sample_id="s"), result("s"), model)
        assert (folder / "pred/predictions.jsonl").exists() is pred
        assert (folder / "viz/predictions.md").exists() is viz


def test_a_prediction_line_has_raw_and_clean_text_timings_and_tokens(tmp_path: Path) -> None:
    model = PAGES.load(None, None, device="cpu", seed=0)
    lines = []
    for strip in (False, True):
        extra = {"prediction": {"strip_special_tokens": strip}}
        writer = open_outputs(asked(pred=True, viz=False, extra=extra), tmp_path, adapter=OCR)
        assert writer is not None
        writer.add(Sample(sample_id="s"), result("s"), model)
        lines.append(valid_file("prediction_line", tmp_path / "pred/predictions.jsonl"))
    times = {"prepare_ms": 5.0, "prefill_ms": 10.0, "ttft_ms": 11.0, "decode_ms": 4.0, "tpot_ms": 4.0, "e2e_ms": 20.0}
    raw = "<|ref|>title<|/ref|><|det|>[[0, 0, 999, 499]]<|/det|>\nHello<|end|>"
    assert lines[0] == {
        "sample": "s",
        "epoch": 0,
        "text_raw": raw,
        "text_clean": "Hello<|end|>",
        "timings": times,
        "tokens": 2,
        "prompt_tokens": 9,
    }
    assert (lines[1]["text_raw"], lines[1]["text_clean"]) == (raw, "Hello")


@pytest.mark.parametrize(
    ("page", "thumbnail", "boxes"),
    [
        ((1, 20_000), (1, 200), (1, 20_000)),
        ((20_000, 1), (50, 1), (20_000, 1)),
        ((70_000, 2), (50, 1), (65_500, 2)),
        ((100, 800), (25, 200), (100, 800)),
    ],
)
def test_a_page_of_any_shape_can_be_drawn(
    tmp_path: Path, page: tuple[int, int], thumbnail: tuple[int, int], boxes: tuple[int, int]
) -> None:
    Image.new("RGB", page).save(tmp_path / "page.png")
    drawn = draw_boxes(tmp_path / "page.png", (Box(label="a", x1=0, y1=0, x2=999, y2=999),), tmp_path, 50)
    assert (drawn.width, drawn.height) == page
    with Image.open(tmp_path / "thumbnail.jpg") as small, Image.open(tmp_path / "boxes.jpg") as whole:
        assert (small.size, whole.size) == (thumbnail, boxes)


def test_a_page_gets_boxes_cutouts_markdown_info_and_a_thumbnail(tmp_path: Path) -> None:
    page = tmp_path / "a page, 1.png"
    Image.new("RGB", (200, 100), "white").save(page)
    extra = {"visualization": {"max_images": 1, "thumbnail_width": 50}}
    writer = open_outputs(asked(pred=False, viz=True, extra=extra), tmp_path, adapter=OCR)
    assert writer is not None
    model = PAGES.load(None, None, device="cpu", seed=0)
    writer.add(Sample(sample_id="a page, 1.png", image=page), result("a page, 1.png"), model)
    writer.add(Sample(sample_id="two", image=page), result("two"), model)
    name = folder_name("a page, 1.png")
    folder = tmp_path / "viz" / name
    info = valid_file("gallery_info", folder / "info.json")
    assert info == {
        "sample_id": "a page, 1.png",
        "labels": {"title": 1},
        "malformed_tags": 0,
        "image": str(page),
        "width": 200,
        "height": 100,
        "boxes": [{"label": "title", "box_px": [0, 0, 200, 50], "cutout": "cutouts/000_title.png"}],
    }
    with Image.open(folder / "cutouts/000_title.png") as cutout, Image.open(folder / "thumbnail.jpg") as thumbnail:
        assert (cutout.size, thumbnail.size) == ((200, 50), (50, 25))
    with Image.open(folder / "boxes.jpg") as drawn, Image.open(page) as original:
        assert drawn.size == original.size
        assert min(drawn.convert("RGB").crop((100, 49, 101, 50)).tobytes()) < 100
    assert (folder / "page.md").read_text() == "Hello<|end|>\n"
    gallery = (tmp_path / "viz/predictions.md").read_text()
    assert f"![page]({name}/thumbnail.jpg)" in gallery
    assert "Not shown: 1 sample (max_images is 1)." in gallery
    assert not (tmp_path / "viz/two").exists()


def test_folder_names_are_safe_and_never_collide() -> None:
    assert folder_name("page-1.png") == "page-1.png"
    assert folder_name("a b") != folder_name("a_b") != folder_name("a,b")
    assert "/" not in folder_name("images/../x")


def test_unknown_or_wrong_options_are_refused_by_their_full_key() -> None:
    extra = {
        "deepseek_ocr": {"visualization": {"max_image": 3, "thumbnail_width": 0}},
        "deepsek_ocr": {},
    }
    found = sorted(output_problems(OutputConfig(extra=extra)), key=lambda problem: problem.key)
    assert [p.key for p in found] == [
        "output.extra.deepseek_ocr.visualization.max_image",
        "output.extra.deepseek_ocr.visualization.thumbnail_width",
        "output.extra.deepsek_ocr",
    ]
    assert found[0].text == (
        "unknown key (got 3), nearest known key: output.extra.deepseek_ocr.visualization.max_images"
    )
    assert found[1] == Problem(key=found[1].key, text="not allowed (got 0), allowed: a number ≥ 1")
    assert found[2].text == "unknown key (got {}), allowed: a model family (causal_lm, deepseek_ocr)"


def test_options_of_another_model_do_not_count() -> None:
    extra = {"deepseek_ocr": {"visualization": {"max_images": 3}}}
    assert options_for(extra, "llm_perf_opt.workload.models.causal_lm:ADAPTER") == OutputOptions()
    assert options_for(extra, OCR).visualization.max_images == 3
    with pytest.raises(ConfigError, match="unknown key"):
        options_for({"deepseek_ocr": {"x": 1}}, OCR)
