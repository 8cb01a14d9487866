"""Notebooks: the example runs, what cells show is small, and the magic profiles a cell."""

from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as perf
from llm_perf_opt.errors import ConfigError
from tests.support.fixtures_dir import REPO

NOTEBOOK = REPO / "examples" / "notebook.ipynb"
LARGEST_CELL = 20_000
# As IPython sees the package: by names that users are not shown.
EXTENSION: Any = perf


@pytest.mark.slow
def test_the_example_runs_from_its_first_cell_to_its_last() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    done = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    shown = [output.get("data", {}).get("text/html", "") for cell in done.cells for output in cell.get("outputs", [])]
    assert max(map(len, shown)) < LARGEST_CELL
    assert sum("Where the time goes" in html for html in shown) == 2
    last = done.cells[-1]["outputs"][0]["data"]["text/plain"]
    # Which of two blocks of 20 samples is faster is for the machine to say.
    assert last.startswith("Comparison(") and ": layer wall_ms " in last
    streams = [o for cell in done.cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]
    assert streams == []


def test_the_example_holds_no_results_and_no_paths_of_a_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert '"outputs": []' in text and "/home/" not in text and "/tmp/" not in text
    assert text.count('"outputs": []') == text.count('"cell_type": "code"')


class Shell:
    """As much of IPython's shell as the magic uses."""

    def __init__(self) -> None:
        self.magics: dict[str, Any] = {}
        self.names: dict[str, Any] = {}
        self.is_ok = True

    def register_magic_function(self, function: Any, *, magic_kind: str, magic_name: str) -> None:
        assert magic_kind == "cell"
        self.magics[magic_name] = function

    def push(self, names: dict[str, Any]) -> None:
        self.names.update(names)

    def run_cell(self, cell: str) -> Any:
        exec(cell, {})
        return type("Result", (), {"success": self.is_ok})


@pytest.mark.slow
def test_the_magic_keeps_the_analysis_of_a_cell_under_the_name_given() -> None:
    pytest.importorskip("torch")
    shell = Shell()
    EXTENSION.load_ipython_extension(shell)
    shown = shell.magics["llm_perf"](" before ", "import torch\ntorch.ones(4) + 1")
    assert isinstance(shown, perf.PerfAnalysis) and shell.names == {"before": shown}
    assert "aten::add" in set(shown.operators["name"])
    shell.is_ok = False
    assert shell.magics["llm_perf"]("", "1 + 1") is None and set(shell.names) == {"before"}


def test_the_magic_refuses_what_is_no_name(tmp_path: Path) -> None:
    shell = Shell()
    EXTENSION.load_ipython_extension(shell)
    with pytest.raises(ConfigError, match=r"%%llm_perf: not a name \(got '1st run'\)"):
        shell.magics["llm_perf"]("1st run", "1 + 1")
