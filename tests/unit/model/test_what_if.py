"""What if: the predictions a page offers are those of `llm-perf predict`, for every run of a known model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.estimate.what_if import BATCHES, GPUS, LENGTHS, what_if
from llm_perf_opt.model.hardware.hardware import load_catalogue
from llm_perf_opt.model.hardware.work import Dtypes, Shape
from llm_perf_opt.model.static.model_what_if import WhatIf, WhatIfLength, WhatIfPoint
from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.planning.planning_rows import predictions
from llm_perf_opt.planning.predict_request import parse_request
from llm_perf_opt.planning.subject import subjects
from llm_perf_opt.report.render.html import unpack
from tests.support.report_runs import analyze_h200

CATALOGUE = load_catalogue(conf_dir() / "hardware")
SHAPE = Shape(batch=2, prompt=512, context=544, how="")


def preset_model(name: str) -> Model:
    (subject,) = subjects(parse_request([f"model={name}"], conf=conf_dir()))
    assert isinstance(subject.model, Model)
    return subject.model


def asked(hardware: HardwareSection | None, *, dtype: str = "bf16", engine: str = "eager") -> WhatIf:
    found = what_if(preset_model("llama3_1b"), SHAPE, Dtypes.uniform(dtype), hardware, CATALOGUE, engine=engine)
    assert found is not None
    return found


def at(found: WhatIf, gpu: str, dtype: str, batch: int, length: WhatIfLength) -> WhatIfPoint:
    place = found.gpus.index(gpu)
    for values, value in ((found.dtypes, dtype), (found.batches, batch), (found.lengths, length)):
        place = place * len(values) + list(values).index(value)
    return found.points[place]


def test_the_grid_holds_the_run_itself_and_every_combination() -> None:
    found = asked(CATALOGUE["rtx4090"])
    assert found.gpus == ("rtx4090", *GPUS)
    assert found.dtypes == ("bf16", "fp8", "int4")
    assert found.batches == tuple(sorted({*BATCHES, 2}))
    assert {one.context for one in found.lengths} == {544, *LENGTHS}
    own = (found.gpu, found.dtype, found.batches[found.batch], found.lengths[found.length])
    assert own == (0, 0, 2, WhatIfLength(prompt=512, context=544))
    sizes = (found.gpus, found.dtypes, found.batches, found.lengths)
    assert len(found.points) == len(sizes[0]) * len(sizes[1]) * len(sizes[2]) * len(sizes[3])


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_every_point_is_what_predict_says(engine: str) -> None:
    found = asked(CATALOGUE["h200"], engine=engine)
    questions = ["model=llama3_1b", "hardware=h200,l40s", "workload.batch=1,8", f"workload.engine={engine}"]
    rows = predictions([*questions, "workload.prompt=8192", "workload.weight_dtype=bf16,int4"])
    assert len(rows) == 8
    for row in rows:
        assert row.analysis.hardware is not None
        length = WhatIfLength(prompt=8192, context=8192)
        point = at(found, row.analysis.hardware.name, row.analysis.dtypes.weight, row.case.batch, length)
        assert point.fits == row.fits
        for phase, prediction in row.predictions.items():
            time, bound, estimate = point.times[phase], prediction.datasheet, prediction.estimate
            assert time is not None and bound is not None and estimate is not None
            expected = [bound.ms, estimate.low_ms, estimate.mid_ms, estimate.high_ms]
            assert [time.bound, time.low, time.mid, time.high] == pytest.approx(expected, rel=1e-3)


def test_a_run_on_a_cpu_is_compared_with_gpus_in_bf16() -> None:
    for hardware in (None, CATALOGUE["cpu"]):
        found = asked(hardware, dtype="fp32")
        assert (found.gpus, found.gpu, found.dtypes[0], found.dtype) == (GPUS, None, "bf16", None)


def test_what_does_not_fit_and_what_cannot_be_estimated_is_said() -> None:
    model = preset_model("llama3_70b")
    found = what_if(model, SHAPE, Dtypes.uniform("bf16"), None, CATALOGUE, engine="graph")
    assert found is not None
    short, long = WhatIfLength(prompt=512, context=544), WhatIfLength(prompt=32768, context=32768)
    assert [at(found, name, "bf16", 2, short).fits for name in ("rtx5090", "b200")] == [False, True]
    assert at(found, "b200", "bf16", 128, long).fits is False
    unknown = replace(CATALOGUE["h200"], name="mine", peak_tflops={}, achieved_tflops={}, memory_gb=None)
    other = what_if(model, SHAPE, Dtypes.uniform("bf16"), unknown, CATALOGUE, engine="graph")
    assert other is not None
    assert other.points[0] == WhatIfPoint(fits=None, times={"prefill": None, "decode": None})
    # The whole time of a model that reads pages is not estimated.
    assert what_if(preset_model("deepseek_ocr"), SHAPE, Dtypes.uniform("bf16"), None, CATALOGUE, engine="graph") is None


def test_the_page_of_a_capture_offers_the_choices_with_the_run_itself_chosen(tmp_path: Path) -> None:
    folder = analyze_h200(tmp_path, ncu=False)
    page = (folder / "report.html").read_text(encoding="utf-8")
    static = json.loads((folder / "static_analysis" / "static.json").read_text())
    assert static["what_if"]["gpus"][0] == "h200"
    assert '<option value="0" selected>h200 (this run)</option><option value="1">b200</option>' in page
    assert page.count('data-predicted="bound" hidden') == page.count('data-predicted="time" hidden') == 2
    rows = json.loads(unpack(page.encode()))["what_if"]["rows"]
    assert len(rows) == len(static["what_if"]["points"])
    first = static["what_if"]["points"][0]["times"]["decode"]
    assert rows[0][1][1] == [first[key] for key in ("bound", "low", "mid", "high")]


def test_a_page_without_such_predictions_has_no_choices(tmp_path: Path) -> None:
    page = (analyze_h200(tmp_path, ncu=False, context=False) / "report.html").read_text(encoding="utf-8")
    assert 'id="what-if"' not in page and "data-predicted" not in page.split("<script>")[0]
