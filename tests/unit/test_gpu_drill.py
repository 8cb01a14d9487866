"""The drill on a GPU: its parts keep to their time, and what it leaves can be carried away."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def summarise(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(BENCHMARKS / "gpu_drill_summary.py"), str(root), *words]
    env = {**os.environ, "HF_TOKEN": "hf_planted"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=False)


def drill(root: Path) -> Path:
    (root / "runs" / "llama" / "tmp").mkdir(parents=True)
    (root / "drill.tsv").write_text("step\texit\tseconds\nllama\t0\t1.0\n", encoding="utf-8")
    (root / "runs" / "llama" / "report.md").write_text("a page", encoding="utf-8")
    (root / "runs" / "llama" / "capture.nsys-rep").write_bytes(b"large")
    (root / "runs" / "llama" / "tmp" / "scratch.json").write_text("{}", encoding="utf-8")
    return root


@pytest.mark.long
def test_an_archive_leaves_out_captures_and_scratch_files_and_keeps_below_the_limit(tmp_path: Path) -> None:
    root, packed = drill(tmp_path / "drill"), tmp_path / "pack"
    packed.mkdir()
    (root / "runs" / "llama" / "trace.json").write_bytes(os.urandom(17 << 20))
    done = summarise(root, "--pack", str(packed))
    assert done.returncode == 0, done.stderr
    with tarfile.open(packed / "llama.tar.xz") as tar:
        assert tar.getnames() == ["runs/llama/report.md"]
    with tarfile.open(packed / "results.tar.xz") as tar:
        assert tar.getnames() == ["drill.json", "drill.md", "drill.tsv"]


def test_the_planted_token_is_found_and_fails_the_drill(tmp_path: Path) -> None:
    root = drill(tmp_path)
    assert summarise(root, "--search").returncode == 0
    (root / "runs" / "llama" / "tmp" / "log.txt").write_text("HF_TOKEN=hf_planted", encoding="utf-8")
    assert summarise(root, "--search").returncode == 1
    assert json.loads((root / "drill.json").read_bytes())["files_with_the_planted_token"] == ["runs/llama/tmp/log.txt"]


def test_steps_a_part_has_no_time_for_are_passed_over_by_name(tmp_path: Path) -> None:
    argv = [str(BENCHMARKS / "gpu_drill.sh"), "1", "2", "3", "ten", "rest", "nothing"]
    env = {**os.environ, "DRILL_OUT": str(tmp_path), "DRILL_PART_S": "31", "PYTHON": sys.executable}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=False)
    rows = [line.split("\t") for line in (tmp_path / "drill.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    assert all(row[1].startswith("passed over: ") and row[2] == "0" for row in rows)
    wanted = {"doctor", "llama", "same", "jax", "fp8", "llama_best", "serve", "ocr", "moe", "faults", "stages", "large"}
    wanted |= {"generate", "causes", "slow", "calibrate", "tune"}
    assert wanted <= {row[0] for row in rows}
    assert done.stderr.strip() == "no step called nothing"
    assert done.returncode == 1
