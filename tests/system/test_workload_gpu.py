"""Both passes on a real GPU: CUDA events, device time per module, kernels, allocator peaks."""

import csv
import json
from pathlib import Path

import pytest

from llm_perf_opt.config.output import OutputConfig, VisualizationOutput
from llm_perf_opt.profiling.stages.torch_profiler import TorchProfilerConfig, describe_trace
from llm_perf_opt.workload.profiled import run_profile
from tests.support.model_presets import compose_preset
from tests.support.schemas import valid_file


@pytest.mark.gpu
@pytest.mark.parametrize("ignore_eos", [True, False])
def test_a_gpu_run_has_device_times_kernels_and_peaks(tmp_path: Path, ignore_eos: bool) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    config = compose_preset(
        "model=llama_tiny",
        "dataset=synthetic",
        "dataset.prompt_tokens=64",
        "dataset.num_samples=2",
        "run.device=cuda:0",
        "infer.max_new_tokens=24",
        f"infer.ignore_eos={str(ignore_eos).lower()}",
    )
    quiet = OutputConfig(visualization=VisualizationOutput(enable=False))
    out = tmp_path / "torch_profiler"
    options = TorchProfilerConfig(output=quiet, max_decode_steps=8)
    run_profile(config, options, out)
    describe_trace(options, out, tokens=9)
    data = valid_file("metrics", out / "metrics.json")
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert (data["status"], data["model"]["device"]) == ("done", "cuda:0")
    assert data["nvtx_backend"].startswith("torch.cuda.nvtx")
    assert data["clean"]["peak_memory_bytes"] >= 4 * data["model"]["parameters"]
    for line in (x for x in lines if x["pass"] == "clean"):
        # Marks are taken on the device, edges on the host; over a whole phase they must agree.
        assert sum(line["itl_values_ms"]) == pytest.approx(line["decode_ms"], rel=0.2, abs=0.5)
    assert data["modules_by"] == "device_time"
    for phase in ("prefill", "decode"):
        assert sum(data["modules_device"][phase].values()) == pytest.approx(1.0)
        assert sum(data["modules_cpu"][phase].values()) == pytest.approx(1.0)
        assert data["modules_device"][phase]["attention"] > 0
        assert data["modules_device"][phase]["mlp"] > 0
    with (out / "kernels.csv").open(newline="") as file:
        kernels = list(csv.DictReader(file))
    with (out / "operators.csv").open(newline="") as file:
        operators = list(csv.DictReader(file))
    whole_us = sum(float(row["total_us"]) for row in kernels)
    assert whole_us > 0
    assert sum(int(row["self_device_ns"]) for row in operators) == pytest.approx(whole_us * 1000, rel=0.02)
    assert not any("no device activity" in note for note in data["notes"])
