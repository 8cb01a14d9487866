"""What users and plug-ins may rely on: documented, importable, typed, and free until it is used."""

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import llm_perf_opt
from llm_perf_opt import plugin
from llm_perf_opt.testing import StageContract, plain_host
from tests.support.fixtures_dir import REPO

PACKAGE = Path(llm_perf_opt.__file__).parent
PAGE = REPO / "docs" / "plugin-api.md"
USERS_PAGE = REPO / "docs" / "python.md"
SURFACES = (llm_perf_opt, plugin)
GUIDE = REPO / "docs" / "adding-a-stage.md"


def _documented(*, tests: bool) -> list[str]:
    """The names in the first column of the page's tables, of the section on tests or of the others."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)
    chosen = [text for text in sections if text.startswith("Tests\n") is tests]
    cells = [line.split("|")[1] for text in chosen for line in text.splitlines() if line.startswith("| `")]
    return sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell))


def _in_a_new_process(code: str) -> object:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_what_is_documented_is_what_the_package_offers() -> None:
    text = USERS_PAGE.read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `perf.")]
    documented = {name for cell in rows for name in re.findall(r"`perf\.(\w+)", cell)}
    assert documented == set(llm_perf_opt.__all__) - {"__version__"}
    assert dir(llm_perf_opt) == sorted(llm_perf_opt.__all__)


def test_what_is_documented_for_plug_ins_is_what_their_module_offers() -> None:
    assert _documented(tests=False) == sorted(plugin.__all__)
    assert dir(plugin) == sorted(plugin.__all__)


@pytest.mark.parametrize("surface", SURFACES, ids=lambda module: module.__name__)
def test_every_name_is_the_one_its_own_module_defines(surface: ModuleType) -> None:
    homes = {name: module for module, names in surface._HOMES.items() for name in names}
    assert sorted(homes) == sorted(set(surface.__all__) - {"__version__"})
    for name, module in homes.items():
        offered = getattr(surface, name)
        assert offered is getattr(importlib.import_module(f"llm_perf_opt.{module}"), name)
        assert offered.__module__ == f"llm_perf_opt.{module}"


@pytest.mark.parametrize("surface", SURFACES, ids=lambda module: module.__name__)
def test_type_checkers_see_the_same_names_from_the_same_modules(surface: ModuleType) -> None:
    tree = ast.parse(Path(surface.__file__ or "").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    typed = {
        (node.module or "").removeprefix("llm_perf_opt."): tuple(alias.name for alias in node.names)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
    }
    assert typed == surface._HOMES


def test_the_names_of_plug_ins_stay_where_they_were_for_one_release() -> None:
    moved = sorted(set(plugin.__all__) - set(llm_perf_opt.__all__))
    assert "StageConfig" in moved and "load_run" not in moved
    for name in moved:
        with pytest.deprecated_call(match=f"llm_perf_opt.plugin.{name}"):
            assert getattr(llm_perf_opt, name) is getattr(plugin, name)


def test_what_is_documented_for_tests_is_there() -> None:
    testing = importlib.import_module("llm_perf_opt.testing")
    assert [name for name in _documented(tests=True) if getattr(testing, name).__module__ != testing.__name__] == []


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    code = "import json, llm_perf_opt; print(json.dumps(hasattr(llm_perf_opt, 'Nothing')))"
    assert _in_a_new_process(code) is False


@pytest.mark.parametrize("surface", ["llm_perf_opt", "llm_perf_opt.plugin"])
def test_importing_the_package_loads_nothing_of_it(surface: str) -> None:
    code = f"import json, sys, {surface}; print(json.dumps([m for m in sys.modules if 'llm_perf_opt' in m]))"
    loaded = _in_a_new_process(code)
    assert isinstance(loaded, list)
    # An editable install brings its own finder.
    assert [name for name in loaded if not name.startswith("_")] == sorted({"llm_perf_opt", surface})


@pytest.mark.parametrize(
    ("surface", "allowed"), [("llm_perf_opt", {"numpy"}), ("llm_perf_opt.plugin", set())], ids=["users", "plug-ins"]
)
def test_no_name_loads_torch(surface: str, allowed: set[str]) -> None:
    heavy = {"torch", "transformers", "pandas", "numpy", "duckdb", "hydra", "pytest", "pyarrow", "IPython"} - allowed
    code = f"import json, sys; from {surface} import *; print(json.dumps(sorted({heavy!r} & set(sys.modules))))"
    assert _in_a_new_process(code) == []


def test_our_own_modules_import_from_where_a_name_lives() -> None:
    users = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        # Those are plug-ins, which have nothing else to import from.
        if path.relative_to(PACKAGE).parts[0] != "plugins"
        for names in re.findall(
            r"^\s*from llm_perf_opt(?:\.plugin)? import (.*)$", path.read_text(encoding="utf-8"), re.M
        )
        if set(re.split(r",\s*", names)) & {*llm_perf_opt.__all__, *plugin.__all__} - {"__version__"}
    ]
    assert users == []


def test_the_stage_of_the_guide_keeps_the_contract_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    code = text[text.index("```python\n") + len("```python\n") :].partition("```")[0]
    guide = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", guide)
    exec(compile(code, str(GUIDE), "exec"), guide.__dict__)

    class Contract(StageContract):
        stage = guide.STAGE

    Contract().test_it_declares_what_the_pipeline_asks()
    Contract().test_its_settings_are_frozen_off_by_default_and_have_a_light_form()
    (obstacle,) = guide.STAGE.preflight(guide.PowerConfig(), plain_host())
    assert str(obstacle) == "no GPU — run on a machine with one"
