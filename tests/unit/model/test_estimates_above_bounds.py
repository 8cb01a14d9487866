"""No estimate is below what no run can beat: hardware, models, formats, engines, spreads and shapes drawn at random."""

import random
from typing import Any, get_args

import pytest

from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.estimate.engine_model import EngineName
from llm_perf_opt.model.estimate.parallel import Layout
from llm_perf_opt.model.hardware.hardware import CPU, Resolved, load_catalogue
from llm_perf_opt.model.hardware.roofline import datasheet_ceilings
from llm_perf_opt.model.static.forms import MLA_MODES
from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.planning.planning_rows import predict_row
from llm_perf_opt.planning.predict_request import Case, parse_request
from llm_perf_opt.planning.predicted_rows import Row, bound_ms
from llm_perf_opt.planning.subject import Subject, subjects
from tests.support.serving_bound import Requests, batch_bound_ms, serving_bound_tokens_per_s

pytestmark = pytest.mark.slow

MODELS = ("llama3_1b", "llama3_70b", "qwen3_30b_a3b", "deepseek_v2_lite")
DEVICES = sorted(p.stem for p in (conf_dir() / "hardware").glob("*.yaml") if p.stem not in ("auto", CPU))
DRAWS = 60
# Sums of many steps, worked out in chunks.
SLACK = 1 - 1e-9


def random_case(draw: random.Random) -> Case:
    values: dict[str, Any] = {
        "prompt": draw.choice([1, 128, 1024, 100_000]),
        "context": draw.choice([None, 1, 30_000]),
        "output": draw.choice([None, 1, 2048]),
        "batch": draw.choice([1, 3, 64, 512]),
        "concurrency": draw.choice([None, 1, 256]),
        "prefill_chunk": draw.choice([None, 64, 2048]),
        "weight_dtype": draw.choice([None, "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp4"]),
        "kv_dtype": draw.choice([None, "fp8"]),
        "mla_mode": draw.choice([None, *MLA_MODES]),
        "engine": draw.choice(get_args(EngineName)),
    }
    return Case(layout=Layout(tp=draw.choice([1, 2, 8]), pp=draw.choice([1, 2]), dp=draw.choice([1, 2])), **values)


@pytest.fixture(scope="module")
def asked() -> tuple[list[Subject], dict[str, HardwareSection]]:
    request = parse_request([f"model={','.join(MODELS)}"], conf=conf_dir())
    return list(subjects(request)), load_catalogue(conf_dir() / "hardware")


@pytest.mark.parametrize("seed", range(3))
def test_estimates_and_forecasts_keep_above_the_bounds(
    seed: int, asked: tuple[list[Subject], dict[str, HardwareSection]]
) -> None:
    draw = random.Random(seed)
    models, catalogue = asked
    seen = 0
    for _ in range(DRAWS):
        subject = draw.choice(models)
        row = predict_row(subject, random_case(draw), None, Resolved(section=catalogue[draw.choice(DEVICES)]))
        for prediction in row.predictions.values():
            bound, expected = bound_ms(prediction), prediction.estimate
            if expected is None or bound is None:
                continue
            seen += 1
            assert bound * SLACK <= expected.low_ms <= expected.mid_ms <= expected.high_ms < float("inf")
        assert isinstance(subject.model, Model)
        check_forecast(row, subject.model)
    assert seen > DRAWS / 2


def check_forecast(row: Row, model: Model) -> None:
    found, hardware, layout = row.forecast, row.analysis.hardware, row.case.layout
    if found is None or hardware is None or row.case.output is None:
        return
    ceilings = datasheet_ceilings(hardware)
    assert ceilings is not None
    requests = Requests(prompt=row.analysis.shape.prompt, output=row.case.output)
    dtypes = row.analysis.dtypes
    best = serving_bound_tokens_per_s(model, requests, dtypes, ceilings, capacity_bytes=1e18)
    assert found.output_tokens_per_s * SLACK <= best * layout.devices
    alone = batch_bound_ms(model, requests, dtypes, ceilings, batch=1)
    assert found.request_ms >= alone * SLACK / layout.model_devices
