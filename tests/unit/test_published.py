"""Published measurements, each with its source: none may beat the bound we state for it, and each must fit.

The table is tests/data/published.csv. Formats: `int4` stands for the 3-bit weights of one llama.cpp row, whose products
run in int8. Batch `in flight`: the engine fills the memory by itself and requests come and go.
"""

import csv
from typing import Any

import pytest

from llm_perf_opt.analysis.estimate.serving_bound import Requests, batch_bound_ms, serving_bound_tokens_per_s
from llm_perf_opt.analysis.families.known import read_text_model
from llm_perf_opt.analysis.hardware.hardware import load_catalogue
from llm_perf_opt.analysis.hardware.roofline import datasheet_ceilings, missing_ceiling
from llm_perf_opt.analysis.hardware.work import Dtypes
from llm_perf_opt.analysis.static.memory import memory_fit
from llm_perf_opt.analysis.static.parts import Model
from llm_perf_opt.config.paths import conf_dir
from tests.support.fixtures_dir import REPO
from tests.support.static_cases import preset_geometry

LLAMA2_7B = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
IN_FLIGHT = "in flight"


def rows() -> list[dict[str, str]]:
    with (REPO / "tests" / "data" / "published.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def model_of(name: str) -> Model:
    geometry: Any = {
        "Llama-2-7B": LLAMA2_7B,
        "Llama-3-8B": preset_geometry("causal_lm/arch/llama3_8b"),
        "Llama-3.1-8B": preset_geometry("causal_lm/arch/llama3_8b"),
        "Llama-3.3-70B": preset_geometry("causal_lm/arch/llama3_70b"),
    }[name]
    return read_text_model(geometry, where=name)


def dtypes_of(row: dict[str, str]) -> Dtypes:
    return Dtypes(compute=row["compute"], weight=row["weight"], kv=row["kv"])


def share_of_bound(row: dict[str, str]) -> float:
    """How much of what the bound allows was reached; above 1 the bound was beaten."""
    hardware = load_catalogue(conf_dir() / "hardware")[row["hardware"]]
    model, dtypes = model_of(row["model"]), dtypes_of(row)
    ceilings = datasheet_ceilings(hardware)
    assert ceilings is not None and missing_ceiling(hardware, ceilings, dtypes, "datasheet") is None
    requests = Requests(prompt=int(row["prompt"]), output=int(row["output"]))
    measured = float(row["measured"])
    if row["batch"] == IN_FLIGHT:
        assert hardware.memory_gb is not None
        best = serving_bound_tokens_per_s(model, requests, dtypes, ceilings, capacity_bytes=hardware.memory_gb * 1e9)
        return measured / best
    batch = int(row["batch"])
    bound_ms = batch_bound_ms(model, requests, dtypes, ceilings, batch=batch)
    if row["metric"] in ("ttft_ms", "request_ms"):
        return bound_ms / measured
    tokens = requests.prompt if row["metric"] == "prompt_tokens_per_s" else requests.output
    return measured / (batch * tokens / (bound_ms / 1e3))


@pytest.mark.parametrize("row", rows(), ids=lambda row: "-".join(list(row.values())[1:9]))
def test_no_published_run_beats_its_bound(row: dict[str, str]) -> None:
    assert 0.02 < share_of_bound(row) <= 1.0


def test_every_row_names_its_source() -> None:
    assert len(rows()) == 56
    assert [row for row in rows() if not row["source"]] == []


@pytest.mark.parametrize("row", [row for row in rows() if row["source"].startswith("TensorRT-LLM 0")])
def test_batches_that_ran_are_said_to_fit(row: dict[str, str]) -> None:
    """lmdeploy's batches are requests in flight, which never hold their longest context at once."""
    hardware = load_catalogue(conf_dir() / "hardware")[row["hardware"]]
    assert hardware.memory_gb is not None
    prompt, output = int(row["prompt"]), int(row["output"])
    fit = memory_fit(
        model_of(row["model"]),
        hardware.memory_gb * 1e9,
        batch=int(row["batch"]),
        prompt=prompt,
        context=prompt + output,
        dtypes=dtypes_of(row),
        mla_mode="cached",
    )
    assert fit.largest_batch >= int(row["batch"])
