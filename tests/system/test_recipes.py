"""What CONTRIBUTING says to add, added as it says to a copy of the repository: nothing else has to be touched."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_dir import REPO
from tests.support.nsys_builder import Export

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("recipes")]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "showcase", "results")
RECIPES = dict(re.findall(r"^\| (.*?) \| (.*) \|$", (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("copy")
    for part in ("src", "conf", "docs", "scripts"):
        shutil.copytree(REPO / part, home / part, ignore=LEFT_OUT)
    return home


def run(copy: Path, *words: str, also: Sequence[Path] = ()) -> str:
    """A program in the copy, whose package it imports."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (copy / "src", copy, *also)))}
    argv = [sys.executable, *words]
    done = subprocess.run(argv, cwd=copy, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def llm_perf(copy: Path, *words: str, also: Sequence[Path] = ()) -> str:
    return run(copy, "-m", "llm_perf_opt.cli", *words, also=also)


def prediction(copy: Path, model: str, hardware: str) -> Any:
    found = llm_perf(copy, "predict", f"model={model}", f"hardware={hardware}", "--json")
    return json.loads(found)["predictions"][0]


def launch_bound_capture(path: Path) -> Path:
    """A hundred kernels of 15 of every 50 µs."""
    export = Export()
    for i in range(100):
        at = 50_000 * i
        export.call(at, at + 4_000, i + 1)
        export.kernel("gemm", at + 3_000, at + 18_000, i + 1)
    return export.write(path)


def test_a_cause_is_one_file_of_data(copy: Path, tmp_path: Path) -> None:
    assert "`src/llm_perf_opt/diagnosis/causes/<id>.toml`" in RECIPES["a cause"]
    (copy / "src/llm_perf_opt/diagnosis/causes/slow_submission.toml").write_text(
        'cells = ["idle.launch"]\nspecificity = 9\nis_idle = true\n'
        'title = "Slow submission: GPU idle {share:pct} of {place}"\n'
        'plain_words = "The driver is slow."\nrefutes = "Another driver is as slow."\n\n'
        '[[advice]]\ntext = "install another driver"\n',
        encoding="utf-8",
    )
    capture = launch_bound_capture(tmp_path / "capture.sqlite")
    found = json.loads(llm_perf(copy, "analyze", str(capture), "--json"))
    first = found["findings"][0]
    assert (first["rule"], first["title"].partition(":")[0]) == ("slow_submission", "Slow submission")
    assert first["remedy"] == "install another driver"
    run(copy, "scripts/causes_table.py")
    pages = [
        path.name
        for path in (copy / "docs").glob("*.md")
        if "| `slow_submission` | The driver is slow." in path.read_text()
    ]
    assert len(pages) == 1 and f"docs/{pages[0]}" in RECIPES["a cause"]


def test_a_command_is_a_module_and_its_lines_in_the_table_of_commands(copy: Path) -> None:
    assert (
        "`src/llm_perf_opt/commands/`" in RECIPES["a command"] and "`src/llm_perf_opt/cli.py`" in RECIPES["a command"]
    )
    (copy / "src/llm_perf_opt/commands/greet.py").write_text(
        '"""`llm-perf greet`: a greeting."""\n\nfrom collections.abc import Sequence\n\n\n'
        'def main(argv: Sequence[str]) -> int:\n    print("hello", *argv)\n    return 0\n',
        encoding="utf-8",
    )
    cli = copy / "src/llm_perf_opt/cli.py"
    entry = 'COMMANDS = {\n    "greet": Command("commands.greet", "[NAME]", "a greeting"),\n'
    cli.write_text(cli.read_text(encoding="utf-8").replace("COMMANDS = {\n", entry), encoding="utf-8")
    assert llm_perf(copy, "greet", "you") == "hello you\n"
    assert re.search(r"greet \[NAME\] +a greeting", llm_perf(copy, "--help"))


def test_a_gpu_is_one_file(copy: Path) -> None:
    assert "`conf/hardware/`" in RECIPES["a GPU"]
    text = (copy / "conf/hardware/l4.yaml").read_text(encoding="utf-8")
    faster = text.replace("name: l4", "name: l400").replace("NVIDIA L4\n", "NVIDIA L400\n")
    faster = faster.replace("memory_bandwidth_gb_s: 300.0", "memory_bandwidth_gb_s: 3000.0")
    (copy / "conf/hardware/l400.yaml").write_text(faster, encoding="utf-8")
    old, new = (
        prediction(copy, "llama3_1b", name)["phases"]["decode"]["bound_ms"]["datasheet"] for name in ("l4", "l400")
    )
    assert old == pytest.approx(10 * new, rel=0.05)


def test_a_size_of_a_known_model_is_two_files_outside_the_package(copy: Path) -> None:
    assert RECIPES["a model"].startswith("2 to 5, none of them in the package")
    home = copy / "conf/model"
    arch = (home / "causal_lm/arch/llama_tiny.yaml").read_text(encoding="utf-8")
    deeper = arch.replace("name: llama_tiny", "name: llama_deep").replace("layers: 2", "layers: 4")
    (home / "causal_lm/arch/llama_deep.yaml").write_text(deeper, encoding="utf-8")
    bundle = (home / "llama_tiny.yaml").read_text(encoding="utf-8").replace("llama_tiny", "llama_deep")
    (home / "llama_deep.yaml").write_text(bundle, encoding="utf-8")
    old, new = (prediction(copy, name, "l4")["parameters"]["groups"] for name in ("llama_tiny", "llama_deep"))
    assert new["attention"] == 2 * old["attention"] and new["embedding"] == old["embedding"]


STAGE = """
from llm_perf_opt.plugin import Metric, StageConfig, StageOutput, StageTraits

class Counting:
    name, config_cls, after, tools = "counting", StageConfig, (), ()
    runs_model = gives_clean_pass = needs_our_model = False
    def preflight(self, cfg, host):
        return ()
    def run(self, cfg, ctx):
        return StageOutput(metrics={"counted": Metric(value=3, unit="things", how="counted by hand")})

STAGE = Counting()
"""


def test_a_stage_as_a_plug_in_is_a_module_and_its_entry_point(copy: Path, tmp_path: Path) -> None:
    assert RECIPES["a stage, as a plug-in"].startswith("2: the module and its entry point")
    (tmp_path / "counting.py").write_text(STAGE, encoding="utf-8")
    info = tmp_path / "counting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[llm_perf_opt.stages]\ncounting = counting:STAGE\n", encoding="utf-8")
    runs = tmp_path / "run"
    off = ("pipeline.static_analysis.enable=false", "pipeline.torch_profiler.enable=false")
    words = (
        "model=llama_tiny",
        "dataset=synthetic",
        *off,
        "+pipeline.counting.enable=true",
        f"artifacts.runs_dir={runs}",
    )
    llm_perf(copy, "profile", *words, also=[tmp_path])
    (stage,) = json.loads((runs / "manifest.json").read_text(encoding="utf-8"))["stages"]
    assert (stage["name"], stage["status"], stage["metrics"]["counted"]["value"]) == ("counting", "ok", 3)
