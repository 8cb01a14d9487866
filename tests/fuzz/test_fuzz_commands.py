"""Made-up and damaged input for what the commands alongside `profile` read: files of load generators, sweeps and
experiments, prompts, conditions, filters, requests.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.capture.readers.nsys_log import failure_words, import_notes
from llm_perf_opt.commands.sweep import read_sweep
from llm_perf_opt.comparison.gate import parse_condition
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import DatasetSection
from llm_perf_opt.pipeline.bench.bench_config import type_bench
from llm_perf_opt.pipeline.catalogue import as_row
from llm_perf_opt.pipeline.compare.interleave import parse_experiment
from llm_perf_opt.pipeline.index import index_run, parse_filter
from llm_perf_opt.pipeline.optimize.user_experiments import read_experiments
from llm_perf_opt.planning.machine import parse_amd_smi, parse_rocm_smi
from llm_perf_opt.planning.predict_request import parse_request
from llm_perf_opt.report.render.openmetrics import render_openmetrics
from llm_perf_opt.report.samples import parse_samples
from llm_perf_opt.report.write import write_view
from llm_perf_opt.serving.counters import parse_counters
from llm_perf_opt.serving.foreign_results import read_results
from llm_perf_opt.workload.dataset import TOKENS, list_samples
from tests.fuzz.made_up import CHEAP, JSON, SLOW, SLOWEST, answers, cases, damaged
from tests.support.fixtures_dir import DATA
from tests.support.report_runs import capture, clean, stage, write_run

WORDS = st.text(max_size=40)
SAMPLE = b'{"sample_id": "a", "pass": "clean", "repeat": 0, "tpot_ms": 1.5, "ttft_ms": 2}\n'
COUNTERS = b'# TYPE vllm:x counter\nvllm:num_requests_running{model="m"} 3.0\nx_bucket{le="+Inf"} 9\n'
JOBS = {"schema_version": 1, "arguments": ["a=1,2"], "jobs": [{"number": 0, "folder": "0", "overrides": ["a=1"]}]}
EXPERIMENTS = b"experiments:\n- name: a\n  overrides: [infer.max_new_tokens=4]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@cases(CHEAP)
@given(data=damaged((DATA / "vllm_bench.json").read_bytes()) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_result_of_a_load_generator(folder: Path, data: bytes) -> None:
    (folder / "r.json").write_bytes(data)
    answers(lambda: read_results([folder / "r.json"]))


@cases(CHEAP)
@given(data=damaged(COUNTERS), said=st.text(max_size=200))
def test_counters_of_a_server_and_words_of_tools(data: bytes, said: str) -> None:
    text = data.decode("utf-8", "replace")
    answers(lambda: parse_counters(text))
    answers(lambda: (import_notes(said), failure_words(said), parse_amd_smi(said), parse_rocm_smi(said)))


@cases(CHEAP)
@given(value=JSON)
def test_what_other_tools_say_of_a_gpu(value: Any) -> None:
    text = json.dumps(value)
    answers(lambda: (parse_amd_smi(text), parse_rocm_smi(text)))


@cases(CHEAP)
@given(data=damaged(SAMPLE * 3) | JSON.map(lambda value: json.dumps({"pass": "clean", "repeat": value}).encode()))
def test_samples_of_a_clean_pass(data: bytes) -> None:
    answers(lambda: parse_samples(data, source="samples.jsonl"))


@cases(CHEAP)
@given(data=damaged(json.dumps(JOBS).encode()) | JSON.map(lambda value: json.dumps({**JOBS, "jobs": value}).encode()))
def test_the_jobs_of_a_sweep(folder: Path, data: bytes) -> None:
    (folder / "jobs.json").write_bytes(data)
    answers(lambda: read_sweep(folder))


@cases(CHEAP)
@given(data=damaged(EXPERIMENTS) | JSON.map(lambda value: json.dumps({"experiments": [value]}).encode()))
def test_experiments_of_a_user(folder: Path, data: bytes) -> None:
    (folder / "e.yaml").write_bytes(data)
    answers(lambda: read_experiments(folder / "e.yaml"))


@cases(CHEAP)
@given(data=st.binary(max_size=80) | JSON.map(lambda value: json.dumps({"prompt": value}).encode()))
def test_a_file_of_prompts(folder: Path, data: bytes) -> None:
    path = folder / "p.jsonl"
    path.write_bytes(data)
    dataset = DatasetSection(kind="prompts", file=path)
    answers(lambda: list_samples(dataset, data_kind=TOKENS, vocabulary=None, scratch_dir=folder))


@cases(CHEAP)
@given(key=WORDS, sign=st.sampled_from(("<=", "<", "=", ">=", "")), value=WORDS, words=st.lists(WORDS, max_size=3))
def test_conditions_filters_and_requests(key: str, sign: str, value: str, words: list[str]) -> None:
    answers(lambda: parse_condition(f"{key}{sign}{value}"))
    answers(lambda: parse_condition(f"tpot_ms{sign}{value}%"))
    answers(lambda: parse_filter(f"{key}{sign}{value}"))
    answers(lambda: parse_experiment([*words, f"candidate.overrides={value}"]))
    answers(lambda: parse_request([f"workload.batch={value}", f"model={key}", *words], conf=conf_dir()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with clean times, a capture and a full environment record."""
    run = tmp_path_factory.mktemp("run")
    gpu = {"name": "NVIDIA H200", "driver": "570", "index": 0}
    return write_run(
        run,
        stage("torch_profiler", run, metrics=clean(ttft_ms=20.0, tpot_ms=3.5, prompt_tokens=64)),
        stage("nsys", run, {"analysis_json": ("analysis.json", capture(("gemm", 4, 4_000_000)))}, notes=("a note",)),
        config={"model": {"name": "llama3_1b"}, "workload": {"command": ["python3", "serve.py"]}},
        environment={"gpus": [gpu], "tools": {"nsys": {"version": "2025.3"}}, "git": {"commit": "0" * 40}, "cpu": "x"},
        overrides=("run.seed=1",),
    )


@cases(SLOWEST)
@given(file=st.sampled_from(("manifest.json", "nsys/analysis.json")), value=JSON, draw=st.data())
def test_a_run_of_somebody_with_one_value_changed(finished: Path, file: str, value: Any, draw: st.DataObject) -> None:
    """One run that cannot be read as it is ends neither a list nor an export, and its report is one, or an error."""
    path = finished / file
    whole = path.read_text(encoding="utf-8")
    content = place = json.loads(whole)
    key: str | int = draw.draw(st.sampled_from(sorted(content)))
    while isinstance(place[key], dict | list) and place[key] and draw.draw(st.integers(0, 9)):
        place = place[key]
        key = draw.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    try:
        answers(lambda: write_view(finished))
        answers(lambda: render_openmetrics(index_run(finished).numbers, {}, strict=True))
        answers(lambda: as_row(index_run(finished)))
    finally:
        path.write_text(whole, encoding="utf-8")


@pytest.fixture(scope="module")
def bench() -> str:
    sections: dict[str, Any] = {name: {} for name in ("server", "load", "capture", "dataset", "artifacts")}
    whole = {**sections, **yaml.safe_load((conf_dir() / "bench.yaml").read_text(encoding="utf-8"))}
    whole["server"] = yaml.safe_load((conf_dir() / "server/openai.yaml").read_text(encoding="utf-8"))
    whole["dataset"] = yaml.safe_load((conf_dir() / "dataset/synthetic.yaml").read_text(encoding="utf-8"))
    return json.dumps({key: value for key, value in whole.items() if key in sections})


@cases(SLOW)
@given(key=st.sampled_from(("server", "load", "capture", "dataset", "artifacts")), value=JSON, draw=st.data())
def test_the_configuration_of_a_load(bench: str, key: str, value: Any, draw: st.DataObject) -> None:
    raw = json.loads(bench)
    if raw[key] and draw.draw(st.booleans()):
        raw[key][draw.draw(st.sampled_from(sorted(raw[key])))] = value
    else:
        raw[key] = value
    answers(lambda: type_bench(raw, user_dir=Path("/")))
