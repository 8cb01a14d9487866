"""What `pip install llm-perf-opt` brings without extras is enough to analyse, predict, plan, compare, report and ask.

The environment is made of links to the distributions the package needs by its own metadata, and of no others.
"""

import importlib.metadata as metadata
import os
import subprocess
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.fixtures_dir import REPO
from tests.support.nsys_builder import h200_export
from tests.support.report_runs import clean, stage, write_run

pytestmark = [pytest.mark.long, pytest.mark.slow]
HEAVY = ("torch", "transformers", "PIL", "nvtx", "safetensors", "ncu_report")
MOST_BYTES = 300 << 20


def _needed(requirement: Requirement, seen: dict[str, metadata.Distribution]) -> None:
    found = metadata.distribution(requirement.name)
    name = found.metadata["Name"].lower()
    if name in seen:
        return
    seen[name] = found
    for text in found.requires or ():
        need = Requirement(text)
        extras = requirement.extras or {""}
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
            _needed(need, seen)


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the package and what it needs."""
    home = tmp_path_factory.mktemp("light") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    seen: dict[str, metadata.Distribution] = {}
    # By pyproject.toml, because the metadata of an editable install may be older than it.
    import tomllib

    for text in tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["dependencies"]:
        _needed(Requirement(text), seen)
    seen["llm-perf-opt"] = metadata.distribution("llm-perf-opt")
    for distribution in seen.values():
        for top in {Path(str(file)).parts[0] for file in distribution.files or ()} - {".."}:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    size = sum(
        Path(str(d.locate_file(file))).stat().st_size
        for d in seen.values()
        for file in d.files or ()
        if Path(str(d.locate_file(file))).is_file()
    )
    assert size < MOST_BYTES, f"{size >> 20} MiB"
    return home / "bin" / "python"


def _run(light: Path, cwd: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    return subprocess.run(
        [str(light), "-m", "llm_perf_opt.cli", *args], cwd=cwd, env=environment, capture_output=True, text=True
    )


def test_nothing_heavy_is_in_the_light_environment(light: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {HEAVY!r} if u.find_spec(n)])"
    done = subprocess.run([str(light), "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    h200_export(folder)
    for name, tpot in (("base", 12.5), ("candidate", 10.0)):
        run = folder / name
        write_run(run, stage("torch_profiler", run, metrics=clean(ttft_ms=120.0, tpot_ms=tpot)))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "model=llama3_8b", "hardware=h200"],
        ["plan", "model=llama3_8b", "hardware=h200", "--devices", "1"],
        ["analyze", "llama.sqlite", "-o", "analysed", "model=llama3_1b", "hardware=h200"],
        ["compare", "base", "candidate"],
        ["report", "base"],
        ["runs", "."],
        ["export", "base", "--to", "prometheus"],
        ["doctor"],
        ["profile", "model=llama3_1b", "dataset=synthetic", "pipeline.torch_profiler.enable=false"],
        ["run", "model=llama3_1b", "pipeline.torch_profiler.enable=false", "pipeline.nsys.enable=false", "--", "true"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_of_the_light_core_works(light: Path, place: Path, words: list[str]) -> None:
    done = _run(light, place, *words)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if words[0] == "doctor":
        assert "pip install 'llm-perf-opt[run]'" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["profile", "experiment=demo"], "pip install 'llm-perf-opt[run]'"),
        (["infer", "experiment=demo"], "pip install 'llm-perf-opt[run]'"),
        (["export", "base", "--to", "mlflow"], "pip install 'llm-perf-opt[mlflow]'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_that_needs_more_names_the_extra(light: Path, place: Path, words: list[str], told: str) -> None:
    done = _run(light, place, *words)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_report_of_ncu_names_the_reader_it_lacks(light: Path, place: Path) -> None:
    (place / "kernels.ncu-rep").write_bytes(b"NVR\0")
    environment = {"PATH": str(light.parent), "HOME": str(place)}
    done = subprocess.run(
        [str(light), "-m", "llm_perf_opt.cli", "analyze", "kernels.ncu-rep"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "pip install 'llm-perf-opt[ncu]'" in done.stderr) == (1, True), done.stderr
