"""The stage of examples/ as an outsider has it: built, installed into a fresh environment, run, held to contract."""

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.fixtures_dir import REPO

EXAMPLE = REPO / "examples" / "stage_pyspy"
BUSY = """
import time

def look_around():
    until = time.monotonic() + 0.7
    while time.monotonic() < until:
        sum(range(1000))

look_around()
"""


def call(*argv: str | Path, cwd: Path, timeout_s: float = 240.0) -> str:
    done = subprocess.run([str(word) for word in argv], cwd=cwd, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that sees the packages of this one, with the example built and installed into it."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("outside")
    call(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    (site,) = folder.glob("env/lib/python3*/site-packages")
    # Also what the .pth files there add, such as an editable install.
    (site / "outside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, EXAMPLE, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert "stage_pyspy/stage.py" in packed.namelist()
    call(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=folder)
    assert (site / "stage_pyspy" / "stage.py").is_file()
    return python


@pytest.mark.long
def test_the_example_keeps_the_contract_where_it_is_installed(environment: Path, tmp_path: Path) -> None:
    told = call(environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests", cwd=tmp_path)
    assert " passed" in told and "failed" not in told


@pytest.mark.long
def test_a_run_has_its_flame_graph_on_the_page(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BUSY)
    stages = [f"pipeline.{name}.enable=false" for name in ("torch_profiler", "nsys", "ncu")]
    words = [*stages, "pipeline.pyspy.enable=true", "pipeline.pyspy.rate=200", "artifacts.runs_dir=run"]
    call(environment, "-m", "llm_perf_opt.cli", "run", *words, "--", environment, "program.py", cwd=tmp_path)
    run = tmp_path / "run"
    (stage,) = [s for s in json.loads((run / "manifest.json").read_text())["stages"] if s["name"] == "pyspy"]
    assert stage["status"] == "ok" and stage["metrics"]["python_samples"]["value"] > 20
    (section,) = stage["sections"]
    assert section["tables"][0]["rows"][0][0].startswith("look_around (program.py")
    page = (run / "report.html").read_text()
    assert "Python on the host" in page and "data:image/svg+xml;base64," in page


@pytest.mark.long
def test_without_it_installed_its_section_is_an_unknown_key(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "llm_perf_opt.cli", "profile", "experiment=demo", "pipeline.pyspy.enable=true"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "pipeline.pyspy.enable: unknown key" in done.stderr
