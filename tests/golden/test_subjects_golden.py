"""The report of each subject besides the run of a model, whole: a program, a capture, kernels alone, a served load.

To accept a change: LLM_PERF_UPDATE_GOLDEN=1 pytest tests/golden, then read the difference.
"""

import json
import lzma
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.report.write import write_reports
from tests.support.fixtures_dir import DATA
from tests.support.nsys_builder import Export
from tests.support.report_runs import program_without_phases

GOLDEN = Path(__file__).parent / "subjects"
# As `vllm bench serve` writes it.
SERVED = {
    "endpoint_type": "openai",
    "backend": "openai",
    "model_id": "tiny",
    "num_prompts": 200,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 50.0,
    "completed": 198,
    "failed": 2,
    "total_input_tokens": 2000,
    "total_output_tokens": 3168,
    "request_throughput": 3.96,
    "output_throughput": 63.36,
    "total_token_throughput": 103.36,
    "mean_ttft_ms": 20.5,
    "median_ttft_ms": 19.0,
    "std_ttft_ms": 3.0,
    "p99_ttft_ms": 40.0,
    "mean_tpot_ms": 5.5,
    "median_tpot_ms": 5.0,
    "std_tpot_ms": 1.0,
    "p99_tpot_ms": 9.0,
}


def _analyzed(out: Path, *files: Path) -> Path:
    assert main(["analyze", *map(str, files), "-o", str(out)]) == 0
    return out


def program(folder: Path) -> Path:
    run = program_without_phases(folder / "run", 4000.0, 4100.0)
    write_reports(run)
    return run


def capture(folder: Path) -> Path:
    """A hundred kernels of 15 of every 50 µs in a range."""
    export = Export()
    export.range("decode", 0, 5_000_000)
    for i in range(100):
        at = 50_000 * i
        export.call(at, at + 4_000, i + 1)
        export.kernel("gemm", at + 3_000, at + 18_000, i + 1)
    return _analyzed(folder / "run", export.write(folder / "capture.sqlite"))


def kernels_only(folder: Path) -> Path:
    page = folder / "raw.csv"
    page.write_bytes(lzma.decompress((DATA / "ncu_raw.csv.xz").read_bytes()))
    return _analyzed(folder / "run", page)


def served_load(folder: Path) -> Path:
    files = [folder / "1.json", folder / "2.json"]
    for rate, path in enumerate(files, start=1):
        path.write_text(json.dumps({**SERVED, "request_rate": float(rate)}), encoding="utf-8")
    return _analyzed(folder / "run", *files)


def steady(text: str, folder: Path) -> str:
    """Without what differs from day to day, from folder to folder and from machine to machine."""
    text = re.sub(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d\+00:00| \d\d:\d\d UTC)", "DATE", text)
    return text.replace(str(folder), "FOLDER")


@pytest.mark.parametrize("subject", [program, capture, kernels_only, served_load], ids=lambda made: made.__name__)
def test_the_report_of_a_subject_reads_as_agreed(
    subject: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = steady((subject(tmp_path) / "report.md").read_text(encoding="utf-8"), tmp_path)
    path = GOLDEN / f"{subject.__name__}.md"
    if os.environ.get("LLM_PERF_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")
