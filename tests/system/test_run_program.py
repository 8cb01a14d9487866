"""`llm-perf run`: real programs through the clean pass, the injected torch.profiler and nsys."""

import csv
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.orchestrator import environment, llm_perf, only_run, statuses, valid_manifest

pytestmark = pytest.mark.slow

NO_NSYS = ("pipeline.nsys.enable=false", "pipeline.ncu.enable=false")
MARKED = """
import torch
import llm_perf_opt as perf

layer = torch.nn.Linear(32, 32)
with torch.no_grad():
    with perf.mark_warmup(), perf.phase("prefill", tokens=8):
        layer(torch.randn(8, 32))
    with perf.phase("prefill", tokens=8):
        x = layer(torch.randn(8, 32))
    for _ in range(6):
        with perf.phase("decode_step", tokens=2):
            x = layer(torch.randn(2, 32)).relu()
print("done")
"""
ENDLESS = """
import time
import llm_perf_opt as perf

while True:
    with perf.phase("decode_step"):
        time.sleep(0.01)
"""


def stage(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(s for s in manifest["stages"] if s["name"] == name)
    return found


def program(tmp_path: Path, text: str, name: str = "script.py") -> list[str]:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return ["--", sys.executable, name]


def test_a_marked_program_gets_latencies_and_a_trace_of_its_window(tmp_path: Path) -> None:
    window = "pipeline.torch_profiler.window.steps=3"
    done = llm_perf("run", *NO_NSYS, window, "workload.repeats=2", *program(tmp_path, MARKED), cwd=tmp_path)
    assert done.code == 0, done.err
    manifest = valid_manifest(only_run(tmp_path))
    metrics = stage(manifest, "torch_profiler")["metrics"]
    assert metrics["tpot_ms"]["how"] == "clean pass, median of 12"
    assert (metrics["prompt_tokens"]["value"], metrics["tokens"]["value"]) == (4.0, 7.0)
    ranges = json.loads((only_run(tmp_path) / "torch_profiler" / "analysis.json").read_bytes())["ranges"]
    counts = {row["name"]: row["instances"] for row in ranges}
    assert (counts["prefill"], counts["decode_step"]) == (1, 2)
    page = (only_run(tmp_path) / "report.md").read_text()
    assert page.splitlines()[0] == "# script.py"
    rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith(("| prefill |", "| decode"))]
    assert rows == [["| prefill", "2"], ["| decode\\_step", "12"]]
    assert "unknown" not in page.partition("## Provenance")[0]


@pytest.mark.long
def test_a_program_that_is_not_python_or_never_imports_torch_is_timed_and_a_note_says_why_no_more(
    tmp_path: Path,
) -> None:
    done = llm_perf("run", *NO_NSYS, "artifacts.runs_dir=sh", "--", "sh", "-c", "exit 0", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "torch_profiler: torch.profiler was not used: sh cannot be seen to be a Python program" in done.err
    plain = stage(valid_manifest(tmp_path / "sh"), "torch_profiler")
    assert "torch.profiler was not used: sh cannot be seen to be a Python program" in plain["notes"]
    assert plain["metrics"]["wall_ms"]["value"] > 0
    done = llm_perf("run", *NO_NSYS, "artifacts.runs_dir=py", *program(tmp_path, "print(1)"), cwd=tmp_path)
    assert done.code == 0, done.err
    notes = stage(valid_manifest(tmp_path / "py"), "torch_profiler")["notes"]
    assert any(note.startswith("torch.profiler was not used: the program never imported torch") for note in notes)


def test_a_crashed_program_is_reported_by_the_line_that_matters(tmp_path: Path) -> None:
    text = "import sys\ntry:\n    raise ValueError('no such model')\nfinally:\n    print('bye', file=sys.stderr)\n"
    done = llm_perf("run", *NO_NSYS, *program(tmp_path, text), cwd=tmp_path)
    assert done.code == 1
    reason = stage(valid_manifest(only_run(tmp_path)), "torch_profiler")["reason"]
    assert reason.startswith("script.py failed with exit code 1: ValueError: no such model (log: ")
    page = (only_run(tmp_path) / "report.md").read_text()
    assert page.splitlines()[0] == "# script.py"
    said = "script.py failed with exit code 1: ValueError: no such model"
    assert page.splitlines()[4] == f"**The program did not run to its end: {said}**"
    assert page.splitlines()[6] == "What it printed: [host\\_samples/clean.log](<host_samples/clean.log>)"
    assert "Findings" not in page
    assert "from the limit to what was measured" not in page
    advised = [line for line in page.splitlines() if "workload.command" not in line]
    assert not any("pipeline.static_analysis.enable=true" in line for line in advised)


THREADS = """
import threading
import torch
import llm_perf_opt as perf


def serve(name):
    matrix = torch.randn(32, 32)
    with perf.request(name):
        for _ in range(8):
            with perf.phase("decode_step", tokens=1):
                matrix @ matrix


workers = [threading.Thread(target=serve, args=(name,)) for name in "ab"]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
"""


@pytest.mark.long
def test_a_program_that_marks_phases_in_worker_threads_runs_as_it_does_without_a_profiler(tmp_path: Path) -> None:
    done = llm_perf("run", *NO_NSYS, *program(tmp_path, THREADS), cwd=tmp_path)
    assert done.code == 0, done.err
    found = stage(valid_manifest(only_run(tmp_path)), "torch_profiler")
    assert (found["status"], found["metrics"]["tpot_ms"]["how"]) == ("ok", "clean pass, median of 16")
    assert calls(only_run(tmp_path))["aten::mm"] == 16
    ranges = json.loads((only_run(tmp_path) / "torch_profiler" / "analysis.json").read_bytes())["ranges"]
    assert {row["name"]: row["instances"] for row in ranges}["decode_step"] == 16


@pytest.mark.long
def test_a_torch_that_records_one_thread_alone_is_not_started_in_a_worker(tmp_path: Path) -> None:
    older = "import torch\ndef refuse(**given):\n    raise TypeError\ntorch._C._profiler._ExperimentalConfig = refuse"
    done = llm_perf("run", *NO_NSYS, *program(tmp_path, THREADS.replace("import torch", older)), cwd=tmp_path)
    assert done.code == 0, done.err
    said = "torch_profiler: torch.profiler was not used: the program marks its phases outside the main thread"
    assert said in done.err


@pytest.mark.long
def test_the_command_of_a_profiled_program_can_be_repeated_after_the_run(tmp_path: Path) -> None:
    done = llm_perf("run", *NO_NSYS, *program(tmp_path, "import torch; print(torch.ones(2).sum())"), cwd=tmp_path)
    assert done.code == 0, done.err
    command = only_run(tmp_path) / "torch_profiler" / "cmd.txt"
    again = subprocess.run(["sh", command], capture_output=True, text=True, check=False, env=environment())
    assert (again.returncode, again.stdout) == (0, "tensor(2.)\n"), again.stderr
    # Not even where nothing can be written.
    (window,) = re.findall(r"LLM_PERF_TORCH_WINDOW='(.*)'", command.read_text())
    folder = json.loads(window)["folder"]
    command.write_text(command.read_text().replace(folder, "/dev/null/traces"))
    again = subprocess.run(["sh", command], capture_output=True, text=True, check=False, env=environment())
    assert (again.returncode, again.stdout) == (0, "tensor(2.)\n"), again.stderr


def calls(run: Path) -> Counter[str]:
    """How often the trace has each operator."""
    with (run / "torch_profiler" / "operators.csv").open(encoding="utf-8", newline="") as file:
        return Counter({row["name"]: int(row["calls"]) for row in csv.DictReader(file)})


@pytest.mark.long
def test_work_in_threads_is_recorded_without_any_mark(tmp_path: Path) -> None:
    text = THREADS.replace("import llm_perf_opt as perf", "").replace("with perf.request(name):", "if True:")
    text = text.replace('with perf.phase("decode_step", tokens=1):', "if True:")
    done = llm_perf("run", *NO_NSYS, *program(tmp_path, text), cwd=tmp_path)
    assert done.code == 0, done.err
    assert calls(only_run(tmp_path))["aten::mm"] == 16


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch", "torch_profiler: the trace of torch.profiler holds no operator: "),
        (
            "import torch\nwith torch.profiler.profile():\n    torch.ones(2)\n",
            "torch_profiler: torch.profiler was not used: the program uses torch.profiler itself",
        ),
        ("import os, torch\ntorch.ones(2)\nos._exit(0)", "torch_profiler: torch.profiler left no trace: "),
    ],
)
def test_a_profiler_that_saw_nothing_says_so_on_the_terminal(tmp_path: Path, text: str, said: str) -> None:
    done = llm_perf("run", *NO_NSYS, *program(tmp_path, text), cwd=tmp_path)
    assert done.code == 0, done.err
    assert said in done.err


def test_a_program_that_fails_under_a_profiler_alone_keeps_what_its_clean_pass_measured(tmp_path: Path) -> None:
    text = "import os\nif 'LLM_PERF_TORCH_WINDOW' in os.environ:\n    raise ValueError('is watched')\n"
    # On a busy machine the program may last long enough for samples, and then they have the first word.
    done = llm_perf("run", *NO_NSYS, "pipeline.host_samples.enable=false", *program(tmp_path, text), cwd=tmp_path)
    assert done.code == 1
    found = stage(valid_manifest(only_run(tmp_path)), "torch_profiler")
    assert found["reason"].startswith("script.py under torch.profiler failed with exit code 1: ValueError: is watched")
    assert found["metrics"]["wall_ms"]["value"] > 0
    verdict = (only_run(tmp_path) / "report.md").read_text().splitlines()[4]
    # Between the two is where its time went; of a program this short only a busy machine takes samples enough.
    assert " without a profiler. " in verdict and verdict.endswith(" It did not run to its end under torch.profiler.**")
    assert verdict.strip("*") in done.err


def test_a_crashed_program_is_run_once_for_all_stages(tmp_path: Path) -> None:
    text = "open('starts', 'a').write('x')\nraise ValueError('no such model')\n"
    done = llm_perf("run", *NO_NSYS, "pipeline.direct_inference.enable=true", *program(tmp_path, text), cwd=tmp_path)
    assert (done.code, (tmp_path / "starts").read_text()) == (1, "x")
    manifest = valid_manifest(only_run(tmp_path))
    assert statuses(manifest) == {
        "host_samples": "failed",
        "static_analysis": "failed",
        "torch_profiler": "failed",
        "direct_inference": "failed",
    }
    found = manifest["stages"]
    assert {s["reason"].partition(" (log: ")[0] for s in found} == {
        "script.py failed with exit code 1: ValueError: no such model"
    }


@pytest.mark.long
def test_a_program_that_does_not_end_is_ended_after_its_time_and_that_is_no_failure(tmp_path: Path) -> None:
    done = llm_perf("run", *NO_NSYS, "workload.duration_s=3", *program(tmp_path, ENDLESS), cwd=tmp_path)
    assert done.code == 0, done.err
    found = stage(valid_manifest(only_run(tmp_path)), "torch_profiler")["metrics"]
    assert 10 <= found["tpot_ms"]["value"] < 1000
    assert found["wall_ms"]["reason"] == "the program did not end by itself, it was ended after a while"


@pytest.mark.long
def test_a_program_is_ended_after_its_phases_in_every_pass(tmp_path: Path) -> None:
    endless = ENDLESS.replace("import time", "import time, torch")
    limits = ("workload.stop_after_phases=40", "pipeline.torch_profiler.window.steps=5", "workload.repeats=2")
    done = llm_perf("run", *NO_NSYS, *limits, *program(tmp_path, endless), cwd=tmp_path)
    assert done.code == 0, done.err
    found = stage(valid_manifest(only_run(tmp_path)), "torch_profiler")["metrics"]
    assert found["tpot_ms"]["how"] == "clean pass, median of 80"
    assert found["wall_ms"]["reason"] == "the program did not end by itself, it was ended after a while"
    ranges = json.loads((only_run(tmp_path) / "torch_profiler" / "analysis.json").read_bytes())["ranges"]
    assert {row["name"]: row["instances"] for row in ranges} == {"decode_step": 5}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not here")
@pytest.mark.parametrize(
    "window", ["pipeline.nsys.duration_s=3", "pipeline.nsys.stop_after_phases=20", "workload.duration_s=3"]
)
def test_nsys_captures_a_window_of_a_program_that_does_not_end(tmp_path: Path, window: str) -> None:
    others = ("torch_profiler", "ncu", "host_samples")
    done = llm_perf(
        "run",
        *(f"pipeline.{stage}.enable=false" for stage in others),
        "pipeline.nsys.enable=true",
        *(() if window.startswith("workload") else ("workload.duration_s=2",)),
        window,
        *program(tmp_path, ENDLESS),
        cwd=tmp_path,
    )
    manifest = valid_manifest(only_run(tmp_path))
    assert statuses(manifest) == {"static_analysis": "skipped", "nsys": "ok"}, done.err
    rows = json.loads((only_run(tmp_path) / "nsys" / "analysis.json").read_bytes())["ranges"]
    steps = next(row["instances"] for row in rows if row["name"] == "decode_step")
    assert steps == 20 if "phases" in window else steps > 20
