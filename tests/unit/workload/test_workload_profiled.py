"""Every knob of the profiled pass changes what is recorded, and what it cannot do is reported."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.config.output import OutputConfig, VisualizationOutput
from llm_perf_opt.config.schema import InferSection
from llm_perf_opt.profiling.stages.torch_profiler import TorchProfilerConfig, describe_trace
from llm_perf_opt.workload.dataset import Planned
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.profiled import ChosenActivities, choose_activities, choose_samples, run_profile
from tests.support.schemas import valid_file
from tests.support.workload_fakes import FakeConfig, prompts

pytestmark = pytest.mark.slow

QUIET = OutputConfig(visualization=VisualizationOutput(enable=False))


def profiled(tmp_path: Path, **knobs: Any) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, str]]]:
    """metrics.json, the trace's events and the operator rows of a run with these knobs."""
    config = FakeConfig(
        dataset=prompts(tmp_path / "p.txt", ["1 2", "3"]), infer=InferSection(max_new_tokens=5), repeats=1
    ).build(tmp_path)
    out = tmp_path / "out"
    options = TorchProfilerConfig(output=QUIET, **knobs)
    run_profile(config, options, out)
    describe_trace(options, out, tokens=options.token_budget(5))
    events = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))["traceEvents"]
    with (out / "operators.csv").open(newline="") as file:
        return valid_file("metrics", out / "metrics.json"), events, list(csv.DictReader(file))


def test_with_everything_on_shapes_memory_and_stacks_are_recorded(tmp_path: Path) -> None:
    metrics, events, rows = profiled(tmp_path, with_stack=True, warmup_synthetic=False, warmup_rounds=2)
    assert any(e.get("cat") == "python_function" for e in events)
    assert any(e.get("name") == "[memory]" for e in events)
    shapes = {row["input_shapes"] for row in rows if row["name"] == "aten::addmm"}
    assert len(shapes) > 2
    assert all(row["self_cpu_memory_bytes"] for row in rows)
    assert not any("(" in row["name"] for row in rows)
    assert metrics["clean"]["warmup_rounds"] == 2


def test_with_everything_off_only_times_are_recorded(tmp_path: Path) -> None:
    metrics, events, rows = profiled(
        tmp_path, record_shapes=False, profile_memory=False, group_by_input_shape=True, activities=("cpu",)
    )
    assert not any(e.get("cat") == "python_function" or e.get("name") == "[memory]" for e in events)
    assert not any("Input Dims" in e.get("args", {}) for e in events)
    assert "input_shapes" not in rows[0]
    assert {row["self_cpu_memory_bytes"] for row in rows} == {""}
    assert metrics["notes"] == ["group_by_input_shape needs record_shapes=true; operators are grouped by name alone"]


def test_lifting_the_bounds_profiles_every_sample_to_its_end(tmp_path: Path) -> None:
    metrics, events, _ = profiled(tmp_path, max_samples=None, max_decode_steps=None, activities=("cpu",))
    assert (metrics["profiled"]["samples"], metrics["profiled"]["bounded"]) == (2, False)
    assert metrics["profiled"]["metrics"]["tokens"]["p50"] == 5
    assert sum(e.get("cat") == "user_annotation" and e["name"] == "decode_step" for e in events) == 8
    assert metrics["notes"] == []


def test_no_decode_steps_leave_decode_without_a_slowdown_or_shares(tmp_path: Path) -> None:
    metrics, _, _ = profiled(tmp_path, max_decode_steps=0, activities=("cpu",))
    assert metrics["slowdown"]["decode"] is None
    assert metrics["slowdown"]["prefill"] > 0
    assert set(metrics["modules"]) == {"prefill"}


@pytest.mark.parametrize("wanted", [("cpu", "cuda"), ("cuda",)])
def test_cuda_on_a_cpu_becomes_cpu_with_a_note(wanted: tuple[str, ...]) -> None:
    note = "activities: cuda was requested, the model runs on cpu; cpu alone was recorded"
    assert choose_activities(wanted, "cpu") == ChosenActivities(names=("cpu",), notes=(note,))
    assert choose_activities(("cpu",), "cpu") == ChosenActivities(names=("cpu",), notes=())
    assert choose_activities(wanted, "cuda:0") == ChosenActivities(names=wanted, notes=())


def test_the_first_good_samples_are_profiled_each_once() -> None:
    planned = [Planned(epoch=e, sample=Sample(sample_id=s)) for e in (0, 1) for s in "abcd"]
    assert choose_samples(planned, {"b": "broken"}, 2) == [planned[0], planned[2]]
    assert choose_samples(planned, {}, None) == planned[:4]
