"""The NVTX emitter: chosen by trying it, and its ranges arrive in a report of the real nsys."""

import os
import shutil
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest

from llm_perf_opt.system.process import allowed_environment, run_command
from llm_perf_opt.workload.nvtx import choose_emitter, package_note
from tests.support.fixtures_dir import REPO
from tests.support.real_nsys import capture_alone

CHILD = """
import sys
from pathlib import Path
from tests.support.workload_fakes import FakeConfig, prompts
from llm_perf_opt.workload.session import run_inference
root = Path(sys.argv[1])
config = FakeConfig(dataset=prompts(root / "p.txt", ["1"]), repeats=2).build(root)
run_inference(config, root / "out", warmup_rounds=1, output=None)
"""


def test_the_chosen_backend_is_one_that_works_here() -> None:
    import torch

    emitter = choose_emitter()
    emitter.push("prefill")
    emitter.pop()
    expected = "nvtx (package nvtx 0.2.1" if torch.version.cuda is None else "torch.cuda.nvtx"
    assert emitter.backend.startswith(expected)


def test_versions_whose_ranges_old_nsys_does_not_record_are_noted() -> None:
    assert package_note("0.2.11") is None
    assert "nvtx<0.2.12" in str(package_note("0.2.12"))
    assert "nvtx<0.2.12" in str(package_note("0.3.0"))


@pytest.mark.real_nsys
def test_ranges_arrive_in_a_report_of_the_real_nsys(tmp_path: Path) -> None:
    nsys = shutil.which("nsys")
    assert nsys is not None
    path = os.pathsep.join([str(REPO), str(REPO / "src")])
    env = {**allowed_environment(os.environ), "PYTHONPATH": path}
    record = [nsys, "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "-o", str(tmp_path / "run")]
    work = [sys.executable, "-c", CHILD, str(tmp_path)]
    report = tmp_path / "run.nsys-rep"
    _, said = capture_alone([*record, *work], report, env=env)
    assert report.is_file(), said
    export = [nsys, "export", "--type=sqlite", "-o", str(tmp_path / "run.sqlite"), str(report)]
    exported = run_command(export, env=env, timeout_s=60, log=tmp_path / "export.log")
    assert (tmp_path / "run.sqlite").is_file(), exported.tail
    with sqlite3.connect(tmp_path / "run.sqlite") as database:
        rows = database.execute(
            "SELECT COALESCE(e.text, s.value) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId "
            "WHERE e.eventType = 59 AND e.end IS NOT NULL"
        ).fetchall()
    # One warm-up, then two repeats of one sample, each prefill and three steps after the first of four tokens.
    assert Counter(name for (name,) in rows) == {
        "warmup": 1,
        "prefill": 2,
        "sam": 2,
        "decode": 2,
        "decode_step": 6,
    }
