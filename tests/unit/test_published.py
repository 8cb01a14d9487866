"""Published measurements, each with its source: none may beat the bound we state for it, and each must fit.

The table is tests/data/published.csv. Formats: `int4` stands for the 3-bit weights of one llama.cpp row, whose products
run in int8. Batch `in flight`: the engine fills the memory by itself and requests come and go.
"""

import csv
import json
from functools import cache
from typing import Any

import pytest

from llm_perf_opt.analysis.estimate.serving_bound import Requests, batch_bound_ms, serving_bound_tokens_per_s
from llm_perf_opt.analysis.families.known import read_text_model
from llm_perf_opt.analysis.hardware.hardware import load_catalogue
from llm_perf_opt.analysis.hardware.roofline import Ceilings, datasheet_ceilings, missing_ceiling
from llm_perf_opt.analysis.hardware.work import Dtypes
from llm_perf_opt.analysis.static.memory import memory_fit
from llm_perf_opt.analysis.static.parts import Model
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import HardwareSection
from tests.support.fixtures_dir import REPO
from tests.support.static_cases import preset_geometry

IN_FLIGHT = "in flight"
PRESETS = {
    "Llama-3-8B": "llama3_8b",
    "Llama-3.1-8B": "llama3_8b",
    "Llama-3.3-70B": "llama3_70b",
    "Qwen3-30B-A3B": "qwen3_30b_a3b",
}
MIXED = ("gpt-oss-20b", "gpt-oss-120b")


@cache
def models() -> dict[str, dict[str, Any]]:
    """Sizes of the models that are no preset, as their config.json gives them."""
    found: dict[str, dict[str, Any]] = json.loads((REPO / "tests" / "data" / "published_models.json").read_text())
    return found


@cache
def catalogue() -> dict[str, HardwareSection]:
    return load_catalogue(conf_dir() / "hardware")


def rows() -> list[dict[str, str]]:
    with (REPO / "tests" / "data" / "published.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def model_of(name: str) -> Model:
    preset = PRESETS.get(name)
    geometry = models()[name] if preset is None else preset_geometry(f"causal_lm/arch/{preset}")
    return read_text_model(geometry, where=name)


def dtypes_of(row: dict[str, str]) -> Dtypes:
    attention = row["compute"] if row["model"] in MIXED else None
    return Dtypes(compute=row["compute"], weight=row["weight"], kv=row["kv"], attention=attention)


def ceilings_of(row: dict[str, str], hardware: HardwareSection) -> Ceilings:
    """Those of all devices of the row together: no way to spread a model does better."""
    found = datasheet_ceilings(hardware)
    devices = int(row["devices"])
    assert found is not None and missing_ceiling(hardware, found, dtypes_of(row), "datasheet") is None
    rates = {name: rate * devices for name, rate in found.flops_per_s.items()}
    return Ceilings(kind=found.kind, flops_per_s=rates, bytes_per_s=found.bytes_per_s * devices)


def share_of_bound(row: dict[str, str]) -> float:
    """How much of what the bound allows was reached; above 1 the bound was beaten."""
    hardware = catalogue()[row["hardware"]]
    model, dtypes = model_of(row["model"]), dtypes_of(row)
    ceilings = ceilings_of(row, hardware)
    requests = Requests(prompt=int(row["prompt"]), output=int(row["output"]))
    measured = float(row["measured"])
    if row["batch"] == IN_FLIGHT:
        assert hardware.memory_gb is not None
        capacity = hardware.memory_gb * 1e9 * int(row["devices"])
        best = serving_bound_tokens_per_s(model, requests, dtypes, ceilings, capacity_bytes=capacity)
        return measured / best
    batch = int(row["batch"])
    bound_ms = batch_bound_ms(model, requests, dtypes, ceilings, batch=batch)
    if row["metric"] in ("ttft_ms", "request_ms"):
        return bound_ms / measured
    tokens = requests.prompt if row["metric"] == "prompt_tokens_per_s" else requests.output
    return measured / (batch * tokens / (bound_ms / 1e3))


def test_no_published_run_beats_its_bound() -> None:
    shares = {tuple(row.values()): share_of_bound(row) for row in rows()}
    assert {row: share for row, share in shares.items() if not 0.05 < share <= 1.0} == {}


def test_every_row_names_its_source() -> None:
    assert len(rows()) == 234
    assert [row for row in rows() if not row["source"]] == []


@pytest.mark.parametrize("row", [row for row in rows() if row["source"].startswith("TensorRT-LLM 0")])
def test_batches_that_ran_are_said_to_fit(row: dict[str, str]) -> None:
    """lmdeploy's batches are requests in flight, which never hold their longest context at once."""
    hardware = catalogue()[row["hardware"]]
    assert hardware.memory_gb is not None
    prompt, output = int(row["prompt"]), int(row["output"])
    fit = memory_fit(
        model_of(row["model"]),
        hardware.memory_gb * 1e9 * int(row["devices"]),
        batch=int(row["batch"]),
        prompt=prompt,
        context=prompt + output,
        dtypes=dtypes_of(row),
        mla_mode="cached",
    )
    assert fit.largest_batch >= int(row["batch"])
