"""The session as a whole: what it writes, when, and what it does with bad samples and a sudden end."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from llm_perf_opt.config.output import OutputConfig, PredictionOutput
from llm_perf_opt.config.schema import DatasetSection, InferSection
from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.workload.device import resolve_device
from llm_perf_opt.workload.session import Shortened, run_inference
from tests.support.fixtures_dir import REPO
from tests.support.model_presets import compose_preset
from tests.support.schemas import valid, valid_file
from tests.support.workload_fakes import FakeConfig, prompts

pytestmark = pytest.mark.slow


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return valid_file("metrics", folder / "metrics.json"), [json.loads(line) for line in lines]


def test_a_run_repeats_the_samples_and_writes_metrics_samples_inputs_and_predictions(tmp_path: Path) -> None:
    config = FakeConfig(dataset=prompts(tmp_path / "p.txt", ["1 2 3", "29"]), repeats=3).build(tmp_path)
    out = tmp_path / "run" / "direct_inference"
    run_inference(config, out, warmup_rounds=1, output=OutputConfig(prediction=PredictionOutput(enable=True)))
    metrics, lines = read(out)
    assert [(s["sample_id"], s["repeat"], s["tokens"], s["prompt_tokens"]) for s in lines] == [
        (name, repeat, tokens, prompt)
        for repeat in range(3)
        for name, tokens, prompt in (("p.txt:1", 4, 3), ("p.txt:2", 2, 1))
    ]
    assert (metrics["schema_version"], metrics["status"]) == (1, "done")
    assert metrics["model"] | {"device_name": "", "torch": "", "threads": 0} == {
        "name": "fake",
        "parameters": 32 * 16 + (16 * 64 + 64) + 128 + (64 * 16 + 16) + (16 * 32 + 32),
        "dtype": "float32",
        "device": "cpu",
        "device_name": "",
        "torch": "",
        "threads": 0,
        "notes": ["fake weights"],
    }
    clean = metrics["clean"]
    assert (clean["repeats"], clean["samples"], clean["warmup_rounds"]) == (3, 2, 1)
    assert (clean["metrics"]["ttft_ms"]["n"], clean["metrics"]["itl_ms"]["n"]) == (6, 12)
    assert clean["metrics"]["sam_ms"]["n"] == 6
    assert (metrics["profiled"], metrics["slowdown"], metrics["modules"]) == (None, None, None)
    for line in lines:
        assert line["e2e_ms"] == pytest.approx(line["prepare_ms"] + line["ttft_ms"] + line["decode_ms"])
        assert 0 < line["sam_ms"] < line["prefill_ms"] < line["ttft_ms"]
        assert sum(line["itl_values_ms"]) <= line["decode_ms"] + (line["ttft_ms"] - line["prefill_ms"])
        assert line["tpot_ms"] == pytest.approx(line["decode_ms"] / (line["tokens"] - 1))
    predictions = [valid("prediction_line", json.loads(x)) for x in (out / "pred/predictions.jsonl").open()]
    assert [p["sample"] for p in predictions] == ["p.txt:1", "p.txt:2"]
    assert [i["sample_id"] for i in valid_file("inputs", out / "inputs.json")] == ["p.txt:1", "p.txt:2"]


def test_a_shortened_pass_ends_after_its_repeats_and_tokens_and_says_so(
    tmp_path: Path,
) -> None:
    config = FakeConfig(dataset=prompts(tmp_path / "p.txt", ["1 2 3", "29"]), repeats=3).build(tmp_path)
    run_inference(config, tmp_path / "o", warmup_rounds=0, output=None, shortened=Shortened(tokens=2, repeats=2))
    metrics, lines = read(tmp_path / "o")
    assert [(line["sample_id"], line["repeat"], line["tokens"]) for line in lines] == [
        ("p.txt:1", 0, 2),
        ("p.txt:2", 0, 2),
        ("p.txt:1", 1, 2),
        ("p.txt:2", 1, 2),
    ]
    assert (metrics["status"], metrics["clean"]["repeats"], metrics["clean"]["samples"]) == ("done", 2, 2)


def test_repeats_go_on_until_the_interval_is_narrow_enough(tmp_path: Path) -> None:
    base = FakeConfig(dataset=prompts(tmp_path / "p.txt", ["1 2 3"])).build(tmp_path)
    run = replace(base.run, repeats="auto", target_ci=1000.0, max_repeats=9)
    run_inference(replace(base, run=run), tmp_path / "wide", warmup_rounds=0, output=None)
    metrics, lines = read(tmp_path / "wide")
    assert (metrics["clean"]["repeats"], [line["repeat"] for line in lines]) == (4, [0, 1, 2, 3])
    assert metrics["notes"][-1].startswith("run.repeats=auto: 4 repeats, prefill_ms ±")
    assert metrics["notes"][-1].endswith(", within run.target_ci=1000")
    run = replace(run, target_ci=1e-9, max_repeats=6)
    run_inference(replace(base, run=run), tmp_path / "narrow", warmup_rounds=0, output=None)
    metrics, lines = read(tmp_path / "narrow")
    assert (metrics["clean"]["repeats"], len(lines)) == (6, 6)
    assert metrics["notes"][-1].startswith("run.repeats=auto: run.max_repeats=6 reached, ")
    assert 0 <= metrics["clean"]["other_cpus"] <= metrics["clean"]["cpu_count"] == os.cpu_count()


def test_a_cuda_graph_that_could_not_be_captured_is_not_told_as_one(tmp_path: Path) -> None:
    words = ("dataset=synthetic", "dataset.num_samples=1", "dataset.prompt_tokens=8", "infer.max_new_tokens=5")
    config = compose_preset("model=llama_tiny", *words, "infer.cache=static", "infer.cuda_graph=true", "run.device=cpu")
    run_inference(config, tmp_path, warmup_rounds=0, output=OutputConfig())
    metrics, _ = read(tmp_path)
    assert (metrics["deployment"]["cuda_graph"], metrics["deployment"]["compile_s"]) == (False, None)
    assert not [note for note in metrics["notes"] if "capturing" in note]
    assert "no CUDA graph was captured" in metrics["model"]["notes"][-1]


def test_one_bad_sample_is_recorded_and_skipped(tmp_path: Path) -> None:
    dataset = prompts(tmp_path / "p.txt", ["1", "bad one", "2"], max_bad_fraction=0.4)
    run_inference(FakeConfig(dataset=dataset).build(tmp_path), tmp_path / "out", warmup_rounds=0, output=None)
    metrics, lines = read(tmp_path / "out")
    assert metrics["bad_samples"] == [{"sample_id": "p.txt:2", "error": "ValueError: this prompt is bad"}]
    assert [s["sample_id"] for s in lines] == ["p.txt:1", "p.txt:3"] * 2


def test_too_many_bad_samples_fail_the_run_after_writing_what_was_measured(tmp_path: Path) -> None:
    dataset = prompts(tmp_path / "p.txt", ["1", "bad one", "2", "bad two"], max_bad_fraction=0.3)
    with pytest.raises(ProfilingError, match=r"2 of 4 samples are bad \(50.0 %\), more than dataset.max_bad_fraction"):
        run_inference(FakeConfig(dataset=dataset).build(tmp_path), tmp_path / "out", warmup_rounds=0, output=None)
    metrics, lines = read(tmp_path / "out")
    assert (metrics["status"], len(lines)) == ("failed", 2)
    assert metrics["clean"]["metrics"]["ttft_ms"]["n"] == 2


def test_a_broken_picture_is_a_bad_sample_and_a_whole_set_of_them_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "set"
    root.mkdir()
    Image.new("RGB", (8, 8)).save(root / "good.png")
    (root / "broken.png").write_bytes((root / "good.png").read_bytes()[:40])
    (root / "text.png").write_text("not a picture")
    dataset = DatasetSection(kind="omnidocbench", root=root, fallback_patterns=("*.png",), max_bad_fraction=0.9)
    config = FakeConfig(dataset=dataset, adapter="tests.support.workload_fakes:PAGES").build(tmp_path)
    run_inference(config, tmp_path / "out", warmup_rounds=1, output=None)
    metrics, _ = read(tmp_path / "out")
    assert {bad["sample_id"] for bad in metrics["bad_samples"]} == {"broken.png", "text.png"}
    (root / "good.png").unlink()
    for rounds in (0, 1):
        with pytest.raises(ProfilingError, match="could be r"):
            run_inference(config, tmp_path / "out", warmup_rounds=rounds, output=None)


def test_an_empty_data_set_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    dataset = DatasetSection(kind="omnidocbench", root=tmp_path, fallback_patterns=("*.none",))
    config = FakeConfig(dataset=dataset, adapter="tests.support.workload_fakes:PAGES").build(tmp_path)
    with pytest.raises(ConfigError, match="no page below"):
        run_inference(config, tmp_path / "out", warmup_rounds=0, output=None)
    assert not (tmp_path / "out/metrics.json").exists()


def test_the_same_seed_gives_the_same_tokens_in_every_repeat_and_run(tmp_path: Path) -> None:
    config = FakeConfig(
        dataset=prompts(tmp_path / "p.txt", ["1 2", "3"]),
        infer=InferSection(max_new_tokens=6, temperature=2.0, ignore_eos=True),
        repeats=1,
    ).build(tmp_path)
    texts = []
    for name, rounds in (("a", 0), ("b", 2)):
        output = OutputConfig(prediction=PredictionOutput(enable=True))
        run_inference(config, tmp_path / name, warmup_rounds=rounds, output=output)
        texts.append([json.loads(x)["text_raw"] for x in (tmp_path / name / "pred/predictions.jsonl").open()])
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


def test_a_device_that_is_not_there_is_refused() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert resolve_device("auto") == "cpu"
    with pytest.raises(ConfigError, match=r"run.device: not there \(got 'cuda:3'\), this machine has no GPU"):
        resolve_device("cuda:3")


CHILD = """
import sys
from pathlib import Path
from tests.support.workload_fakes import FakeConfig, prompts
from llm_perf_opt.config.schema import InferSection
from llm_perf_opt.workload.session import run_inference
root = Path(sys.argv[1])
config = FakeConfig(
    dataset=prompts(root / "p.txt", ["1", "2"]), infer=InferSection(max_new_tokens=3, ignore_eos=True), repeats=1000
).build(root)
run_inference(config, root / "out", warmup_rounds=0, output=None)
"""


def test_a_killed_run_keeps_every_finished_sample_and_a_readable_metrics_file(tmp_path: Path) -> None:
    path = os.pathsep.join([str(REPO), str(REPO / "src")])
    env = {**os.environ, "PYTHONPATH": path, "FAKE_SLOW_S": "0.02"}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        env=env,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    finished = 0
    deadline = time.monotonic() + 60
    while finished < 40 and time.monotonic() < deadline:
        finished += " in " in child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read()
    assert child.wait(timeout=10) == -signal.SIGKILL
    metrics, lines = read(tmp_path / "out")
    told = finished + rest.count(" in ")
    # The sample that was running when the end came may have been written and not yet reported.
    assert told <= len(lines) <= told + 1
    assert metrics["status"] == "running"
    assert 0 < metrics["clean"]["metrics"]["ttft_ms"]["n"] <= len(lines)


def test_odd_pictures_are_skipped_with_their_reason_and_the_rest_is_measured(tmp_path: Path) -> None:
    root = tmp_path / "set"
    root.mkdir()
    for number in range(3):
        Image.new("RGB", (80, 60), "white").save(root / f"good-{number}.png")
    Image.new("RGB", (1, 20000)).save(root / "line.png")
    bomb = bytearray((root / "good-0.png").read_bytes())
    bomb[16:24] = struct.pack(">II", 60000, 60000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bytes(bomb[12:29])))
    (root / "bomb.png").write_bytes(bytes(bomb))
    (root / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF")
    dataset = DatasetSection(kind="omnidocbench", root=root, fallback_patterns=("*.png", "*.jpg"), max_bad_fraction=0.9)
    config = replace(
        compose_preset("model=deepseek_ocr_tiny", "infer.max_new_tokens=2", "run.repeats=1"), dataset=dataset
    )
    run_inference(config, tmp_path / "out", warmup_rounds=0, output=None)
    metrics, lines = read(tmp_path / "out")
    reasons = {bad["sample_id"]: bad["error"] for bad in metrics["bad_samples"]}
    assert {"bomb.png", "cut.jpg"} <= set(reasons) <= {"bomb.png", "cut.jpg", "line.png"}
    assert "Image size (3600000000 pixels) exceeds limit" in reasons["bomb.png"]
    assert {line["sample_id"] for line in lines} >= {"good-0.png", "good-1.png", "good-2.png"}
